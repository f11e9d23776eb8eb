"""Command-line values as people write them: sizes (8k), lists (512,2k,8k), settings (n_ctx=4096)."""

import re
import sys
from collections.abc import Iterable
from typing import Any

import click

from kvscope.errors import UsageError
from kvscope.experiment.design import Level
from kvscope.scenario import SettingValue
from kvscope.units import parse_tokens

_SIZE = re.compile(r"\d[\d_]*(\.\d+)?[kKmM]?")
_WORDS: dict[str, SettingValue] = {"true": True, "false": False, "none": None}


def parse_value(text: str) -> SettingValue:
    """One value: ``8k`` and ``8192`` are numbers, ``true`` and ``false`` truth, anything else text."""
    text = text.strip()
    if not text:
        raise UsageError("An empty value.", hint="Write values like 512,2k,8k or q8_0.")
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if re.fullmatch(r"-\d+", text):
        return int(text)
    if _SIZE.fullmatch(text):
        return float(text) if re.fullmatch(r"\d+\.\d+", text) else parse_tokens(text)
    return text


def parse_levels(text: str | None) -> tuple[Level, ...] | None:
    """``512,2k,8k`` → (512, 2048, 8192)."""
    if text is None:
        return None
    values = [parse_value(part) for part in text.split(",")]
    if any(value is None for value in values):
        raise UsageError("A level cannot be 'none'.", hint="Leave the option out to use the engine's default.")
    return tuple(value for value in values if value is not None)


def parse_token_list(text: str | None) -> tuple[int, ...]:
    return () if text is None else tuple(parse_tokens(part) for part in text.split(","))


def parse_settings(pairs: Iterable[str]) -> dict[str, tuple[SettingValue, ...]]:
    """``n_ctx=2k,8k`` → {"n_ctx": (2048, 8192)}."""
    settings: dict[str, tuple[SettingValue, ...]] = {}
    for pair in pairs:
        name, equals, values = pair.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"{pair!r} is not a setting.", hint="Write it as --set NAME=VALUE, like --set n_ctx=4096.")
        settings[name.strip()] = tuple(parse_value(value) for value in values.split(","))
    return settings


def command_line() -> str:
    """The command as it was called, so that it can be repeated."""
    return " ".join(["kvscope", *sys.argv[1:]])


def json_option(function: Any) -> Any:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")(function)
