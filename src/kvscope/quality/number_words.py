"""Numbers told in words, from 0 to 99, in English and Korean, turned into digits where they surely are numbers."""

import re

_ENGLISH = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_VALUES = {word: value for value, word in enumerate(_ENGLISH)} | {
    word: 10 * tens for tens, word in enumerate(_TENS, start=2)
}
_PART = r"(?!-[a-z]|\s+(?:thirds?|half|halves|quarters?|fifths|tenths|point)\b|\s+and\s+a\s+half)"
_WORDS = re.compile(
    rf"\b(?:({'|'.join(_TENS)})(?:[\s-]+({'|'.join(_ENGLISH[1:10])}))?|(zero|{'|'.join(_ENGLISH[2:])}))\b{_PART}",
    re.IGNORECASE,
)
NUMBER_WORD = rf"(?:{'|'.join((*_ENGLISH, *_TENS))})\b"
# "one" is a pronoun more often than a number: not behind these words, and not before those.
_ONE = re.compile(
    r"(?<!\bno )(?<!\bany )(?<!\bevery )(?<!\bsome )(?<!\bwhich )(?<!\bthis )(?<!\bthat )(?<!\bthe )(?<!\banother )"
    rf"(?<!\beach )(?<!-)\bone\b(?!\s+(?:of|another|more|who|that|can|must|may|should|knows?)\b){_PART}",
    re.IGNORECASE,
)
# Beside another number it counts only where both are told together.
_ONE_OR_MORE = re.compile(r"\bone (?:or|to|and) \d|\d (?:or|to|and) one\b", re.IGNORECASE)
_A_HUNDRED = re.compile(r"\b(?:one|an?)(?=\s+(?:hundred|thousand|million|billion|dozen)\b)", re.IGNORECASE)
_TIMES = {"once": "1 time", "twice": "2 times", "thrice": "3 times"}

_ALONE = "하나 둘 셋 넷 다섯 여섯 일곱 여덟 아홉".split()
_COUNTING = "한 두 세 네 다섯 여섯 일곱 여덟 아홉".split()
_NATIVE_TENS = "열 스물 서른 마흔 쉰 예순 일흔 여든 아흔".split()
_SINO = "일이삼사오육칠팔구"
_COUNTER = (
    "(?:번(?![호째])|회|차례|개|자루|명|마리|살|시간?|척|권|장|대|채|병|잔|곳|가지|그루|송이|켤레|상자|킬로|미터)"
)
_COPULA = "(?:입니[다까]|이?다|이?에요|예요|이?요|이?었|였|이?며|이?고)"
_BEFORE = r"(?<![가-힣])(?<![백천만억]\s)"
_TENS_GROUP = f"({'|'.join(_NATIVE_TENS)})"
_NATIVE_COUNTED = re.compile(
    rf"{_BEFORE}(?:{_TENS_GROUP}\s?)?(?:({'|'.join(_COUNTING)})|(?<=[열물른흔쉰순든무]))(?=\s?{_COUNTER})"
)
_NATIVE_TWENTY = re.compile(rf"{_BEFORE}스무(?=\s?{_COUNTER})")
_NATIVE_ALONE = re.compile(rf"{_BEFORE}{_TENS_GROUP}?({'|'.join(_ALONE)})(?=[^가-힣]|\Z|{_COPULA})")
_NATIVE_ONLY_TENS = re.compile(rf"\A(\W*){_TENS_GROUP}(?=\W*\Z|{_COPULA})")
_SINO_TENS = re.compile(rf"{_BEFORE}([{_SINO}]?)십([{_SINO}]?)(?=\s?{_COUNTER}|\W*\Z|{_COPULA}|[^\w\s])")
_SINO_UNIT = re.compile(
    rf"\A(\W*(?:(?:모두|총|합계|답은|정답은)\s+)?)([{_SINO}])(?=\s?{_COUNTER}?(?:{_COPULA}[가-힣]{{0,3}})?\W*\Z)"
)


def in_digits(text: str) -> str:
    """The text with its numbers in words as digits: "twenty-four sacks", "24 sacks"; "열세 번", "13번". A word that is
    also something else ("one", "네", "이") is left where nothing shows that it counts. Of larger numbers each part is
    turned alone ("two hundred": "2 hundred")."""
    text = _WORDS.sub(_english, _A_HUNDRED.sub("1", text))
    if not any(letter.isdigit() for letter in text) or _ONE_OR_MORE.search(text):
        text = _ONE.sub("1", text)
    for word, digits in _TIMES.items():
        text = re.sub(rf"\b{word}\b", digits, text, flags=re.IGNORECASE)
    text = _NATIVE_TWENTY.sub("20", text)
    text = _NATIVE_COUNTED.sub(lambda found: _native(found[1], found[2], _COUNTING), text)
    text = _NATIVE_ALONE.sub(lambda found: _native(found[1], found[2], _ALONE), text)
    text = _NATIVE_ONLY_TENS.sub(lambda found: found[1] + _native(found[2], None, _ALONE), text)
    text = _SINO_TENS.sub(lambda found: str(10 * (_sino(found[1]) or 1) + _sino(found[2])), text)
    return _SINO_UNIT.sub(lambda found: f"{found[1]}{_sino(found[2])}", text)


def _english(found: re.Match[str]) -> str:
    tens, units, alone = (part.lower() if part else "" for part in found.groups())
    return str(_VALUES[alone] if alone else _VALUES[tens] + (_VALUES[units] if units else 0))


def _native(tens: str | None, units: str | None, forms: list[str]) -> str:
    return str(10 * (_NATIVE_TENS.index(tens) + 1 if tens else 0) + (forms.index(units) + 1 if units else 0))


def _sino(digit: str) -> int:
    return _SINO.index(digit) + 1 if digit else 0
