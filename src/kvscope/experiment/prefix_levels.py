"""The levels of ``prefix``: what was sent before the prompt that is measured, and how long before it was answered."""

import re
from dataclasses import dataclass

from kvscope.errors import BadDesign, UnknownName

# Where in the prompt one character differs, as a share of its text.
PLACES = {"changed_start": 0.0, "changed_middle": 0.5, "changed_end": 1.0}
_NAMED = ("cold", "warm", *PLACES)
_AFTER = re.compile(r"after_(\d{1,6})([smh])")
_SECONDS = {"s": 1, "m": 60, "h": 3600}


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixLevel:
    """``is_same``: the prompt sent before was this one, but for one character at ``changed_at`` (0 to 1; None: none).
    Otherwise it was another text of the same length. ``wait_s``: it was answered so long before."""

    name: str
    is_same: bool
    changed_at: float | None = None
    wait_s: float = 0.0


def prefix_level(name: object) -> PrefixLevel:
    """``cold``, ``warm``, ``changed_start``, ``changed_middle``, ``changed_end``, or ``after_60s`` (``after_5m``,
    ``after_1h``). Raises UnknownName, with the nearest, and BadDesign for what is no name."""
    if not isinstance(name, str):
        raise BadDesign(f"{name!r} is not the name of a level.", hint=f"Use {', '.join(_NAMED)}, after_60s.")
    after = _AFTER.fullmatch(name)
    if after is not None:
        return PrefixLevel(name=name, is_same=True, wait_s=float(int(after[1]) * _SECONDS[after[2]]))
    if name not in _NAMED:
        raise UnknownName("level of prefix", name, (*_NAMED, "after_60s"))
    return PrefixLevel(name=name, is_same=name != "cold", changed_at=PLACES.get(name))
