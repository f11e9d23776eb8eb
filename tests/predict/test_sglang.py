"""SGLang's pools, by its published rules; every number is derived beside."""

from typing import Any

import pytest

from kvscope.errors import UnknownName, UnsupportedArchitecture, UsageError
from kvscope.model.load import load_model
from kvscope.model.spec import ModelSpec
from kvscope.predict.memory import predict
from kvscope.predict.prediction import Pool, Prediction

GIB = 2**30
CELL = 32 * 8 * 256 * 2  # 32 layers, 8 KV heads, keys and values of 128, two bytes


def llama() -> ModelSpec:
    return load_model(
        {
            "model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
            "head_dim": 128, "hidden_size": 4096, "intermediate_size": 11008, "vocab_size": 32000,
            "max_position_embeddings": 32768, "torch_dtype": "bfloat16",
        }
    )  # fmt: skip


def ask(model: ModelSpec, available: int | None = None, tokens: int | None = None, **settings: Any) -> Prediction:
    return predict(model, engine="sglang", settings=settings, available_bytes=available, tokens=tokens)


def pool_of(prediction: Prediction) -> Pool:
    assert prediction.pool is not None
    return prediction.pool


def test_places_are_memory_over_the_bytes_of_one() -> None:
    predicted = ask(llama(), 10 * GIB + 5)
    assert pool_of(predicted).capacity_tokens == 10 * GIB // CELL == 81920
    assert pool_of(predicted).max_concurrency == 81920 / 32768
    assert predicted.bytes_per_token == CELL
    # One page more than its places is allocated.
    assert predicted.component_bytes("kv_cache") == 81921 * CELL
    assert predicted.status == "estimated"


def test_pages_and_a_limit_round_down() -> None:
    assert pool_of(ask(llama(), 10 * GIB - CELL, page_size=64)).capacity_tokens == 81919 // 64 * 64
    assert pool_of(ask(llama(), 10 * GIB, max_total_tokens=1000, page_size=16)).capacity_tokens == 992
    assert pool_of(ask(llama(), max_total_tokens=1000)).num_blocks == 1000
    assert pool_of(ask(llama(), 10 * GIB, kv_cache_dtype="fp8_e4m3")).capacity_tokens == 2 * 81920


def test_windows_have_a_pool_of_their_own_in_some_families() -> None:
    # gpt-oss: 12 + 12 layers of 8 × 128 × 2 B. Ratio 0.8: full = memory / (F + 0.8 F), F = 24,576 B a token.
    model = load_model({"model_type": "gpt_oss", "num_hidden_layers": 24, "torch_dtype": "bfloat16"})
    one = 12 * 8 * 128 * 2
    cells = GIB // (2 * one)
    predicted = ask(model, GIB, tokens=1)
    assert pool_of(predicted).capacity_tokens == int(cells * 2 * one / (one + 0.8 * one)) == 24272
    assert predicted.effective["window_pool_tokens"] == int(24272 * 0.8)
    off = ask(model, GIB, tokens=1, disable_hybrid_swa_memory=True)
    assert pool_of(off).capacity_tokens == cells == 21845
    assert any("keep every token" in note for note in off.notes)


def test_recurrent_states_take_a_ratio_of_the_memory() -> None:
    model = load_model({"model_type": "qwen3_next", "torch_dtype": "bfloat16"})
    # 36 layers × (3 × 8,192 × 2 B + 32 × 128 × 128 × 4 B); 12 attention layers of 2 × 512 × 2 B.
    state, cell = 36 * (49152 + 2097152), 12 * 2 * 512 * 2
    slots = int(8 * GIB * 0.9 / 1.9) // state
    predicted = ask(model, 8 * GIB, tokens=1)
    assert predicted.bytes_per_sequence == state
    assert predicted.effective["state_slots"] == slots == 52
    assert pool_of(predicted).capacity_tokens == (8 * GIB - slots * state) // cell


def test_deepseeks_index_key_has_a_scale() -> None:
    model = load_model({"model_type": "deepseek_v32", "torch_dtype": "bfloat16"})
    assert ask(model, tokens=1).bytes_per_token == 61 * (576 * 2 + 128 + 4)


def test_p74_tokens_beyond_the_pool_do_not_fit() -> None:
    predicted = ask(llama(), 100_000 * CELL, tokens=150_000)
    assert pool_of(predicted).capacity_tokens == 100_000
    assert any("do not fit" in note and "host" in note for note in predicted.notes)


def test_sequences_share_no_page() -> None:
    """Three sequences of 65 tokens take two pages of 64 each: 384 places, not 195."""
    for places, fits in ((384, True), (383, False)):
        predicted = predict(
            llama(), engine="sglang", tokens=65, sequences=3, settings={"page_size": 64}, available_bytes=places * CELL
        )
        assert fits != any("do not fit" in note for note in predicted.notes)


