"""Values as TOML: what the standard library reads and does not write."""

import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from kvscope.errors import UsageError

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_WIDTH = 100


def toml_value(value: Any, *, is_key: bool = False) -> str:
    """``value`` as TOML, to the last bit; ``is_key``: as a key. Raises UsageError for text that no file can hold."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            return value if is_key and _BARE.fullmatch(value) else _text(value)
        case Mapping():
            inner = ", ".join(f"{toml_value(name, is_key=True)} = {toml_value(each)}" for name, each in value.items())
            return f"{{{inner}}}"
        case Sequence():
            return f"[{', '.join(toml_value(each) for each in value)}]"
        case _:
            raise UsageError(f"{value!r} cannot be written in a study file.", hint="Leave it out.")


def commented(text: str) -> list[str]:
    """``text`` as comment lines."""
    return [f"# {line}" for line in textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)]


def _text(value: str) -> str:
    """JSON's escapes are TOML's too, but for one control character that JSON leaves as it is."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise UsageError(f"{value!r} is no text that a file can hold.", hint="Use text in UTF-8.") from None
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
