"""Reading llama.cpp's log. ``data/oracle_loads.json`` holds lines that real llama.cpp printed, beside what another
program, not ours, read from them; ``data/gemma3_two_loads.log`` is the log of one process that loaded twice."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvscope.engine.base import ReportedBuffer
from kvscope.engine.llama_log import (
    read_address,
    read_checkpoints,
    read_host_cache,
    read_report,
    why_aborted,
    why_not_loaded,
)
from kvscope.errors import EngineModelError, EngineStartFailed, InvalidSettings, OutOfMemory

DATA = Path(__file__).parent / "data"
LOADS = json.loads((DATA / "oracle_loads.json").read_text())
TWO_LOADS = (DATA / "gemma3_two_loads.log").read_text()


def mib(value: float) -> str:
    return f"{value:.2f}"


def of(buffers: tuple[ReportedBuffer, ...], component: str) -> list[ReportedBuffer]:
    return [buffer for buffer in buffers if buffer.component == component]


@pytest.mark.parametrize("load", LOADS, ids=lambda load: f"{load['model']}-{load['settings']}")
def test_every_buffer_of_a_load_is_read(load: dict[str, Any]) -> None:
    report = read_report("\n".join(load["lines"]), version="x")
    for component, oracle in (
        ("weights", "model_buffers"),
        ("output_buffer", "output_buffers"),
        ("compute_buffer", "compute_buffers"),
    ):
        found = [(buffer.name, buffer.printed_mib) for buffer in of(report.buffers, component)]
        assert found == [(each["buft"], mib(each["mib"])) for each in load[oracle]]
    assert [
        (c.name, c.printed_mib, c.cells, c.layers, c.streams, c.k_mib, c.v_mib)
        for c in of(report.buffers, "kv_cache")
    ] == [
        (c["kind"], mib(c["total_mib"]), c["cells"], c["layers"], c["streams"], mib(c["k_mib"]), mib(c["v_mib"]))
        for c in load["kv_caches"]
    ]  # fmt: skip
    assert [(c.printed_mib, c.cells, c.layers) for c in of(report.buffers, "recurrent_state")] == [
        (mib(c["total_mib"]), c["cells"], c["layers"]) for c in load["rs_caches"]
    ]
    for name in ("n_ctx", "n_ctx_seq", "n_batch", "n_ubatch"):
        assert report.effective[name] == load[name]
    assert report.slots == tuple(load["slots"])
    assert all(buffer.line in load["lines"] for buffer in report.buffers)


def test_settings_as_the_engine_resolved_them() -> None:
    by_settings = {json.dumps(load["settings"]): load for load in LOADS}
    off = next(load for text, load in by_settings.items() if '"off"' in text)
    assert read_report("\n".join(off["lines"]), version="x").effective["flash_attn"] == "off"
    auto = read_report("\n".join(LOADS[0]["lines"]), version="x").effective
    assert auto["flash_attn"] == "on"  # asked: auto
    assert auto["kv_unified"] is True
    assert auto["load_mode"] == "mmap"


def test_only_the_last_load_of_a_process_counts() -> None:
    """The first load of this log had n_ctx 2048, the second 512."""
    report = read_report(TWO_LOADS, version="x")
    caches = of(report.buffers, "kv_cache")
    assert [(cache.name, cache.cells, cache.printed_mib) for cache in caches] == [
        ("non-SWA", 512, "1.50"),
        ("SWA", 512, "7.50"),
    ]
    assert [buffer.printed_mib for buffer in of(report.buffers, "compute_buffer")] == ["19.28"]
    assert report.effective["n_ctx"] == 512
    assert report.effective["n_threads"] == 2
    assert report.effective["cache_ram_mib"] == 8192
    assert report.effective["n_ctx_checkpoints"] == 32
    assert report.slots == (512,)
    assert report.build == "b0-unknown"
    assert len(report.notes) == 1
    assert read_address(TWO_LOADS) == "http://127.0.0.1:38373"


def test_the_prompt_cache_as_last_stated() -> None:
    cache = read_host_cache(TWO_LOADS)
    assert cache is not None
    assert (cache.component, cache.name, cache.printed_mib) == ("host_cache", "prompt cache, 2 prompts", "20.990")
    total, *copies = cache.line.splitlines()
    assert "limits: 8192.000 MiB" in total
    assert len(copies) == 2
    assert sum(float(copy.split()[-2]) for copy in copies) == pytest.approx(20.990, abs=0.0015)
    assert read_host_cache("nothing of the kind") is None


def test_context_checkpoints() -> None:
    held = read_checkpoints(TWO_LOADS)
    # Three prompts made two checkpoints each; those of the first two went with the prompts.
    assert [each.printed_mib for each in held] == ["0.015", "4.706"]
    assert {each.component for each in held} == {"checkpoint"}


def test_a_log_without_a_load_gives_an_empty_report() -> None:
    report = read_report("hello\n\n0.00.000.001 I srv: nothing\n", version="x")
    assert report.buffers == ()
    assert report.effective == {}
    assert report.build == "unknown"


# What llama.cpp (xllamacpp 2026.10.11549) printed when it was given these settings; the model's path is shortened.
FAILURES = [
    (
        "0.00.006.548 E srv         start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 8765\n"
        "0.00.006.612 E srv          init: exiting due to HTTP server error",
        InvalidSettings,
        "cannot listen on port 8765: another program uses it",
    ),
    (  # the command's own port, which the program took instead of the one asked for
        "0.00.006.548 E srv         start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 9000",
        InvalidSettings,
        "cannot listen on port 9000: another program uses it",
    ),
    (
        "0.00.005.781 E gguf_init_from_file: failed to open GGUF file 'x.gguf' (No such file or directory)\n"
        "0.00.005.889 E llama_model_load: error loading model: llama_model_loader: failed to load model from x.gguf",
        EngineModelError,
        "No such file or directory",
    ),
    (
        "0.00.004.158 E gguf_init_from_reader: invalid magic characters: 'root', expected 'GGUF'\n"
        "0.00.004.286 E srv    load_model: failed to load model, 'x.gguf'",
        EngineModelError,
        "invalid magic characters: 'root'",
    ),
    (
        "0.00.190.278 E llama_init_from_model: K cache type q4_K with block size 256 does not divide n_embd_head_k=64\n"
        "0.00.190.286 E cmn  common_init_: failed to create context with model 'x.gguf'",
        InvalidSettings,
        "K cache type q4_K with block size 256",
    ),
    (
        "0.00.249.654 E llama_init_from_model: quantized V cache requires flash_attn to be enabled\n"
        "0.00.249.672 E srv    load_model: failed to create_context with model 'x.gguf'",
        InvalidSettings,
        "quantized V cache requires flash_attn",
    ),
    (
        "0.29.610.281 E ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 4608000000000\n"
        "0.30.257.900 E llama_init_from_model: failed to initialize the context: "
        "failed to allocate buffer for kv cache",
        OutOfMemory,
        "4608000000000",
    ),
    ("0.00.000.001 E srv: it is Monday", EngineStartFailed, "it is Monday"),
    ("", EngineStartFailed, "no reason"),
]  # fmt: skip


@pytest.mark.parametrize(("log", "error", "part"), FAILURES)
def test_why_a_load_failed(log: str, error: type[Exception], part: str) -> None:
    found = why_not_loaded(log, port=8765, engine="llama.cpp")
    assert type(found) is error
    assert part in found.message
    assert found.hint


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (
            "/build/thirdparty/llama.cpp/src/llama-context.cpp:2529: GGML_ASSERT(n_outputs >= 1) failed",
            "llama-context.cpp:2529: GGML_ASSERT(n_outputs >= 1) failed",
        ),
        (
            "/build/common/common.cpp:2245: get_sub_batch: failed to add token 0 at index 1 (error -1, n = 2)",
            "common.cpp:2245: get_sub_batch: failed to add token 0 at index 1 (error -1, n = 2)",
        ),
    ],
)
def test_why_it_aborted(line: str, reason: str) -> None:
    """The log is written by a thread of its own, so ordinary lines can follow the last words."""
    assert why_aborted(f"0.00.1 I a\n{line}\n0.00.204.339 I resolve_fused_ops: enabled\n") == reason
    assert why_aborted("0.00.204.339 I resolve_fused_ops: enabled\n") is None


def test_what_an_exception_says_of_itself_is_told() -> None:
    """llama.cpp under ulimit -v of 200 MiB: glibc++ writes this in two lines."""
    thrown = "terminate called after throwing an instance of 'std::system_error'"
    said = "  what():  Resource temporarily unavailable"
    assert why_aborted(f"{thrown}\n{said}\n") == f"{thrown}: Resource temporarily unavailable"
    assert why_aborted(f"{thrown}\n0.00.204.339 I loading\n{said}\n") == f"{thrown}: Resource temporarily unavailable"
    assert why_aborted(thrown) == thrown
