"""Texts taken apart into the terms that are looked up: words, or words and Korean character bigrams.

Both are ours because bm25s' own pattern drops words of one character and makes "5" of "3.5". Neither leaves out stop
words: a list is good for one language, and BM25 weighs common words down by itself.
"""

import re
import unicodedata
from collections.abc import Sequence

# A number with its decimals or groups is one term; letters and digits of other words stay together (KX42, v2).
WORD_PATTERN = r"(?u)\d+(?:[.,:]\d+)+|\w+"
_WORD = re.compile(WORD_PATTERN)
# Scripts whose words are not apart by spaces, or carry particles: Hangul, kana, Chinese characters.
_CJK = "\u1100-\u11ff\u3040-\u30ff\u3130-\u318f\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff"
_PIECE = re.compile(rf"[{_CJK}]+|\d+(?:[.,:]\d+)+|[^\W{_CJK}]+")


def plain(text: str) -> str:
    """``text`` as it is compared: composed, of one width, in lower case."""
    return unicodedata.normalize("NFKC", text).casefold()


def words(texts: Sequence[str]) -> list[list[str]]:
    """The words of each text, in lower case, those of one character among them."""
    return [_WORD.findall(text.lower()) for text in texts]


def bigrams(texts: Sequence[str]) -> list[list[str]]:
    """Of each text, its words and numbers; of Hangul, kana and Chinese characters every two that stand together, and
    each one. "서울에 3.5배" → 서울 울에 서 울 에 3.5 배. Without the single ones 굴 would not be found in 굴밥 by 굴을
    (Lucene's CJKBigramFilter has them as outputUnigrams)."""
    known: dict[str, list[str]] = {}  # most words come again
    found = []
    for text in texts:
        terms: list[str] = []
        for word in _PIECE.findall(plain(text)):
            grams = known.get(word)
            if grams is None:
                grams = known[word] = _grams(word)
            terms += grams
        found.append(terms)
    return found


def _grams(word: str) -> list[str]:
    if len(word) == 1 or not is_cjk(word[0]):
        return [word]
    return [*(word[at : at + 2] for at in range(len(word) - 1)), *word]


_CJK_CHARACTER = re.compile(f"[{_CJK}]")


def is_cjk(character: str) -> bool:
    """Whether it is a character that bigrams are made of."""
    return _CJK_CHARACTER.match(character) is not None


def korean_share(text: str) -> float:
    """Hangul among the letters of a text, 0 to 1; 0 without letters."""
    letters = [each for each in text if each.isalpha()]
    return sum("가" <= each <= "힣" or "ㄱ" <= each <= "ㆎ" for each in letters) / len(letters) if letters else 0.0
