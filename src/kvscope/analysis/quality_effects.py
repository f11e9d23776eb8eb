"""Memory, time and quality of a design's levels side by side, and which of them is beaten on all three.

One level beats another only where intervals say so: it is surely better in one of the three (called so by the rule of
``effects``, or of the panel), and in the two others better too, or no worse by more than 5 % (5 points of quality).
What is not known never beats, and is never beaten: it is said with which levels it could not be compared. Levels that
are other work (a longer prompt, another task) are no choice, and not held against each other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from kvscope.analysis.attempts import Attempt, latest_attempts
from kvscope.analysis.effects import Effect
from kvscope.analysis.fidelity_panel import FidelityLevel, FidelityPanel, fidelity_panel
from kvscope.analysis.levels import LevelRow, at_level, level_key, level_rows
from kvscope.analysis.quality_cell import QualityCell
from kvscope.analysis.quality_comparison import QualityComparison, compare
from kvscope.analysis.quality_gain import GainCell, copy_gains
from kvscope.analysis.quality_items import read_alike
from kvscope.analysis.quality_panel import NOT_ANSWERED, LevelAnswers, QualityPanel, level_answers, panel_of
from kvscope.analysis.quality_work import baseline_of, is_choice, work_of
from kvscope.record.rows import AnswerRow, DesignRow, Json

Relation = Literal["better", "not_worse", "worse", "unknown"]
MEASURES = ("memory", "time", "quality")
# A difference of less than this share of the other's value is none that matters.
NO_WORSE = 0.05
TIME = "completion_s"
# Shown beside, in this order.
SHOWN_TIMES = ("ttft_s", "tpot_s", TIME)


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityLevel:
    """One level. ``effects``: of the memory metric and the times against the baseline, by metric; empty for the
    baseline. ``row`` has the means. ``cells``, ``comparisons``: of the panel. ``fidelity``, ``gains``: where they were
    scored. ``beaten_by``: levels that are at least as good in all three and better in one. ``unknown_against``: levels
    of which neither beats the other because something is not known, with the measures that are not."""

    level: Json
    is_baseline: bool
    row: LevelRow
    cells: tuple[QualityCell, ...]
    comparisons: tuple[QualityComparison, ...]
    fidelity: FidelityLevel | None
    gains: tuple[GainCell, ...]
    beaten_by: tuple[Json, ...] = ()
    unknown_against: tuple[tuple[Json, tuple[str, ...]], ...] = ()

    @property
    def effects(self) -> Mapping[str, Effect]:
        return self.row.effects


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityEffects:
    """``levels``: the baseline's first. ``is_choice``: whether levels are ways to do the same, so that one can beat
    another. ``memory_metric``: which memory is meant, a device's where there is one."""

    design_id: str
    memory_metric: str
    levels: tuple[QualityLevel, ...]
    panel: QualityPanel
    fidelity: FidelityPanel | None
    is_choice: bool

    @property
    def not_beaten(self) -> tuple[Json, ...]:
        """Levels that no other beats; all of them where levels are no choice."""
        return tuple(each.level for each in self.levels if not each.beaten_by)


def quality_effects(design: DesignRow, attempts: Sequence[Attempt]) -> QualityEffects | None:
    """None where no trial of the design has answers or scores."""
    here = [a for a in latest_attempts(attempts) if a.design.design_id == design.design_id]
    answers = level_answers(here)
    if not answers:
        return None
    metric = _memory_metric(here)
    rows = level_rows(design, here, (metric, *SHOWN_TIMES))
    panel = panel_of(answers, design.baseline_level, design_id=design.design_id)
    fidelity = fidelity_panel(
        [(row.level, [a.result for a in at_level(here, row.level) if a.is_measured]) for row in rows]
    )
    by_level = {level_key(each.level): each.rows for each in answers}
    gains = copy_gains([(row.level, by_level.get(level_key(row.level), ())) for row in rows])
    levels = [_level(row, panel, fidelity, gains) for row in rows]
    can_beat = is_choice(design, [each.level for each in levels])
    if can_beat:
        pairs = _Pairs(design=design, attempts=here, metric=metric, answers=answers, panel=panel, fidelity=fidelity)
        levels = [_against_others(each, levels, pairs) for each in levels]
    return QualityEffects(
        design_id=design.design_id,
        memory_metric=metric,
        levels=tuple(levels),
        panel=panel,
        fidelity=fidelity,
        is_choice=can_beat,
    )


def _memory_metric(attempts: Sequence[Attempt]) -> str:
    device = "memory_peak_bytes_device"
    known = any(getattr(a.metrics, device) is not None for a in attempts if a.is_measured)
    return device if known else "memory_peak_bytes"


def _level(
    row: LevelRow, panel: QualityPanel, fidelity: FidelityPanel | None, gains: Sequence[GainCell]
) -> QualityLevel:
    key = level_key(row.level)
    return QualityLevel(
        level=row.level,
        is_baseline=row.is_baseline,
        row=row,
        cells=tuple(cell for cell in panel.cells if level_key(cell.level) == key),
        comparisons=tuple(each for each in panel.comparisons if level_key(each.level) == key),
        fidelity=None if fidelity is None else fidelity.level(row.level),
        gains=tuple(each for each in gains if level_key(each.level) == key),
    )


