"""Numbers that an answer names: digits with separators, digits one by one, and small numbers in words."""

import re
import unicodedata

# 48,213 · 48 213 · 48'213 · 48_213. A point is left alone: 48.213 may be a fraction.
_GROUPED = re.compile(r"(?<![\d.,])\d{1,3}(?:[,'’_\u00a0\u2009\u202f ]\d{3})+(?!\d)(?![,.]\d)")
# "4 8 2 1 3", "4-8-2-1-3": five digits told one by one.
_SPELT = re.compile(r"(?<![\d\w])\d(?:(?: |-|, |,)\d){3,}(?![\d\w])")
_TEN_THOUSANDS = re.compile(r"(?<!\d)(\d{1,4})만\s?(\d{1,4})?(?!\d)")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")

_ENGLISH = (
    "two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen "
    "nineteen twenty"
).split()
_KOREAN = (
    ("하나", "한"),
    ("둘", "두"),
    ("셋", "세"),
    ("넷", "네"),
    ("다섯",) * 2,
    ("여섯",) * 2,
    ("일곱",) * 2,
    ("여덟",) * 2,
    ("아홉",) * 2,
    ("열",) * 2,
)
_SINO = "일이삼사오육칠팔구십"
_COUNTERS = "번|회|개|자루|명|차례|마리"
_ONE = re.compile(r"\b(?:one time|once)\b|\A\W*one\W*\Z", re.IGNORECASE)


def numbers_said(text: str, *, in_words: bool = False) -> tuple[str, ...]:
    """The numbers of a text in their order, each once, as digits without leading zeros: "48,213" is "48213".

    ``in_words``: where there is no digit at all, small numbers in words are read too ("seven", "세 번"); to be asked
    for only where a small number is the answer, since words like "one" stand in many sentences."""
    plain = joined_numbers(text)
    found = [_bare(number) for number in _NUMBER.findall(plain)]
    if not found and in_words:
        found = _in_words(plain)
    return tuple(dict.fromkeys(found))


def joined_numbers(text: str) -> str:
    """The text (NFKC) with each number in plain digits: without separators, told digit by digit, or with 만."""
    plain = _GROUPED.sub(lambda found: re.sub(r"\D", "", found[0]), unicodedata.normalize("NFKC", text))
    plain = _TEN_THOUSANDS.sub(lambda found: str(int(found[1]) * 10_000 + int(found[2] or 0)), plain)
    return _SPELT.sub(lambda found: re.sub(r"\D", "", found[0]), plain)


def _bare(number: str) -> str:
    """Without zeros before it or behind its point: "007" is "7", "3.50" is "3.5", "12.0" is "12"."""
    whole, _, fraction = number.partition(".")
    fraction = fraction.rstrip("0")
    return (whole.lstrip("0") or "0") + (f".{fraction}" if fraction else "")


def _in_words(text: str) -> list[str]:
    found = ["1"] if _ONE.search(text) else []
    if re.search(r"\btwice\b", text, re.IGNORECASE):
        found.append("2")
    found += [
        str(number) for number, word in enumerate(_ENGLISH, start=2) if re.search(rf"\b{word}\b", text, re.IGNORECASE)
    ]
    for number, (alone, before_counter) in enumerate(_KOREAN, start=1):
        alone_there = re.search(rf"(?<![가-힣]){alone}(?![가-힣])", text)
        if alone_there or re.search(rf"(?<![가-힣]){before_counter}\s?(?:{_COUNTERS})", text):
            found.append(str(number))
    sino = re.fullmatch(rf"\W*([{_SINO}])\s?(?:{_COUNTERS})?(?:입니다|이다|이에요|예요|다)?\W*", text)
    if sino is not None and not found:
        found.append(str(_SINO.index(sino[1]) + 1))
    return found
