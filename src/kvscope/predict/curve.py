"""The growth curve of a prediction: what stays, what grows, how steeply, and from which token on."""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kvscope.predict.growth import sum_of_laws
from kvscope.predict.prediction import CACHE_COMPONENTS, Component, Prediction

# Where steps are too many to draw one by one, a curve has this many points between two knees.
_POINTS = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """From ``from_tokens`` on, one more token of one sequence needs ``bytes_per_token`` bytes. ``why``: what ended the
    segment before; None for the first."""

    from_tokens: int
    bytes_per_token: int
    why: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Bytes that all sequences need. ``fixed_bytes``: of the cache, whatever the length (recurrent state).
    ``limit_tokens``: the most one sequence may hold, None where there is no limit. ``is_reserved``: the engine takes
    the whole cache at load, so that its memory does not follow this curve."""

    fixed_bytes: int
    segments: tuple[Segment, ...]
    limit_tokens: int | None
    is_reserved: bool

    def to_dict(self) -> dict[str, Any]:
        return {
            "fixed_bytes": self.fixed_bytes,
            "segments": [
                {"from_tokens": s.from_tokens, "bytes_per_token": s.bytes_per_token, "why": s.why}
                for s in self.segments
            ],
            "limit_tokens": self.limit_tokens,
            "is_reserved": self.is_reserved,
        }


def growth_curve(prediction: Prediction) -> Curve:
    """The straight pieces between the knees."""
    cache = [item for item in prediction.items if item.component in CACHE_COMPONENTS]
    laws = sum_of_laws(item.allocated for item in cache)
    pieces = [Segment(from_tokens=0, bytes_per_token=prediction.slope_at(0), why=None)]
    pieces += [
        Segment(from_tokens=knee.tokens, bytes_per_token=prediction.slope_at(knee.tokens), why=knee.why)
        for knee in prediction.knees
    ]
    return Curve(
        fixed_bytes=sum(item.needed.fixed_bytes for item in cache),
        segments=tuple(pieces),
        limit_tokens=prediction.limit_tokens,
        is_reserved=bool(cache) and len(laws) == 1 and any(item.needed.slope_at(0)[0] for item in cache),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Bytes at one length, for all sequences: what each component of the cache needs, and what the engine holds."""

    tokens: int
    needed_bytes: dict[Component, int]
    allocated_bytes: int


def curve_points(prediction: Prediction, lengths: Iterable[int]) -> tuple[Point, ...]:
    """Points to draw from 0 to the longest of ``lengths``: those lengths, every knee, and enough between them."""
    asked = sorted({0, *lengths})
    longest = asked[-1]
    corners = sorted({*asked, *(knee.tokens for knee in prediction.knees if knee.tokens < longest)})
    places = set(corners)
    for start, end in itertools.pairwise(corners):
        step = max(1, math.ceil((end - start) / _POINTS))
        places.update(range(start, end, step))
    needed = {
        component: sum_of_laws(item.needed for item in prediction.items if item.component == component)
        for component in CACHE_COMPONENTS
    }
    allocated = sum_of_laws(item.allocated for item in prediction.items if item.component in CACHE_COMPONENTS)
    return tuple(
        Point(
            tokens=tokens,
            needed_bytes={component: sum(law.bytes_at(tokens) for law in laws) for component, laws in needed.items()},
            allocated_bytes=sum(law.bytes_at(tokens) for law in allocated),
        )
        for tokens in sorted(places)
    )
