"""The findings as JSON: schema kvscope.report/1."""

from typing import Any

from kvscope.analysis.fit import Estimate
from kvscope.analysis.study import Analysis, DesignStudy, Study
from kvscope.report.advice_json import advice_json
from kvscope.report.claims import claim_text
from kvscope.report.section_answer import headline, interval_line
from kvscope.report.section_trust import check_text
from kvscope.report.words import NO_BREAK


def summary(analysis: Analysis) -> dict[str, Any]:
    """Every study's answer, findings, effects and checks. Numbers are in the units of their names; unknown is None."""
    return {"schema": "kvscope.report/1", "studies": [_study(study) for study in analysis.studies]}


def _study(study: Study) -> dict[str, Any]:
    context, ttft = study.context, study.ttft
    main = None if study.main is None else study.main.loaded
    return {
        "model_name": study.model_name,
        "model_fingerprint": study.model_fingerprint,
        "engine": study.engine,
        "engine_version": study.engine_version,
        "engine_build": study.engine_build,
        "machine_id": study.machine_id,
        "answer": _plain(headline(study)),
        "interval": _plain(interval_line(study)),
        "trials": len(study.trials),
        "failed": study.num_failed,
        "bytes_per_token_measured": None if context is None else _estimate(context.measured.slope),
        "bytes_per_token_predicted": None if context is None else context.predicted.slope.value,
        "ttft_s_per_token": None if ttft is None else _estimate(ttft.line.slope),
        "unexplained_bytes": None if main is None else main.unexplained_bytes,
        "unexplained_share": None if main is None else main.unexplained_share,
        "findings": [
            {
                "slug": f.slug,
                "claim": _plain(claim_text(f)),
                "is_contradiction": f.is_contradiction,
                "values": dict(f.values),
                "size": None if f.size is None else _estimate(f.size),
                "evidence": list(f.evidence),
            }
            for f in study.findings
        ],
        "effects": [effect for design in study.designs for effect in _effects(design)],
        "checks": [{"slug": c.slug, "passed": c.passed, "seen": _plain(check_text(c))} for c in study.checks],
        **advice_json(study),
    }


def _effects(study: DesignStudy) -> list[dict[str, Any]]:
    """Every difference from the baseline that has a pair."""
    return [
        {
            "design": study.design.name,
            "design_id": study.design.design_id,
            "factor": study.design.factor,
            "level": row.level,
            "baseline_level": study.design.baseline_level,
            "metric": effect.metric,
            "baseline": effect.baseline,
            "changed": effect.changed,
            "difference": _estimate(effect.difference),
            "share": _estimate(effect.relative),
            "together": _estimate(effect.together),
            "verdict": effect.verdict,
            "method": effect.method,
            "pairs": effect.num_pairs,
        }
        for row in study.levels
        for effect in row.effects.values()
        if effect.num_pairs
    ]


def _estimate(estimate: Estimate) -> dict[str, Any]:
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high, "num": estimate.num}


def _plain(text: str) -> str:
    return text.replace(NO_BREAK, " ")
