"""Rows built by hand for the tests of analysis and report. Sizes are given in KiB, as the kernel prints them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvscope.analysis.attempts import Attempt
from kvscope.record.metrics import metrics_of
from kvscope.record.rows import (
    DesignRow,
    MapRow,
    MarkRow,
    PredictionRow,
    ReportedBufferRow,
    RequestRow,
    RunRow,
    TokenRow,
    TrialResult,
    TrialRow,
)
from kvscope.record.store import create_records

KIB = 1024

# SmolLM2-135M: 30 layers × 3 KV heads × 64 wide × 2 (keys and values) × 2 B (f16) = 23,040 B for each cell.
KV_BYTES_PER_CELL = 30 * 3 * 64 * 2 * 2
WEIGHTS_BYTES = 96_576_768  # sum of the file's 272 tensors
OUTPUT_BYTES = 49_152 * 4  # vocabulary × f32, one sequence
# llama.cpp's compute buffer with flash attention for SmolLM2 at 512 tokens a microbatch, by its log: 16.64 MiB at 2,048
# cells. Exact bytes of that buffer, seen by recording the engine's allocations.
COMPUTE_BYTES_2048 = 17_451_040


def compute_bytes(n_ctx: int) -> int:
    """512 rows of the attention mask, 2 B for each cell, are all of it that follows the context."""
    return COMPUTE_BYTES_2048 + 512 * 2 * (n_ctx - 2048)


def prediction(n_ctx: int = 2048, tokens: int = 100, **changes: Any) -> dict[str, Any]:
    """What kvscope.prediction/1 says for SmolLM2 on llama.cpp, from the numbers above."""
    kv = KV_BYTES_PER_CELL * n_ctx
    buffers = [
        {"name": "weights", "kind": "CPU_Mapped", "bytes": WEIGHTS_BYTES, "device": "cpu", "backing": "file"},
        {"name": "kv_cache", "kind": "full", "bytes": kv, "device": "cpu", "backing": "anonymous"},
        {"name": "output_buffer", "kind": "CPU", "bytes": OUTPUT_BYTES, "device": "cpu", "backing": "anonymous"},
        {"name": "compute_buffer", "kind": "CPU", "bytes": compute_bytes(n_ctx), "backing": "anonymous"},
    ]
    items = [
        _item("weights", None, WEIGHTS_BYTES, WEIGHTS_BYTES),
        _item("output_buffer", None, OUTPUT_BYTES, OUTPUT_BYTES),
        _item("compute_buffer", None, compute_bytes(n_ctx), compute_bytes(n_ctx)),
        *(_item("kv_cache", layer, 768 * tokens, 768 * n_ctx) for layer in range(30)),
    ]
    tensor = {"shape": [1, 3, n_ctx, 64], "dtype": "float16", "bytes": 384 * n_ctx}
    layer_tensors = [{"name": "keys", **tensor}, {"name": "values", **tensor}]
    return {
        "schema": "kvscope.prediction/1",
        "model": {"name": "m", "architecture": "llama", "parameters": 134515008, "trained_context_tokens": 8192,
                  "sources": {"layers[0].num_kv_heads": "GGUF key llama.attention.head_count_kv"}},
        "scenario": {"engine": "llama.cpp", "engine_version": "b1", "tokens": tokens, "settings": {"n_ctx": n_ctx}},
        "effective": {"context_tokens": n_ctx, "microbatch_tokens": 512},
        "status": "exact",
        "unknown": [{"what": "runtime", "why": "it is not in the file"}],
        "totals": {"weights_bytes": WEIGHTS_BYTES, "kv_cache_bytes": kv, "cache_bytes": kv, "runtime_bytes": None,
                   "compute_buffer_bytes": compute_bytes(n_ctx), "output_buffer_bytes": OUTPUT_BYTES,
                   "total_bytes": WEIGHTS_BYTES + kv + OUTPUT_BYTES + compute_bytes(n_ctx)},
        "growth": {"bytes_per_token": KV_BYTES_PER_CELL, "knees": []},
        "layers": [{"index": i, "kind": "full_attention", "cache_bytes": 768 * n_ctx, "tensors": layer_tensors}
                   for i in range(30)],
        "buffers": buffers,
        "pool": None,
        "items": items,
        **changes,
    }  # fmt: skip


def _item(component: str, layer: int | None, needed: int, allocated: int) -> dict[str, Any]:
    return {
        "component": component,
        "layer_index": layer,
        "needed_bytes": needed,
        "allocated_bytes": allocated,
        "because": f"{component} formula",
    }


def run_row(**changes: Any) -> RunRow:
    values: dict[str, Any] = {
        "run_id": "run",
        "started_at": "2026-11-29T10:00:00.000+00:00",
        "kvscope_version": "0.1.0",
        "command": "kvscope lab",
        "machine_id": "machine",
        "machine": {"cpu": "A CPU", "usable_cpus": 2, "memory_total_bytes": 8 * 2**30},
    }
    return RunRow(**{**values, **changes})


def design_row(name: str = "context_limit", **changes: Any) -> DesignRow:
    factors = {
        "context_limit": ("n_ctx", (512, 2048)),
        "input_length": ("prompt_tokens", (128, 512)),
        "output_length": ("output_tokens", (16, 64)),
        "release": ("cache_ram_mib", (8192, 0)),
        "turns": ("turns", (1, 2)),
    }
    factor, levels = factors[name]
    values: dict[str, Any] = {
        "design_id": f"design-{name}",
        "name": name,
        "version": 1,
        "question": "What does it do?",
        "factor": factor,
        "levels": levels,
        "baseline_level": levels[0],
        "held": {"output_tokens": 8},
        "confounders": ("Something could mislead.",),
        "is_grid": False,
        "repeats": 3,
        "seed": 0,
        "model_name": "SmolLM2",
        "model_source": "model.gguf",
        "model_fingerprint": "fingerprint",
        "engine": "llama.cpp",
        "engine_version": "b1",
        "engine_build": "build",
        "settings": {},
        "machine_id": "machine",
        "created_at": "2026-11-29T10:00:00.000+00:00",
    }
    return DesignRow(**{**values, **changes})


def trial_row(design: DesignRow, level: Any, repeat: int = 0, **changes: Any) -> TrialRow:
    values: dict[str, Any] = {
        "trial_id": f"{design.design_id}-{level}-{repeat}",
        "attempt": 1,
        "design_id": design.design_id,
        "run_id": "run",
        "role": "measured",
        "levels": {design.factor: level},
        "level": level,
        "repeat": repeat,
        "block": repeat,
        "position": repeat,
        "started_at": f"2026-11-29T10:00:{repeat:02d}.000+00:00",
        "settings": {"n_ctx": 2048},
        "outcome": "ok",
        "duration_s": 1.0,
        "prompt_tokens_asked": 100,
    }
    return TrialRow(**{**values, **changes})


def mark(phase: str, anon_kib: int, file_kib: int = 0, **changes: Any) -> MarkRow:
    values: dict[str, Any] = {
        "phase": phase,
        "at_s": {"launched": 0.1, "loaded": 0.5, "before_request": 0.6, "after_request": 2.0}.get(phase, 3.0),
        "anon_bytes": anon_kib * KIB,
        "swap_bytes": 0,
        "file_bytes": file_kib * KIB,
        "shmem_bytes": 0,
        "peak_bytes": None,
        "machine_available_bytes": 4 * 2**30,
    }
    return MarkRow(**{**values, **changes})


def mapping(phase: str, kind: str, size_kib: int, anon_kib: int, **changes: Any) -> MapRow:
    values: dict[str, Any] = {
        "phase": phase,
        "kind": kind,
        "name": "",
        "size_bytes": size_kib * KIB,
        "resident_bytes": anon_kib * KIB,
        "anonymous_bytes": anon_kib * KIB,
    }
    return MapRow(**{**values, **changes})


def model_file(phase: str, resident_kib: int = 94_320) -> MapRow:
    return mapping(phase, "file", resident_kib, 0, name="model.gguf", resident_bytes=resident_kib * KIB)


def reported(component: str, printed_mib: str, phase: str = "loaded", **changes: Any) -> ReportedBufferRow:
    values: dict[str, Any] = {
        "phase": phase,
        "component": component,
        "name": "CPU",
        "printed_mib": printed_mib,
        "cells": None,
        "streams": None,
        "layers": None,
        "k_mib": None,
        "v_mib": None,
        "line": f"{component} size = {printed_mib} MiB",
    }
    return ReportedBufferRow(**{**values, **changes})


def request_row(index: int = 1, prompt: int = 100, output: int = 8, **changes: Any) -> RequestRow:
    values: dict[str, Any] = {
        "index": index,
        "role": "measured",
        "sent_at_s": 1.0,
        "completed_s": 1.0,
        "prompt_tokens_asked": prompt,
        "prompt_tokens_ours": prompt,
        "prompt_tokens_server": prompt,
        "cached_tokens": 0,
        "output_tokens_limit": output,
        "output_tokens": output,
        "finish_reason": "length",
    }
    return RequestRow(**{**values, **changes})


def token_rows(index: int, times_s: Sequence[float]) -> tuple[TokenRow, ...]:
    return tuple(TokenRow(request_index=index, index=n, at_s=t, text="word") for n, t in enumerate(times_s))


def answered(prompt: int = 100, *, ttft_s: float = 0.5, tpot_s: float = 0.01, output: int = 8) -> dict[str, Any]:
    """Request and tokens of one answer: the first token after ``ttft_s``, each later one ``tpot_s`` after the last."""
    times = [ttft_s + n * tpot_s for n in range(output)]
    request = request_row(prompt=prompt, output=output, completed_s=times[-1])
    return {"requests": (request,), "tokens": token_rows(1, times)}


def memory(n_ctx: int = 2048, *, runtime_kib: int = 27_000, launched_kib: int = 8_400) -> dict[str, Any]:
    """Marks and maps of a llama.cpp that behaves: its KV cache in a mapping with idle neighbours, a heap of its own."""
    kv_kib = KV_BYTES_PER_CELL * n_ctx // KIB
    loaded = launched_kib + kv_kib + runtime_kib
    marks = (
        mark("launched", launched_kib, 15_000),
        mark("loaded", loaded, 109_320),
        mark("before_request", loaded, 109_320),
        mark("after_request", loaded + 14_000, 109_320, request_index=1),
        mark("unloaded", launched_kib + runtime_kib, 15_000),
        mark("exited", 0, 0),
    )
    size = kv_kib + 40_000
    maps = (
        mapping("launched", "heap", 3000, launched_kib),
        mapping("launched", "file", 15_000, 0, name="lib.so", resident_bytes=15_000 * KIB),
        mapping("loaded", "heap", 3000, launched_kib),
        mapping("loaded", "arena", 64_000, runtime_kib),
        mapping("loaded", "anonymous", size, kv_kib),
        mapping("loaded", "file", 15_000, 0, name="lib.so", resident_bytes=15_000 * KIB),
        model_file("loaded"),
        mapping("after_request", "heap", 3000, launched_kib, request_index=1),
        mapping("after_request", "arena", 64_000, runtime_kib, request_index=1),
        mapping("after_request", "anonymous", size, kv_kib + 14_000, request_index=1),
    )
    return {"marks": marks, "maps": maps}


def log_lines(n_ctx: int = 2048) -> tuple[ReportedBufferRow, ...]:
    """The engine's log at load, two decimals of a MiB each."""
    kv, compute = KV_BYTES_PER_CELL * n_ctx / 2**20, compute_bytes(n_ctx) / 2**20
    return (
        reported("weights", "92.10", name="CPU_Mapped"),
        reported("kv_cache", f"{kv:.2f}", name="full"),
        reported("output_buffer", "0.19"),
        reported("compute_buffer", f"{compute:.2f}"),
    )


