"""Whether the engine kept up with requests that arrive at a rate, whatever is still under way. Where it did not, the
requests under way grow to the end, and how long they wait depends on how many were sent."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.design_claims.changed import named
from kvscope.analysis.finding import Finding
from kvscope.analysis.fit import fit_line
from kvscope.analysis.levels import at_level
from kvscope.record.rows import DesignRow, Json

# Fewer requests than this in the second half of a load show no growth.
_LEAST_HALF = 4
# A load that ends later after its last request was due than so many times the quickest request took is behind.
_BEHIND = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """The requests of one attempt in the order in which they were due. ``under_way``: how many had not been answered
    as each was due, itself among them."""

    under_way: tuple[int, ...]
    asked_per_s: float
    answered_per_s: float
    behind_s: float
    quickest_s: float

    @property
    def grows(self) -> bool:
        """Whether more and more were under way in the second half, so that it is not the filling of an idle engine: the
        whole interval of the slope is above zero."""
        half = self.under_way[len(self.under_way) // 2 :]
        if len(half) < _LEAST_HALF:
            return False
        slope = fit_line([(float(place), float(count)) for place, count in enumerate(half)]).slope
        return slope.low is not None and slope.low > 0


def arrivals(attempt: Attempt) -> Arrivals | None:
    """None of a closed loop, and of fewer than two requests with known moments."""
    moments = sorted(
        (r.due_s, r.sent_at_s + r.completed_s)
        for r in attempt.measured_requests
        if r.due_s is not None and r.completed_s is not None and r.is_answered
    )
    if len(moments) < 2 or moments[-1][0] <= moments[0][0]:
        return None
    due = [moment for moment, _ in moments]
    begun_s = _begun_s(attempt)
    ends = [end - begun_s for _, end in moments]
    return Arrivals(
        under_way=tuple(sum(d <= at < end for d, end in zip(due, ends, strict=True)) for at in due),
        asked_per_s=(len(due) - 1) / (due[-1] - due[0]),
        answered_per_s=len(due) / (max(ends) - due[0]),
        behind_s=max(ends) - due[-1],
        quickest_s=min(end - d for d, end in zip(due, ends, strict=True)),
    )


def _begun_s(attempt: Attempt) -> float:
    """When the load began, on the attempt's clock: no request is sent before it is due."""
    return min(r.sent_at_s - r.due_s for r in attempt.measured_requests if r.due_s is not None)


def not_kept_up(design: DesignRow, attempts: Sequence[Attempt]) -> tuple[Finding, ...]:
    """For each level at which the engine fell behind in at least half of the trials: what arrived, what was answered,
    and how the requests under way grew."""
    of_all = {a.key: found for a in attempts if a.is_measured and (found := arrivals(a)) is not None}
    quickest_s = min((found.quickest_s for found in of_all.values()), default=0.0)
    told = []
    for level in design.levels:
        here = {a.key: of_all[a.key] for a in at_level(attempts, level) if a.key in of_all}
        behind = {k: v for k, v in here.items() if v.grows and v.behind_s > _BEHIND * quickest_s}
        if behind and 2 * len(behind) >= len(here):
            told.append(_finding(design, level, here, behind, quickest_s))
    return tuple(told)


def _finding(
    design: DesignRow, level: Json, here: Mapping[str, Arrivals], behind: Mapping[str, Arrivals], quickest_s: float
) -> Finding:
    loads = tuple(behind.values())
    return Finding(
        slug="load_not_kept_up",
        values={
            **named(design, level),
            "asked_per_s": fmean(load.asked_per_s for load in loads),
            "answered_per_s": fmean(load.answered_per_s for load in loads),
            "halfway": fmean(load.under_way[len(load.under_way) // 2] for load in loads),
            "at_end": fmean(load.under_way[-1] for load in loads),
            "behind_s": fmean(load.behind_s for load in loads),
            "quickest_s": quickest_s,
            "trials": len(here),
            "behind": len(behind),
        },
        evidence=tuple(behind),
        also_possible=("client_on_same_machine",),
        how_to_check="requests_of_load",
    )
