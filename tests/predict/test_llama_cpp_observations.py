"""Every recorded observation of the engine, byte for byte (tests/golden/llamacpp/README.md)."""

from collections.abc import Callable
from typing import Any

import pytest
from golden_gguf import ALL_MODELS, REAL_MODELS, golden

from kvscope.errors import UsageError
from kvscope.model.spec import ModelSpec
from kvscope.predict.memory import Prediction, predict

OBSERVATIONS = [
    pytest.param(name, entry, id=f"{name}-{index}-" + "-".join(f"{k}={v}" for k, v in entry["settings"].items()))
    for name in ALL_MODELS
    for index, entry in enumerate(golden(name)["observations"])
]


def ask(model: ModelSpec, entry: dict[str, Any]) -> Prediction:
    return predict(model, engine="llama.cpp", settings=entry["settings"])


@pytest.mark.parametrize(("name", "entry"), OBSERVATIONS)
def test_observation(golden_model: Callable[[str], ModelSpec], name: str, entry: dict[str, Any]) -> None:
    model = golden_model(name)
    if "refused" in entry:
        reason = entry["refused"].rsplit(": ", 1)[-1]
        with pytest.raises(UsageError) as caught:
            ask(model, entry)
        assert reason in str(caught.value)
        return
    found = ask(model, entry)
    content = found.to_dict()
    caches = [b for b in content["buffers"] if b["name"] == "kv_cache"]
    assert [[b["kind"], b["cells"], b["streams"], b["layers"], b["bytes"]] for b in caches] == entry["kv"]
    states = [b for b in content["buffers"] if b["name"] == "recurrent_state"]
    assert [[b["cells"], b["layers"], b["bytes"], *mib(b["r_bytes"], b["s_bytes"])] for b in states] == [
        [*state[:3], f"{state[3]:.2f}", f"{state[4]:.2f}"] for state in entry["rs"]
    ]
    assert content["totals"]["recurrent_state_bytes"] == sum(state[2] for state in entry["rs"])
    assert content["totals"]["kv_cache_bytes"] == sum(cache[4] for cache in entry["kv"])
    assert sum(layer["cache_bytes"] for layer in content["layers"]) == content["totals"]["cache_bytes"]
    assert content["totals"]["output_buffer_bytes"] == entry["output"]
    assert weights_agree(content["buffers"], entry["weights"])
    effective = content["effective"]
    assert entry["context"] == {
        "n_ctx": effective["context_tokens"],
        "n_ctx_seq": effective["context_per_sequence_tokens"],
        "n_batch": effective["batch_tokens"],
        "n_ubatch": effective["microbatch_tokens"],
    }
    assert entry["slots"] == [effective["slot_limit_tokens"]] * effective["slots"]
    assert all(unknown["what"] != "compute_buffer" for unknown in content["unknown"])
    assert content["totals"]["compute_buffer_bytes"] == entry["compute"]


def mib(*sizes: int) -> list[str]:
    """As the log prints them."""
    return [f"{size / 2**20:.2f}" for size in sizes]


def weights_agree(buffers: list[dict[str, Any]], seen: dict[str, list[Any]]) -> bool:
    """Exact where bytes were recorded; a mapped file is no allocation, so there only the log's two decimals are."""
    ours = {b["kind"]: b["bytes"] for b in buffers if b["name"] == "weights"}
    return ours.keys() == seen.keys() and all(
        ours[kind] == num_bytes if num_bytes is not None else f"{ours[kind] / 2**20:.2f}" == f"{mib:.2f}"
        for kind, (mib, num_bytes) in seen.items()
    )


@pytest.mark.parametrize("name", REAL_MODELS)
def test_the_real_models_are_exact(golden_model: Callable[[str], ModelSpec], name: str) -> None:
    for entry in golden(name)["observations"]:
        if "refused" in entry:
            continue
        found = ask(golden_model(name), entry)
        assert found.status == "exact"
        assert all(item.status == "exact" for item in found.items)


def test_there_are_observations_of_every_kind() -> None:
    """So that a broken file cannot make the tests above pass by being empty."""
    counts = {name: len(golden(name)["observations"]) for name in ALL_MODELS}
    assert counts["smollm2-135m-instruct-q4_1"] == 104
    assert counts["gemma3-270m-q4_k_m"] == 78
    assert len(OBSERVATIONS) == 501
    refused = [entry for name in ALL_MODELS for entry in golden(name)["observations"] if "refused" in entry]
    assert len(refused) == 21
