"""Headers of safetensors files: those the library writes, and those nobody should."""

import json
import math
import random
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvscope.errors import MalformedFile, ModelNotFound
from kvscope.model.safetensors import (
    DTYPES,
    MAX_HEADER_BYTES,
    MAX_TENSORS,
    read_index,
    read_safetensors,
)
from kvscope.model.tensor_names import layer_indices

GOLDEN = Path(__file__).parent.parent / "golden" / "safetensors"
ALL_DTYPES = GOLDEN / "all-dtypes.safetensors"
SHARDED = GOLDEN / "tiny-llama-sharded"


def raw_file(path: Path, header: bytes, data_bytes: int = 0, length: int | None = None) -> Path:
    path.write_bytes((len(header) if length is None else length).to_bytes(8, "little") + header + bytes(data_bytes))
    return path


def entry(dtype: Any = "F32", shape: Any = (2, 3), begin: Any = 0, end: Any = 24) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape) if isinstance(shape, tuple) else shape, "data_offsets": [begin, end]}


def written(path: Path, tensors: dict[str, Any], data_bytes: int) -> Path:
    return raw_file(path, json.dumps(tensors).encode(), data_bytes)


def test_every_format_the_library_writes() -> None:
    """Sizes by the names of torch's formats: eight elements each."""
    header = read_safetensors(ALL_DTYPES)
    sizes = {tensor.name.removeprefix("t."): tensor.num_bytes for tensor in header.tensors}
    assert sizes == {
        "bool": 8, "uint8": 8, "int8": 8, "int16": 16, "uint16": 16, "float16": 16, "bfloat16": 16, "int32": 32,
        "uint32": 32, "float32": 32, "int64": 64, "uint64": 64, "float64": 64, "complex64": 64, "float8_e4m3fn": 8,
        "float8_e5m2": 8, "float8_e8m0fnu": 8, "float4_e2m1fn_x2": 8, "float8_e4m3fnuz": 8, "float8_e5m2fnuz": 8,
    }  # fmt: skip
    ours = {tensor.name.removeprefix("t."): tensor.dtype for tensor in header.tensors}
    assert ours.pop("float4_e2m1fn_x2") == "float4_e2m1"
    assert all(name == dtype for name, dtype in ours.items())
    (four_bit,) = [tensor for tensor in header.tensors if tensor.dtype == "float4_e2m1"]
    assert four_bit.shape == (2, 8)  # sixteen half-byte values
    assert header.metadata["format"] == "pt"
    assert header.file_bytes == ALL_DTYPES.stat().st_size


def test_formats_smaller_than_a_byte(tmp_path: Path) -> None:
    """Six bits: 4 elements in 3 bytes. The library of torch writes none of them."""
    path = written(
        tmp_path / "m.safetensors", {"a": entry("F6_E2M3", (2, 8), 0, 12), "b": entry("F4", (3, 2), 12, 15)}, 15
    )
    assert [(t.dtype, t.num_bytes) for t in read_safetensors(path).tensors] == [("float6_e2m3", 12), ("float4_e2m1", 3)]
    written(path, {"a": entry("F4", (3,), 0, 1)}, 1)
    with pytest.raises(MalformedFile, match="no whole number of bytes"):
        read_safetensors(path)


def test_tensors_come_in_the_order_of_their_data_with_their_layers() -> None:
    tensors = read_safetensors(SHARDED / "model-00001-of-00002.safetensors").tensors
    assert [tensor.offset for tensor in tensors] == sorted(tensor.offset or 0 for tensor in tensors)
    (down,) = [tensor for tensor in tensors if tensor.name == "model.layers.0.mlp.down_proj.weight"]
    assert (down.shape, down.dtype, down.num_bytes, down.layer_index) == ((32, 48), "bfloat16", 3072, 0)
    (embedding,) = [tensor for tensor in tensors if "embed" in tensor.name]
    assert embedding.layer_index is None


