"""What transformers' config classes assume where a config.json is silent: published ones leave out much.

The facts are in class_defaults.jsonl, one line per model_type, written from the library by
tools/make_class_defaults.py. Only the line asked for is parsed.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

_FILE = Path(__file__).parent / "class_defaults.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassDefaults:
    """``aliases``: other name → the field it is read into. ``nested``: field of a nested config → its model_type."""

    class_name: str
    library: str
    values: Mapping[str, Any]
    aliases: Mapping[str, str] = field(default_factory=dict)
    nested: Mapping[str, str] = field(default_factory=dict)

    @property
    def source(self) -> str:
        return f"class default of {self.library} {self.class_name}"


@cache
def class_defaults(model_type: str) -> ClassDefaults | None:
    """The config class registered for ``model_type``, or None where that release of the library has none."""
    text = _text()
    start = text.find(f"\n{model_type}\t")
    if start < 0 or "\n" in model_type:
        return None
    start += len(model_type) + 2
    entry = json.loads(text[start : text.index("\n", start)])
    return ClassDefaults(
        class_name=entry["class"],
        library=library_version(),
        values=entry["defaults"],
        aliases=entry.get("aliases", {}),
        nested=entry.get("nested", {}),
    )


@cache
def library_version() -> str:
    """The release whose defaults these are, such as "transformers 5.24.0"."""
    text = _text()
    return f"transformers {json.loads(text[: text.index(chr(10))])['transformers']}"


@cache
def _text() -> str:
    return _FILE.read_text(encoding="utf-8")
