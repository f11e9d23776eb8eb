"""Values that are neither a bare number nor a bare name: with signs, units, symbols, numbers in words."""

import pytest
from questions_by_hand import question

from kvscope.quality.named import all_named
from kvscope.quality.scoring import scored

NAMED = [
    ("-5", "-5"),
    ("-5", "It is \u22125 °C."),
    ("-5 degrees", "It is -5 degrees."),
    ("C", "C."),
    ("C++", "It was written in C++."),
    ("C#", "C#"),
    ("A+", "**A+**"),
    ("10%", "10 %"),
    ("10%", "10 percent of it"),
    ("★", "★"),
    ("+", "“+”"),
    ("$500", "$500"),
    ("500", "$500"),
    ("5 km", "It is 5km."),
    ("5km", "5 km"),
    ("3.5 metres", "3,5 metres"),
    ("3/4", "3/4"),
    ("3-5 days", "3 to 5 days"),
    ("14:30", "14.30"),
    ("2026-11-30", "2026. 11. 30."),
    ("Smith & Sons", "Smith and Sons"),
    ("O'Brien", "O’Brien"),
    ("twenty-four", "24"),
    ("24 apples", "twenty-four apples"),
    ("24", "twenty-four"),
    ("세 명", "3명입니다"),
    ("3명", "세 명이었습니다"),
    ("5만 원", "50,000원"),
    ("월요일", "월요일이었습니다"),
    ("월요일", "월요일마다"),
    ("배", "배입니다"),
    ("Route 66", "Route 66."),
]
NOT_NAMED = [
    ("-5", "5"),
    ("5", "-5"),
    ("-5 degrees", "It is 5 degrees."),
    ("5 degrees", "-5 degrees"),
    ("C++", "C"),
    ("C", "C++"),
    ("C", "C#"),
    ("F", "F#."),
    ("A+", "A"),
    ("10%", "10 kg"),
    ("★", "a star"),
    ("$500", "500"),  # a symbol counts where the right answer has it
    ("5 km", "15 km"),
    ("5 km", "5.5 km"),
    ("5 km", "-5 km"),
    ("3.5 metres", "3-5 metres"),
    ("3/4", "3-4"),
    ("3-5", "3.5"),
    ("12", "12:30"),
    ("12", "0.12"),
    ("24", "one hundred twenty-four"),
    ("3", "three hundred"),
    ("3", "서른세 번"),
    ("하나", "하나님"),
    ("도", "도로"),
    ("고", "고고"),
    ("소금", "소금물"),
    ("Route 66", "Route 661"),
]


@pytest.mark.parametrize(("value", "answer"), NAMED)
def test_named(value: str, answer: str) -> None:
    assert scored(question(value), answer).value == 1.0


@pytest.mark.parametrize(("value", "answer"), NOT_NAMED)
def test_not_named(value: str, answer: str) -> None:
    assert scored(question(value), answer).value == 0.0


def test_several_values_are_looked_for_at_once() -> None:
    assert all_named(("Torvan", "Belkis", "세 명", "★"), "Torvan, 3명 ★ Belkisel") == ("Torvan", "세 명", "★")
