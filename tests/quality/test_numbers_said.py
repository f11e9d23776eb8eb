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
    ],
)
def test_small_numbers_in_words(text: str, numbers: list[str]) -> None:
    assert list(numbers_said(text, in_words=True)) == numbers
    assert [number for number in numbers_said(text) if number not in text] == []


@given(st.integers(min_value=0, max_value=10**9), st.sampled_from([",", " ", "'", "_", "\u202f"]))
def test_thousands_may_be_set_apart_by_any_of_these(number: int, separator: str) -> None:
    assert numbers_said(f"about {number:,} in all".replace(",", separator)) == (str(number),)


@given(st.lists(st.integers(min_value=10_000, max_value=99_999), max_size=6, unique=True))
def test_each_number_is_found_once_in_its_order(numbers: list[int]) -> None:
    text = "; ".join(f"crate {number}" for number in numbers + numbers)
    assert list(numbers_said(text)) == [str(number) for number in numbers]
