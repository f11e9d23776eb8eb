"""Settings as people write them, read into an engine's own names and plain values: what all engines' have in common."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from kvscope.errors import UnknownName, UsageError
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
            end = f"up to {largest}" if largest == MAX_INT else f"to {largest}"
            raise UsageError(f"{name} is {value!r}; a whole number from {smallest} {end} was expected.")
        return number

    return read


def truth(name: str, value: SettingValue) -> bool:
    """True or false, in any of the words people use for them. Raises UsageError."""
    found = _TRUE_FALSE.get(str(value).lower())
    if found is None:
        raise UsageError(f"{name} is {value!r}; true or false was expected.")
    return found


def refuse_two_dtypes(argument: str, setting: SettingValue) -> None:
    """The argument dtype and an engine's setting of that name mean the same. Raises UsageError."""
    if setting is not None and setting != argument:
        raise UsageError(f"dtype is given twice, as {argument} and {setting}.", hint="Give it once.")


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


def as_given(name: str, value: SettingValue) -> SettingValue:
    """A value that only the engine itself reads."""
    return value


def _unchanged(name: str, value: SettingValue) -> tuple[str, SettingValue]:
    return name, value


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingTable:
    """One engine's settings. ``kind``: what a message calls one. ``readers``: own name → how its value is read.
    ``aliases``: another spelling → own name; ``translated``: names that others stand for. ``unsupported``: a name the
    engine has → why it cannot be predicted."""

    kind: str
    readers: Mapping[str, Reader]
    aliases: Mapping[str, str] = field(default_factory=dict)
    translated: tuple[str, ...] = ()
    unsupported: Mapping[str, str] = field(default_factory=dict)

    def canonical(
        self,
        settings: Mapping[str, SettingValue],
        translate: Callable[[str, SettingValue], tuple[str, SettingValue]] = _unchanged,
    ) -> dict[str, SettingValue]:
        """Settings by the engine's own names. Dashes, capitals and leading dashes are as a command line has them;
        ``translate``: a name and its value, so spelled, into another pair.

        Raises UnknownName for a setting or value that is not known; UsageError for a value that would not be taken, a
        setting given twice (in two spellings), and one that cannot be predicted.
        """
        found: dict[str, SettingValue] = {}
        for given, value in settings.items():
            key, meant = translate(given.strip().lstrip("-").replace("-", "_").lower(), value)
            name = self.aliases.get(key, key)
            if name in self.unsupported:
                why = self.unsupported[name]
                raise UsageError(f"The setting {given} cannot be predicted: {why}.", hint="Leave it out.")
            if name not in self.readers:
                raise UnknownName(self.kind, given, self._names(), where="docs/reference/engines.md")
            plain = self.readers[name](name, meant)
            if name in found:
                raise UsageError(f"{name} is given twice, as {found[name]!r} and {plain!r}.", hint="Give it once.")
            found[name] = plain
        return found

    def _names(self) -> Iterable[str]:
        return [*self.readers, *self.aliases, *self.translated]
