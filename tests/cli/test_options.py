"""Values as people write them."""

import pytest

from kvscope.cli.options import parse_levels, parse_settings, parse_token_list, parse_value
from kvscope.errors import UsageError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("512", 512),
        ("8k", 8192),
        ("-1", -1),
        ("0", 0),
        ("0.5", 0.5),
        ("q8_0", "q8_0"),
        ("true", True),
        ("False", False),
        ("none", None),
        ("on", "on"),
        ("4x", "4x"),
    ],
)
def test_one_value(text: str, value: object) -> None:
    parsed = parse_value(text)
    assert (parsed, type(parsed)) == (value, type(value))


def test_lists_and_settings() -> None:
    assert parse_levels("512,2k,8k") == (512, 2048, 8192)
    assert parse_levels("f16,q8_0") == ("f16", "q8_0")
    assert parse_levels(None) is None
    assert parse_token_list("1,2k") == (1, 2048)
    assert parse_token_list(None) == ()
    assert parse_settings(["n_ctx=2k,8k", "cache_type_k=q8_0"]) == {"n_ctx": (2048, 8192), "cache_type_k": ("q8_0",)}


@pytest.mark.parametrize("text", ["", "1,,2", "none,1"])
def test_bad_levels(text: str) -> None:
    with pytest.raises(UsageError):
        parse_levels(text)


@pytest.mark.parametrize("text", ["n_ctx", "=4", " =4", "n_ctx="])
def test_bad_settings(text: str) -> None:
    with pytest.raises(UsageError):
        parse_settings([text])


def test_bad_token_counts() -> None:
    for text in ("many", "-3", "1.5", "8kk"):
        with pytest.raises(UsageError):
            parse_token_list(text)