def test_scalars_empty_tensors_and_padding(tmp_path: Path) -> None:
    """The format allows a shape of no sides (one element), of a side 0 (none), and blanks after the JSON."""
    tensors = {"scale": entry("F32", (), 0, 4), "none": entry("F32", (0, 7), 4, 4), "one": entry("U8", (1,), 4, 5)}
    path = raw_file(tmp_path / "m.safetensors", json.dumps(tensors).encode() + b"   ", 5)
    assert [(tensor.name, tensor.num_bytes) for tensor in read_safetensors(path).tensors] == [
        ("scale", 4), ("none", 0), ("one", 1)
    ]  # fmt: skip
    assert read_safetensors(raw_file(path, b"{}")).tensors == ()


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("model.layers.31.mlp.up_proj.weight", 31),
        ("transformer.h.7.attn.c_attn.weight", 7),
        ("gpt_neox.layers.2.attention.dense.bias", 2),
        ("model.language_model.layers.4.mlp.gate.weight", 4),
        ("model.vision_tower.encoder.layers.4.mlp.fc1.weight", None),
        ("visual.blocks.11.attn.qkv.weight", None),
        ("mtp.layers.0.mlp.up_proj.weight", None),
        ("model.embed_tokens.weight", None),
        ("model.layers.9999999.x", None),
    ],
)
def test_the_layer_in_a_name(name: str, layer: int | None) -> None:
    assert layer_indices([name]) == {name: layer}


def test_where_there_is_a_decoder_its_layers_count() -> None:
    names = ["encoder.block.3.layer.0.x", "decoder.block.2.layer.0.x"]
    assert layer_indices(names) == {names[0]: None, names[1]: 2}
    assert layer_indices(names[:1]) == {names[0]: 3}


@pytest.mark.parametrize(
    ("tensors", "data_bytes", "where", "words"),
    [
        ({"a": entry(end=20)}, 24, "a", "need 24"),
        ({"a": entry(end=24)}, 20, "byte", "the file has"),
        ({"a": entry(end=24)}, 30, "byte", "6 bytes follow"),
        ({"a": entry(), "b": entry(begin=23, end=47)}, 47, "b", "overlaps"),
        ({"a": entry(), "b": entry(begin=25, end=49)}, 49, "b", "hole"),
        ({"a": entry(begin=8, end=32)}, 32, "a", "hole"),
        ({"a": entry(begin=24, end=0)}, 24, "a", "hold -24"),
        ({"a": entry(begin=-24, end=0)}, 24, "a.data_offsets", "whole numbers"),
        ({"a": entry(dtype="F33")}, 24, "a", "unknown"),
        ({"a": entry(dtype=7)}, 24, "a", "unknown"),
        ({"a": entry(dtype=None)}, 24, "a", "unknown"),
        ({"a": entry(shape=(2, -3))}, 24, "a.shape", "whole numbers"),
        ({"a": entry(shape=(2, 3.0))}, 24, "a.shape", "whole numbers"),
        ({"a": entry(shape=(True, 6))}, 24, "a.shape", "whole numbers"),
        ({"a": entry(shape=[[2], 3])}, 24, "a.shape", "whole numbers"),
        ({"a": entry(shape="23")}, 24, "a.shape", "whole numbers"),
        ({"a": entry(shape=tuple([1] * 33))}, 24, "a.shape", "whole numbers"),
        ({"a": entry(shape=(2**62, 2**62))}, 24, "a", "overflows"),
        ({"a": {"dtype": "F32", "shape": [6]}}, 24, "a", "data_offsets"),
        ({"a": {**entry(), "more": 1}}, 24, "a", "data_offsets"),
        ({"a": 7}, 24, "a", "data_offsets"),
        ({"a": {"dtype": "F32", "shape": [6], "data_offsets": [0]}}, 24, "a", "two data_offsets"),
        ({"__metadata__": {"x": 1}}, 0, "__metadata__", "texts"),
        ({"__metadata__": "x"}, 0, "__metadata__", "texts"),
        ([], 0, "byte 8", "object"),
        (entry(), 0, "byte 8", "object"),
        (None, 0, "byte 8", "object"),
    ],
)
def test_headers_that_cannot_be(tmp_path: Path, tensors: Any, data_bytes: int, where: str, words: str) -> None:
    path = written(tmp_path / "m.safetensors", tensors, data_bytes)
    with pytest.raises(MalformedFile, match=words) as caught:
        read_safetensors(path)
    assert caught.value.path == str(path)
    assert where in caught.value.where


