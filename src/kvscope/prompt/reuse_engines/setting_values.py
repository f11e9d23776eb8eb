"""Settings read as the rules of reuse need them: by the engine's own names, in its own types."""

from collections.abc import Mapping

from kvscope.errors import UsageError
from kvscope.scenario import SettingValue
from kvscope.units import parse_tokens


def whole(settings: Mapping[str, SettingValue], name: str, default: int) -> int:
    """A number of tokens may be written as people do ("8k"). Raises UsageError for what is no whole number."""
    value = settings.get(name, default)
    if isinstance(value, str):
        value = parse_tokens(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"{name} is {value!r}; a whole number was expected.")
    return value


def at_least_one(settings: Mapping[str, SettingValue], name: str, default: int) -> int:
    """Raises UsageError for what is no whole number of 1 or more."""
    return at_least(1, settings, name, default)


def at_least(lowest: int, settings: Mapping[str, SettingValue], name: str, default: int) -> int:
    """Raises UsageError for what is no whole number of ``lowest`` or more."""
    value = whole(settings, name, default)
    if value < lowest:
        raise UsageError(f"{name} is {value}; {lowest} or more was expected.")
    return value


def number(settings: Mapping[str, SettingValue], name: str, default: float) -> float:
    """Raises UsageError for what is no number."""
    value = settings.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"{name} is {value!r}; a number was expected.")
    return float(value)


def flag(settings: Mapping[str, SettingValue], name: str, default: bool) -> bool:
    """Raises UsageError for what is neither true nor false."""
    value = settings.get(name, default)
    if not isinstance(value, bool):
        raise UsageError(f"{name} is {value!r}; true or false was expected.")
    return value


def share(settings: Mapping[str, SettingValue], name: str, default: float) -> float:
    """Raises UsageError for what is no number from 0 to 1."""
    value = number(settings, name, default)
    if not 0 <= value <= 1:
        raise UsageError(f"{name} is {value:g}; 0 to 1 was expected.")
    return value
