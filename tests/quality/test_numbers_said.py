"""Numbers that an answer names, in every way that answers were seen to name them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope.quality.numbers_said import numbers_said

SAID = [
    ("48213", ["48213"]),
    ("The number is 48,213.", ["48213"]),
    ("It has 48 213 stones", ["48213"]),
    ("48\u00a0213", ["48213"]),
    ("48'213 or 48_213", ["48213"]),
    ("４８２１３", ["48213"]),
    ("4 8 2 1 3", ["48213"]),
    ("4-8-2-1-3.", ["48213"]),
    ("4, 8, 2, 1, 3", ["48213"]),
    ("4만 8213번이다", ["48213"]),
    ("4만 8,213", ["48213"]),
    ("48213번입니다", ["48213"]),
    ("007", ["7"]),
    ("12.0 or 12", ["12"]),
    ("3.50", ["3.5"]),
    ("48.213", ["48.213"]),
    ("1, 2, 3", ["1", "2", "3"]),
    ("48213, 10990 and 48213", ["48213", "10990"]),
    ("82501.\n\n73906", ["82501", "73906"]),
    ("-5 and \u22125", ["-5"]),  # a sign belongs to its number
    ("3-5", ["3", "5"]),
    ("crate N-48213", ["48213"]),
    ("48213/2", ["48213/2"]),
    (".5", ["0.5"]),
    ("1e6", ["1000000"]),
    ("48213 thousand", ["48213000"]),
    ("1.5 million", ["1500000"]),
    ("7 + 8 + 9 = 24", ["24"]),
    ("5+8=13 sacks", ["13"]),
    ("5 and 8", ["5", "8"]),
    ("4\u200b8213", ["48213"]),
    ("none", []),
    ("", []),
]


@pytest.mark.parametrize(("text", "numbers"), SAID)
def test_numbers_in_digits(text: str, numbers: list[str]) -> None:
    assert list(numbers_said(text)) == numbers


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("seven", ["7"]),
        ("She came three times.", ["3"]),
        ("twice", ["2"]),
        ("Once.", ["1"]),
        ("one of the visitors", []),
        ("세 번", ["3"]),
        ("세번입니다", ["3"]),
        ("모두 둘", ["2"]),
        ("삼 번입니다", ["3"]),
        ("네, 그렇습니다", []),
        ("한 사람이 왔다", []),
        ("seven, that is 8", ["8"]),
        ("zero", ["0"]),
        ("only one", ["1"]),
        ("There is one boat.", ["1"]),
        ("No one came.", []),
        ("seven o'clock, one hour later", ["7"]),
        ("one or two", ["1", "2"]),
        ("thrice", ["3"]),
        ("twenty-four sacks", ["24"]),
        ("Twenty four", ["24"]),
        ("two dozen", ["24"]),
        ("one hundred twenty-four", ["100", "24"]),  # read to 99 only; so it is no 24
        ("two thirds", []),
        ("twenty-third", []),
        ("열세 개", ["13"]),
        ("십삼 개", ["13"]),
        ("열셋", ["13"]),
        ("스무 번", ["20"]),
        ("스물네 개", ["24"]),
        ("스물넷입니다", ["24"]),
        ("이십사", ["24"]),
        ("총 이십사 개입니다", ["24"]),
        ("서른 개", ["30"]),
        ("아흔아홉 번", ["99"]),
        ("구십구 번", ["99"]),
        ("두세 번", []),
        ("세 번째", []),
        ("네 번호는", []),
        ("이 번호는", []),
        ("이백이십사", []),
        ("백 이십사 개", []),
    ],
)
def test_small_numbers_in_words(text: str, numbers: list[str]) -> None:
    assert list(numbers_said(text, in_words=True)) == numbers
    assert [number for number in numbers_said(text) if number not in text] == []


NATIVE = ("", "열", "스물", "서른", "마흔", "쉰", "예순", "일흔", "여든", "아흔")
UNITS = ("", "하나", "둘", "셋", "넷", "다섯", "여섯", "일곱", "여덟", "아홉")
COUNTED = ("", "한", "두", "세", "네", "다섯", "여섯", "일곱", "여덟", "아홉")
SINO = ("", "일", "이", "삼", "사", "오", "육", "칠", "팔", "구")


@pytest.mark.parametrize("number", range(1, 100))
def test_every_number_to_99_in_korean_words(number: int) -> None:
    tens, units = divmod(number, 10)
    sino = f"{SINO[tens] if tens > 1 else ''}{'십' if tens else ''}{SINO[units]}"
    counted = NATIVE[tens] + COUNTED[units] if number != 20 else "스무"
    for text in (f"{NATIVE[tens]}{UNITS[units]}입니다.", f"모두 {counted} 번입니다", f"{sino} 회", sino):
        assert numbers_said(text, in_words=True) == (str(number),), text


ENGLISH_UNITS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
ENGLISH_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


@pytest.mark.parametrize("number", range(100))
def test_every_number_to_99_in_english_words(number: int) -> None:
    tens, units = divmod(number, 10)
    word = ENGLISH_UNITS[number] if tens < 2 else ENGLISH_TENS[tens - 2] + (f"-{ENGLISH_UNITS[units]}" if units else "")
    for text in (word, word.replace("-", " ").capitalize() + ".", f"It had {word} sacks."):
        assert numbers_said(text, in_words=True) == (str(number),), text


@given(st.integers(min_value=0, max_value=10**9), st.sampled_from([",", " ", "'", "_", "\u202f"]))
def test_thousands_may_be_set_apart_by_any_of_these(number: int, separator: str) -> None:
    assert numbers_said(f"about {number:,} in all".replace(",", separator)) == (str(number),)


@given(st.lists(st.integers(min_value=10_000, max_value=99_999), max_size=6, unique=True))
def test_each_number_is_found_once_in_its_order(numbers: list[int]) -> None:
    text = "; ".join(f"crate {number}" for number in numbers + numbers)
    assert list(numbers_said(text)) == [str(number) for number in numbers]
