"""What kind of difference lies between two texts: each pair written by hand."""

import unicodedata

import pytest

from kvscope.prompt.reuse.text_changes import change_between, common_length

NFC, NFD = (unicodedata.normalize(form, "회의록을 요약하라") for form in ("NFC", "NFD"))
CHANGES = [
    ("clock", "Now: 2026-11-29 14:05. Be kind.", "Now: 2026-11-29 14:06. Be kind.", "2026-11-29 14:05"),
    ("clock", "2026-11-29T09:59:59+09:00 ok", "2026-11-29T10:00:00+09:00 ok", "2026-11-29T09:59:59+09:00"),
    ("clock", "20261129T140506Z", "20261129T140507Z", "20261129T140506Z"),
    ("clock", "Sun, 29 Nov 2026 14:05:06 GMT", "Sun, 29 Nov 2026 14:05:07 GMT", "Sun, 29 Nov 2026 14:05:06 GMT"),
    ("clock", "It is 11/29/2026, 2:05 PM.", "It is 11/29/2026, 2:06 PM.", "11/29/2026, 2:05 PM"),
    ("clock", "at 9:59", "at 10:00", "9:59"),
    ("clock", "t=1795000000 x", "t=1795000060 x", "1795000000"),
    ("clock", "t=1795000000123 x", "t=1795000060999 x", "1795000000123"),
    (
        "clock",
        "지금은 2026년 11월 29일 오후 3시입니다.",
        "지금은 2026년 11월 29일 오후 4시입니다.",
        "2026년 11월 29일 오후 3시",
    ),
    ("clock", "현재 오전 11시 59분", "현재 오후 12시 0분", "오전 11시 59분"),
    ("clock", "2026. 11. 29. 오후 3:05", "2026. 11. 29. 오후 3:06", "오후 3:05"),
    ("date", "Today is Sunday, November 29, 2026.", "Today is Monday, November 30, 2026.", "Sunday, November 29, 2026"),
    ("date", "오늘은 2026년 11월 29일(일)이다", "오늘은 2026년 11월 30일(월)이다", "2026년 11월 29일(일)"),
    ("date", "오늘은 월요일", "오늘은 화요일", "월요일"),
    ("date", "as of 2026-11-29", "as of 2026-11-30", "2026-11-29"),
    ("date", "as of 20261129", "as of 20261130", "20261129"),
    (
        "random-id",
        "id 550e8400-e29b-41d4-a716-446655440000.",
        "id 6ba7b810-9dad-11d1-80b4-00c04fd430c8.",
        "550e8400-e29b-41d4-a716-446655440000",
    ),
    ("random-id", "req_a8f3k2k9 hello", "req_zz93k2k9 hello", "a8f3k2k9"),
    ("counter", "Turn 9 of the talk", "Turn 10 of the talk", "9"),
    ("line-ends", "a\r\nb", "a\nb", "\r"),
    ("unicode-form", NFC, NFD, NFC[:1]),
    ("invisible-characters", "a\u200bb", "ab", "\u200b"),
    ("whitespace", "a  b", "a b", " "),
    ("whitespace", "text ", "text", " "),
    ("edited", "Be kind.", "Be brief.", "kind"),
    ("edited", "3 apples and x", "4 pears and y", "3 apples and x"),
    ("edited", "Be kind.", "Be kind. And brief.", ""),
]


@pytest.mark.parametrize(("kind", "first", "second", "piece"), CHANGES, ids=lambda value: str(value)[:24])
def test_a_difference_is_named_and_shown(kind: str, first: str, second: str, piece: str) -> None:
    change = change_between(first, second)
    assert change is not None
    assert change.kind == kind
    assert change.first.startswith(piece)
    assert change.mended == first
    assert first[: change.begin] == second[: change.begin]


@pytest.mark.parametrize(("kind", "first", "second", "piece"), CHANGES, ids=lambda value: str(value)[:24])
def test_the_other_way_round_it_is_the_same_kind(kind: str, first: str, second: str, piece: str) -> None:
    change = change_between(second, first)
    assert change is not None
    assert change.kind == kind


def test_equal_texts_have_no_difference() -> None:
    assert change_between("14:05 강", "14:05 강") is None


def test_mending_the_clock_leaves_other_changes() -> None:
    change = change_between("Now 14:05. You have 3 files.", "Now 14:06. You have 4 files.")
    assert change is not None
    assert (change.kind, change.mended) == ("clock", "Now 14:05. You have 4 files.")


def test_a_clock_is_seen_before_an_edit_that_comes_later() -> None:
    change = change_between("Now 14:05. Be kind.", "Now 14:06. Be very brief.")
    assert change is not None
    assert (change.kind, change.mended) == ("clock", "Now 14:05. Be very brief.")


def test_a_word_that_changes_before_a_clock_is_an_edit() -> None:
    change = change_between("It was 14:05", "It is 14:06")
    assert change is not None
    assert change.kind == "edited"


@pytest.mark.parametrize(
    ("first", "second", "length"), [("", "a", 0), ("abc", "abd", 2), ("ab", "abc", 2), ("x", "x", 1)]
)
def test_the_common_length_of_texts_and_ids(first: str, second: str, length: int) -> None:
    assert common_length(first, second) == length
    assert common_length(tuple(first), tuple(second)) == length
