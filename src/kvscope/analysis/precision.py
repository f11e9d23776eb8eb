"""Whether the effect of a design is known as closely as was asked: the rule by which repeating ends (``--until``).

Repeating until the interval is narrow stops, more often than not, where the noise happens to look small. Two things
make up for it, both found by simulation (tests/analysis/test_precision.py): the interval has to be narrow at three
looks in a row, and intervals of such a design are made a little wider than others (``effects.STOPPED``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from kvscope.analysis.attempts import Attempt, load_attempts
from kvscope.analysis.levels import LevelRow, level_rows
from kvscope.record.rows import DesignRow, Json
from kvscope.record.store import Records

# Blocks between two looks: those after the first ones come in pairs (Design.trials).
BLOCKS_BETWEEN_LOOKS = 2
# At so many in a row the interval has to be narrow.
LOOKS = 3
# A look at fewer blocks says nothing of the noise.
LEAST_BLOCKS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """How closely the effect on ``metric`` is known after ``num_blocks`` blocks. ``share``: how far the widest interval
    of any level reaches to either side, as a share of the baseline's mean; None where there is none. ``widest_level``:
    whose it is. ``needed_blocks``: how many blocks would do at that level's noise; None where that is not known."""

    metric: str
    asked_share: float
    num_blocks: int
    most_blocks: int
    share: float | None
    widest_level: Json
    needed_blocks: int | None
    is_enough: bool


def precision(
    design: DesignRow,
    attempts: Sequence[Attempt],
    *,
    metric: str,
    share: float,
    most_blocks: int | None = None,
) -> Precision:
    """The state of a design: enough means that the interval of every level is as narrow as asked (``share`` of the
    baseline's mean to either side), now and as it was at the looks before. A level at which nothing could be measured
    (refused each time, say) is not waited for."""
    measured = [a for a in attempts if a.is_measured]
    num_blocks = max((a.trial.block for a in measured), default=-1) + 1
    rows = level_rows(design, measured, (metric,))
    widest = _widest(rows, metric)
    reached = None if widest is None else _share(widest, metric)
    return Precision(
        metric=metric,
        asked_share=share,
        num_blocks=num_blocks,
        most_blocks=design.repeats if most_blocks is None else most_blocks,
        share=reached,
        widest_level=None if widest is None else widest.level,
        needed_blocks=None if widest is None else _needed(widest, metric, share),
        is_enough=_is_narrow(rows, metric, share) and _was_narrow(design, measured, num_blocks, metric, share),
    )


def _was_narrow(design: DesignRow, measured: Sequence[Attempt], num_blocks: int, metric: str, asked: float) -> bool:
    """Whether the intervals were narrow at the looks before this one."""
    earlier = [num_blocks - back * BLOCKS_BETWEEN_LOOKS for back in range(1, LOOKS)]
    return earlier[-1] >= LEAST_BLOCKS and all(
        _is_narrow(level_rows(design, [a for a in measured if a.trial.block < blocks], (metric,)), metric, asked)
        for blocks in earlier
    )


def stated_precision(design: DesignRow, attempts: Sequence[Attempt]) -> Precision | None:
    """The same for a design that was told to repeat until it is narrow enough; None for one that was not."""
    until = design.definition.get("until")
    if not until:
        return None
    most = max(design.repeats, int(until["most_repeats"]))
    return precision(design, attempts, metric=str(until["metric"]), share=float(until["share"]), most_blocks=most)


def is_precise_enough(records: Records, design: DesignRow, *, metric: str, share: float) -> bool:
    """Whether repeating may end. False where an interval is not known."""
    attempts = load_attempts(records, design, {run.run_id: run for run in records.runs()})
    return precision(design, attempts, metric=metric, share=share).is_enough


def _share(row: LevelRow, metric: str) -> float | None:
    effect = row.effects[metric]
    if effect.half_width is None or not effect.baseline or effect.baseline < 0:
        return None
    return effect.half_width / effect.baseline


def _changed(rows: Sequence[LevelRow]) -> list[LevelRow]:
    return [row for row in rows if not row.is_baseline and row.num_measured]


def _widest(rows: Sequence[LevelRow], metric: str) -> LevelRow | None:
    """The level whose interval reaches furthest; one without an interval before all others."""
    shares = [(inf if (share := _share(row, metric)) is None else share, row) for row in _changed(rows)]
    return max(shares, key=lambda pair: pair[0])[1] if shares else None


def _is_narrow(rows: Sequence[LevelRow], metric: str, asked: float) -> bool:
    shares = [_share(row, metric) for row in _changed(rows)]
    return bool(shares) and all(share is not None and share <= asked for share in shares)


def _needed(row: LevelRow, metric: str, share: float) -> int | None:
    effect = row.effects[metric]
    return effect.repeats_needed(share * effect.baseline) if effect.baseline else None