@pytest.mark.parametrize(
    ("content", "where", "words"),
    [
        (b"", "byte 0", "8-byte length"),
        (b"\x02\x00\x00", "byte 3", "8-byte length"),
        ((2**63).to_bytes(8, "little"), "byte 0", "only 0 follow"),
        ((10).to_bytes(8, "little") + b"{}", "byte 0", "only 2 follow"),
        ((4).to_bytes(8, "little") + b'{"a"', "byte 12", "not JSON"),
        ((5).to_bytes(8, "little") + b'{"\xff":', "byte 10", "not UTF-8"),
        ((13).to_bytes(8, "little") + b'{"a":NaN,"b":', "byte", "NaN"),
        ((0).to_bytes(8, "little"), "byte 8", "not JSON"),
        (b"<!DOCTYPE html><html>", "byte 0", "no safetensors"),
        ((9).to_bytes(8, "little") + b'{"a":1e999'[:9], "byte", "not JSON"),
    ],
)
def test_bytes_that_are_no_header(tmp_path: Path, content: bytes, where: str, words: str) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    with pytest.raises(MalformedFile, match=words) as caught:
        read_safetensors(path)
    assert where in caught.value.where


def test_a_name_that_occurs_twice(tmp_path: Path) -> None:
    one = json.dumps(entry())
    for header, name in (
        ('{"a":' + one + ',"a":' + one + "}", "a"),
        ('{"__metadata__":{"format":"pt","format":"pt"}}', "format"),
        ('{"a":{"dtype":"F32","dtype":"F32","shape":[6],"data_offsets":[0,24]}}', "dtype"),
    ):
        with pytest.raises(MalformedFile, match="twice") as caught:
            read_safetensors(raw_file(tmp_path / "m.safetensors", header.encode(), 24))
        assert caught.value.where == name


def test_no_such_file_a_folder_and_a_pipe(tmp_path: Path) -> None:
    import os

    with pytest.raises(ModelNotFound, match="cannot be read"):
        read_safetensors(tmp_path / "absent.safetensors")
    with pytest.raises(ModelNotFound, match="not a regular file"):
        read_safetensors(tmp_path)
    os.mkfifo(tmp_path / "pipe.safetensors")
    with pytest.raises(ModelNotFound, match="not a regular file"):
        read_safetensors(tmp_path / "pipe.safetensors")
    with pytest.raises(ModelNotFound):
        read_index(tmp_path / "no\0name.json")


HOSTILE: dict[str, Callable[[], bytes]] = {
    "nested": lambda: b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "nested objects": lambda: b'{"a":' * 90_000 + b"1" + b"}" * 90_000,
    "many empty lists": lambda: b'{"a":[' + b",".join([b"[]"] * 199_000) + b"]}",
    "too many lists": lambda: b'{"a":[' + b",".join([b"[]"] * 5_000_000) + b"]}",
    "many numbers": lambda: b'{"a":[' + b"1," * 7_000_000 + b"1]}",
    "long digits": lambda: b'{"a":' + b"9" * 1_000_000 + b"}",
    "text of other alphabets": lambda: b'{"a":"' + "가".encode() * 5_000_000 + b'"}',
    "long text": lambda: b'{"a":"' + b"x" * (MAX_HEADER_BYTES - 16) + b'"}',
    "long name": lambda: b'{"' + b"x" * (MAX_HEADER_BYTES - 16) + b'":7}',
    "infinite": lambda: b'{"a":Infinity}',
}


@pytest.mark.parametrize("kind", sorted(HOSTILE))
def test_hostile_headers_are_refused_fast_and_in_little_memory(tmp_path: Path, kind: str) -> None:
    path = raw_file(tmp_path / "m.safetensors", HOSTILE[kind]())
    began = time.process_time()
    with pytest.raises(MalformedFile) as caught:
        read_safetensors(path)
    assert time.process_time() - began < 1.0
    assert len(str(caught.value)) < 500 + len(str(path))
    tracemalloc.start()
    try:
        with pytest.raises(MalformedFile):
            read_safetensors(path)
        assert tracemalloc.get_traced_memory()[1] < 100e6
    finally:
        tracemalloc.stop()