def attempt(
    trial: TrialRow | None = None,
    *,
    design: DesignRow | None = None,
    predicted: Mapping[str, Any] | None = None,
    **rows: Any,
) -> Attempt:
    design = design or design_row()
    result = TrialResult(trial=trial or trial_row(design, design.baseline_level), **rows)
    return Attempt(
        design=design, run=run_row(), result=result, metrics=metrics_of(result), prediction=predicted or prediction()
    )


def write_record(
    path: Path, attempts: Iterable[Attempt], runs: Iterable[RunRow] = (), designs: Iterable[DesignRow] = ()
) -> Path:
    """A record file with these attempts, written as the experiment writes it."""
    with create_records(path) as recorder:
        for run in runs or [run_row()]:
            recorder.add_run(run)
        for design in designs:
            recorder.add_design(design)
        for one in attempts:
            recorder.add_design(one.design)
            row = None
            if one.prediction:
                row = PredictionRow(created_at="now", prediction=one.prediction)
            recorder.start_trial(one.trial, row)
            if one.trial.outcome is not None:
                recorder.finish_trial(one.result)
    return path


def whole_lab() -> list[Attempt]:
    """Attempts of all four designs, one failure and one warm-up among them."""
    context, inputs = design_row("context_limit", levels=(512, 2048, 8192)), design_row("input_length")
    outputs, release = design_row("output_length"), design_row("release")
    found = [attempt(trial_row(context, 512, role="warmup", trial_id="warm"), design=context, **answered())]
    for repeat in range(3):
        for n_ctx in context.levels:
            rows = {**memory(n_ctx), **answered(), "reported": log_lines(n_ctx), "effective": {"n_ctx": n_ctx}}
            trial = trial_row(context, n_ctx, repeat)
            found.append(attempt(trial, design=context, predicted=prediction(n_ctx), **rows))
        for prompt in inputs.levels:
            ttft = 0.001 * prompt * (1 + 0.01 * repeat)
            trial = trial_row(inputs, prompt, repeat, prompt_tokens_asked=prompt)
            found.append(attempt(trial, design=inputs, **memory(), **answered(prompt, ttft_s=ttft)))
        for output in outputs.levels:
            found.append(attempt(trial_row(outputs, output, repeat), design=outputs, **answered(output=output)))
    lost = trial_row(inputs, 512, 3, outcome="engine_died", error_slug="engine-died", error_message="It ended.",
                     error_hint="Look at its memory.", engine_log_tail="loading\nggml error: out of memory\n",
                     traceback="Traceback: somewhere")  # fmt: skip
    found.append(attempt(lost, design=inputs))
    for level in release.levels:
        found.append(attempt(trial_row(release, level), design=release, **conversations(13_800 if level else 0)))
    return found


