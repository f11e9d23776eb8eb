"""Does it still answer: from the answers of a design's trials to shares with intervals, and to verdicts.

One cell is a task in one language at one level. Cells are judged against the baseline's on the same items where both
have them (``input_length`` asks other documents at each length: then the shares are compared); of a grid against the
baseline's settings with the same work. Where a judge read some of a task's answers and not all of them, all are taken
as they were read strictly: what differs would else be the reader. What is *called* a loss holds for all comparisons of
the design together, however many levels, tasks and languages it has.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kvscope.analysis.attempts import Attempt, latest_attempts
from kvscope.analysis.fidelity import FIDELITY
from kvscope.analysis.levels import level_key
from kvscope.analysis.quality_cell import SCORED, QualityCell, cell_of
from kvscope.analysis.quality_comparison import QualityComparison, compare
from kvscope.analysis.quality_gain import COPY_GAIN
from kvscope.analysis.quality_items import read_alike
from kvscope.analysis.quality_work import baseline_of
from kvscope.record.rows import AnswerRow, DesignRow, Json

# Questions that ask whether a prompt arrived whole count for no ability.
MARKERS = "markers"
# Tasks of which no row is an answer, whatever became of it: what is scored has panels of its own.
_NO_ABILITY = (MARKERS, FIDELITY, COPY_GAIN)
# It was asked, and no right answer is known.
UNSCORED = "unscored"
NOT_ANSWERED = (SCORED, UNSCORED)


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelAnswers:
    """All answers of one level, its repeats together. ``repeats``: of how many trials."""

    level: Json
    rows: tuple[AnswerRow, ...]
    repeats: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityPanel:
    """``cells``: by task, language and level, the baseline's first of each. ``comparisons``: of all others that have a
    baseline's cell beside them. ``read_strictly``: tasks and languages of which not all answers have one judge."""

    design_id: str | None
    cells: tuple[QualityCell, ...]
    comparisons: tuple[QualityComparison, ...]
    num_comparisons: int
    read_strictly: tuple[tuple[str, str], ...] = ()

    def comparison(self, task: str, language: str, level: Json) -> QualityComparison | None:
        """The comparison of one cell, if there is one."""
        for each in self.comparisons:
            if (each.task, each.language, level_key(each.level)) == (task, language, level_key(level)):
                return each
        return None


def quality_panel(design: DesignRow, attempts: Sequence[Attempt]) -> QualityPanel:
    """The panel of one design, from its last attempts at each trial. Without answers it is empty."""
    here = [attempt for attempt in latest_attempts(attempts) if attempt.design.design_id == design.design_id]
    return panel_of(level_answers(here), design.baseline_level, design_id=design.design_id)


def level_answers(attempts: Sequence[Attempt]) -> tuple[LevelAnswers, ...]:
    """The answers of measured trials of one design by level; levels without any are left out."""
    found: dict[str, list[Attempt]] = {}
    for attempt in attempts:
        if attempt.is_measured and attempt.result.answers:
            found.setdefault(level_key(attempt.trial.level), []).append(attempt)
    return tuple(
        LevelAnswers(
            level=here[0].trial.level,
            rows=tuple(row for attempt in here for row in attempt.result.answers),
            repeats=len(here),
        )
        for here in found.values()
    )


def panel_of(levels: Sequence[LevelAnswers], baseline_level: Json, *, design_id: str | None = None) -> QualityPanel:
    """The panel of answers at several levels, of which one is the baseline."""
    base_key = level_key(baseline_level)
    ordered = sorted(levels, key=lambda level: level_key(level.level) != base_key)
    kinds = sorted(
        {
            (row.task, row.language)
            for level in levels
            for row in level.rows
            if row.reading not in NOT_ANSWERED and row.task not in _NO_ABILITY
        }
    )
    num_changed = max(1, sum(level_key(level.level) != base_key for level in levels))
    num_comparisons = num_changed * max(1, len(kinds))
    cells: list[QualityCell] = []
    comparisons: list[QualityComparison] = []
    strictly: list[tuple[str, str]] = []
    for kind in kinds:
        asked = [(level, _rows(level, kind)) for level in ordered]
        alike = read_alike([here for _, here in asked])
        if alike is not None:
            strictly.append(kind)
        rows = asked if alike is None else [(level, here) for (level, _), here in zip(asked, alike, strict=True)]
        made = [
            cell_of(
                here,
                level.level,
                is_baseline=level_key(level.level) == base_key,
                repeats=level.repeats,
                num_cells=len(kinds) * len(levels),
            )
            for level, here in rows
            if here
        ]
        cells += made
        comparisons += _against_baseline(rows, made, baseline_level, num_comparisons)
    return QualityPanel(
        design_id=design_id,
        cells=tuple(cells),
        comparisons=tuple(comparisons),
        num_comparisons=num_comparisons,
        read_strictly=tuple(strictly),
    )


def _rows(level: LevelAnswers, kind: tuple[str, str]) -> tuple[AnswerRow, ...]:
    return tuple(row for row in level.rows if (row.task, row.language) == kind and row.reading not in NOT_ANSWERED)


def _against_baseline(
    rows: Sequence[tuple[LevelAnswers, tuple[AnswerRow, ...]]],
    cells: Sequence[QualityCell],
    baseline_level: Json,
    num_comparisons: int,
) -> list[QualityComparison]:
    by_level = {level_key(level.level): here for level, here in rows if here}
    of_level = {level_key(cell.level): cell for cell in cells}
    known = [cell.level for cell in cells]
    found = []
    for cell in cells:
        base = of_level.get(level_key(baseline_of(cell.level, baseline_level, known)))
        if base is None or cell.is_baseline:
            continue
        found.append(
            compare(
                by_level[level_key(base.level)],
                by_level[level_key(cell.level)],
                levels=(base.level, cell.level),
                gate=base.gate,
                num_comparisons=num_comparisons,
                changed_gate=cell.gate,
            )
        )
    return found