def test_a_length_of_gigabytes_is_not_read(tmp_path: Path) -> None:
    path = raw_file(tmp_path / "m.safetensors", b"{}", length=2**30)
    with path.open("r+b") as file:
        file.truncate(2**31)  # a hollow file of two gigabytes
    with pytest.raises(MalformedFile, match="at most"):
        read_safetensors(path)


def test_as_many_tensors_as_any_model_has(tmp_path: Path) -> None:
    """A model of 60 layers with 256 experts of three matrices and their scales: 92,160 tensors."""
    count = 92_160
    assert count < MAX_TENSORS
    tensors = {
        f"model.layers.{i // 1536}.mlp.experts.{i % 1536 // 6}.gate_proj.{i % 6}": entry(
            "F8_E4M3", (2,), 2 * i, 2 * i + 2
        )
        for i in range(count)
    }
    path = written(tmp_path / "m.safetensors", tensors, 2 * count)
    began = time.process_time()
    header = read_safetensors(path)
    assert time.process_time() - began < 3.0
    assert len(header.tensors) == count
    assert header.tensors[-1].layer_index == 59


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    content = (SHARDED / "model-00001-of-00002.safetensors").read_bytes()
    path = tmp_path / "m.safetensors"
    for end in [*range(0, 3000, 7), *range(3000, len(content), 997), len(content) - 1]:
        path.write_bytes(content[:end])
        with pytest.raises(MalformedFile):
            read_safetensors(path)


def test_a_header_with_bytes_changed_is_read_or_refused_with_reason(tmp_path: Path) -> None:
    """Whatever is changed: a header, or one of our own errors; what is read stays within the file."""
    content = (SHARDED / "model-00001-of-00002.safetensors").read_bytes()
    length = 8 + int.from_bytes(content[:8], "little")
    path = tmp_path / "m.safetensors"
    chooser = random.Random(20260829)
    for _ in range(600):
        changed = bytearray(content)
        for _ in range(chooser.randint(1, 3)):
            changed[chooser.randrange(length)] = chooser.randrange(256)
        path.write_bytes(changed)
        try:
            header = read_safetensors(path)
        except MalformedFile:
            continue
        for tensor in header.tensors:
            assert tensor.num_bytes == math.prod(tensor.shape) * _bits(tensor.dtype) // 8
            assert (tensor.offset or 0) + tensor.num_bytes <= len(content)


def _bits(dtype: str) -> int:
    return dict(DTYPES.values())[dtype]


def test_the_index_of_a_model_in_several_files() -> None:
    index = read_index(SHARDED / "model.safetensors.index.json")
    assert index.shards == ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    assert index.total_size == 39_232  # 19,616 parameters of two bytes


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({}, "weight_map"),
        ({"weight_map": []}, "weight_map"),
        ({"weight_map": {}}, "weight_map"),
        ({"weight_map": {"a": 1}}, "no name of a file"),
        ({"weight_map": {"a": "../x.safetensors"}}, "no name of a file"),
        ({"weight_map": {"a": "/etc/x.safetensors"}}, "no name of a file"),
        ({"weight_map": {"a": ".."}}, "no name of a file"),
        ({"weight_map": {"a": ""}}, "no name of a file"),
        ([], "object"),
    ],
)
def test_an_index_that_cannot_be(tmp_path: Path, content: Any, words: str) -> None:
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps(content))
    with pytest.raises(MalformedFile, match=words):
        read_index(path)


@pytest.mark.parametrize(("total", "read"), [(7, 7), (7.0, 7), ("7", None), (None, None), (True, None), (7.5, None)])
def test_total_size_of_an_index(tmp_path: Path, total: Any, read: int | None) -> None:
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": {"a": "a.safetensors"}}))
    assert read_index(path).total_size == read
