"""Whether a text names a value as a word of its own.

Case, width and punctuation do not count, nor how numbers are written; symbols ("+", "%", "★") count where the value
holds them. Behind Korean stand particles and what a sentence ends in.
"""

import re
import unicodedata
from collections.abc import Sequence
from itertools import pairwise

from kvscope.quality.korean import final_consonant
from kvscope.quality.number_words import in_digits
from kvscope.quality.numbers_said import joined_numbers

_PARTICLES = (
    "이|가|은|는|을|를|과|와|의|에|도|만|로|으로|으?로서|으?로써|야|아|랑|이랑|씨|께|께서|에게|에게서|에서|한테|한테서|부터|까지|보다|처럼|"
    "마다|조차|마저|밖에|뿐|만큼|하고|이나|이든|번"
)
# The copula in its forms: 입니다, 이었습니다, 였어요, 이죠, 이네요, 인데요, 이라고, 이랍니다, 일 (것이다) ...
_COPULA = (
    r"입니[가-힣]{1,3}|(?:이었|이였|였|이셨|이겠|이시)[가-힣]{0,6}|이?라(?:고[가-힣]{0,4}|[는네면서며던지도])?|이?랍니[가-힣]{1,2}|"
    r"이?란|이?(?:에요|예요|야|죠|지요?|네요?|고요?|며|면|다(?:고|는|만|가)?|요|니까)|이?거든요?|이(?:올시다|므로|거나|자|기(?:도|에|는)?)|"
    r"인(?:데요?|지|가요?|걸요?|듯[가-힣]{0,3})?|임[은을이]?|일(?:까요?)?"
)
_ADDRESS, _SHORTEST_ADDRESSED = "님", 3  # 하나님 is no 하나
_FEW_PARTICLES = "이|가|은|는|을|를|의|에"  # of one syllable too much else is a word of its own: 도로 is no 도
_FEW_COPULAS = r"입니[가-힣]{1,3}|(?:이었|였)[가-힣]{0,6}|이?다|이에요|예요|이?요"
_NUMBERS_OF_A_DATE = 3

_NUMBER = r"(?:(?<![^\W_])-(?=\d))?\d+(?:\.\d+)?"
_PIECE = re.compile(rf"{_NUMBER}|[가-힣]+|[^\W\d_가-힣]+|[^\w\s]")


def is_named(value: str, text: str) -> bool:
    """Whether a text names a value as a word of its own: in any case and width, Korean with any particle behind it and
    with or without its inner spaces; small numbers in digits or in words. "Torvan" is not named in "Torvanel", "5" not
    in "-5", "C++" not in "C"."""
    return bool(all_named((value,), text))


def all_named(values: Sequence[str], text: str) -> tuple[str, ...]:
    """Those of the values that a text names, each as ``is_named`` says."""
    given = _plain(text)
    counted = _plain(in_digits(given))
    return tuple(value for value in values if _is_named(_plain(value), given, counted))


def _is_named(wanted: str, given: str, given_counted: str) -> bool:
    counted = _plain(in_digits(wanted))
    is_counted = counted != wanted or any(letter.isdigit() for letter in wanted)
    return _found(wanted, given) or (is_counted and _found(counted, given_counted))


def symbols(text: str) -> str:
    """The signs of a text that are no punctuation: + % # ° ★ and currencies."""
    return "".join(letter for letter in text if _is_symbol(letter))


def _is_symbol(letter: str) -> bool:
    if len(letter) != 1:
        return False
    return letter in "%‰#" or (letter not in "`^|~" and unicodedata.category(letter) in ("Sm", "Sc", "Sk", "So"))


def _plain(text: str) -> str:
    folded = joined_numbers(text).casefold().replace("&", " and ")
    folded = re.sub(r"(?<=\d)\s?(?:percent|per cent|퍼센트)", "%", folded)
    return "".join(letter for letter in folded if not unicodedata.combining(letter))


def _found(wanted: str, text: str) -> bool:
    pieces = [found for found in _PIECE.finditer(wanted) if found[0][-1].isalnum() or _is_symbol(found[0])]
    if not pieces:
        return False
    pattern = _before(pieces[0][0]) + _inside(pieces[0][0])
    is_range = sum(piece[0][-1].isdigit() for piece in pieces) < _NUMBERS_OF_A_DATE
    for last, piece in pairwise(pieces):
        between = _between(last[0], wanted[last.end() : piece.start()], piece[0], is_range=is_range)
        pattern += between + _inside(piece[0])
    return re.search(pattern + _behind(pieces[-1][0]), text) is not None


def _inside(piece: str) -> str:
    whole, _, fraction = piece.partition(".")
    if not fraction:
        return re.escape(piece) + (r"(?:\.0+(?!\d))?" if piece.isdigit() else "")
    return rf"{re.escape(whole)}[.,]{fraction.rstrip('0')}0*(?!\d)"


def _between(last: str, gap: str, following: str, *, is_range: bool) -> str:
    """What may stand between two pieces of a value, by what stands there."""
    if _is_symbol(last) or _is_symbol(following):
        return r"[\s.,]*"
    are_numbers = last[-1].isdigit() and following[-1].isdigit()
    if are_numbers and gap.strip() == "/":
        return r"\s*/\s*"
    if are_numbers and gap.strip() in ("-", "–", "~"):
        return r"\s*(?:[-–~]|to)\s*" if is_range else r"\s*[-–./]\s*"
    if last[-1].isdigit() != following[-1].isdigit() or (_is_korean(last[-1]) and _is_korean(following[0])):
        return r"[\W_]*"
    return r"[\W_]+" if gap else ""


def _before(piece: str) -> str:
    if piece[-1].isdigit():
        return r"(?<![a-z\d])(?<!\d[.,:/])" + ("" if piece.startswith("-") else r"(?<!(?<![^\W_])-)")
    if _is_symbol(piece):
        return ""
    return r"(?<![가-힣])" if _is_korean(piece[:1]) else r"(?<![^\W_])"


def _behind(piece: str) -> str:
    if piece[-1].isdigit():
        return r"(?![a-z\d])(?![.,:/]\d)"
    if _is_symbol(piece):
        return rf"(?!{re.escape(piece)})" + (r"(?![^\W_가-힣])" if piece in "+#" else "")
    if not _is_korean(piece[-1]):
        return rf"(?:(?![^\W_])|(?=(?:{_PARTICLES}|{_COPULA})(?![가-힣\w])))(?!\+\+|[+#](?!\w))"
    if len(piece) == 1:
        return rf"(?=(?:{_FEW_PARTICLES}|{_FEW_COPULAS})?(?![가-힣\w]))"
    address = f"|{_ADDRESS}" if len(piece) >= _SHORTEST_ADDRESSED else ""
    copula = _COPULA.replace("이?", "이") if final_consonant(piece) else _COPULA
    return rf"(?=(?:{_PARTICLES}{address}){{0,2}}(?:{copula})?(?![가-힣\w]))"


def _is_korean(text: str) -> bool:
    return any("가" <= letter <= "힣" for letter in text)
