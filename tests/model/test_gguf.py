"""GGUF metadata → ModelSpec: which key says what, per family, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
from gguf_writer import GgufWriter, Tensor
from golden_gguf import ALL_MODELS, golden, writer

from kvscope.errors import MalformedFile, MissingField, UnsupportedArchitecture
from kvscope.model.gguf import load_gguf
from kvscope.model.spec import DenseFfn, FullAttention, ModelSpec, NoCache, SlidingWindow

LLAMA: dict[str, Any] = {
    "general.architecture": "llama",
    "general.name": "a model",
    "llama.block_count": 3,
    "llama.context_length": 4096,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 160,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "tokenizer.ggml.tokens": ["a", "b", "c"],
}
GEMMA3 = {key.replace("llama.", "gemma3."): value for key, value in LLAMA.items()} | {
    "general.architecture": "gemma3",
    "gemma3.block_count": 8,
    "gemma3.attention.sliding_window": 512,
}


def load(folder: Path, metadata: dict[str, Any], without: str = "") -> ModelSpec:
    path = folder / "model.gguf"
    kept = {key: value for key, value in metadata.items() if key != without}
    path.write_bytes(GgufWriter(kept, [Tensor("token_embd.weight", (64, 3), 0, 768)]).to_bytes())
    return load_gguf(path)


def test_smollm2(tmp_path: Path) -> None:
    """Every number as in the file's own metadata (tests/golden/llamacpp/smollm2-….json)."""
    model = load_gguf(writer("smollm2-135m-instruct-q4_1").write(tmp_path / "smollm2.gguf"))
    assert (model.architecture, model.family, model.source_kind) == ("llama", "llama", "gguf")
    assert model.name == "Smollm2 135M 8k Lc100K Mix1 Ep2"
    assert (len(model.layers), model.hidden_size, model.vocab_size) == (30, 576, 49_152)
    assert model.trained_context_tokens == 8192
    assert model.num_parameters == 134_515_008  # the model card's 135M, unrounded
    # 9 heads of 576 / 9 = 64; 3 of them for keys and values.
    assert {layer.cache for layer in model.layers} == {FullAttention(num_kv_heads=3, key_dim=64, value_dim=64)}
    assert {layer.ffn for layer in model.layers} == {DenseFfn(width=1536)}
    assert sum(tensor.num_bytes for tensor in model.tensors) == 96_576_768
    assert model.sources["layers[29].key_dim"] == "derived: embedding_length 576 / head_count 9"
    assert model.sources["layers[0].num_kv_heads"] == "GGUF key llama.attention.head_count_kv"


def test_gemma3_has_five_sliding_layers_to_one_full(tmp_path: Path) -> None:
    model = load_gguf(writer("gemma3-270m-q4_k_m").write(tmp_path / "gemma3.gguf"))
    full = FullAttention(num_kv_heads=1, key_dim=256, value_dim=256)
    sliding = SlidingWindow(num_kv_heads=1, key_dim=256, value_dim=256, window_tokens=512)
    assert [layer.index for layer in model.layers if layer.cache == full] == [5, 11, 17]
    assert [layer.index for layer in model.layers if layer.cache == sliding] == [
        i for i in range(18) if i not in (5, 11, 17)
    ]
    assert model.num_parameters == 268_098_176
    assert model.sources["layers[0].window_tokens"] == "GGUF key gemma3.attention.sliding_window"


@pytest.mark.parametrize("name", ALL_MODELS)
def test_every_golden_model_loads(tmp_path: Path, name: str) -> None:
    model = load_gguf(writer(name).write(tmp_path / "model.gguf"))
    content = golden(name)
    arch = content["metadata"]["general.architecture"]
    assert len(model.layers) == content["metadata"][f"{arch}.block_count"]
    assert sum(tensor.num_bytes for tensor in model.tensors) == sum(entry[3] for entry in content["tensors"])


def test_per_layer_values_are_read_whole(tmp_path: Path) -> None:
    metadata = LLAMA | {
        "llama.attention.head_count": [4, 4, 8],
        "llama.attention.head_count_kv": [2, 0, 8],
        "llama.feed_forward_length": [160, 320, 480],
        "llama.attention.key_length": 32,
    }
    layers = load(tmp_path, metadata).layers
    assert [layer.cache for layer in layers] == [
        FullAttention(num_kv_heads=2, key_dim=32, value_dim=16),
        NoCache(),
        FullAttention(num_kv_heads=8, key_dim=32, value_dim=16),
    ]
    assert [layer.num_q_heads for layer in layers] == [4, 4, 8]
    assert [layer.ffn.width for layer in layers if layer.ffn] == [160, 320, 480]


def test_kv_heads_default_to_the_heads(tmp_path: Path) -> None:
    model = load(tmp_path, LLAMA, without="llama.attention.head_count_kv")
    assert model.layers[0].cache == FullAttention(num_kv_heads=4, key_dim=16, value_dim=16)
    assert "key absent" in model.sources["layers[0].num_kv_heads"]


