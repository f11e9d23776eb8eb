"""What fits, by the numbers of public reports; and prices that are exact."""

from decimal import Decimal
from pathlib import Path

import pytest

from kvscope.errors import ContextOverflow, UsageError
from kvscope.prompt.counting.context_fit import (
    ContextFit,
    ContextLimit,
    Price,
    fit_of_next,
    limit_of,
    parse_price,
    plain,
)

TINY = Path(__file__).parent.parent / "golden" / "gguf" / "tiny-gemma3.gguf"


def limited(tokens: int | None) -> ContextLimit:
    return ContextLimit(tokens=tokens, source="as given")


def test_the_last_reply_is_part_of_the_next_prompt() -> None:
    """google-gemini/gemini-cli#15426: 1,000,000 - (800,000 + 100,000) = 100,000 are left, and 120,000 do not fit;
    without the reply it would look as if 200,000 were."""
    left = ContextFit(limit=limited(1_000_000), prompt_tokens=800_000, reserved_output_tokens=100_000)
    assert left.remaining_tokens == 100_000
    following = fit_of_next(
        limited(1_000_000), last_prompt_tokens=800_000, last_reply_tokens=100_000, next_tokens=120_000
    )
    assert following.fits is False
    assert following.remaining_tokens == -20_000


def test_a_prompt_over_the_window_is_stopped_before_it_is_sent_with_its_counts() -> None:
    """genonai/doc_parser#103: 169,000 tokens, a window of 128,000, nothing reserved."""
    fit = ContextFit(limit=limited(128_000), prompt_tokens=169_000)
    assert fit.fits is False
    with pytest.raises(ContextOverflow) as raised:
        fit.check()
    assert "169,000" in raised.value.message
    assert "128,000" in raised.value.message


def test_a_count_that_is_exact_does_not_fit_where_an_estimate_did() -> None:
    """flowing-abyss/obsidian-hybrid-search#12: 9,617 tokens, estimated as 7,531, against 8,192."""
    assert ContextFit(limit=limited(8192), prompt_tokens=9617).fits is False
    assert ContextFit(limit=limited(8192), prompt_tokens=7531).fits is True


@pytest.mark.parametrize(("prompt", "reserved", "fits"), [(90, 10, True), (91, 10, False), (100, 0, True)])
def test_the_last_token_still_fits(prompt: int, reserved: int, fits: bool) -> None:
    fit = ContextFit(limit=limited(100), prompt_tokens=prompt, reserved_output_tokens=reserved)
    assert fit.fits is fits
    if fits:
        fit.check()


def test_what_is_not_known_is_none() -> None:
    assert ContextFit(limit=limited(None), prompt_tokens=5).fits is None
    assert ContextFit(limit=limited(None), prompt_tokens=5).remaining_tokens is None
    partly = ContextFit(limit=limited(100), prompt_tokens=5, is_whole=False)
    assert partly.fits is None
    assert partly.remaining_tokens is None
    assert ContextFit(limit=limited(100), prompt_tokens=101, is_whole=False).fits is False


def test_where_the_limit_is_from() -> None:
    assert limit_of(4096, "anything") == ContextLimit(tokens=4096, source="as given")
    trained = limit_of(None, str(TINY))
    assert trained.tokens is not None
    assert "trained" in trained.source
    for source in ("tiktoken:cl100k_base", "/nowhere/tokenizer.json", "http://127.0.0.1:1"):
        assert limit_of(None, source).tokens is None
        assert "--context" in limit_of(None, source).source
    with pytest.raises(UsageError):
        limit_of(0, "anything")


def test_prices_are_exact() -> None:
    """0.15 of a million for 9,617 tokens is 0.00144255, and 0.1 for 3 tokens is 0.0000003: by hand."""
    price = Price(input_per_million=parse_price("0.15"), output_per_million=parse_price("0.60"), currency="USD")
    assert price.to_dict(9617, 1000) == {
        "currency": "USD",
        "input_per_million": "0.15",
        "output_per_million": "0.6",
        "input_cost": "0.00144255",
        "reserved_output_cost": "0.0006",
    }
    assert plain(Price(input_per_million=Decimal("0.1")).input_cost(3)) == "0.0000003"
    assert Price(input_per_million=Decimal("0.1")).to_dict(3, 5)["reserved_output_cost"] is None
    big = Price(input_per_million=parse_price("12345678901234567890.123456789")).input_cost(10**9 + 7)
    digits = str(12345678901234567890_123456789 * (10**9 + 7))  # 9 decimals of the price, 6 of the million
    assert plain(big) == f"{digits[:-15]}.{digits[-15:]}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "much",
        "-1",
        "-0",
        "nan",
        "inf",
        "1e99",
        "9" * 40,
        "0,15",
        "1,5",
        "1_0",
        "1,0000",
        "0,150",
        "1,000,5",
        "۱",
    ],
)
def test_what_is_no_price(text: str) -> None:
    with pytest.raises(UsageError, match="not a price"):
        parse_price(text)


@pytest.mark.parametrize(("text", "meant"), [("0,15", "0.15"), ("1,5", "1.5"), ("cheap", "0.15")])
def test_a_decimal_comma_is_no_group_of_thousands(text: str, meant: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_price(text)
    assert f"like {meant}." in str(raised.value.hint)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("0", "0"),
        ("15", "15"),
        ("1,200.50", "1200.5"),
        ("1e2", "100"),
        (".5", "0.5"),
        ("5.", "5"),
        ("1,000.5", "1000.5"),
        ("12,345,678", "12345678"),
    ],
)
def test_prices_as_people_write_them(text: str, written: str) -> None:
    assert plain(parse_price(text)) == written
