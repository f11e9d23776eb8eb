"""Tables and lines of a terminal fit, in columns as a terminal counts them: by wcwidth, and by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wcwidth import wcswidth

from kvscope.report.terminal_table import aligned
from kvscope.report.terminal_text import cut_off, display_width, padded, shortened, wrapped

TEXTS = st.text(alphabet="ab 한글1.,\u0301\x1b\u1112\u1161\U0001f680-", max_size=60)


@pytest.mark.parametrize(
    ("text", "columns"),
    [("KV cache", 8), ("KV 캐시", 7), ("\u1112\u1161\u11ab", 2), ("e\u0301", 1), ("≠ ±", 3), ("日本", 4), ("", 0)],
)
def test_columns_of_a_text(text: str, columns: int) -> None:
    assert display_width(text) == columns


def test_columns_line_up_where_syllables_are_two_wide() -> None:
    """Counted by hand: 가중치 takes 6 columns, KV 캐시 7; numbers end in one column."""
    lines = aligned([["", "MiB"], ["가중치", "92.1"], ["KV 캐시", "180.0"]])
    assert lines == ["             MiB", "  가중치    92.1", "  KV 캐시  180.0"]
    assert {wcswidth(line) for line in lines} == {16}


def test_a_table_that_fits_is_not_touched() -> None:
    rows = [["", "needed", "what"], ["weights", "92.1 MiB", "a b"], ["KV cache", "1.0 MiB", "c"]]
    assert aligned(rows, at_end=1) == [
        "              needed  what",
        "  weights   92.1 MiB  a b",
        "  KV cache   1.0 MiB  c",
    ]


def test_a_wide_table_folds_its_heads_and_names_and_keeps_numbers_with_their_units() -> None:
    rows = [
        ["level of it", "the first head of two", "and another head"],
        ["a name of many words, told", "1.5 GiB", "92.1 MiB"],
    ]
    lines = aligned(rows, width=40)
    assert max(map(len, lines)) <= 40
    assert any("1.5 GiB" in line for line in lines)
    assert any("92.1 MiB" in line for line in lines)


def test_a_table_with_no_room_at_all_is_a_list() -> None:
    heads = [f"column-number-{number}" for number in range(9)]
    lines = aligned([heads, [f"{10**number:,}" for number in range(9)]])
    assert max(map(len, lines)) <= 80
    assert lines[0] == "  1"
    assert "column-number-8: 100,000,000" in " ".join(lines)


@given(st.lists(st.lists(TEXTS, min_size=3, max_size=3), min_size=1, max_size=5), st.integers(30, 80))
def test_no_table_is_wider_than_it_may_be(rows: list[list[str]], width: int) -> None:
    lines = aligned(rows, width=width)
    assert all(wcswidth(line) in range(width + 1) for line in lines)


@given(TEXTS, st.integers(12, 80))
def test_no_line_is_wider_than_it_may_be_and_no_letter_is_lost(text: str, width: int) -> None:
    lines = wrapped(text, "- ", "    ", width)
    assert all(wcswidth(line) in range(width + 1) for line in lines)
    plain = "".join(text.split()).replace("\x1b", "\\x1b")
    assert "".join("".join(lines).split()).removeprefix("-") == plain


def test_a_number_stays_with_its_unit_and_korean_words_stay_whole() -> None:
    lines = wrapped("첫 토큰은 0.31\u00a0s 늦어집니다", width=16)
    assert lines == ["첫 토큰은 0.31 s", "  늦어집니다"]


@given(TEXTS, st.integers(6, 40))
def test_what_is_cut_fits(text: str, columns: int) -> None:
    assert display_width(shortened(text, columns)) <= columns
    assert display_width(cut_off(text, columns)) <= columns


def test_blanks_fill_columns_and_not_characters() -> None:
    assert padded("캐시", 6) == "캐시  "
    assert padded("캐시", 6, to_right=True) == "  캐시"
