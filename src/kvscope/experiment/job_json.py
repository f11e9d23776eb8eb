"""Jobs and results as JSON and back, for executors that run a trial in another process or on another machine.

Every row is a flat dataclass of numbers, strings, JSON values and other rows, so one walk over the fields' types does
for all of them. Numbers keep every bit: Python writes a float so that reading it gives the same one.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from kvscope.errors import UsageError

Kind = TypeVar("Kind")

_UNIONS = (Union, UnionType)


def to_json(value: object) -> str:
    """The JSON text of a dataclass."""
    return json.dumps(_plain(value))


def from_json(kind: type[Kind], text: str) -> Kind:
    """The dataclass that ``to_json`` wrote. Raises UsageError where the text is something else."""
    try:
        rebuilt: Kind = _rebuilt(kind, json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UsageError(
            f"This is no {kind.__name__} as kvscope writes it: {type(error).__name__}: {error}.",
            hint="Both sides have to run the same release of kvscope.",
        ) from error
    return rebuilt


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, str) or not isinstance(value, Sequence):
        return value
    return [_plain(each) for each in value]


def _rebuilt(kind: Any, value: Any) -> Any:
    if value is None:
        return None
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in _UNIONS:
        rows = [each for each in arguments if is_dataclass(each)]
        return _rebuilt(rows[0], value) if rows else value
    if origin in (tuple, Sequence):
        return tuple(_rebuilt(arguments[0], each) for each in value)
    if isinstance(kind, type) and is_dataclass(kind):
        types = _field_types(kind)
        return kind(**{name: _rebuilt(types[name], each) for name, each in value.items()})
    return value


@cache
def _field_types(kind: Any) -> Mapping[str, Any]:
    return get_type_hints(kind)
