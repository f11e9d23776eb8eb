"""Two sides held against each other: what differs between them in settings and versions, each metric's difference with
its interval, and what cannot be compared, with the reason.

Places of the same question (design, factor, level) are compared. Two conditions of one design are paired by block;
anything else shares no blocks, and is compared as two sets (Welch's t).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.comparable import KINDS, QUESTION, SETTING, Difference, differences, setting_differences
from kvscope.analysis.compare_match import LeftOut, Pair, levels_of_one, not_comparable, pair_designs, tried_levels
from kvscope.analysis.compare_metrics import METRICS, numbers_of
from kvscope.analysis.compare_sides import Side
from kvscope.analysis.effects import FIXED, STOPPED, Effect, ErrorRates, paired_effect, unpaired_effect
from kvscope.analysis.fail_if import NOT_MEASURED, FailIf, judge
from kvscope.analysis.levels import error_rates, level_key
from kvscope.record.rows import DesignRow, Json

_LEVEL = "level"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A level of a design of A, and one of a design of B, that are compared."""

    pair: Pair
    level_a: Json
    level_b: Json

    @property
    def is_paired(self) -> bool:
        """Two levels of one design: its blocks hold both."""
        is_one_design = self.pair.a.design_id == self.pair.b.design_id
        return is_one_design and level_key(self.level_a) != level_key(self.level_b)

    @property
    def rates(self) -> ErrorRates:
        """Those of a design that stopped when its interval was narrow, where one of both did."""
        return STOPPED if STOPPED in (error_rates(self.pair.a), error_rates(self.pair.b)) else FIXED


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """The attempts of one side at a place. ``client_limited`` and ``warnings`` (slug → how many) are of those that were
    measured, and so are in the averages."""

    measured: int
    failed: int
    client_limited: int
    warnings: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One point of the question that both sides measured. ``values``: by metric, the values of A and of B, in the same
    order where they are paired. ``across_sittings``: pairs whose two attempts are of different sittings. ``num_places``
    that are compared at once."""

    point: Point
    a: Counted
    b: Counted
    across_sittings: int
    num_places: int
    values: Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]]
    effects: Mapping[str, Effect]

    @property
    def is_paired(self) -> bool:
        return self.point.is_paired


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """``differs``: all that is not the same, over all places, each once. ``refused``: across what rows were not
    compared; where that is all of them, there are no places."""

    a: Side
    b: Side
    places: tuple[Place, ...]
    differs: tuple[Difference, ...]
    left_out: tuple[LeftOut, ...]
    refused: tuple[Difference, ...]


def compare_sides(a: Side, b: Side, *, across: Sequence[str] = ()) -> Comparison:
    """Compare what both sides measured. Rows of different machines, models or engine builds are refused, unless that is
    what shall be compared: ``across`` names them (machine, model, engine)."""
    pairs, left_out = pair_designs(a, b, across)
    refused = [pair for pair in pairs if pair.refused]
    compared = [pair for pair in pairs if not pair.refused]
    points = {id(pair): _points(a, b, pair) for pair in compared}
    num_places = sum(map(len, points.values()))
    told = _unique(d for pair in refused for d in _differing(a, b, pair, []) if d.kind in pair.refused)
    differs = _unique(d for pair in compared or refused for d in _differing(a, b, pair, points.get(id(pair), [])))
    return Comparison(
        a=a,
        b=b,
        places=tuple(_place(a, b, point, num_places) for pair in compared for point in points[id(pair)]),
        differs=tuple(sorted(differs, key=lambda difference: KINDS.index(difference.kind))),
        left_out=(
            *left_out,
            *(not_comparable(pair) for pair in refused if compared),
            *(left for pair in compared for left in levels_of_one(a, b, pair)),
        ),
        refused=told,
    )


def _points(a: Side, b: Side, pair: Pair) -> list[Point]:
    """Levels that both sides tried. Two conditions are one point, whatever their levels are; where they name several
    cells of a grid, those are compared that are alike in all else."""
    ours, theirs = tried_levels(a, pair.a), tried_levels(b, pair.b)
    if not (a.is_condition and b.is_condition):
        return [Point(pair=pair, level_a=ours[key], level_b=theirs[key]) for key in ours if key in theirs]
    if len(ours) == len(theirs) == 1:
        return [Point(pair=pair, level_a=next(iter(ours.values())), level_b=next(iter(theirs.values())))]
    named = {*a.factors, *b.factors}
    others = {_rest(level, named): level for level in theirs.values()}
    alike = [(level, others[_rest(level, named)]) for level in ours.values() if _rest(level, named) in others]
    return [Point(pair=pair, level_a=level, level_b=other) for level, other in alike]


def _rest(level: Json, named: set[str]) -> str:
    """A cell of a grid but for these factors."""
    if not isinstance(level, Mapping):
        return ""
    return level_key({name: value for name, value in level.items() if name not in named})


def _differing(a: Side, b: Side, pair: Pair, points: Sequence[Point]) -> list[Difference]:
    """What differs between two designs, and between what was set at their points."""
    found = list(differences(pair.a, pair.b, runs_a=a.runs(pair.a), runs_b=b.runs(pair.b)))
    if not points:
        return found
    asked = pair.a.settings.keys() | pair.b.settings.keys()
    found = [d for d in found if d.kind != SETTING or d.name not in asked]
    for point in points:
        found += _of_level(point.level_a, point.level_b)
        settings = [_settings(side, *at) for side, at in ((a, (pair.a, point.level_a)), (b, (pair.b, point.level_b)))]
        found += [_with_cause(d, pair, point) for d in setting_differences(*settings)]
    return found


def _settings(side: Side, design: DesignRow, level: Json) -> Mapping[str, Json]:
    return {**design.settings, **side.at(design, level)[-1].trial.settings}


def _with_cause(difference: Difference, pair: Pair, point: Point) -> Difference:
    """A setting that is the same but for the level is made by it."""
    asked = [design.settings.get(difference.name) for design in (pair.a, pair.b)]
    is_of_level = asked[0] == asked[1] and level_key(point.level_a) != level_key(point.level_b)
    return replace(difference, because=_LEVEL) if is_of_level else difference


def _of_level(a: Json, b: Json) -> list[Difference]:
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return [
            Difference(kind=QUESTION, name=name, a=a.get(name), b=b.get(name))
            for name in {**a, **b}
            if level_key(a.get(name)) != level_key(b.get(name))
        ]
    return [Difference(kind=QUESTION, name=_LEVEL, a=a, b=b)] if level_key(a) != level_key(b) else []


def _place(a: Side, b: Side, point: Point, num_places: int) -> Place:
    here, there = a.at(point.pair.a, point.level_a), b.at(point.pair.b, point.level_b)
    before, after = _by_block(here), _by_block(there)
    if point.is_paired:
        before, after = [{block: side[block] for block in before if block in after} for side in (before, after)]
    numbers = [{block: numbers_of(attempt) for block, attempt in side.items()} for side in (before, after)]
    values = {metric: _values(numbers[0], numbers[1], metric, is_paired=point.is_paired) for metric in METRICS}
    known = {metric: found for metric, found in values.items() if found[0] and found[1]}
    return Place(
        point=point,
        a=_counted(here),
        b=_counted(there),
        across_sittings=sum(before[block].run.run_id != after[block].run.run_id for block in before)
        if point.is_paired
        else 0,
        num_places=num_places,
        values=known,
        effects={metric: _effect(metric, *found, point, num_places) for metric, found in known.items()},
    )


def _counted(attempts: Sequence[Attempt]) -> Counted:
    measured = [attempt for attempt in attempts if attempt.is_measured]
    warnings = Counter(slug for attempt in measured for slug in {warning.slug for warning in attempt.result.warnings})
    return Counted(
        measured=len(measured),
        failed=sum(attempt.is_failure for attempt in attempts),
        client_limited=sum(attempt.trial.client.get("client_limited") is True for attempt in measured),
        warnings=dict(sorted(warnings.items())),
    )


def _by_block(attempts: Sequence[Attempt]) -> dict[int, Attempt]:
    return {a.trial.block: a for a in sorted(attempts, key=lambda a: a.trial.block) if a.is_measured}


def _values(
    here: Mapping[int, Mapping[str, float | None]],
    there: Mapping[int, Mapping[str, float | None]],
    metric: str,
    *,
    is_paired: bool,
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    before, after = _known(here, metric), _known(there, metric)
    if is_paired:
        blocks = [block for block in before if block in after]
        return tuple(before[block] for block in blocks), tuple(after[block] for block in blocks)
    return tuple(before.values()), tuple(after.values())


def _known(numbers: Mapping[int, Mapping[str, float | None]], metric: str) -> dict[int, float]:
    return {block: value for block, found in numbers.items() if (value := found[metric]) is not None}


def _effect(metric: str, a: Sequence[float], b: Sequence[float], point: Point, num_places: int) -> Effect:
    if point.is_paired:
        pairs = list(zip(a, b, strict=True))
        return paired_effect(metric, pairs, num_levels=num_places, rates=point.rates)
    return unpaired_effect(metric, a, b, num_levels=num_places, rates=point.rates)


def _unique(found: Iterable[Difference]) -> tuple[Difference, ...]:
    kept: list[Difference] = []
    for difference in found:
        if difference not in kept:
            kept.append(difference)
    return tuple(kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One condition of failing at one place, or of something that could not be compared. ``state``: of a Verdict."""

    design: str
    factor: str
    level_a: Json
    level_b: Json
    state: str


def judge_all(comparison: Comparison, condition: FailIf) -> tuple[Judged, ...]:
    """The condition at every place; what A has and B lacks, or what may not be compared, was not measured."""
    judged = []
    for place in comparison.places:
        point = place.point
        values = place.values.get(condition.metric, ((), ()))
        verdict = judge(condition, *values, is_paired=point.is_paired, num_places=place.num_places, rates=point.rates)
        judged.append(_judged(point.pair.b, point.level_a, point.level_b, verdict.state))
    missing = [left for left in comparison.left_out if left.is_missing and comparison.places]
    return (
        *judged,
        *(
            Judged(
                design=left.what,
                factor=left.values["factor"],
                level_a=left.values.get("level"),
                level_b=None,
                state=NOT_MEASURED,
            )
            for left in missing
        ),
    )


def _judged(design: DesignRow, level_a: Json, level_b: Json, state: str) -> Judged:
    return Judged(design=design.name, factor=design.factor, level_a=level_a, level_b=level_b, state=state)