def test_tokens_that_windows_see_need_places_too() -> None:
    """gpt-oss: windows of 128 tokens. Of 1 GiB, 24,272 places and 19,417 of windows: 151 sequences of 128 tokens have
    19,328 tokens, 152 have 19,456, which is more than the windows' places, and less than the others."""
    model = load_model({"model_type": "gpt_oss", "num_hidden_layers": 24, "torch_dtype": "bfloat16"})
    for sequences, fits in ((151, True), (152, False)):
        predicted = predict(model, engine="sglang", tokens=128, sequences=sequences, available_bytes=GIB)
        assert fits != any("do not fit" in note for note in predicted.notes)


def test_windows_without_a_page_are_refused() -> None:
    """Room for one page of 64 tokens: 0.8 of it is no page of windows."""
    model = load_model({"model_type": "gpt_oss", "num_hidden_layers": 24, "torch_dtype": "bfloat16"})
    with pytest.raises(UsageError, match="Not enough memory"):
        ask(model, 64 * 24 * 8 * 128 * 2, tokens=1, page_size=64)


def test_ranks_share_heads() -> None:
    predicted = ask(llama(), 10 * GIB, tp_size=16, pp_size=2)
    assert predicted.bytes_per_token == 16 * 256 * 2  # one head, 16 layers
    assert predicted.component_bytes("weights") is None


def test_without_memory_the_asked_tokens_are_counted() -> None:
    assert ask(llama(), tokens=1000, page_size=64).component_bytes("kv_cache") == 1024 * CELL


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"page_sise": 1}, UnknownName),
        ({"kv_cache_dtype": "q8_0"}, UnknownName),
        ({"page_size": 0}, UsageError),
        ({"swa_full_tokens_ratio": "some"}, UsageError),
        ({"disable_radix_cache": "maybe"}, UsageError),
        ({"enable_dp_attention": True}, UsageError),
        ({"tp_size": 2, "tp": 2}, UsageError),
        ({"tp_size": 3}, UsageError),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        ask(llama(), tokens=1, **settings)


def test_layers_whose_pool_is_not_known_are_refused() -> None:
    with pytest.raises(UnsupportedArchitecture, match="rwkv"):
        ask(load_model({"model_type": "rwkv"}), tokens=1)


def test_a_layer_of_two_kinds_is_one_layer_and_one_without_cache_is_listed() -> None:
    """Falcon H1: attention and a recurrent state side by side in each layer. Nemotron H: layers without a cache."""
    both = load_model({"model_type": "falcon_h1", "num_hidden_layers": 3, "torch_dtype": "bfloat16"})
    predicted = ask(both, tokens=10)
    assert [layer.index for layer in predicted.layers] == [0, 1, 2]
    assert all(len(layer.tensors) == 2 for layer in predicted.layers)
    assert sum(layer.cache_bytes for layer in predicted.layers) == predicted.needed_at(10)
    some = load_model({"model_type": "nemotron_h", "num_hidden_layers": 4, "hybrid_override_pattern": "M-*-"})
    assert [(layer.index, len(layer.tensors)) for layer in ask(some, tokens=10).layers] == [
        (0, 1),
        (1, 0),
        (2, 1),
        (3, 0),
    ]


def test_too_little_memory_is_refused_not_counted_below_zero() -> None:
    with pytest.raises(UsageError, match="Not enough memory"):
        ask(llama(), 0)
    with pytest.raises(UsageError, match="Not enough memory"):
        ask(llama(), 63 * CELL, page_size=64)
    states = load_model({"model_type": "falcon_h1", "num_hidden_layers": 3, "torch_dtype": "bfloat16"})
    with pytest.raises(UsageError, match="Not enough memory"):
        ask(states, 10**8, tokens=1, max_mamba_cache_size=10**6)


def test_states_are_never_counted_as_none_at_all() -> None:
    """max_total_tokens says nothing of states: one for each sequence is counted; memory for none is refused."""
    model = load_model({"model_type": "falcon_h1", "num_hidden_layers": 3, "torch_dtype": "bfloat16"})
    one = ask(model, tokens=1).component_bytes("recurrent_state")
    assert one
    limited = predict(model, engine="sglang", tokens=1, sequences=4, settings={"max_total_tokens": 64})
    assert limited.component_bytes("recurrent_state") == 4 * one
    assert any("one for each" in note for note in limited.notes)
    with pytest.raises(UsageError, match="Not enough memory"):
        ask(model, one, tokens=1)  # 0.9 / 1.9 of it is less than one state
    short = predict(
        model, engine="sglang", tokens=1, sequences=4, available_bytes=10**9, settings={"max_mamba_cache_size": 3}
    )
    assert any("4 sequences do not all fit: there are 3 states" in note for note in short.notes)
