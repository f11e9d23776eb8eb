"""Numbers in the JSON of a record: where kvscope writes one, a file that holds anything else is damaged.

A record is a file like any other: it may have been edited, or made by another program. What reads it counts on numbers
where names say so (``memory_total_bytes``, ``loop_lag_p99_s``, ``num_layers``), so this is looked at once, as a row is
read. Not looked at are names that others choose: settings, levels, and what an engine said that it used.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

_NUMBER = re.compile(
    r"(?:.*_)?(?:bytes|tokens|cpus|cells|streams|sequences|parameters|mib|ms|s|share|fraction|layers|index|percent|n|second)"
    r"|num_.*|.*_per_.*|late|missed|due|readings|concurrency|samples_missed|slots|precision|recall"
)
# Below these, names are others'; of a list of layers or tensors each has names of its own.
# A calibration that is none leaves its row uncalibrated: analysis.calibration_record looks at it.
_OTHERS = frozenset(("settings", "levels", "level", "sources", "calibration"))


def check_numbers(value: Any, column: str) -> None:
    """Raises ValueError, naming the column and the name within it, where a number's name holds a text or a truth."""
    left: list[tuple[Any, str, bool]] = [(value, "", False)]
    while left:
        found, name, is_number = left.pop()
        if isinstance(found, Mapping):
            for key, each in found.items():
                if key not in _OTHERS:
                    left.append((each, f"{name}.{key}" if name else key, _is_number(key)))
        elif isinstance(found, list):
            left += [(each, name, is_number) for each in found]
        elif is_number and isinstance(found, str | bool):
            raise ValueError(f"its column {column} holds no number under {name[:80]!r}")


@lru_cache(maxsize=2048)
def _is_number(name: str) -> bool:
    return len(name) < 80 and _NUMBER.fullmatch(name) is not None
