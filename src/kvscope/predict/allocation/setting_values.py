"""Values of engine settings as people write them, read into plain ones: what every engine's settings have in common."""

import math
from collections.abc import Callable, Mapping

from kvscope.errors import UsageError
from kvscope.scenario import SettingValue
from kvscope.units import parse_tokens

MAX_INT = 2**31 - 1

# Reads one value as a person gave it: what the engine takes, or UsageError. Called with the setting's name.
Reader = Callable[[str, SettingValue], SettingValue]

_TRUE_FALSE = {"true": True, "1": True, "on": True, "yes": True, "false": False, "0": False, "off": False, "no": False}


def whole_number(
    smallest: int, largest: int = MAX_INT, *, tokens: bool = False, words: Mapping[str, int] | None = None
) -> Reader:
    """Reads a whole number from ``smallest`` to ``largest``. ``tokens``: as text it may be written 8k. ``words``: text
    that stands for a number, which may be outside the range ("auto")."""
    named = dict(words or {})

    def read(name: str, value: SettingValue) -> SettingValue:
        number: SettingValue = value
        if isinstance(value, str):
            if value.lower() in named:
                return named[value.lower()]
            try:
                number = parse_tokens(value) if tokens else int(value)
            except ValueError:
                number = None
        is_whole = isinstance(number, int) and not isinstance(number, bool)
        if is_whole and number in named.values():
            return number
        if not isinstance(number, int) or not is_whole or not smallest <= number <= largest:
            end = "up" if largest == MAX_INT else f"to {largest}"
            raise UsageError(f"{name} is {value!r}; a whole number from {smallest} {end} was expected.")
        return number

    return read


def truth(name: str, value: SettingValue) -> bool:
    """True or false, in any of the words people use for them. Raises UsageError."""
    found = _TRUE_FALSE.get(str(value).lower())
    if found is None:
        raise UsageError(f"{name} is {value!r}; true or false was expected.")
    return found


def finite_number(name: str, value: SettingValue) -> float:
    """A number that is neither infinite nor NaN. Raises UsageError."""
    number = math.nan
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except (ValueError, OverflowError):
            number = math.nan
    if not math.isfinite(number):
        raise UsageError(f"{name} is {value!r}; a number was expected.")
    return number
