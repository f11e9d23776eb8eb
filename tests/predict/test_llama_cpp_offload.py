"""Layers on devices: llama.cpp's published rule, by hand on SmolLM2 (30 layers; one layer's 9 tensors hold 2,216,448 B,
its cache 2 × 192 × 2 = 768 B a cell; the embeddings are tied)."""

from typing import Any

import pytest

from kvscope.errors import UsageError
from kvscope.model.spec import ModelSpec
from kvscope.predict.memory import Prediction, predict
from kvscope.predict.question import Question

CELLS, PER_CELL, LAYERS = 2048, 768, 30


def placed(model: ModelSpec, **settings: Any) -> Prediction:
    return predict(model, engine="llama.cpp", settings={"n_ctx": CELLS, **settings})


def on(found: Prediction, component: str, device: str) -> int:
    items = [item for item in found.items if (item.component, item.device) == (component, device)]
    return sum(item.allocated.fixed_bytes for item in items)


def layer_bytes(model: ModelSpec, indices: range) -> int:
    return sum(tensor.num_bytes for tensor in model.tensors if tensor.layer_index in indices)


def test_the_last_layers_go(smollm2: ModelSpec) -> None:
    found = placed(smollm2, n_gpu_layers=10)
    assert on(found, "kv_cache", "gpu0") == 10 * CELLS * PER_CELL
    assert on(found, "kv_cache", "cpu") == 20 * CELLS * PER_CELL
    assert on(found, "weights", "gpu0") == layer_bytes(smollm2, range(20, 30))
    devices = {item.layer_index: item.device for item in found.items if item.component == "kv_cache"}
    assert [devices[index] for index in (0, 19, 20, 29)] == ["cpu", "cpu", "gpu0", "gpu0"]


def test_one_more_than_the_layers_takes_the_output_and_a_copy_of_tied_embeddings(smollm2: ModelSpec) -> None:
    by_name = {tensor.name: tensor.num_bytes for tensor in smollm2.tensors}
    all_layers = layer_bytes(smollm2, range(LAYERS))
    assert on(placed(smollm2, ngl=30), "weights", "gpu0") == all_layers
    for count in (31, 99, "all"):
        found = placed(smollm2, ngl=count, load_mode="none")
        assert on(found, "weights", "gpu0") == all_layers + by_name["output_norm.weight"] + by_name["token_embd.weight"]
        assert on(found, "weights", "cpu") == by_name["token_embd.weight"]


def test_shares_split_the_layers_in_order(smollm2: ModelSpec) -> None:
    """31 places, three quarters are 23.25: places 0 to 23 on the first device, which are layers 0 to 23."""
    found = placed(smollm2, gpu_layers=31, tensor_split="3,1")
    assert on(found, "kv_cache", "gpu0") == 24 * CELLS * PER_CELL
    assert on(found, "kv_cache", "gpu1") == 6 * CELLS * PER_CELL


def test_the_cache_may_stay(smollm2: ModelSpec) -> None:
    found = placed(smollm2, ngl=31, no_kv_offload=True)
    assert on(found, "kv_cache", "cpu") == LAYERS * CELLS * PER_CELL
    assert on(found, "kv_cache", "gpu0") == 0


def test_it_says_what_was_not_measured(smollm2: ModelSpec) -> None:
    found = placed(smollm2, ngl=31)
    assert found.status == "partial"
    assert found.component_bytes("compute_buffer") is None
    assert {entry.what for entry in found.unknown} >= {"placement", "compute_buffer"}
    assert found.scenario.settings.values["n_gpu_layers"] == 31
    moved = [item for item in found.items if item.component in ("weights", "kv_cache")]
    assert {item.status for item in moved} == {"estimated"}


def test_bytes_of_one_device(smollm2: ModelSpec) -> None:
    found = placed(smollm2, n_gpu_layers=10)
    on_gpu = 10 * CELLS * PER_CELL + layer_bytes(smollm2, range(20, 30))
    assert (found.total_bytes_on("gpu0"), found.total_bytes_on("cpu")) == (on_gpu, found.total_bytes - on_gpu)


def test_no_layers_is_the_cpu_alone(smollm2: ModelSpec) -> None:
    assert placed(smollm2, n_gpu_layers=0).to_dict() == placed(smollm2).to_dict()


@pytest.mark.parametrize(
    "settings",
    [{"ngl": -1}, {"ngl": "many"}, {"ngl": 3, "gpu_layers": 3}, {"ngl": 3, "split_mode": "row"},
     {"ngl": 3, "tensor_split": "a,b"}, {"ngl": 3, "tensor_split": "0,0"}],
    ids=str,
)  # fmt: skip
def test_what_is_not_known_is_refused(smollm2: ModelSpec, settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        placed(smollm2, **settings)


def test_questions_and_ollama_take_the_same_settings(smollm2: ModelSpec) -> None:
    direct = predict(smollm2, engine="llama.cpp", tokens=100, settings={"n_gpu_layers": 10})
    asked = Question(model=smollm2, engine="llama.cpp", tokens=100, settings={"--ngl": "10"}).ask()
    assert asked.to_dict() == direct.to_dict()
    ollama = predict(smollm2, engine="ollama", tokens=100, settings={"num_gpu": 10, "num_ctx": 8192})
    assert [(i.component, i.device, i.needed) for i in ollama.items if i.component == "weights"] == [
        (i.component, i.device, i.needed) for i in direct.items if i.component == "weights"
    ]
