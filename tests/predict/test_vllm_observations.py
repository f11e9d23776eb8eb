"""Pools that vLLM 0.32.0 really made (tests/golden/vllm), against the prediction, with ==.

``<family>.json``: the engine itself, on tiny configs. ``planner.json``: its planner functions on real models' shapes.
"""

import functools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from kvscope.errors import UsageError
from kvscope.model.load import load_model
from kvscope.model.spec import (
    CacheKind,
    ChunkedAttention,
    FullAttention,
    HybridCache,
    LatentAttention,
    LayerSpec,
    ModelSpec,
    NoCache,
    RecurrentState,
    SlidingWindow,
    StateTensor,
)
from kvscope.predict.memory import predict
from kvscope.predict.prediction import Prediction

GOLDEN = Path(__file__).parent.parent / "golden" / "vllm"
ENGINE_CASES = [
    (path.stem, index)
    for path in sorted(GOLDEN.glob("*.json"))
    if path.stem != "planner"
    for index in range(len(json.loads(path.read_text("utf-8"))["observations"]))
]
PLANNER = json.loads((GOLDEN / "planner.json").read_text("utf-8"))
KINDS = {
    "FullAttentionSpec": "full_attention", "SlidingWindowSpec": "sliding_window", "MLAAttentionSpec": "mla_attention",
    "ChunkedLocalAttentionSpec": "chunked_local_attention", "MambaSpec": "mamba",
}  # fmt: skip
GIB = 2**30


@functools.cache
def case_of(name: str) -> dict[str, Any]:
    loaded = json.loads((GOLDEN / f"{name}.json").read_text("utf-8"))
    assert isinstance(loaded, dict)
    return loaded


def ask(name: str, index: int) -> tuple[Prediction, dict[str, Any]]:
    case = case_of(name)
    seen = case["observations"][index]
    predicted = predict(
        load_model(case["config"]),
        engine="vllm",
        engine_version=case["build"]["package"],
        settings={"max_model_len": 2048, "max_num_seqs": 8, **seen["settings"]},
        available_bytes=seen["available_kv_bytes"],
    )
    return predicted, seen


@pytest.mark.parametrize(("name", "index"), ENGINE_CASES)
def test_the_engines_own_pool(name: str, index: int) -> None:
    seen = case_of(name)["observations"][index]
    if "error" in seen:
        with pytest.raises(UsageError, match=re.escape(re.findall(r"No common block size.*\]\)", seen["error"])[0])):
            ask(name, index)
        return
    predicted, _ = ask(name, index)
    pool = predicted.pool
    assert pool is not None
    assert pool.num_blocks == seen["num_blocks"]
    assert pool.capacity_tokens == seen["capacity_tokens"]
    assert pool.max_concurrency == seen["max_concurrency"]
    assert [
        (group.kind, len(group.layers), group.page_bytes, group.block_tokens, group.blocks_per_sequence)
        for group in pool.groups
    ] == [
        (
            KINDS[group["spec"]["class"]],
            len(group["layers"]),
            group["spec"]["page_size_bytes"],
            group["spec"]["block_size"],
            group["max_memory_usage_bytes_per_request"] // group["spec"]["page_size_bytes"],
        )
        for group in seen["groups"]
    ]
    assert predicted.component_bytes("kv_cache") == predicted.cache_bytes == seen["kv_allocated_bytes"]
    assert pool.num_blocks * pool.bytes_per_block == seen["kv_allocated_bytes"]
    assert predicted.effective["sequence_bytes"] == seen["sequence_bytes"]
    assert predicted.component_bytes("weights") == seen["params_bytes"]
    assert predicted.status == "exact"


def cache_of(layer: list[Any]) -> CacheKind:
    match layer:
        case ["none"]:
            return NoCache()
        case ["full", heads, key, value]:
            return FullAttention(num_kv_heads=heads, key_dim=key, value_dim=value)
        case ["swa", heads, key, value, window]:
            return SlidingWindow(num_kv_heads=heads, key_dim=key, value_dim=value, window_tokens=window)
        case ["chunk", heads, key, value, chunk]:
            return ChunkedAttention(num_kv_heads=heads, key_dim=key, value_dim=value, chunk_tokens=chunk)
        case ["mla", latent, rope]:
            return LatentAttention(latent_dim=latent, rope_dim=rope)
        case ["hybrid", attention, recurrent]:
            found = cache_of(attention)
            assert isinstance(found, FullAttention)
            return HybridCache(attention=found, recurrent=state_of(recurrent))
        case _:
            return state_of(layer)


