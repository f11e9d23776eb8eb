"""A finding: one claim with its evidence. What makes them is ``findings`` (of a whole study) and ``design_claims`` (of
one design)."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvscope.analysis.fit import Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """``size`` is the estimate the claim rests on, or ``size_from`` says where its numbers come from that have no
    interval; ``evidence`` names attempts (trial/attempt). ``design_id``: the design whose rows say it, where one design
    says it of itself."""

    slug: str
    is_contradiction: bool = False
    values: Mapping[str, object] = field(default_factory=dict)
    evidence: tuple[str, ...] = ()
    size: Estimate | None = None
    also_possible: tuple[str, ...] = ()
    how_to_check: str | None = None
    design_id: str | None = None
    size_from: str | None = None
