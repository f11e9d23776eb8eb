"""Compute buffers of every known architecture against what the real engine reserved for generated models, byte for byte
(tests/golden/llamacpp/README.md), and the model of ggml's allocator by hand."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gguf_writer import GgufWriter, Tensor

from kvscope.model.gguf import load_gguf
from kvscope.model.layer_kinds import GGUF_FAMILIES
from kvscope.model.spec import ModelSpec
from kvscope.predict import buffers
from kvscope.predict.allocation.llama_cpp_cache import plan_cells
from kvscope.predict.allocation.llama_cpp_settings import read_settings
from kvscope.predict.graphs.allocator import buffer_peak
from kvscope.predict.graphs.measured import EQUAL
from kvscope.predict.graphs.model_graph import Plan, peak_of, plan_of
from kvscope.predict.graphs.tensor import Graph, like, node, source, view
from kvscope.predict.memory import predict

FOLDER = Path(__file__).parent.parent / "golden" / "llamacpp"
CASES = [json.loads(line) for line in (FOLDER / "compute_generated.jsonl").read_text().splitlines()]
F32_ID, VOCABULARY = 0, 288


def model_of(case: dict[str, Any], folder: Path) -> ModelSpec:
    metadata = {**case["metadata"], "tokenizer.ggml.tokens": [""] * VOCABULARY}
    tensors = []
    for name, shape in case["tensors"]:
        size = 4
        for width in shape:
            size *= width
        tensors.append(Tensor(name, tuple(shape), F32_ID, size))
    return load_gguf(GgufWriter(metadata, tensors).write(folder / "model.gguf"))


def plan_for(model: ModelSpec, settings: dict[str, Any]) -> Plan:
    parsed = read_settings(settings, settings.get("n_parallel", 1))
    found = plan_of(model, buffers.run_of(model, parsed, plan_cells(model, parsed)))
    assert found is not None
    return found


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_every_buffer_is_equal(tmp_path: Path, case: dict[str, Any]) -> None:
    model = model_of(case, tmp_path)
    for settings, num_bytes in case["runs"]:
        found = predict(model, engine="llama.cpp", settings=settings)
        assert found.component_bytes("compute_buffer") == num_bytes, settings
        statuses = {item.status for item in found.items if item.component == "compute_buffer"}
        assert statuses == {"exact" if model.family in EQUAL else "estimated"}


def test_every_known_architecture_was_compared() -> None:
    seen = {case["metadata"]["general.architecture"] for case in CASES}
    recorded = {json.loads(path.read_text())["metadata"]["general.architecture"] for path in FOLDER.glob("*.json")}
    assert seen | recorded >= EQUAL
    assert set(GGUF_FAMILIES) >= EQUAL
    assert sum(len(case["runs"]) for case in CASES) > 2000


def test_an_estimate_says_why(tmp_path: Path) -> None:
    """falcon: equal on the models tried, but its operations come in another order than ours."""
    case = next(case for case in CASES if case["metadata"]["general.architecture"] == "falcon")
    found = predict(model_of(case, tmp_path), engine="llama.cpp", settings={"n_ctx": 512})
    assert any(entry.what == "compute_buffer" and "another order" in entry.why for entry in found.unknown)


def test_weights_that_were_never_seen_make_it_an_estimate(tmp_path: Path) -> None:
    case = next(case for case in CASES if case["name"] == "llama-A")
    model = model_of(case, tmp_path)
    assert buffers.doubt_about(model) is None
    first = next(tensor for tensor in model.tensors if tensor.name == "blk.0.attn_q.weight")
    for name in ("attn_q.scale", "attn_mystery.weight"):
        strange = replace(first, name=f"blk.0.{name}")
        assert name in (buffers.doubt_about(replace(model, tensors=(*model.tensors, strange))) or "")


def test_weights_the_graph_needs_but_the_file_lacks_leave_it_unknown(tmp_path: Path) -> None:
    case = next(case for case in CASES if case["name"] == "llama-A")
    model = model_of(case, tmp_path)
    kept = tuple(tensor for tensor in model.tensors if tensor.name != "blk.0.attn_q.weight")
    found = predict(replace(model, tensors=kept), engine="llama.cpp", settings={"n_ctx": 512})
    assert found.component_bytes("compute_buffer") is None
    assert any(entry.what == "compute_buffer" for entry in found.unknown)


@pytest.mark.parametrize(
    "name", ["llama-A", "gemma3-A", "gemma4-C", "mimo2-C", "deepseek2-A", "mamba2-A", "qwen3next-A", "jamba-C"]
)
@pytest.mark.parametrize(
    "settings", [{"n_ctx": 512}, {"n_ctx": 2048, "n_parallel": 3, "n_ubatch": 100, "flash_attn": "off"}], ids=str
)
def test_layers_left_out_change_nothing(tmp_path: Path, name: str, settings: dict[str, Any]) -> None:
    """Each model made eight times as deep: the whole graph's buffer, and that of the shortened one."""
    case = next(case for case in CASES if case["name"] == name)
    plan = plan_for(model_of(case, tmp_path), settings)
    count = len(plan.layers)
    deep = replace(
        plan,
        layers=tuple(
            (replace(layer, index=layer.index + turn * count), shapes)
            for turn in range(8)
            for layer, shapes in plan.layers
        ),
    )
    whole = deep.graph()
    assert len(deep.shortened().layers) < len(deep.layers)
    assert peak_of(deep.shortened()).num_bytes == buffer_peak(whole.order, whole.leaves).num_bytes


def test_room_is_given_back_and_taken_again() -> None:
    """Inputs of 64 B; a product of 256 B, then one of 128 B from it: 448 B. The first is free then, and the third, of
    256 B, takes its place: nothing is added."""
    graph = Graph()
    entry = source(16)
    first = node("MUL_MAT", (64,), entry)
    second = node("MUL_MAT", (32,), first)
    graph.expand(node("MUL_MAT", (64,), second))
    peak = buffer_peak(graph.order, graph.leaves)
    assert (peak.input_bytes, peak.num_bytes) == (64, 64 + 256 + 128)


def test_an_operation_may_write_over_its_input_unless_another_needs_it() -> None:
    """ADD over a product: no room of its own. Where the product is read again afterwards, it takes 256 B more."""
    for is_read_again, expected in ((False, 64 + 256), (True, 64 + 256 + 256)):
        graph = Graph()
        product = node("MUL_MAT", (64,), source(16))
        added = graph.expand(like("ADD", product))
        if is_read_again:
            graph.expand(like("MUL", added, product))
        assert buffer_peak(graph.order, graph.leaves).num_bytes == expected


def test_a_view_keeps_what_it_shows() -> None:
    """A view takes no room, but its owner's 256 B stay until it was read: the second product takes the 32 B (12 rounded
    up) that the input has given back."""
    graph = Graph()
    product = node("MUL_MAT", (64,), source(3))
    shown = view(product, 8, 8)
    second = graph.expand(node("MUL_MAT", (8,), shown))
    assert second.num_bytes == 32
    assert buffer_peak(graph.order, graph.leaves).num_bytes == 32 + 256