def state_of(layer: list[Any]) -> RecurrentState:
    """The published shape of each recurrent layer: what its convolution runs over, and its matrix."""
    match layer:
        case ["mamba2", inner, groups, heads, head_dim, state, kernel]:
            return recurrent("mamba2", inner + 2 * groups * state, kernel, (heads, head_dim, state))
        case ["mamba1", inner, state, kernel]:
            return recurrent("mamba", inner, kernel, (inner, state))
        case ["gdn", key_heads, value_heads, key_dim, value_dim, kernel]:
            channels = 2 * key_heads * key_dim + value_heads * value_dim
            return recurrent("gated_delta_net", channels, kernel, (value_heads, key_dim, value_dim))
        case ["kda", heads, head_dim, kernel]:
            return recurrent("kda", 3 * heads * head_dim, kernel, (heads, head_dim, head_dim))
        case ["conv", channels, kernel]:
            return recurrent("short_conv", channels, kernel, None)
        case _:
            raise AssertionError(layer)


def recurrent(form: Any, channels: int, kernel: int, shape: tuple[int, ...] | None) -> RecurrentState:
    states = () if shape is None else (StateTensor(name="state", shape=shape),)
    return RecurrentState(form=form, conv_channels=channels, conv_kernel=kernel, states=states)


@functools.cache
def shape_of(name: str) -> ModelSpec:
    caches = [cache_of(layer) for count, layer in PLANNER["shapes"][name] for _ in range(count)]
    layers = tuple(LayerSpec(index=i, cache=cache, num_q_heads=64, ffn=None) for i, cache in enumerate(caches))
    return ModelSpec(
        name=name,
        architecture=name,
        source=name,
        file_path=None,
        num_parameters=None,
        vocab_size=1,
        hidden_size=1,
        trained_context_tokens=131072,
        layers=layers,
        dtype="bfloat16",
    )


def planned(record: dict[str, Any]) -> dict[str, Any]:
    """The prediction in the golden file's form; ``error``: why vLLM would not start."""
    settings = {"device": "cuda", "async_scheduling": False, "mamba_ssm_cache_dtype": "float32", **record["settings"]}
    available = settings.pop("gib") * GIB
    try:
        predicted = predict(shape_of(record["shape"]), engine="vllm", settings=settings, available_bytes=available)
    except UsageError as refused:
        return {"error": refused.message}
    if not predicted.effective["fits"]:
        return {"error": next(note for note in predicted.notes if "would not start" in note)}
    pool = predicted.pool
    assert pool is not None
    return {
        "num_blocks": pool.num_blocks,
        "bytes_per_block": pool.bytes_per_block,
        "capacity_tokens": pool.capacity_tokens,
        "max_concurrency": pool.max_concurrency,
        "max_model_len": predicted.effective["context_tokens"],
        "groups": [
            [g.kind, len(g.layers), g.layers[0], g.layers[-1], g.page_bytes, g.block_tokens, g.blocks_per_sequence]
            for g in pool.groups
        ],
    }


def numbers_of(text: str) -> list[str]:
    """What a refusal names: GiB needed, GiB available, the estimated length."""
    return re.findall(r"[\d.]+ GiB|length is \d+", text)


@pytest.mark.parametrize("shape", PLANNER["shapes"])
def test_the_planners_pool_of_a_real_shape(shape: str) -> None:
    records = [record for record in PLANNER["records"] if record["shape"] == shape]
    assert len(records) >= 12
    for record in records:
        found, expected = planned(record), record["expected"]
        if "error" in expected:
            assert numbers_of(found["error"]) == numbers_of(expected["error"]), record["settings"]
        else:
            assert found == expected, record["settings"]


def test_the_planner_refused_as_often_as_it_planned_differently() -> None:
    """The golden file holds both outcomes, so neither branch above is empty."""
    errors = [record["expected"]["error"] for record in PLANNER["records"] if "error" in record["expected"]]
    assert len(errors) == 32
    assert sum(bool(numbers_of(error)) for error in errors) >= 20
