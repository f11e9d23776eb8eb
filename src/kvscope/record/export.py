"""The record as a table: one row per attempt of a trial, or per request, failures like any other; written as JSON
Lines or CSV."""

import csv
import json
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import TextIO

from kvscope.record.metrics import computed_prompt_tokens, metrics_of, request_metrics
from kvscope.record.rows import DesignRow, Json, RequestRow, RunRow, TrialResult
from kvscope.record.turns import request_outcome, turns_of
from kvscope.units import MIB

FORMATS = ("jsonl", "csv")
_COUNTS = (
    "prompt_tokens_ours",
    "prompt_tokens_server",
    "prompt_tokens_ours_from",
    "prompt_tokens_server_from",
    "cached_tokens",
    "output_tokens_limit",
    "output_tokens",
    "finish_reason",
)


def export_row(
    result: TrialResult, design: DesignRow, run: RunRow, prediction: Mapping[str, Json] | None
) -> dict[str, Json]:
    """The columns of one attempt, in a fixed order. Unknown values are None.

    ``unexplained_bytes`` is a finding of the analysis, not of the record: it is None here, and filled in by
    ``analysis.table``. ``kv_cache_bytes_engine`` has the precision of the engine's log (llama.cpp's: two decimals of a
    MiB), whose digits are ``kv_cache_mib_engine``; of an engine that reserves nothing, the bytes that it counted in its
    cache after the last request.
    """
    trial = result.trial
    metrics = metrics_of(result)
    measured = [request for request in result.requests if request.role == "measured"]
    totals = (prediction or {}).get("totals", {})
    return {
        "run_id": run.run_id,
        "trial_id": trial.trial_id,
        "attempt": trial.attempt,
        "design": design.name,
        "role": trial.role,
        "factor": design.factor,
        "level": trial.level,
        "is_baseline": trial.level == design.baseline_level,
        "repeat": trial.repeat,
        "block": trial.block,
        "position": trial.position,
        "started_at": trial.started_at,
        "duration_s": trial.duration_s,
        "outcome": trial.outcome,
        "error_slug": trial.error_slug,
        "error_message": trial.error_message,
        "evidence": dict(trial.evidence),
        "model_name": design.model_name,
        "model_fingerprint": design.model_fingerprint,
        "engine": design.engine,
        "engine_version": design.engine_version,
        "engine_build": design.engine_build,
        "settings": dict(trial.settings),
        "machine_id": design.machine_id,
        "requests": len(measured),
        **_request_columns(result),
        "context_limit_tokens": result.effective.get("context_limit_tokens"),
        "context_limit_from": result.effective.get("context_limit_from"),
        "concurrency": trial.client.get("concurrency"),
        "ttft_s": metrics.ttft_s,
        "first_answer_s": metrics.first_answer_s,
        "tpot_s": metrics.tpot_s,
        "itl_p50_s": metrics.itl_p50_s,
        "itl_p99_s": metrics.itl_p99_s,
        "completion_s": metrics.completion_s,
        "prefill_tokens_per_s": metrics.prefill_tokens_per_s,
        "decode_tokens_per_s": metrics.decode_tokens_per_s,
        **{
            name: getattr(metrics, name)
            for moment in ("baseline", "loaded", "peak", "after", "released")
            for name in (f"memory_{moment}_bytes", f"memory_{moment}_bytes_file")
        },
        **{
            f"memory_{moment}_bytes_device": getattr(metrics, f"memory_{moment}_bytes_device")
            for moment in ("baseline", "loaded", "peak", "after", "released")
        },
        "kv_cache_bytes_engine": _cache_bytes(result, totals),
        "kv_cache_mib_engine": " + ".join(_printed(result, "kv_cache")) or None,
        "kv_cache_bytes_predicted": totals.get("kv_cache_bytes"),
        "total_bytes_predicted": totals.get("total_bytes"),
        "unexplained_bytes": None,
        "quality_task": None,
        "quality_score": None,
        "client_loop_lag_p99_s": trial.client.get("loop_lag_p99_s"),
        "client_cpu_share": trial.client.get("cpu_share"),
        "coalesced_fraction": metrics.coalesced_fraction,
        "client_limited": trial.client.get("client_limited"),
        "warnings": [warning.slug for warning in result.warnings],
    }


