"""The record as one table: one row per attempt of a trial, failures like any other; written as JSON Lines or CSV."""

import csv
import json
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import TextIO

from kvscope.record.metrics import metrics_of
from kvscope.record.rows import DesignRow, Json, RequestRow, RunRow, TrialResult
from kvscope.units import MIB

FORMATS = ("jsonl", "csv")


def export_row(
    result: TrialResult, design: DesignRow, run: RunRow, prediction: Mapping[str, Json] | None
) -> dict[str, Json]:
    """The columns of one attempt, in a fixed order. Unknown values are None.

    ``unexplained_bytes`` is a finding of the analysis, not of the record: it is None here, and filled in by
    ``analysis.table``. ``kv_cache_bytes_engine`` has the precision of the engine's log: two decimals of a MiB.
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
        "model_name": design.model_name,
        "model_fingerprint": design.model_fingerprint,
        "engine": design.engine,
        "engine_version": design.engine_version,
        "engine_build": design.engine_build,
        "settings": dict(trial.settings),
        "machine_id": design.machine_id,
        "requests": len(measured),
        **_request_columns(measured, trial.prompt_tokens_asked),
        "context_limit_tokens": result.effective.get("context_limit_tokens"),
        "context_limit_from": result.effective.get("context_limit_from"),
        "concurrency": trial.client.get("concurrency"),
        "ttft_s": metrics.ttft_s,
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
        # Device memory has no probe in this release: unknown, not zero.
        **{f"memory_{moment}_bytes_device": None for moment in ("baseline", "loaded", "peak", "after", "released")},
        "kv_cache_bytes_engine": _reported_bytes(result, "kv_cache"),
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


def _request_columns(measured: list[RequestRow], asked: int | None) -> dict[str, Json]:
    """Columns of the trial's measured request; where it has several, those of the last one that was answered."""
    answered = [request for request in measured if request.is_answered] or measured
    last = answered[-1] if answered else None
    return {
        "prompt_tokens_asked": asked,
        "prompt_tokens_ours": last.prompt_tokens_ours if last else None,
        "prompt_tokens_server": last.prompt_tokens_server if last else None,
        "prompt_tokens_ours_from": last.prompt_tokens_ours_from if last else None,
        "prompt_tokens_server_from": last.prompt_tokens_server_from if last else None,
        "cached_tokens": last.cached_tokens if last else None,
        "output_tokens_limit": last.output_tokens_limit if last else None,
        "output_tokens": last.output_tokens if last else None,
        "finish_reason": last.finish_reason if last else None,
    }


def _reported_bytes(result: TrialResult, component: str) -> int | None:
    printed = [row.printed_mib for row in result.reported if row.component == component and row.phase == "loaded"]
    return round(sum(Decimal(text) for text in printed) * MIB) if printed else None


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