def changed_settings() -> list[Attempt]:
    """A design with no section of its own: three kinds of cache, five blocks; one slower, one of no other speed."""
    design = replace(design_row(), name="kv_dtype", factor="kv_dtype", levels=("f16", "q8_0", "q4_0"), design_id="kv")
    design = replace(design, baseline_level="f16")
    found = []
    for block in range(5):
        for level, ttft_s, runtime_kib in (("f16", 0.4, 27_000), ("q8_0", 0.401, 17_000), ("q4_0", 0.48, 9000)):
            wobble = 0.004 * ((block * 7 + len(level)) % 5 - 2)
            rows = {**memory(runtime_kib=runtime_kib), **answered(ttft_s=ttft_s + wobble)}
            found.append(attempt(trial_row(design, level, block), design=design, **rows))
    return found


def conversations(step_kib: int, count: int = 4, *, first_kib: int = 14_000, limit: str = "8192.000") -> dict[str, Any]:
    """Several conversations in one engine process, each adding ``step_kib`` that the host prompt cache accounts for."""
    base = memory()
    after = [
        mark("after_request", 81_480 + first_kib + n * step_kib, 109_320, request_index=n + 1, active_requests=0)
        for n in range(count)
    ]
    lines = [
        reported(
            "host_cache", f"{n * step_kib / 1024:.3f}", "after_request", request_index=n + 1,
            line=f"update: - cache state: {n} prompts, {n * step_kib / 1024:.3f} MiB (limits: {limit} MiB)",
        )
        for n in range(count)
        if step_kib
    ]  # fmt: skip
    marks = [m for m in base["marks"] if m.phase != "after_request"]
    requests = tuple(request_row(index=n + 1) for n in range(count))
    return {
        "marks": (*marks[:3], *after, *marks[3:]),
        "maps": tuple(m for m in base["maps"] if m.phase != "after_request"),
        "requests": requests,
        "reported": (*log_lines(), *lines),
    }
