"""Two sides held against each other: what differs between them in settings and versions, each metric's difference with
its interval, and what cannot be compared, with the reason.

Places of the same question (design, factor, level) are compared. Two conditions of one design are paired by block;
anything else shares no blocks, and is compared as two sets (Welch's t).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.comparable import QUESTION, REFUSED, Difference, differences, setting_differences
from kvscope.analysis.compare_sides import Side
from kvscope.analysis.effects import Effect, paired_effect, unpaired_effect
from kvscope.analysis.fail_if import FailIf, Verdict, judge
from kvscope.analysis.levels import level_key
from kvscope.record.rows import DesignRow, Json

# What is compared, by the names of record.metrics.TrialMetrics, in the order in which it is shown.
METRICS = (
    "ttft_s",
    "first_answer_s",
    "tpot_s",
    "itl_p50_s",
    "itl_p99_s",
    "completion_s",
    "prefill_tokens_per_s",
    "decode_tokens_per_s",
    *(
        f"memory_{moment}_bytes{kind}"
        for kind in ("", "_file", "_device")
        for moment in ("baseline", "loaded", "peak", "after", "released")
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One point of the question that both sides measured. ``values``: by metric, the values of A and of B, in the same
    order where they are paired."""

    design: str
    factor: str
    level_a: Json
    level_b: Json
    num_a: int
    num_b: int
    failed_a: int
    failed_b: int
    is_paired: bool
    values: Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]]
    effects: Mapping[str, Effect]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Something that only one side has, or that cannot be compared, with the reason (a slug) and its values."""

    what: str
    reason: str
    values: Mapping[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """``differs``: all that is not the same, over all places, each once. ``refused``: why nothing was compared; then
    there are no places."""

    a: Side
    b: Side
    places: tuple[Place, ...]
    differs: tuple[Difference, ...]
    left_out: tuple[LeftOut, ...]
    refused: tuple[Difference, ...]

    @property
    def num_failed(self) -> int:
        return sum(place.failed_a + place.failed_b for place in self.places)


def compare_sides(a: Side, b: Side, *, across: Sequence[str] = ()) -> Comparison:
    """Compare what both sides measured. Rows of different machines, models or engine builds are refused, unless that is
    what shall be compared: ``across`` names them (machine, model, engine)."""
    pairs, left_out = _paired_designs(a, b)
    differs = _unique(d for one, other in pairs for d in _differing(a, b, one, other))
    refused = tuple(d for d in differs if d.kind in REFUSED and d.kind not in across)
    points = [] if refused else [point for one, other in pairs for point in _points(a, b, one, other)]
    return Comparison(
        a=a,
        b=b,
        places=tuple(_place(a, b, point, len(points)) for point in points),
        differs=differs,
        left_out=(*left_out, *(left for one, other in pairs for left in _only_one(a, b, one, other))),
        refused=refused,
    )


def _paired_designs(a: Side, b: Side) -> tuple[list[tuple[DesignRow, DesignRow]], tuple[LeftOut, ...]]:
    """Designs of both sides that ask the same: of one condition each, whatever they ask; otherwise by name and factor,
    of several the one begun last."""
    if a.is_condition and b.is_condition:
        return [(_last(a), _last(b))], ()
    ours, theirs = _by_question(a), _by_question(b)
    pairs = [(ours[key], theirs[key]) for key in ours if key in theirs]
    left_out = [
        LeftOut(what=name, reason=reason, values={"factor": factor})
        for here, there, reason in ((ours, theirs, "only_in_a"), (theirs, ours, "only_in_b"))
        for name, factor in here
        if (name, factor) not in there
    ]
    return pairs, tuple(left_out)


def _differing(a: Side, b: Side, one: DesignRow, other: DesignRow) -> list[Difference]:
    """What differs between two designs, and between the settings of two conditions."""
    found = list(differences(one, other, run_a=a.runs[-1], run_b=b.runs[-1]))
    known = {difference.name for difference in found}
    asked = [side.attempts[row.design_id][0].trial.settings for side, row in ((a, one), (b, other))]
    if a.is_condition or b.is_condition:
        found += [d for d in setting_differences(*asked) if d.name not in known]
    if a.level is not None and b.level is not None and level_key(a.level) != level_key(b.level):
        found.append(Difference(kind=QUESTION, name="level", a=a.level, b=b.level))
    return found


def _last(side: Side) -> DesignRow:
    return list(side.designs.values())[-1]


def _by_question(side: Side) -> dict[tuple[str, str], DesignRow]:
    return {(design.name, design.factor): design for design in side.designs.values()}


def _points(a: Side, b: Side, one: DesignRow, other: DesignRow) -> list[tuple[DesignRow, DesignRow, Json, Json]]:
    """Levels that both sides measured; two conditions are one point, whatever their levels are."""
    if a.is_condition and b.is_condition:
        return [(one, other, a.level, b.level)]
    ours, theirs = _tried(a, one), _tried(b, other)
    return [(one, other, level, theirs[key]) for key, level in ours.items() if key in theirs]


def _tried(side: Side, design: DesignRow) -> dict[str, Json]:
    """Levels of which this side has trials, in the design's order."""
    tried = {level_key(attempt.trial.level) for attempt in side.attempts[design.design_id]}
    return {level_key(level): level for level in design.levels if level_key(level) in tried}


