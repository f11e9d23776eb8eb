"""Advice as JSON, part of kvscope.report/1: what binds, what to change, and what is not advised."""

from dataclasses import asdict
from typing import Any

from kvscope.analysis.advice_command import command_text
from kvscope.analysis.advice_kind import Advice, Withheld
from kvscope.analysis.fit import Estimate
from kvscope.analysis.study import Study
from kvscope.report.advice_words import advice_remarks, advice_text, pressure_text, price_text, withheld_text
from kvscope.report.words import NO_BREAK


def advice_json(study: Study) -> dict[str, Any]:
    """Keys ``pressure``, ``advice``, ``withheld``, ``priced`` and ``look``. Sizes are in the unit of their
    metric; unknown is None."""
    pressure = study.pressure
    return {
        "pressure": {
            "slug": pressure.slug,
            "says": _plain(pressure_text(study)),
            "evidence": list(pressure.evidence),
        },
        "advice": [_advice(each) for each in study.advice],
        "withheld": [_withheld(each) for each in study.withheld],
        "priced": [_priced(each) for each in study.priced],
        "look": [command_text(words) for words in study.look],
    }


def _priced(change: Advice) -> dict[str, Any]:
    return {
        "change": dict(change.change),
        "flags": change.flags,
        "predicted_saved_bytes": change.predicted,
        "reserved_less_bytes": change.values.get("reserved_bytes", change.predicted),
        "is_estimate": change.is_estimate,
        "costs": _plain(price_text(change)),
    }


def _advice(advice: Advice) -> dict[str, Any]:
    return {
        "slug": advice.slug,
        "helps": advice.helps,
        "change": dict(advice.change),
        "flags": advice.flags,
        "says": _plain(advice_text(advice)),
        "remarks": [_plain(remark) for remark in advice_remarks(advice)],
        "metric": advice.metric,
        "saved": None if advice.saved is None else _estimate(advice.saved),
        "predicted": advice.predicted,
        "reserved_less_bytes": advice.values.get("reserved_bytes"),
        "is_measured": advice.is_measured,
        "costs": [{**asdict(cost), "difference": _estimate(cost.difference)} for cost in advice.costs],
        "quality": advice.quality.slug,
        "evidence": list(advice.evidence),
        "check": command_text(advice.check) if advice.check else None,
    }


def _withheld(withheld: Withheld) -> dict[str, Any]:
    return {
        "reason": withheld.reason,
        "change": dict(withheld.change),
        "flags": withheld.flags,
        "says": _plain(withheld_text(withheld)),
        "metric": withheld.metric,
        "difference": _estimate(withheld.difference),
        "predicted": withheld.predicted,
        "evidence": list(withheld.evidence),
    }


def _estimate(estimate: Estimate) -> dict[str, Any]:
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high, "num": estimate.num}


def _plain(text: str) -> str:
    return text.replace(NO_BREAK, " ")
