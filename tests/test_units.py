"""Sizes in and out of text; the powers are the units' own definitions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope.errors import UsageError
from kvscope.units import (
    format_bytes,
    format_count,
    format_mib,
    format_percent,
    format_seconds,
    parse_bytes,
    parse_share,
    parse_tokens,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("1024", 1024),
        ("24GiB", 24 * 2**30),
        ("24 GiB", 24 * 2**30),
        ("24G", 24 * 2**30),
        ("24GB", 24 * 10**9),
        ("1.5GiB", 3 * 2**29),
        ("8,192", 8192),
        ("1k", 1024),
        ("1TB", 10**12),
    ],
)
def test_bytes_in(text: str, value: int) -> None:
    assert parse_bytes(text) == value


def test_tokens_in() -> None:
    assert parse_tokens("32k") == 32768
    assert parse_tokens("1M") == 1048576
    assert parse_tokens("0.5k") == 512


@pytest.mark.parametrize("text", ["", "k", "-1", "1.5", "1e6", "12parsecs", "1..2k", "٣k2"])
def test_what_is_not_a_size(text: str) -> None:
    with pytest.raises(UsageError):
        parse_bytes(text)


def test_a_share_is_written_as_one() -> None:
    assert [parse_share(text) for text in ("5%", "0.05", "1", "150%")] == [0.05, 0.05, 1, 1.5]


def test_a_bare_number_above_one_is_no_share() -> None:
    # 5 is hardly meant as five times the whole.
    with pytest.raises(UsageError, match="500 %") as told:
        parse_share("5")
    assert told.value.hint is not None
    assert "5%" in told.value.hint


@given(st.integers(0, 2**70))
def test_whole_bytes_survive(value: int) -> None:
    assert parse_bytes(str(value)) == value
    assert parse_bytes(f"{value}KiB") == value * 1024


def test_out() -> None:
    assert format_mib(188743680) == "180.0 MiB"
    assert format_mib(3.4 * 2**20, signed=True) == "+3.4 MiB"
    assert format_mib(-(2**20), signed=True) == "-1.0 MiB"
    assert format_bytes(23040) == "22.5 KiB"
    assert format_bytes(512) == "512 B"
    assert format_bytes(5 * 2**40) == "5.0 TiB"
    assert format_seconds(2.314) == "2.31 s"
    assert format_seconds(0.85) == "850 ms"
    assert format_seconds(0.00856) == "8.56 ms"
    assert format_count(8192) == "8,192"
    assert format_percent(0.994) == "99.4 %"
