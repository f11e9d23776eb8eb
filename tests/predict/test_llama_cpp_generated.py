"""Generated models of every GGUF architecture kvscope knows, against what the real llama.cpp logged for them: caches,
recurrent states, output and weights, to the last digit it prints (tests/golden/gguf/README.md)."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from gguf_writer import GgufWriter, Tensor

from kvscope.model.gguf import load_gguf
from kvscope.model.layer_kinds import GGUF_FAMILIES
from kvscope.model.spec import ModelSpec
from kvscope.predict.memory import predict
from kvscope.predict.prediction import Buffer

LINES = (Path(__file__).parent.parent / "golden" / "gguf" / "generated.jsonl").read_text().splitlines()
CASES = [json.loads(line) for line in LINES]
F32_ID, VOCABULARY = 0, 288

_WEIGHTS = re.compile(r"(\S+) model buffer size = ([\d.]+) MiB")
_OUTPUT = re.compile(r"output buffer size = ([\d.]+) MiB")
_KIND = re.compile(r"creating (\S+) KV cache")
_KV = re.compile(r"\( ?(\d+) cells, (\d+) layers, \d+/(\d+) seqs\), K \(f16\): ([\d.]+) MiB, V \(f16\): ([\d.]+) MiB")
_STATE = re.compile(r"\( ?(\d+) cells, (\d+) layers, .*R \(f32\): ([\d.]+) MiB, S \(f32\): ([\d.]+) MiB")


def model_of(case: dict[str, Any], folder: Path) -> ModelSpec:
    metadata = {**case["metadata"], "tokenizer.ggml.tokens": [""] * VOCABULARY}
    tensors = []
    for name, shape in case["tensors"]:
        size = 4
        for width in shape:
            size *= width
        tensors.append(Tensor(name, tuple(shape), F32_ID, size))
    return load_gguf(GgufWriter(metadata, tensors).write(folder / "model.gguf"))


def logged(lines: list[str]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    kind = "full"
    for line in lines:
        if found := _WEIGHTS.search(line):
            rows.append(("weights", *found.groups()))
        elif found := _OUTPUT.search(line):
            rows.append(("output_buffer", *found.groups()))
        elif found := _KIND.search(line):
            kind = found[1]
        elif found := _KV.search(line):
            rows.append(("kv_cache", kind, *found.groups()))
        elif found := _STATE.search(line):
            rows.append(("recurrent_state", *found.groups()))
        else:
            raise AssertionError(line)
    return sorted(rows)


def mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.2f}"


def row(buffer: Buffer) -> tuple[str, ...]:
    details = buffer.details
    counts = tuple(str(details[name]) for name in ("cells", "layers") if name in details)
    if buffer.name == "kv_cache":
        sizes = (mib(details["k_bytes"]), mib(details["v_bytes"]))
        return (buffer.name, buffer.kind, *counts, str(details["streams"]), *sizes)
    if buffer.name == "recurrent_state":
        return (buffer.name, *counts, mib(details["r_bytes"]), mib(details["s_bytes"]))
    assert buffer.num_bytes is not None
    kind = (buffer.kind,) if buffer.name == "weights" else ()
    return (buffer.name, *kind, mib(buffer.num_bytes))


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_every_buffer_the_engine_logged(tmp_path: Path, case: dict[str, Any]) -> None:
    model = model_of(case, tmp_path)
    for run in case["runs"]:
        found = predict(model, engine="llama.cpp", settings=run["settings"])
        ours = [row(buffer) for buffer in found.buffers if buffer.name != "compute_buffer"]
        theirs = logged(run["log"])
        if not case["tensors"]:
            theirs = [entry for entry in theirs if entry[0] != "weights"]
        assert sorted(ours) == theirs, run["settings"]
        assert sum(layer.cache_bytes for layer in found.layers) == found.cache_bytes


def test_every_known_architecture_was_seen_on_the_engine() -> None:
    """Either here or among the recorded observations (tests/golden/llamacpp)."""
    folder = Path(__file__).parent.parent / "golden" / "llamacpp"
    recorded = {json.loads(path.read_text())["metadata"]["general.architecture"] for path in folder.glob("*.json")}
    generated = {case["metadata"]["general.architecture"] for case in CASES}
    assert set(GGUF_FAMILIES) - generated - recorded == set()
    assert sum(len(case["runs"]) for case in CASES) == 360