def _request_columns(result: TrialResult) -> dict[str, Json]:
    """Columns of the trial's measured request; where it has several, those of the last one that was answered; where it
    never came to one, those of the request that ended the attempt."""
    measured = [request for request in result.requests if request.role == "measured"]
    failed = [request for request in result.requests if request.error_slug is not None]
    found = [request for request in measured if request.is_answered] or measured or failed
    last = found[-1] if found else None
    return {"prompt_tokens_asked": result.trial.prompt_tokens_asked, **_request_counts(last)}


def _request_counts(request: RequestRow | None) -> dict[str, Json]:
    return {name: None if request is None else getattr(request, name) for name in _COUNTS}


def _cache_bytes(result: TrialResult, totals: Mapping[str, Json]) -> int | None:
    """The KV cache as the engine states it: reserved at load, else what it counted when it had answered. What it counts
    is its whole cache, so where a prediction has recurrent states in it too, or there is none, it is no KV cache."""
    reserved = _reported_bytes(result, "kv_cache")
    whole = totals.get("cache_bytes")
    if reserved is not None or whole is None or whole != totals.get("kv_cache_bytes"):
        return reserved
    counted = [row for row in result.statistics if row.name == "cache_tensor_bytes" and row.phase == "after_request"]
    return int(counted[-1].value) if counted else None


def _printed(result: TrialResult, component: str) -> list[str]:
    """What the engine's log printed of each buffer at load, in MiB."""
    return [row.printed_mib for row in result.reported if row.component == component and row.phase == "loaded"]


def _reported_bytes(result: TrialResult, component: str) -> int | None:
    printed = _printed(result, component)
    return round(sum(Decimal(text) for text in printed) * MIB) if printed else None


def export_requests(result: TrialResult, design: DesignRow) -> list[dict[str, Json]]:
    """The columns of each request of an attempt, warm-ups included, in a fixed order. Unknown values are None.

    ``turn`` numbers the turns of a conversation from 1. ``outcome`` of the request that ended a failed attempt is the
    attempt's; those before it were ``ok``, or ``stopped_early``.
    """
    trial = result.trial
    turns = turns_of(result)
    rows = []
    for request in result.requests:
        metrics = request_metrics(request, [t for t in result.tokens if t.request_index == request.index])
        rows.append(
            {
                "run_id": trial.run_id,
                "trial_id": trial.trial_id,
                "attempt": trial.attempt,
                "design": design.name,
                "factor": design.factor,
                "level": trial.level,
                "repeat": trial.repeat,
                "index": request.index,
                "role": request.role,
                "turn": turns.get(request.index),
                "sent_at_s": request.sent_at_s,
                "outcome": request_outcome(request, trial.outcome),
                "error_slug": request.error_slug,
                "prompt_tokens_asked": request.prompt_tokens_asked,
                **_request_counts(request),
                "computed_tokens": computed_prompt_tokens(request),
                "ttft_s": metrics.ttft_s,
                "first_answer_s": metrics.first_answer_s,
                "tpot_s": metrics.tpot_s,
                "completion_s": metrics.completion_s,
                "prefill_tokens_per_s": metrics.prefill_tokens_per_s,
                "decode_tokens_per_s": metrics.decode_tokens_per_s,
            }
        )
    return rows


def write_jsonl(rows: Iterable[Mapping[str, Json]], out: TextIO) -> None:
    """One JSON object a line."""
    for row in rows:
        out.write(json.dumps(row, ensure_ascii=False) + "\n")


def write_csv(rows: Iterable[Mapping[str, Json]], out: TextIO) -> None:
    """CSV with a header line. Unknown is an empty field; lists and settings are JSON inside their field."""
    rows = list(rows)
    if not rows:
        return
    writer = csv.DictWriter(out, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _cell(value) for name, value in row.items()})


def _cell(value: Json) -> Json:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    return value
