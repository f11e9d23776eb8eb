"""JSON that every program reads. A number that is none, or is infinite, has no form in it: it is written as null, like
whatever is not known."""

import json
import math
from collections.abc import Mapping
from typing import Any


def strict_json(value: Any, *, indent: int | None = None, separators: tuple[str, str] | None = None) -> str:
    """The value as JSON text."""
    try:
        return json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), ensure_ascii=False, indent=indent, separators=separators, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        # A key that is a number becomes a text, whatever it is.
        return {_finite_key(key): _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _finite_key(key: Any) -> Any:
    return str(key) if isinstance(key, float) and not math.isfinite(key) else key
