"""The JSON of ``kvscope compare --json`` (kvscope.compare/1)."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from kvscope.analysis.compare_runs import Comparison, Counted, Judged, Place
from kvscope.analysis.effects import Effect
from kvscope.record.rows import Json


def comparison_dict(comparison: Comparison, judged: Mapping[str, Sequence[Judged]]) -> dict[str, Json]:
    """All of a comparison. ``judged``: by the text of each condition of failing."""
    return {
        "schema": "kvscope.compare/1",
        "a": comparison.a.name,
        "b": comparison.b.name,
        "differs": [asdict(difference) for difference in comparison.differs],
        "not_comparable": [asdict(difference) for difference in comparison.refused],
        "left_out": [asdict(left) for left in comparison.left_out],
        "places": [_place_dict(place) for place in comparison.places],
        "fail_if": [{"condition": text, **asdict(each)} for text, found in judged.items() for each in found],
    }


def _place_dict(place: Place) -> dict[str, Json]:
    point, pair = place.point, place.point.pair
    return {
        "design": pair.a.name,
        "factor": pair.a.factor,
        "design_b": pair.b.name,
        "factor_b": pair.b.factor,
        "design_id_a": pair.a.design_id,
        "design_id_b": pair.b.design_id,
        "level_a": point.level_a,
        "level_b": point.level_b,
        **_counted_dict(place.a, "a"),
        **_counted_dict(place.b, "b"),
        "is_paired": place.is_paired,
        "pairs_across_sittings": place.across_sittings,
        "metrics": {metric: _effect_dict(effect) for metric, effect in place.effects.items()},
    }


def _counted_dict(counted: Counted, side: str) -> dict[str, Json]:
    return {
        f"num_{side}": counted.measured,
        f"failed_{side}": counted.failed,
        f"client_limited_{side}": counted.client_limited,
        f"warnings_{side}": dict(counted.warnings),
    }


def _effect_dict(effect: Effect) -> dict[str, Json]:
    return {
        "a": effect.baseline,
        "b": effect.changed,
        "difference": effect.difference.value,
        "low": effect.difference.low,
        "high": effect.difference.high,
        "share": effect.share.value,
        "share_low": effect.share.low,
        "share_high": effect.share.high,
        "ratio": effect.relative.value,
        "ratio_low": effect.relative.low,
        "ratio_high": effect.relative.high,
        "verdict": effect.verdict,
        "method": effect.method,
        "pairs": effect.num_pairs,
    }
