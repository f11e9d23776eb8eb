"""GGUF vocabularies that need no engine: what a file states, ids by hand, and files that are refused."""

import re
from pathlib import Path
from typing import Any

import pytest
from gguf_writer import GgufWriter

from kvscope.errors import MalformedFile, MissingField, UnsupportedArchitecture
from kvscope.prompt.tokenizers.gguf import CONTROL, USER_DEFINED, GgufTokenizer, load_gguf_tokenizer, overlaps

BYTE_LEVEL = {
    "model": "gpt2",
    "pre": "smollm",
    "tokens": ["<|end|>!", "a", "b", "Ġ", "ab", "Ġa", "Ġab", "1"],
    "token_type": [CONTROL, 1, 1, 1, 1, 1, 1, 1],
    "merges": ["a b", "Ġ a", "Ġ ab"],
    "bos_token_id": 0,
    "add_bos_token": True,
}
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SENTENCEPIECE = {
    "model": "llama",
    "tokens": ["<unk>", "<s>", "</s>", *BYTES, "a", "b", "▁", "ab", "▁a", "\n\n"],
    "token_type": [2, 3, 3, *[6] * 256, 1, 1, 1, 1, 1, USER_DEFINED],
    "scores": [0.0, 0.0, 0.0, *[0.0] * 256, -3.0, -4.0, -5.0, -2.0, -1.0, -1000.0],
    "bos_token_id": 1,
}
A, B, SPACE, AB, SPACE_A, BREAKS = range(259, 265)


def load(folder: Path, keys: dict[str, Any], **changed: Any) -> GgufTokenizer:
    stated = {name: value for name, value in {**keys, **changed}.items() if value is not None}
    metadata = {"general.architecture": "llama"} | {f"tokenizer.ggml.{name}": value for name, value in stated.items()}
    path = GgufWriter(metadata).write(folder / "model.gguf")
    return load_gguf_tokenizer(path, source="model.gguf")


def test_byte_level_ids_by_hand(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, BYTE_LEVEL)
    assert tokenizer.encode("ab ab") == [4, 6]  # "a b" comes before "Ġ a", and leaves "Ġ ab" to be merged
    assert tokenizer.encode("a ab a1") == [1, 6, 5, 7]
    assert tokenizer.bos_id == 0
    assert tokenizer.adds_bos


def test_a_byte_without_a_token_is_left_out_and_still_separates(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, BYTE_LEVEL)
    assert tokenizer.encode("a\x01b") == [1, 2]
    assert tokenizer.encode("azb") == [1, 2]
    assert tokenizer.encode_batch(["azb", "ab"]) == [[1, 2], [4]]
    assert tokenizer.count("zzz") == 0


def test_control_tokens_are_ids_only_when_asked_for(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, BYTE_LEVEL)
    assert tokenizer.encode("a<|end|>!b", parse_special=True) == [1, 0, 2]
    assert tokenizer.encode("a<|end|>!b") == [1, 2]  # none of its characters has a token here


def test_sentencepiece_ids_by_hand(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, SENTENCEPIECE, add_space_prefix=False)
    assert tokenizer.encode("ab") == [AB]
    assert tokenizer.encode(" ab") == [SPACE_A, B]  # -1 is better than -2
    assert tokenizer.encode("é") == [3 + 0xC3, 3 + 0xA9]
    assert tokenizer.encode("a\n\n\nb") == [A, BREAKS, 3 + 0x0A, B]
    assert tokenizer.encode("a</s>b", parse_special=True) == [A, 2, B]


def test_a_space_goes_before_each_stretch_where_the_file_does_not_say_no(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, SENTENCEPIECE)
    assert tokenizer.encode("ab") == [SPACE_A, B]
    assert tokenizer.encode("a\n\na") == [SPACE_A, BREAKS, SPACE_A]
    assert tokenizer.encode("") == []


