"""Rows of a small made-up record."""

from typing import Any

from kvscope.record.rows import (
    AnswerRow,
    DesignRow,
    MapRow,
    MarkRow,
    OccupantRow,
    ReadRow,
    ReportedBufferRow,
    RequestRow,
    RunRow,
    SampleRow,
    ScoredTokenRow,
    TokenRow,
    TrialResult,
    TrialRow,
    WarningRow,
)


def run_row(**changes: Any) -> RunRow:
    values: dict[str, Any] = {
        "run_id": "run1",
        "started_at": "2026-01-01T00:00:00.000+00:00",
        "kvscope_version": "0",
        "command": "kvscope lab",
        "machine_id": "m1",
        "machine": {"cpu": "a processor", "usable_cpus": 2},
    }
    return RunRow(**{**values, **changes})


def design_row(**changes: Any) -> DesignRow:
    values: dict[str, Any] = {
        "design_id": "d1",
        "name": "input_length",
        "version": 1,
        "question": "?",
        "factor": "prompt_tokens",
        "levels": (128, 512),
        "baseline_level": 128,
        "held": {"output_tokens": 8},
        "confounders": ("the weather",),
        "is_grid": False,
        "repeats": 1,
        "seed": 0,
        "model_name": "tiny",
        "model_source": "tiny.gguf",
        "model_fingerprint": "f",
        "engine": "llama.cpp",
        "engine_version": "1",
        "engine_build": "b1",
        "settings": {"n_ctx": 512},
        "machine_id": "m1",
        "created_at": "2026-01-01T00:00:00.000+00:00",
    }
    return DesignRow(**{**values, **changes})


def trial_row(**changes: Any) -> TrialRow:
    values: dict[str, Any] = {
        "trial_id": "t1",
        "attempt": 1,
        "design_id": "d1",
        "run_id": "run1",
        "role": "measured",
        "levels": {"prompt_tokens": 128},
        "level": 128,
        "repeat": 0,
        "block": 0,
        "position": 0,
        "started_at": "2026-01-01T00:00:01.000+00:00",
        "settings": {"n_ctx": 512},
        "prompt_tokens_asked": 128,
    }
    return TrialRow(**{**values, **changes})


def request_row(**changes: Any) -> RequestRow:
    values: dict[str, Any] = {
        "index": 0,
        "role": "measured",
        "sent_at_s": 1.0,
        "completed_s": 0.8,
        "prompt_tokens_asked": 128,
        "prompt_tokens_ours": 128,
        "prompt_tokens_server": 128,
        "cached_tokens": 0,
        "output_tokens_limit": 4,
        "output_tokens": 4,
        "finish_reason": "length",
    }
    return RequestRow(**{**values, **changes})


def mark_row(phase: str, anon_bytes: int, **changes: Any) -> MarkRow:
    values: dict[str, Any] = {
        "at_s": 0.0,
        "swap_bytes": 0,
        "file_bytes": 1000,
        "shmem_bytes": 0,
        "peak_bytes": None,
        "machine_available_bytes": None,
    }
    return MarkRow(phase=phase, anon_bytes=anon_bytes, **{**values, **changes})


def answer_row(**changes: Any) -> AnswerRow:
    values: dict[str, Any] = {
        "index": 0,
        "task": "keys",
        "item": "keys/en/0/a",
        "document": "keys/en/0",
        "language": "en",
        "reading": "right",
        "score": 1.0,
        "chance": 0.0,
        "depth_percent": 40.0,
        "document_tokens": 120,
        "evidence_in_prompt": True,
        "request_index": 1,
        "expected": "12345",
        "answer": "It is 12345.",
        "facts": {"named": ["12345"]},
    }
    return AnswerRow(**{**values, **changes})


def full_result(trial: TrialRow) -> TrialResult:
    """A result with at least one row of every kind."""
    return TrialResult(
        trial=trial,
        requests=(request_row(engine_timings={"prompt_ms": 12.5}),),
        tokens=tuple(
            TokenRow(request_index=0, index=i, at_s=0.5 + i * 0.1, text=f"word{i} 안녕", kind="content")
            for i in range(4)
        ),
        reads=(ReadRow(request_index=0, at_s=0.5, num_bytes=200, num_events=1),),
        marks=(mark_row("launched", 10), mark_row("loaded", 100), mark_row("after_request", 120, request_index=0)),
        maps=(MapRow(phase="loaded", kind="heap", name="", size_bytes=3, resident_bytes=2, anonymous_bytes=2),),
        samples=(SampleRow(quantity="anon_bytes", at_s=0.1, value_bytes=11, late_s=0.0),),
        reported=(
            ReportedBufferRow(
                phase="loaded",
                component="kv_cache",
                name="CPU",
                printed_mib="11.25",
                cells=512,
                streams=1,
                layers=30,
                k_mib="5.62",
                v_mib="5.62",
                line="KV buffer size = 11.25 MiB",
            ),
        ),
        effective={"n_ctx": 512},
        occupants=(OccupantRow(pid=1, name="init", resident_bytes=5),),
        warnings=(WarningRow(slug="noisy-machine", message="m", hint="h"),),
        answers=(answer_row(), answer_row(index=1, is_twin=True, reading="wrong", score=0.0, evidence_in_prompt=False)),
        scored_tokens=(
            ScoredTokenRow(
                answer_index=1,
                position=3,
                token=49151,
                logprob=-0.1,
                pattern="forced",
                top_tokens=(49151, 7),
                top_logprobs=(-0.1, -1 / 3),
            ),
            ScoredTokenRow(answer_index=1, position=2, token=8, logprob=-0.5, pattern="forced"),
        ),
    )
