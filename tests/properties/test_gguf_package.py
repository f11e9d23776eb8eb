"""GGUF files written by the `gguf` package, which llama.cpp's own converters use, read back as they were written."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvscope.dtypes import dtype_of_ggml_id
from kvscope.model.gguf import load_gguf
from kvscope.model.gguf_header import SkippedArray, read_header

ENDIAN = {"little": gguf.GGUFEndian.LITTLE, "big": gguf.GGUFEndian.BIG}
SCALARS = st.one_of(
    st.tuples(st.just("uint32"), st.integers(0, 2**32 - 1)),
    st.tuples(st.just("int32"), st.integers(-(2**31), 2**31 - 1)),
    st.tuples(st.just("uint64"), st.integers(0, 2**63 - 1)),
    st.tuples(st.just("uint8"), st.integers(0, 255)),
    st.tuples(st.just("int16"), st.integers(-(2**15), 2**15 - 1)),
    st.tuples(st.just("bool"), st.booleans()),
    st.tuples(st.just("string"), st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)),
    st.tuples(st.just("float64"), st.floats(allow_nan=False)),
    st.tuples(st.just("array"), st.lists(st.integers(0, 1000), min_size=1, max_size=30)),
)
KEYS = st.from_regex(r"[a-z]{1,8}\.[a-z_]{1,12}", fullmatch=True)
# Types whose rows the package takes as they are.
PLAIN = {"float32": np.float32, "float16": np.float16, "int8": np.int8, "int64": np.int64}


def write(
    path: Path, byte_order: str, values: dict[str, tuple[str, Any]], tensors: dict[str, np.ndarray[Any, Any]]
) -> None:
    writer = gguf.GGUFWriter(path, "made-up", endianess=ENDIAN[byte_order])
    for key, (kind, value) in values.items():
        getattr(writer, f"add_{kind}")(key, value)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    values=st.dictionaries(KEYS, SCALARS, max_size=12),
    shapes=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), max_size=6),
    kind=st.sampled_from(sorted(PLAIN)),
    byte_order=st.sampled_from(["little", "big"]),
)
def test_what_the_package_writes_is_read_back(
    tmp_path: Path, values: dict[str, tuple[str, Any]], shapes: list[list[int]], kind: str, byte_order: str
) -> None:
    path = tmp_path / "written.gguf"
    tensors = {f"blk.{i}.weight": np.zeros(shape, dtype=PLAIN[kind]) for i, shape in enumerate(shapes)}
    write(path, byte_order, values, tensors)
    header = read_header(path)
    assert header.metadata["general.architecture"] == "made-up"
    for key, (form, value) in values.items():
        assert header.metadata[key] == (tuple(value) if form == "array" else value)
    assert len(header.tensors) == len(shapes)
    for tensor, (name, written) in zip(header.tensors, tensors.items(), strict=True):
        assert (tensor.name, tensor.dtype, tensor.num_bytes) == (name, kind, written.nbytes)
        assert tensor.shape == written.shape[::-1]  # GGUF's order: the fastest dimension first


@pytest.mark.parametrize("quantised", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_block_sizes_are_the_packages_own(quantised: str) -> None:
    kind = gguf.GGMLQuantizationType[quantised]
    elements, num_bytes = gguf.GGML_QUANT_SIZES[kind]
    dtype = dtype_of_ggml_id(int(kind))
    assert dtype is not None
    assert (dtype.block_elements, dtype.block_bytes) == (elements, num_bytes)


def test_every_type_of_the_package_is_known_with_its_size() -> None:
    known = 0
    # Q8_1 is of intermediate results and in no file; the package still counts its two scales as float32, where
    # ggml's block (ggml-common.h) holds two float16: 36 B.
    sizes = {**gguf.GGML_QUANT_SIZES, gguf.GGMLQuantizationType.Q8_1: (32, 36)}
    for kind, (elements, num_bytes) in sizes.items():
        dtype = dtype_of_ggml_id(int(kind))
        assert dtype is not None, kind
        assert (dtype.block_elements, dtype.block_bytes) == (elements, num_bytes), kind
        known += 1
    assert known > 30


def test_a_model_as_a_converter_writes_it(tmp_path: Path) -> None:
    """A llama of 2 layers, with a vocabulary, through the package's own named methods."""
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("Written by the package")
    writer.add_block_count(2)
    writer.add_context_length(512)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_head_count_kv([2, 1])
    writer.add_key_length(24)
    writer.add_value_length(24)
    writer.add_token_list([f"token {index}" for index in range(5000)])
    writer.add_tensor("token_embd.weight", np.zeros((5000, 64), dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    model = load_gguf(path)
    assert model.name == "Written by the package"
    assert (model.vocab_size, model.hidden_size, model.trained_context_tokens) == (5000, 64, 512)
    assert [layer.cache.num_kv_heads for layer in model.layers] == [2, 1]  # type: ignore[union-attr]
    assert isinstance(read_header(path).metadata["tokenizer.ggml.tokens"], SkippedArray)
