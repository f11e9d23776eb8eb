"""How a value that was asked for is read. Each reader raises NotExpected for what the field does not take, and what the
parsers of units raise."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kvscope.experiment.design import Level
from kvscope.units import parse_share, parse_tokens


def read_text(value: Any) -> str:
    """A text that is not empty, or a path."""
    if not isinstance(value, str | Path) or not str(value):
        raise NotExpected
    return str(value)


def read_whole(least: int) -> Callable[[Any], int]:
    """A whole number from ``least``."""

    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise NotExpected
        return value

    return read


def read_number(value: Any) -> float:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise NotExpected
    return value


def read_percent(value: Any) -> float:
    """A number from 0 to 100."""
    if not 0 <= (found := read_number(value)) <= 100:
        raise NotExpected
    return found


def read_port(value: Any) -> int:
    """A port, or 0."""
    if (found := read_whole(0)(value)) > 65_535:
        raise NotExpected
    return found


def read_yes(value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise NotExpected
    return value


def read_share(value: Any) -> float:
    """A share, of 1 or in per cent."""
    if isinstance(value, str):
        return parse_share(value)
    if (share := read_number(value)) > 1:  # 5 is hardly meant as 500 %
        raise NotExpected
    return share


def read_tokens(value: Any) -> int:
    """A number of tokens, as people write them."""
    return parse_tokens(value) if isinstance(value, str) else read_whole(0)(value)


def read_level(value: Any) -> Level:
    """``"8k"`` is a number of tokens, wherever it is written."""
    if isinstance(value, str) and value[-1:] in "kKmM" and value[:-1].replace(".", "", 1).isdecimal():
        return parse_tokens(value)
    return value if isinstance(value, bool | int | str) and value != "" else read_number(value)


def read_several(read: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, ...]]:
    """One value or a list of them, each read by ``read``."""

    def read_each(value: Any) -> tuple[Any, ...]:
        many = isinstance(value, Sequence) and not isinstance(value, str)
        return tuple(read(each) for each in value) if many else (read(value),)

    return read_each


def read_named(value: Any) -> dict[str, tuple[Any, ...]]:
    """Names with one value or several each. None as a value: it is not set."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) and name for name in value):
        raise NotExpected
    given = {name: each for name, each in value.items() if each is not None and each != (None,)}
    if any(isinstance(each, Sequence) and not each for each in given.values()):
        raise NotExpected  # no value at all is not the same as none asked for
    return {name: read_several(read_level)(each) for name, each in given.items()}


def read_one_of(*choices: str) -> Callable[[Any], str]:
    """One of these words."""

    def read(value: Any) -> str:
        if not isinstance(value, str) or value not in choices:
            raise NotExpected
        return value

    return read


class NotExpected(Exception):
    """A value that is not what the field takes."""
