"""The release of transformers is part of the question: what is measured, estimated and refused."""

from dataclasses import replace

import pytest

from kvscope.errors import UnsupportedArchitecture, UsageError
from kvscope.model.load import load_model
from kvscope.model.spec import LatentAttention, ModelSpec
from kvscope.predict.memory import predict


@pytest.fixture(scope="module")
def deepseek_v3() -> ModelSpec:
    """61 layers of 128 heads; latent 512 + 64; keys of 192, values of 128: the class's defaults are the model's."""
    return load_model({"model_type": "deepseek_v3"})


@pytest.mark.parametrize("version", [None, "5.24.0", "5.24", "transformers 5.24.0"])
def test_the_measured_release_keeps_the_latent(deepseek_v3: ModelSpec, version: str | None) -> None:
    """61 × (512 + 64) × 2 B × 32,768"""
    found = predict(deepseek_v3, engine="transformers", engine_version=version, tokens=32_768, dtype="bfloat16")
    assert (found.cache_bytes, found.status) == (2_302_672_896, "exact")


@pytest.mark.parametrize("version", ["4.57", "4.57.1", "transformers 4.40.0.dev0"])
def test_release_4_keeps_every_heads_keys_and_values(deepseek_v3: ModelSpec, version: str) -> None:
    """61 × 128 × (192 + 128) × 2 B × 32,768: 71 times as much"""
    found = predict(deepseek_v3, engine="transformers", engine_version=version, tokens=32_768, dtype="bfloat16")
    assert (found.cache_bytes, found.status) == (163_745_628_160, "estimated")
    assert any("was not measured" in unknown.why for unknown in found.unknown)
    assert {item.status for item in found.items if item.component == "kv_cache"} == {"estimated"}


def test_a_window_stays_a_window_in_release_4(deepseek_v3: ModelSpec) -> None:
    """Four of 100 tokens kept: 128 × (192 + 128) × 2 B × 4 in each of 61 layers (a window of 5)."""
    layers = tuple(replace(layer, cache=_windowed(layer.cache)) for layer in deepseek_v3.layers)
    model = replace(deepseek_v3, layers=layers)
    found = predict(model, engine="transformers", engine_version="4.57", tokens=100, dtype="bfloat16")
    assert found.cache_bytes == 61 * 128 * 320 * 2 * 4


def _windowed(cache: object) -> LatentAttention:
    assert isinstance(cache, LatentAttention)
    return replace(cache, window_tokens=5)


def test_other_releases_of_5_are_estimates(deepseek_v3: ModelSpec) -> None:
    found = predict(deepseek_v3, engine="transformers", engine_version="5.3.0", tokens=10, dtype="bfloat16")
    assert (found.cache_bytes, found.status) == (61 * 576 * 2 * 10, "estimated")


@pytest.mark.parametrize("version", ["", "latest", "v", "6.0", "3.5"])
def test_a_release_nothing_is_known_of_is_refused(deepseek_v3: ModelSpec, version: str) -> None:
    with pytest.raises(UsageError, match="transformers"):
        predict(deepseek_v3, engine="transformers", engine_version=version, tokens=10)


def test_release_4_is_refused_where_the_heads_are_not_known(deepseek_v3: ModelSpec) -> None:
    cache = LatentAttention(latent_dim=512, rope_dim=64)
    model = replace(deepseek_v3, layers=(replace(deepseek_v3.layers[0], cache=cache),))
    with pytest.raises(UnsupportedArchitecture, match="sizes of its heads"):
        predict(model, engine="transformers", engine_version="4.57", tokens=10)


@pytest.mark.parametrize("model_type", ["deepseek_v32", "deepseek_v4"])
def test_release_4_has_no_cache_for_index_keys_or_compressed_entries(model_type: str) -> None:
    model = load_model({"model_type": model_type})
    with pytest.raises(UnsupportedArchitecture, match="transformers 4 has no cache"):
        predict(model, engine="transformers", engine_version="4.57", tokens=10)
