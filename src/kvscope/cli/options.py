"""Command-line values as people write them: sizes (8k), lists (512,2k,8k), settings (n_ctx=4096)."""

import math
import re
import shlex
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

import click

from kvscope.errors import UsageError
from kvscope.scenario import SettingValue
from kvscope.units import parse_tokens

if TYPE_CHECKING:  # kvscope predict, which must start fast, needs nothing of an experiment but this word
    from kvscope.experiment.design import Level

# No number that anything here takes has more digits; Python itself refuses to read one of thousands.
_SIZE = re.compile(r"\d[\d_]{0,29}(\.\d{1,30})?[kKmM]?")
_NEGATIVE = re.compile(r"-\d{1,30}")
_WORDS = {"true": True, "false": False}


def check_minutes(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    """An option's callback: a time limit must be a finite time above zero."""
    if value is not None and not 0 < value < math.inf:
        raise UsageError(f"{value:g} minutes is not a time to measure in.", hint="Use a number above 0, like 2.5.")
    return value


def parse_value(text: str) -> "Level":
    """One value: ``8k`` and ``8192`` are numbers, ``true`` and ``false`` truth, anything else text ("none" too: it is
    a value of llama.cpp's load_mode)."""
    text = text.strip()
    if not text:
        raise UsageError("An empty value.", hint="Write values like 512,2k,8k or q8_0.")
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _NEGATIVE.fullmatch(text):
        return int(text)
    if _SIZE.fullmatch(text):
        return float(text) if re.fullmatch(r"\d+\.\d+", text) else parse_tokens(text)
    return text


def parse_levels(text: str | None) -> "tuple[Level, ...] | None":
    """``512,2k,8k`` → (512, 2048, 8192)."""
    if text is None:
        return None
    return tuple(parse_value(part) for part in text.split(","))


def parse_token_list(text: str | None) -> tuple[int, ...]:
    """Token counts as a person lists them: ``512,2k,8k``. None: none. Raises UsageError."""
    return () if text is None else tuple(parse_tokens(part) for part in text.split(","))


_DEPTHS = {"start": 0.0, "middle": 50.0, "end": 100.0}
_PERCENT = re.compile(r"([0-9]{1,3}(\.[0-9]{1,10})?) ?%?")


def parse_depth(text: str | None) -> float | None:
    """A place in a text, in per cent of it: ``start``, ``middle``, ``end``, ``30%`` or ``30``. Raises UsageError."""
    if text is None:
        return None
    found = _PERCENT.fullmatch(text.strip())
    percent = _DEPTHS.get(text.strip().lower()) if found is None else float(found[1])
    if percent is None or percent > 100:
        raise UsageError(f"{text!r} is no place in a text.", hint="Use start, middle, end, or 0% to 100%.")
    return percent


def parse_numbers(text: str | None) -> tuple[float, ...]:
    """Numbers as a person lists them: ``0.5,2``. None: none. Raises UsageError."""
    numbers = () if text is None else tuple(parse_value(part) for part in text.split(","))
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise UsageError(f"{number!r} is not a number.", hint="Write it like 2 or 0.5.")
    return cast(tuple[float, ...], numbers)


def parse_settings(pairs: Iterable[str], *, flag: str = "--set") -> dict[str, tuple[SettingValue, ...]]:
    """``n_ctx=2k,8k`` → {"n_ctx": (2048, 8192)}. ``flag``: which one they were given with."""
    settings: dict[str, tuple[SettingValue, ...]] = {}
    for pair in pairs:
        name, equals, values = pair.partition("=")
        if not equals or not name.strip():
            raise UsageError(
                f"{pair!r} is not a setting.", hint=f"Write it as {flag} NAME=VALUE, like {flag} n_ctx=4096."
            )
        name = name.strip()
        if name in settings:
            raise UsageError(f"The setting {name} is given twice.", hint=f"Give it once: {flag} {name}=VALUE.")
        settings[name] = tuple(parse_value(value) for value in values.split(","))
    return settings


def parse_single_settings(pairs: Iterable[str]) -> dict[str, SettingValue]:
    """As ``parse_settings``, where each setting has one value."""
    settings: dict[str, SettingValue] = {}
    for name, values in parse_settings(pairs).items():
        if len(values) > 1:
            raise UsageError(f"The setting {name} is given {len(values)} values.", hint="Give one value for each.")
        settings[name] = values[0]
    return settings


def command_line() -> str:
    """The command as it was called, quoted for a shell, so that it can be repeated."""
    return shlex.join(["kvscope", *sys.argv[1:]])


def server_options(function: Any) -> Any:
    """The options that name a server that runs already: url, served_model, pid, api_key_env."""
    for option in reversed(
        (
            click.option("--url", help="A server that runs already, used as it is: http://127.0.0.1:8080."),
            click.option("--served-model", help="Which of its models to ask for; its first otherwise."),
            click.option("--pid", type=int, help="Its process, where it is not the one that listens there."),
            click.option("--api-key-env", metavar="NAME", help="Environment variable that holds its key."),
        )
    ):
        function = option(function)
    return function


def json_option(function: Any) -> Any:
    """The option ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")(function)
