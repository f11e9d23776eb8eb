"""Layers stated by hand: what is said is what is counted, and what is not understood is refused with its place."""

from pathlib import Path

import pytest

from kvscope.errors import KvscopeError, UnsupportedArchitecture, UsageError
from kvscope.model.load import load_model
from kvscope.model.load_stated import load_model_with_layers
from kvscope.model.spec import FullAttention, SlidingWindow
from kvscope.model.stated_layers import parse_layers
from kvscope.predict.memory import predict

UNKNOWN = {"model_type": "made-up", "vocab_size": 1000, "hidden_size": 2560, "max_position_embeddings": 131072}
GEMMA3_270M = Path(__file__).parent.parent / "golden" / "gguf" / "tiny-gemma3.gguf"


def test_a_pattern_is_written_as_a_list_that_repeats() -> None:
    # As Gemma 3 4B: 34 layers, every sixth full
    stated = parse_layers(
        "5 x [5 x sliding kv_heads=4 head_dim=256 window=1024; full kv_heads=4 head_dim=256];"
        "4 x sliding kv_heads=4 head_dim=256 window=1024"
    )
    kinds = [type(cache) for cache, _ in stated.caches]
    assert len(kinds) == 34
    assert [index for index, kind in enumerate(kinds) if kind is FullAttention] == [5, 11, 17, 23, 29]
    assert kinds[0] is SlidingWindow


@pytest.mark.parametrize(
    ("layers", "tokens", "expected"),
    [
        # 32 × 8 × (128 + 128) × 2 B × 8,192
        ("32 x full kv_heads=8 head_dim=128", 8192, 1073741824),
        # 24 × (min(8,192, 128) + 8,192) × 8 × (64 + 64) × 2 B, half of the layers each: 12 × 2,048 B × 8,320
        ("12 x [sliding kv_heads=8 head_dim=64 window=128; full kv_heads=8 head_dim=64]", 8192, 12 * 2048 * 8320),
        # MLA: 61 × (512 + 64) × 2 B × 32,768
        ("61 x latent latent_dim=512 rope_dim=64", 32768, 61 * 576 * 2 * 32768),
        # with DeepSeek's index keys of 132 B
        ("61 x latent latent_dim=512 rope_dim=64 index_dim=128 index_row_bytes=132", 32768, 61 * (1152 + 132) * 32768),
        # a state that no length changes: 3 × (16 × 8 × 4 B + 100 × 3 × 2 B); one layer of 2 × 4 × 2 × 2 B per token
        ("3 x recurrent state=16x8 state_dtype=float32 conv_channels=100 conv_kernel=4; full kv_heads=2 head_dim=4",
         10, 3 * (512 + 600) + 320),
        ("full kv_heads=2 head_dim=4; shared layer=0; none; cross kv_heads=2 head_dim=4 tokens=100", 10, 320 + 3200),
        ("chunked kv_heads=2 head_dim=4 chunk=6", 10, 6 * 32),
        ("hybrid kv_heads=2 head_dim=4 state=3x5 state_dtype=float32", 10, 320 + 60),
        ("2 x full kv_heads=2 key_dim=6 value_dim=4", 10, 2 * 2 * 10 * 2 * 10),
    ],
)  # fmt: skip
def test_bytes_are_those_of_the_stated_layers(layers: str, tokens: int, expected: int) -> None:
    model = load_model_with_layers(UNKNOWN, layers)
    predicted = predict(model, engine="logical", tokens=tokens, dtype="float16")
    assert predicted.cache_bytes == expected
    assert predicted.status != "exact"
    assert any("stated by hand" in unknown.why for unknown in predicted.unknown)
    assert model.sources["layers[0].cache"] == "stated by hand: --layers"


def test_an_unknown_family_is_refused_with_the_way_out() -> None:
    with pytest.raises(UnsupportedArchitecture) as caught:
        load_model(UNKNOWN)
    assert "--layers" in str(caught.value.hint)


def test_what_the_files_leave_out_must_be_stated() -> None:
    with pytest.raises(UsageError, match="vocab_size"):
        load_model_with_layers({"model_type": "made-up", "hidden_size": 8}, "full kv_heads=1 head_dim=8")
    model = load_model_with_layers(
        {"model_type": "made-up"}, "hidden_size=8; vocab_size=10; trained_context=99; full kv_heads=1 head_dim=8"
    )
    assert (model.hidden_size, model.vocab_size, model.trained_context_tokens) == (8, 10, 99)


def test_a_known_ggufs_layers_can_be_overruled() -> None:
    model = load_model_with_layers(GEMMA3_270M, "2 x full kv_heads=1 head_dim=16")
    assert len(model.layers) == 2
    assert model.tensors  # its weights are still the file's
    assert predict(model, engine="logical", tokens=3, dtype="float16").component_bytes("kv_cache") == 2 * 64 * 3


@pytest.mark.parametrize(
    "layers",
    [
        "", "  ;", "full", "full kv_heads=8", "full kv_heads=8 head_dim=0", "full kv_heads=-1 head_dim=8", "wide x=1",
        "full kv_heads=8 head_dim=128 windw=5", "3 x", "3 x [full kv_heads=1 head_dim=1",
        "] full kv_heads=1 head_dim=1",
        "99999 x full kv_heads=1 head_dim=1", "10000 x [10000 x full kv_heads=1 head_dim=1]", "kv_heads=3",
        "full kv_heads=1 kv_heads=2 head_dim=1", "shared layer=5", "recurrent", "recurrent state=axb",
        "full kv_heads=²",
        "[" * 5000, "full kv_heads=1 head_dim=99999999999999999999", "sliding kv_heads=1 head_dim=1", "full\x00",
        "recurrent state=2x2 state_dtype=float99",
    ],
)  # fmt: skip
def test_anything_else_is_refused_as_a_wrong_question(layers: str) -> None:
    with pytest.raises(KvscopeError) as caught:
        load_model_with_layers(UNKNOWN, layers)
    assert caught.value.exit_code == 2
    assert caught.value.hint or "there is none" in caught.value.message


@pytest.mark.parametrize(
    "layers",
    [
        "2 x shared layer=0",  # itself
        "shared layer=1; full kv_heads=1 head_dim=8",  # the layer behind it
        "none; shared layer=0",
        "full kv_heads=1 head_dim=8; 2 x shared layer=1",  # one that shares itself
    ],
)
def test_a_shared_cache_is_filled_by_a_layer_before(layers: str) -> None:
    """Else nobody would fill it, and its bytes would be 0 without a word."""
    with pytest.raises(UsageError, match="shares the cache of layer"):
        load_model_with_layers({"model_type": "unheard_of", "hidden_size": 8, "vocab_size": 8}, layers)
