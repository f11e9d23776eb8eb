"""Values as people write them."""

import shlex

import pytest

from kvscope.cli.options import (
    command_line,
    parse_depth,
    parse_levels,
    parse_settings,
    parse_single_settings,
    parse_token_list,
    parse_value,
)
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
        ("none", "none"),  # a value of llama.cpp's load_mode; as "no value" it once ran one thing and predicted another
        ("9" * 5000, "9" * 5000),  # no number that anything takes, and one that Python refuses to read
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
    assert parse_levels("mmap,none") == ("mmap", "none")
    assert parse_levels(None) is None
    assert parse_token_list("1,2k") == (1, 2048)
    assert parse_token_list(None) == ()
    assert parse_settings(["n_ctx=2k,8k", "cache_type_k=q8_0"]) == {"n_ctx": (2048, 8192), "cache_type_k": ("q8_0",)}


@pytest.mark.parametrize("text", ["", "1,,2"])
def test_bad_levels(text: str) -> None:
    with pytest.raises(UsageError):
        parse_levels(text)


@pytest.mark.parametrize("text", ["n_ctx", "=4", " =4", "n_ctx="])
def test_bad_settings(text: str) -> None:
    with pytest.raises(UsageError):
        parse_settings([text])


def test_a_setting_is_given_once_and_where_one_value_is_meant_with_one() -> None:
    assert parse_single_settings(["load_mode=none", "n_ctx=8k"]) == {"load_mode": "none", "n_ctx": 8192}
    for pairs in (["n_ctx=1k", "n_ctx=2k"], ["n_ctx=1k", "n_ctx=1k"], ["n_ctx=1k,2k"]):
        with pytest.raises(UsageError, match="n_ctx is given"):
            parse_single_settings(pairs)


def test_the_command_can_be_pasted_into_a_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["measure", "release", "--model", "./my model.gguf", "--engine-command", "llama-server -t 2 $X"]
    monkeypatch.setattr("sys.argv", ["/bin/kvscope", *arguments])
    assert shlex.split(command_line()) == ["kvscope", *arguments]
    assert "'./my model.gguf'" in command_line()


def test_bad_token_counts() -> None:
    for text in ("many", "-3", "1.5", "8kk", "9" * 5000):
        with pytest.raises(UsageError):
            parse_token_list(text)


@pytest.mark.parametrize(
    ("text", "percent"),
    [("start", 0), ("Middle", 50), ("end", 100), ("30%", 30), ("12.5 %", 12.5), ("0", 0), ("100%", 100), (None, None)],
)
def test_places_in_a_text(text: str | None, percent: float | None) -> None:
    assert parse_depth(text) == percent


@pytest.mark.parametrize("text", ["", "101%", "-1", "half", "30%%", "nan", "1e2", "٣٠"])
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no place"):
        parse_depth(text)
