"""Which design of one side is held against which of the other, and what is left out, with the reason."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from kvscope.analysis.comparable import refused_kinds
from kvscope.analysis.compare_sides import Side
from kvscope.analysis.levels import level_key
from kvscope.record.rows import DesignRow, Json

# Why something was not compared.
ONLY_IN_A, ONLY_IN_B, ANOTHER, NOT_COMPARABLE = "only_in_a", "only_in_b", "another_compared", "not_comparable"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Something that was not compared, with the reason (a slug) and its values: factor, level, design_id, side."""

    what: str
    reason: str
    values: Mapping[str, Json]

    @property
    def is_missing(self) -> bool:
        """A is what B is held against: where B lacks what A has, or may not be compared, a check cannot be made."""
        return self.reason in (ONLY_IN_A, NOT_COMPARABLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A design of A and one of B that ask the same. ``refused``: the kinds of facts across which they may not be
    compared."""

    a: DesignRow
    b: DesignRow
    refused: tuple[str, ...]


def pair_designs(a: Side, b: Side, across: Sequence[str]) -> tuple[list[Pair], list[LeftOut]]:
    """The designs of both sides that are compared. ``across``: kinds of facts that may differ.

    The same study on both sides first; of several rows of it those of a machine, model and engine that both have. Of a
    question whose studies are not the same (other settings, say) the designs that are held most alike, of several the
    ones begun last. A condition is one design of each side: where one holds both, that one.
    """
    if a.is_condition and b.is_condition:
        best = max(_candidates(a, b, across, list(product(a.designs, b.designs))), key=lambda each: each[0])[1]
        return [best], [*_unused(a, "a", [best.a]), *_unused(b, "b", [best.b])]
    pairs: list[Pair] = []
    left_out: list[LeftOut] = []
    ours, theirs = _by_question(a), _by_question(b)
    for question in ours:
        if question in theirs:
            found = _of_question(a, b, across, list(product(ours[question], theirs[question])))
            pairs += found
            left_out += _unused(a, "a", [pair.a for pair in found], ours[question])
            left_out += _unused(b, "b", [pair.b for pair in found], theirs[question])
    return pairs, [*left_out, *_only_on_one(a, b, ours, theirs)]


def _of_question(a: Side, b: Side, across: Sequence[str], ids: Sequence[tuple[str, str]]) -> list[Pair]:
    ranked = sorted(_candidates(a, b, across, ids), key=lambda each: each[0], reverse=True)
    if a.is_condition or b.is_condition:
        return [ranked[0][1]]
    found: list[Pair] = []
    for _, pair in ranked:
        is_same = _is_same_study(pair.a, pair.b) and a.levels_tried(pair.a) & b.levels_tried(pair.b)
        is_free = pair.a not in [p.a for p in found] and pair.b not in [p.b for p in found]
        if is_same and is_free:
            found.append(pair)
    return found or [ranked[0][1]]


def _candidates(
    a: Side, b: Side, across: Sequence[str], ids: Iterable[tuple[str, str]]
) -> list[tuple[tuple[int, ...], Pair]]:
    """Pairs with their rank, the best being the greatest."""
    orders = [{each: place for place, each in enumerate(side.designs)} for side in (a, b)]
    found = []
    for id_a, id_b in ids:
        one, other = a.designs[id_a], b.designs[id_b]
        refused = tuple(kind for kind in refused_kinds(one, other) if kind not in across)
        pair = Pair(a=one, b=other, refused=refused)
        is_both_conditions = a.is_condition and b.is_condition
        shares_levels = bool(a.levels_tried(one) & b.levels_tried(other))
        # Rows held against themselves say nothing: across builds, one condition's own rows are not what is wanted.
        wants_same = not across or (is_both_conditions and not shares_levels)
        likeness = (
            a.is_measured(one) and b.is_measured(other),
            is_both_conditions or shares_levels,
            not pair.refused,
            wants_same and one.design_id == other.design_id,
            _is_same_study(one, other),
            one.held == other.held,
        )
        found.append(((*map(int, likeness), orders[1][id_b], orders[0][id_a]), pair))
    return found


def _is_same_study(a: DesignRow, b: DesignRow) -> bool:
    """Records of before studies had ids tell by the design's."""
    return a.design_id == b.design_id or (bool(a.study_id) and a.study_id == b.study_id)


def _by_question(side: Side) -> dict[tuple[str, str], list[str]]:
    """(design's name, factor) → ids of the designs that ask it."""
    found: dict[tuple[str, str], list[str]] = {}
    for design in side.designs.values():
        found.setdefault((design.name, design.factor), []).append(design.design_id)
    return found


def _unused(side: Side, letter: str, used: Sequence[DesignRow], ids: Sequence[str] | None = None) -> list[LeftOut]:
    kept = [design.design_id for design in used]
    return [
        LeftOut(what=design.name, reason=ANOTHER, values=_values(design, letter))
        for design in (side.designs[each] for each in (side.designs if ids is None else ids))
        if design.design_id not in kept
    ]


def _values(design: DesignRow, letter: str) -> dict[str, Json]:
    return {"factor": design.factor, "design_id": design.design_id, "side": letter}


def _only_on_one(
    a: Side, b: Side, ours: Mapping[tuple[str, str], Sequence[str]], theirs: Mapping[tuple[str, str], Sequence[str]]
) -> list[LeftOut]:
    """Questions that only one side has. Where a condition was named, the other's are not what was asked for."""
    return [
        LeftOut(what=name, reason=reason, values={"factor": factor})
        for side, here, there, reason in ((a, ours, theirs, ONLY_IN_A), (b, theirs, ours, ONLY_IN_B))
        for name, factor in here
        if (name, factor) not in there and (side.is_condition or not (a.is_condition or b.is_condition))
    ]


def levels_of_one(a: Side, b: Side, pair: Pair) -> list[LeftOut]:
    """Levels of a pair that only one side tried."""
    if a.is_condition and b.is_condition:
        return []
    found = []
    for side, design, other, reason in (
        (a, pair.a, b.levels_tried(pair.b), ONLY_IN_A),
        (b, pair.b, a.levels_tried(pair.a), ONLY_IN_B),
    ):
        if side.is_condition or not (a.is_condition or b.is_condition):
            found += [
                LeftOut(what=design.name, reason=reason, values={"factor": design.factor, "level": level})
                for level in tried_levels(side, design).values()
                if level_key(level) not in other
            ]
    return found


def tried_levels(side: Side, design: DesignRow) -> dict[str, Json]:
    """Levels of which this side has trials, in the design's order, by their keys."""
    tried = side.levels_tried(design)
    return {level_key(level): level for level in design.levels if level_key(level) in tried}


def not_comparable(pair: Pair) -> LeftOut:
    """A pair that may not be compared, where others may."""
    values = {"factor": pair.a.factor, "kinds": list(pair.refused)}
    return LeftOut(what=pair.a.name, reason=NOT_COMPARABLE, values=values)
