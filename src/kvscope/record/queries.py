"""Questions about many attempts, answered by the record's indexes and its kept metrics: each takes well under a second
in a record of 100,000 trials. Of an older record, which has neither, they are answered from its rows."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean, median

from kvscope.errors import UnknownName
from kvscope.record.columns import as_json
from kvscope.record.metrics_table import METRICS
from kvscope.record.reader import Records
from kvscope.record.rows import MEASURED_OUTCOMES

_MEASURED = "trials.role = 'measured' AND trials.outcome IN (" + ", ".join(f"'{o}'" for o in MEASURED_OUTCOMES) + ")"
# The last attempt of its trial: what became of it.
_IS_LAST = (
    "NOT EXISTS (SELECT 1 FROM trials AS later WHERE later.design_id = trials.design_id "
    "AND later.trial_id = trials.trial_id AND later.attempt > trials.attempt)"
)

OUTCOMES_SQL = (
    "SELECT design_id, role, outcome, count(*) AS attempts FROM trials "
    "GROUP BY design_id, role, outcome ORDER BY design_id, role, outcome"
)
FAILURES_SQL = (
    "SELECT design_id, outcome, error_slug, levels, count(*) AS attempts FROM trials "
    f"WHERE outcome NOT IN ({', '.join(repr(outcome) for outcome in MEASURED_OUTCOMES)}) "
    "GROUP BY design_id, outcome, error_slug, levels ORDER BY design_id, outcome, error_slug, levels"
)
LAST_ATTEMPTS_SQL = f"SELECT trial_id, attempt, outcome FROM trials WHERE design_id = ? AND {_IS_LAST}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeCount:
    """``outcome`` is None of attempts that have not ended. ``role``: measured or warmup."""

    design_id: str
    role: str
    outcome: str | None
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureCount:
    """``levels``: JSON, factor → level."""

    design_id: str
    outcome: str
    error_slug: str | None
    levels: str
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LastAttempt:
    """The last attempt of a trial. ``outcome`` is None while it runs."""

    trial_id: str
    attempt: int
    outcome: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelValues:
    """One metric at one level of a design, over the last attempt of each measured trial. ``levels``: JSON, factor →
    level. In the metric's own unit."""

    design_id: str
    levels: str
    trials: int
    mean: float
    median: float


def outcome_counts(records: Records) -> tuple[OutcomeCount, ...]:
    """How many attempts of each design ended how."""
    return tuple(OutcomeCount(**dict(row)) for row in records.select(OUTCOMES_SQL))


def failure_counts(records: Records) -> tuple[FailureCount, ...]:
    """Attempts that gave no measurement, warm-ups among them, by design, outcome, error and level."""
    return tuple(FailureCount(**dict(row)) for row in records.select(FAILURES_SQL))


def last_attempts(records: Records, design_id: str) -> dict[str, LastAttempt]:
    """Trial → its last attempt: which trials of a design are done, and how."""
    return {row["trial_id"]: LastAttempt(**dict(row)) for row in records.select(LAST_ATTEMPTS_SQL, (design_id,))}


def level_values(records: Records, metric: str, design_id: str | None = None) -> tuple[LevelValues, ...]:
    """Mean and median of a metric at every level; of one design, or of each. Raises UnknownName for a name that is no
    metric of one number."""
    if metric not in METRICS:
        raise UnknownName("metric", metric, list(METRICS))
    found = _kept(records, metric, design_id) if records.has_metrics else _derived(records, metric, design_id)
    levels = []
    for (design, level), group in groupby(found, key=lambda each: each[:2]):
        values = [value for *_, value in group]
        levels.append(
            LevelValues(
                design_id=design, levels=level, trials=len(values), mean=fmean(values), median=float(median(values))
            )
        )
    return tuple(levels)


def level_values_sql(metric: str, *, is_one_design: bool) -> str:
    """The query behind ``level_values``."""
    condition = "trials.design_id = ? AND " if is_one_design else ""
    return (
        f"SELECT trials.design_id, trials.levels, metrics.{metric} FROM trials JOIN metrics USING (attempt_id) "
        f"WHERE {condition}{_MEASURED} AND {_IS_LAST} AND metrics.{metric} IS NOT NULL"
    )


def _kept(records: Records, metric: str, design_id: str | None) -> list[tuple[str, str, float]]:
    query = level_values_sql(metric, is_one_design=design_id is not None)
    return sorted(tuple(row) for row in records.select(query, () if design_id is None else (design_id,)))


def _derived(records: Records, metric: str, design_id: str | None) -> list[tuple[str, str, float]]:
    return sorted(_derive_each(records, metric, [design_id] if design_id else [d.design_id for d in records.designs()]))


def _derive_each(records: Records, metric: str, design_ids: Iterable[str]) -> Iterator[tuple[str, str, float]]:
    for design_id in design_ids:
        last = last_attempts(records, design_id)
        for trial in records.each_trial(design_id):
            is_measured = trial.role == "measured" and trial.outcome in MEASURED_OUTCOMES
            value = None
            if is_measured and last[trial.trial_id].attempt == trial.attempt:
                value = records.metrics(trial)[metric]
            if value is not None:
                yield design_id, as_json(dict(trial.levels)), value
