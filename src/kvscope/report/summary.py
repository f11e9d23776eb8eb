"""The findings as JSON: schema kvscope.report/1."""

from dataclasses import asdict
from typing import Any

from kvscope.analysis.checks import Check
from kvscope.analysis.failures import FailureGroup
from kvscope.analysis.finding import Finding
from kvscope.analysis.fit import Estimate
from kvscope.analysis.study import Analysis, DesignStudy, Study
from kvscope.analysis.turns import turn_tables
from kvscope.language import ENGLISH, speaking
from kvscope.report.advice_json import advice_json
from kvscope.report.claims import claim_text, remarks
from kvscope.report.identity_json import between_json, identities_json
from kvscope.report.section_answer import headline, interval_line, limit_text, strip
from kvscope.report.section_growth import formula_line
from kvscope.report.section_trust import check_text, next_step
from kvscope.report.sections import several_studies
from kvscope.report.words import NO_BREAK, name_of


def summary(analysis: Analysis) -> dict[str, Any]:
    """Every study's answer, failures, findings, effects, turns, checks and advice: all that the report says in a
    terminal, in English whatever language is spoken. Numbers are in the units of their names; unknown is None."""
    with speaking(ENGLISH):
        return {
            "schema": "kvscope.report/1",
            "not_comparable_because": _plain(several_studies(analysis) or "") or None,
            "studies": [_study(study) for study in analysis.studies],
        }


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
        "about": [_plain(text) for text in strip(study)],
        "answer": _plain(headline(study)),
        "interval": _plain(interval_line(study)),
        "trials": len(study.trials),
        "failed": study.num_failed,
        "failures": [_failure(group) for group in study.failures],
        "formula": None if (formula := formula_line(study)) is None else _plain(formula),
        "bytes_per_token_measured": None if context is None else _estimate(context.measured.slope),
        "bytes_per_token_predicted": None if context is None else context.predicted.slope.value,
        "ttft_s_per_token": None if ttft is None else _estimate(ttft.line.slope),
        "limit": _limit(study),
        "unexplained_bytes": None if main is None else main.unexplained_bytes,
        "unexplained_share": None if main is None else main.unexplained_share,
        "identities": identities_json(study),
        "identities_furthest_apart": between_json(study),
        "findings": [_finding(finding) for finding in study.findings],
        "effects": [effect for design in study.designs for effect in _effects(design)],
        "turns": [table for design in study.designs for table in _turns(design)],
        "checks": [_check(check) for check in study.checks],
        **advice_json(study),
    }


def _limit(study: Study) -> dict[str, Any] | None:
    """How far this machine goes with one conversation, and what binds."""
    limit = study.limit
    if limit is None:
        return None
    return {
        "says": _plain(limit_text(study) or "") or None,
        "tokens": limit.tokens,
        "binds": limit.binds,
        "trained_tokens": limit.trained_tokens,
        "memory_tokens": limit.memory_tokens,
        "available_bytes": limit.available_bytes,
        "fixed_bytes": limit.fixed_bytes,
    }


def _failure(group: FailureGroup) -> dict[str, Any]:
    return {
        "outcome": group.outcome,
        "name": name_of("outcome", group.outcome),
        "attempts": len(group.attempts),
        "error_slug": group.error_slug,
        "message": group.message,
        "hint": group.hint,
        "first_line": group.first_line,
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "slug": finding.slug,
        "design_id": finding.design_id,
        "claim": _plain(claim_text(finding)),
        "is_contradiction": finding.is_contradiction,
        "values": dict(finding.values),
        "size": None if finding.size is None else _estimate(finding.size),
        "size_from": finding.size_from,
        "remarks": [_plain(remark) for remark in remarks(finding)],
        "also_possible": list(finding.also_possible),
        "how_to_check": finding.how_to_check,
        "evidence": list(finding.evidence),
    }


def _check(check: Check) -> dict[str, Any]:
    step = None if check.passed is not False else _plain(next_step(check))
    return {"slug": check.slug, "passed": check.passed, "seen": _plain(check_text(check)), "next_step": step}


def _turns(study: DesignStudy) -> list[dict[str, Any]]:
    """The turns of the conversations that a design played."""
    about = {"design": study.design.name, "design_id": study.design.design_id}
    return [{**about, **asdict(table)} for table in turn_tables(study.attempts)]


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
            "share": _estimate(effect.share),
            "ratio": _estimate(effect.relative),
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