@pytest.mark.parametrize(
    ("changes", "sliding"),
    [
        ({}, [0, 1, 2, 3, 4, 6, 7]),  # every 6th is full
        ({"gemma3.attention.sliding_window_pattern": 3}, [0, 1, 3, 4, 6, 7]),
        ({"gemma3.attention.sliding_window_pattern": [True] * 3 + [False] * 5}, [0, 1, 2]),
        ({"gemma3.attention.sliding_window": 0}, []),
    ],
)
def test_gemma3_patterns_as_the_engine_reads_them(tmp_path: Path, changes: dict[str, Any], sliding: list[int]) -> None:
    """Checked on the engine: tests/golden/llamacpp/README.md, last section."""
    layers = load(tmp_path, GEMMA3 | changes).layers
    assert [layer.index for layer in layers if isinstance(layer.cache, SlidingWindow)] == sliding


def test_gemma3_without_a_window_is_full_attention(tmp_path: Path) -> None:
    layers = load(tmp_path, GEMMA3, without="gemma3.attention.sliding_window").layers
    assert all(isinstance(layer.cache, FullAttention) for layer in layers)


@pytest.mark.parametrize("architecture", ["smallthinker", "plamo2", "gptj", "an-unheard-of-one", ""])
def test_unknown_architectures_are_named(tmp_path: Path, architecture: str) -> None:
    expected = UnsupportedArchitecture if architecture else MissingField
    with pytest.raises(expected, match=architecture or "architecture"):
        load(tmp_path, LLAMA | {"general.architecture": architecture})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.num_loops", 2),
        ("llama.attention.sliding_window", 4096),
        ("llama.attention.sliding_window_pattern", 2),
        ("llama.attention.kv_lora_rank", 512),
        ("llama.attention.key_length_mla", 192),
        ("llama.attention.shared_kv_layers", 10),
        ("llama.attention.chunk_size", 8192),
        ("llama.ssm.state_size", 16),
        ("llama.attention.indexer.top_k", 2048),
        ("llama.attention.kv_lora_rank_swa", 64),
    ],
)
def test_keys_that_change_the_cache_are_never_ignored(tmp_path: Path, key: str, value: Any) -> None:
    with pytest.raises(UnsupportedArchitecture, match=key):
        load(tmp_path, LLAMA | {key: value})
    if value != 0 and not key.startswith("llama.attention.sliding_window_pattern"):
        load(tmp_path, LLAMA | {key: 0})  # the same key saying "none" is fine


@pytest.mark.parametrize(
    "key",
    ["block_count", "embedding_length", "feed_forward_length", "attention.head_count", "context_length"],
)
def test_missing_keys_are_named(tmp_path: Path, key: str) -> None:
    with pytest.raises(MissingField, match=f"llama.{key}"):
        load(tmp_path, LLAMA, without=f"llama.{key}")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.block_count", 0),
        ("llama.block_count", 1_000_000),
        ("llama.block_count", "3"),
        ("llama.embedding_length", True),
        ("llama.embedding_length", 65),  # not a multiple of the heads, and no key_length given
        ("llama.attention.head_count", [4, 4]),
        ("llama.attention.head_count_kv", [2, 2, 2, 2]),
        ("llama.attention.head_count_kv", [2, -1, 2]),
        ("llama.attention.head_count_kv", [2] * 2000),
        ("llama.attention.key_length", 0),
        ("llama.feed_forward_length", 1.5),
    ],
)
def test_impossible_values_name_their_key(tmp_path: Path, key: str, value: Any) -> None:
    with pytest.raises(MalformedFile, match=r"llama\."):
        load(tmp_path, LLAMA | {key: value})


def test_vocabulary_size_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(MissingField, match="vocabulary"):
        load(tmp_path, LLAMA, without="tokenizer.ggml.tokens")
    metadata = LLAMA | {"llama.vocab_size": 777}
    assert load(tmp_path, metadata, without="tokenizer.ggml.tokens").vocab_size == 777
    assert load(tmp_path, metadata).vocab_size == 3  # the list of tokens wins, as in llama.cpp


def test_a_model_without_a_name_is_called_after_its_file(tmp_path: Path) -> None:
    assert load(tmp_path, LLAMA, without="general.name").name == "model"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"llama.block_count": 31}, "31 layers, the tensors are of 30"),
        ({"llama.block_count": 29}, "29 layers, the tensors are of 30"),
        ({"llama.attention.head_count_kv": 1}, "attn_k of layer 0 has 64 rows, its tensor has 192"),
        ({"llama.attention.head_count_kv": 5}, "9 query heads of layer 0 cannot share 5 key heads"),
        ({"llama.attention.key_length": 128}, "attn_k of layer 0 has 384 rows, its tensor has 192"),
        ({"llama.attention.value_length": 32}, "attn_v of layer 0 has 96 rows, its tensor has 192"),
    ],
    ids=str,
)
def test_keys_that_contradict_the_tensors_are_not_believed(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    # SmolLM2: 30 layers, 3 KV heads of 64: keys and values have 192 rows.
    damaged = writer("smollm2-135m-instruct-q4_1")
    damaged.metadata.update(changes)
    with pytest.raises(MalformedFile, match=says):
        load_gguf(damaged.write(tmp_path / "damaged.gguf"))