def _only_one(a: Side, b: Side, one: DesignRow, other: DesignRow) -> list[LeftOut]:
    """Levels that only one side tried."""
    if a.is_condition and b.is_condition:
        return []
    ours, theirs = _tried(a, one), _tried(b, other)
    return [
        LeftOut(what=one.name, reason=reason, values={"factor": one.factor, "level": level})
        for here, there, reason in ((ours, theirs, "only_in_a"), (theirs, ours, "only_in_b"))
        for key, level in here.items()
        if key not in there
    ]


def _place(a: Side, b: Side, point: tuple[DesignRow, DesignRow, Json, Json], num_places: int) -> Place:
    one, other, level_a, level_b = point
    here, there = _at(a, one, level_a), _at(b, other, level_b)
    is_paired = one.design_id == other.design_id and level_key(level_a) != level_key(level_b)
    values = {metric: _values(here, there, metric, is_paired) for metric in METRICS}
    known = {metric: found for metric, found in values.items() if found[0] and found[1]}
    return Place(
        design=one.name,
        factor=one.factor,
        level_a=level_a,
        level_b=level_b,
        num_a=sum(attempt.is_measured for attempt in here),
        num_b=sum(attempt.is_measured for attempt in there),
        failed_a=sum(attempt.is_failure for attempt in here),
        failed_b=sum(attempt.is_failure for attempt in there),
        is_paired=is_paired,
        values=known,
        effects={metric: _effect(metric, *found, is_paired, num_places) for metric, found in known.items()},
    )


def _at(side: Side, design: DesignRow, level: Json) -> list[Attempt]:
    key = level_key(level)
    return [attempt for attempt in side.attempts[design.design_id] if level_key(attempt.trial.level) == key]


def _values(
    here: Sequence[Attempt], there: Sequence[Attempt], metric: str, is_paired: bool
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    before, after = _by_block(here, metric), _by_block(there, metric)
    if is_paired:
        blocks = [block for block in before if block in after]
        return tuple(before[block] for block in blocks), tuple(after[block] for block in blocks)
    return tuple(before.values()), tuple(after.values())


def _by_block(attempts: Sequence[Attempt], metric: str) -> dict[int, float]:
    found = {a.trial.block: getattr(a.metrics, metric) for a in attempts if a.is_measured}
    return {block: value for block, value in sorted(found.items()) if value is not None}


def _effect(metric: str, a: Sequence[float], b: Sequence[float], is_paired: bool, num_places: int) -> Effect:
    if is_paired:
        return paired_effect(metric, list(zip(a, b, strict=True)), num_levels=num_places)
    return unpaired_effect(metric, a, b, num_levels=num_places)


def _unique(found: Iterable[Difference]) -> tuple[Difference, ...]:
    kept: list[Difference] = []
    for difference in found:
        if difference not in kept:
            kept.append(difference)
    return tuple(kept)


def comparison_dict(comparison: Comparison, judged: Mapping[str, Sequence["Judged"]]) -> dict[str, Json]:
    """The JSON of ``kvscope compare --json`` (kvscope.compare/1). ``judged``: by the text of each condition."""
    return {
        "schema": "kvscope.compare/1",
        "a": comparison.a.name,
        "b": comparison.b.name,
        "differs": [asdict(difference) for difference in comparison.differs],
        "not_comparable": [asdict(difference) for difference in comparison.refused],
        "left_out": [asdict(left) for left in comparison.left_out],
        "places": [_place_dict(place) for place in comparison.places],
        "fail_if": [
            {
                "condition": text,
                "design": each.place.design,
                "level_a": each.place.level_a,
                "level_b": each.place.level_b,
                "state": each.verdict.state,
            }
            for text, found in judged.items()
            for each in found
        ],
    }


def _place_dict(place: Place) -> dict[str, Json]:
    names = ("design", "factor", "level_a", "level_b", "num_a", "num_b", "failed_a", "failed_b", "is_paired")
    return {
        **{name: getattr(place, name) for name in names},
        "metrics": {metric: _effect_dict(effect) for metric, effect in place.effects.items()},
    }


def _effect_dict(effect: Effect) -> dict[str, Json]:
    return {
        "a": effect.baseline,
        "b": effect.changed,
        "difference": effect.difference.value,
        "low": effect.difference.low,
        "high": effect.difference.high,
        "share": effect.relative.value,
        "share_low": effect.relative.low,
        "share_high": effect.relative.high,
        "verdict": effect.verdict,
        "method": effect.method,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One condition of failing at one place."""

    place: Place
    verdict: Verdict


def judge_all(comparison: Comparison, condition: FailIf) -> tuple[Judged, ...]:
    """The condition at every place."""
    return tuple(
        Judged(
            place=place,
            verdict=judge(condition, *place.values.get(condition.metric, ((), ())), is_paired=place.is_paired),
        )
        for place in comparison.places
    )
