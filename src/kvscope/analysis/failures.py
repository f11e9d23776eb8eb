"""What failed, grouped by cause. Failures stay in the record and on the page, and out of the averages."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvscope.analysis.attempts import Attempt

# A line of an engine's log that names trouble, as far as one can tell without knowing the engine.
_TROUBLE = ("error", "fail", "abort", "out of memory", "cannot", "unable", "exceed", "not enough", "killed")


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureGroup:
    """Attempts that ended in the same way. ``message`` and ``hint`` are those of the first. ``known_by``: what decided
    that it is this failure (message, counters, prediction, exit); None where nothing had to. ``first_line``: the line
    of its engine's log that decided, else the first one that names trouble, if any."""

    outcome: str
    error_slug: str | None
    message: str | None
    hint: str | None
    known_by: str | None
    first_line: str | None
    attempts: tuple[Attempt, ...]

    @property
    def evidence(self) -> tuple[str, ...]:
        return tuple(a.key for a in self.attempts)


def group_failures(attempts: Sequence[Attempt]) -> tuple[FailureGroup, ...]:
    """Failed attempts by outcome and error slug, the most frequent first."""
    groups: dict[tuple[str, str | None], list[Attempt]] = {}
    for attempt in attempts:
        if attempt.is_failure:
            groups.setdefault((str(attempt.trial.outcome), attempt.trial.error_slug), []).append(attempt)
    found = [_group(outcome, slug, members) for (outcome, slug), members in groups.items()]
    return tuple(sorted(found, key=lambda g: (-len(g.attempts), g.outcome, g.error_slug or "")))


def _group(outcome: str, slug: str | None, members: Sequence[Attempt]) -> FailureGroup:
    first = members[0].trial
    return FailureGroup(
        outcome=outcome,
        error_slug=slug,
        message=first.error_message,
        hint=first.error_hint,
        known_by=first.evidence.get("known_by"),
        first_line=first.evidence.get("log_line") or _first_trouble(first.engine_log_tail),
        attempts=tuple(members),
    )


def _first_trouble(log: str | None) -> str | None:
    lines = [line.strip() for line in (log or "").splitlines() if line.strip()]
    return next((line for line in lines if any(word in line.lower() for word in _TROUBLE)), None)