def _against_others(level: QualityLevel, levels: Sequence[QualityLevel], pairs: "_Pairs") -> QualityLevel:
    beaten_by, unknown = [], []
    for other in levels:
        if level_key(other.level) == level_key(level.level):
            continue
        if work_of(pairs.design, other.level) != work_of(pairs.design, level.level):
            continue
        theirs = pairs.relations(other.level, level.level)
        if beats(theirs):
            beaten_by.append(other.level)
        elif "worse" not in theirs.values() and "unknown" in theirs.values():
            unknown.append((other.level, tuple(name for name in MEASURES if theirs[name] == "unknown")))
    return replace(level, beaten_by=tuple(beaten_by), unknown_against=tuple(unknown))


def beats(relations: Mapping[str, Relation]) -> bool:
    """Whether one level beats another, by how it stands to it in each measure."""
    known = set(relations.values())
    return "better" in known and known <= {"better", "not_worse"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pairs:
    """How any two levels stand to each other."""

    design: DesignRow
    attempts: Sequence[Attempt]
    metric: str
    answers: Sequence[LevelAnswers]
    panel: QualityPanel
    fidelity: FidelityPanel | None

    def relations(self, one: Json, other: Json) -> dict[str, Relation]:
        """``one`` against ``other``, by measure."""
        rows = level_rows(replace(self.design, baseline_level=other), self.attempts, (self.metric, TIME))
        effects = next(row.effects for row in rows if level_key(row.level) == level_key(one))
        return {
            "memory": of_effect(effects[self.metric]),
            "time": of_effect(effects[TIME]),
            "quality": together([*self._tasks(one, other), of_fidelity(self.fidelity, one, other)]),
        }

    def _tasks(self, one: Json, other: Json) -> list[Relation]:
        """Of each task in each language that the baseline of these two can be judged by."""
        known = [each.level for each in self.answers]
        base_key = level_key(baseline_of(one, self.design.baseline_level, known))
        cells = {(each.task, each.language, level_key(each.level)): each for each in self.panel.cells}
        found: list[Relation] = []
        for (task, language, key), cell in cells.items():
            if key != base_key or cell.gate not in ("measured", "ceiling"):
                continue
            before, after = (cells.get((task, language, level_key(level))) for level in (other, one))
            if before is None or after is None:
                continue
            maybe_cut = "maybe_cut" in (before.gate, after.gate)
            rows = self._rows(task, language, other, one)
            judged = compare(
                *rows,
                levels=(other, one),
                gate="maybe_cut" if maybe_cut else cell.gate,
                num_comparisons=self.panel.num_comparisons,
            ).judged
            found.append(_OF_VERDICT.get(judged.verdict, "unknown"))
        return found

    def _rows(
        self, task: str, language: str, other: Json, one: Json
    ) -> tuple[Sequence[AnswerRow], Sequence[AnswerRow]]:
        """Of both levels, read by one reader."""
        by_level = {level_key(each.level): each.rows for each in self.answers}
        of_task = [
            [row for row in rows if (row.task, row.language) == (task, language) and row.reading not in NOT_ANSWERED]
            for rows in by_level.values()
        ]
        alike = dict(zip(by_level, read_alike(of_task) or of_task, strict=True))
        return alike[level_key(other)], alike[level_key(one)]


_OF_VERDICT: Mapping[str, Relation] = {"gain": "better", "loss": "worse", "no_loss_beyond": "not_worse"}


def of_effect(effect: Effect) -> Relation:
    """Of a quantity of which less is better: how the changed side stands to the other."""
    if effect.verdict in ("less", "more"):
        return "better" if effect.verdict == "less" else "worse"
    high, base = effect.difference.high, effect.baseline
    if effect.verdict == "unknown" or high is None or base is None:
        return "unknown"
    return "not_worse" if high <= NO_WORSE * abs(base) else "unknown"


def of_fidelity(panel: FidelityPanel | None, one: Json, other: Json) -> Relation:
    """By divergence from the reference, of which less is better."""
    if panel is None:
        return "unknown"
    mine, theirs = panel.level(one), panel.level(other)
    if mine is None or theirs is None or level_key(mine.reference_level) != level_key(theirs.reference_level):
        return "unknown"
    for order in panel.orders:
        keys = (level_key(order.less), level_key(order.more))
        if order.is_certain and set(keys) == {level_key(one), level_key(other)}:
            return "better" if keys[0] == level_key(one) else "worse"
    # Of what could be held against the reference nothing is nearer to it than itself, or than what is not told from it.
    at_floor = ("reference", "no_loss_larger_than_floor")
    if mine.verdict in at_floor:
        is_known = theirs.verdict == "reference" or theirs.divergence.value is not None
        return "better" if theirs.verdict == "loss" else "not_worse" if is_known else "unknown"
    return "worse" if mine.verdict == "loss" and theirs.verdict in at_floor else "unknown"


def together(relations: Sequence[Relation]) -> Relation:
    """Several measures of quality as one: worse or better where one says so and none the opposite; those that cannot
    tell decide nothing."""
    known = set(relations)
    if "worse" in known:
        return "unknown" if "better" in known else "worse"
    if "better" in known:
        return "better"
    return "not_worse" if "not_worse" in known else "unknown"
