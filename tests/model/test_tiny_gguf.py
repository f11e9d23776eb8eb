"""The tiny model is what llama.cpp's own package reads it as, and has another file's vocabulary byte for byte."""

from pathlib import Path

import pytest

from kvscope.model.load import load_model
from kvscope.model.tiny_gguf import FEED_FORWARD, WIDTH, write_tiny_gguf

gguf = pytest.importorskip("gguf")

SOURCE = Path(__file__).parent.parent / "golden" / "llamacpp" / "tiny-wq-llama-Q4_0.gguf"


def test_its_tensors_are_those_of_a_llama_and_take_no_room(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path, num_layers=3)
    read = gguf.GGUFReader(path)
    shapes = {tensor.name: tuple(map(int, tensor.shape)) for tensor in read.tensors}
    assert len(shapes) == 2 + 3 * 9
    assert shapes["token_embd.weight"] == (WIDTH, 257)
    assert shapes["blk.2.ffn_up.weight"] == (WIDTH, FEED_FORWARD)
    assert not any(tensor.data.any() for tensor in read.tensors)
    # Embedding 257 × 32 × 2 B, 7 matrices of 32 × 32 × 2 B in each layer, 7 norms of 32 × 4 B in all.
    assert sum(tensor.n_bytes for tensor in read.tensors) == 257 * 64 + 3 * 7 * 2048 + 7 * 128
    spec = load_model(str(path))
    assert (len(spec.layers), spec.vocab_size) == (3, 257)


def test_the_hole_is_not_on_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path, num_layers=400)
    assert path.stat().st_size > 400 * 7 * 2048
    assert path.stat().st_blocks * 512 < path.stat().st_size / 4


def test_a_vocabulary_is_copied_byte_for_byte(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path, vocabulary_of=SOURCE)
    theirs, ours = gguf.GGUFReader(SOURCE), gguf.GGUFReader(path)
    copied = [name for name in theirs.fields if name.startswith("tokenizer.")]
    assert "tokenizer.ggml.tokens" in copied
    for name in copied:
        parts = [bytes(part) for part in theirs.fields[name].parts]
        assert [bytes(part) for part in ours.fields[name].parts] == parts, name
    assert not [name for name in ours.fields if name.startswith("tokenizer.") and name not in copied]
    assert load_model(str(path)).vocab_size == load_model(str(SOURCE)).vocab_size