@pytest.mark.parametrize(
    ("keys", "changed", "error", "named"),
    [
        (BYTE_LEVEL, {"pre": "deepseek-v3"}, UnsupportedArchitecture, "'deepseek-v3'"),
        (BYTE_LEVEL, {"pre": None}, UnsupportedArchitecture, "None"),
        (BYTE_LEVEL, {"model": "t5"}, UnsupportedArchitecture, "'t5'"),
        (BYTE_LEVEL, {"model": None}, MissingField, "tokenizer.ggml.model"),
        (BYTE_LEVEL, {"tokens": None}, MissingField, "tokenizer.ggml.tokens"),
        (BYTE_LEVEL, {"merges": None}, MissingField, "tokenizer.ggml.merges"),
        (BYTE_LEVEL, {"merges": ["a z"]}, MalformedFile, "'a z'"),
        (BYTE_LEVEL, {"merges": [1, 2]}, MalformedFile, "str was expected"),
        (BYTE_LEVEL, {"token_type": [1, 1]}, MalformedFile, "2 elements for 8 tokens"),
        (BYTE_LEVEL, {"bos_token_id": "x"}, MalformedFile, "bos_token_id"),
        (BYTE_LEVEL, {"tokens": ["a", "a", "b", "Ġ", "ab", "Ġa", "Ġab", "1"]}, UnsupportedArchitecture, "one text"),
        (
            BYTE_LEVEL,
            {"tokens": ["x", "<|end|>", "b", "a", "ab", "Ġa", "Ġab", "Ġ"]},
            UnsupportedArchitecture,
            "<|end|>",
        ),
        (
            BYTE_LEVEL,
            {"tokens": ["<PRE>", "<fim-prefix>", "b", "a", "ab", "Ġa", "Ġab", "Ġ"]},
            UnsupportedArchitecture,
            "fim",
        ),
        (
            BYTE_LEVEL,
            {"tokens": ["<|e", "|e>_", "b", "a", "ab", "Ġa", "Ġab", "Ġ"], "token_type": [3, 3, *[1] * 6]},
            UnsupportedArchitecture,
            "<|e>_",
        ),
        (BYTE_LEVEL, {"tokens": ["x" * 2000, "a", "b", "Ġ", "ab", "Ġa", "Ġab", "1"]}, UnsupportedArchitecture, "2000"),
        (SENTENCEPIECE, {"scores": None}, MissingField, "scores"),
        (SENTENCEPIECE, {"scores": [0.0] * 265}, UnsupportedArchitecture, "one score"),
    ],
)
def test_what_is_not_proven_is_refused_by_its_name(
    keys: dict[str, Any], changed: dict[str, Any], error: type[Exception], named: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=re.escape(named)):
        load(tmp_path, keys, **changed)


def test_a_model_whose_control_tokens_eat_spaces_is_refused_by_its_name(tmp_path: Path) -> None:
    metadata = {"general.name": "Phi-3 Mini"} | {f"tokenizer.ggml.{key}": value for key, value in SENTENCEPIECE.items()}
    path = GgufWriter(metadata).write(tmp_path / "model.gguf")
    with pytest.raises(UnsupportedArchitecture, match="phi-3 mini"):
        load_gguf_tokenizer(path, source="model.gguf")


def test_a_letter_without_a_token_is_refused(tmp_path: Path) -> None:
    tokens = [*SENTENCEPIECE["tokens"][:-2], "▁q", "\n\n"]
    with pytest.raises(UnsupportedArchitecture, match="no token for 'q'"):
        load(tmp_path, SENTENCEPIECE, tokens=tokens)


def test_a_bos_outside_of_the_vocabulary_is_none(tmp_path: Path) -> None:
    assert load(tmp_path, BYTE_LEVEL, bos_token_id=99, add_bos_token=False).bos_id is None


def test_bos_where_the_file_does_not_say_as_llama_cpp_does(tmp_path: Path) -> None:
    assert load(tmp_path, BYTE_LEVEL, pre="llama-bpe", add_bos_token=None).adds_bos
    assert not load(tmp_path, BYTE_LEVEL, pre="llama-bpe", add_bos_token=False).adds_bos
    assert not load(tmp_path, BYTE_LEVEL, pre="qwen2", add_bos_token=None).adds_bos
    assert load(tmp_path, SENTENCEPIECE).adds_bos


def test_overlapping_names_are_found() -> None:
    assert overlaps(["<a><", "<bcdef>", "x"]) == ["<a><bcdef>"]
    assert overlaps(["<<a<<", "b"]) == []  # itself: the first is taken either way
    assert overlaps(["\n", "\n\n", "\n\n\n"]) == []
    assert overlaps(["<s>", "</s>", "<pad>"]) == []
