"""The GGUF reader: what it reads, what it refuses, and that it refuses fast."""

import contextlib
import os
import struct
import time
from pathlib import Path
from typing import Any

import pytest
from gguf_writer import ARRAY, F64, I8, I64, U16, U64, GgufWriter, Tensor, Typed
from golden_gguf import GOLDEN, golden
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvscope.errors import KvscopeError, MalformedFile, ModelNotFound
from kvscope.model.gguf_header import SkippedArray, read_header

F32_ID, Q8_0_ID = 0, 8
HANG_S = 10.0  # far above what a refusal takes (milliseconds), far below a loop over what a header claims
TENSORS = (
    Tensor("token_embd.weight", (32, 4), Q8_0_ID, bytes(34 * 4)),
    Tensor("blk.0.attn_norm.weight", (8,), F32_ID, bytes(32)),
    Tensor("blk.11.ffn.weight", (4, 3, 2), F32_ID, bytes(96)),
)


def save(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


@pytest.mark.parametrize("byte_order", ["little", "big"])
@pytest.mark.parametrize("version", [2, 3])
def test_reads_every_kind_of_value_in_both_byte_orders(file: Path, byte_order: str, version: int) -> None:
    metadata = {
        "general.architecture": "llama",
        "an.int8": Typed(I8, -3),
        "an.uint16": Typed(U16, 65_535),
        "an.int": 7,
        "a.uint64": Typed(U64, 2**63),
        "an.int64": Typed(I64, -(2**40)),
        "a.float": 0.5,
        "a.double": Typed(F64, 1e300),
        "a.truth": True,
        "a.short.array": [1, 2, 3],
        "truths": [True, False],
        "texts": ["한국어", "b"],
    }
    writer = GgufWriter(metadata, TENSORS, version=version, byte_order=byte_order)
    header = read_header(save(file, writer.to_bytes()))
    assert header.version == version
    assert header.byte_order == byte_order
    assert header.metadata == {
        "general.architecture": "llama",
        "an.int8": -3,
        "an.uint16": 65_535,
        "an.int": 7,
        "a.uint64": 2**63,
        "an.int64": -(2**40),
        "a.float": 0.5,
        "a.double": 1e300,
        "a.truth": True,
        "a.short.array": (1, 2, 3),
        "truths": (True, False),
        "texts": SkippedArray(element_type=8, length=2),
    }
    assert [(t.name, t.dtype, t.shape, t.num_bytes, t.layer_index) for t in header.tensors] == [
        ("token_embd.weight", "q8_0", (32, 4), 136, None),
        ("blk.0.attn_norm.weight", "float32", (8,), 32, 0),
        ("blk.11.ffn.weight", "float32", (4, 3, 2), 96, 11),
    ]
    # Data begins at the next multiple of 32; 136 B are padded to 160, 32 stay.
    starts = [tensor.offset for tensor in header.tensors]
    assert starts == [header.data_offset, header.data_offset + 160, header.data_offset + 192]
    assert header.file_bytes == header.data_offset + 160 + 32 + 96
    assert read_header(file, with_arrays=True).metadata["texts"] == ("한국어", "b")


def test_reads_a_file_that_another_program_wrote() -> None:
    """tiny-wq-llama-Q4_0.gguf, against the description made with that program (tests/golden/llamacpp)."""
    header = read_header(GOLDEN / "tiny-wq-llama-Q4_0.gguf")
    expected = golden("tiny-wq-llama-Q4_0")
    assert header.file_bytes == expected["file_bytes"]
    assert [
        [t.name, list(t.shape), t.dtype.upper().replace("FLOAT32", "F32"), t.num_bytes] for t in header.tensors
    ] == (expected["tensors"])
    for key, value in expected["metadata"].items():
        if key.endswith(".length"):
            found = header.metadata[key.removesuffix(".length")]
            assert (found.length if isinstance(found, SkippedArray) else len(found)) == value  # type: ignore[arg-type]
        else:
            assert header.metadata[key] == (pytest.approx(value) if isinstance(value, float) else value)


def test_long_number_arrays_are_skipped_and_short_ones_built(file: Path) -> None:
    writer = GgufWriter({"short": [5] * 1024, "long": [5] * 1025})
    header = read_header(save(file, writer.to_bytes()))
    assert header.metadata["short"] == (5,) * 1024
    assert header.metadata["long"] == SkippedArray(element_type=5, length=1025)
    assert read_header(file, with_arrays=True).metadata["long"] == (5,) * 1025


def test_fingerprint_covers_the_header_and_not_the_weights(file: Path, tmp_path: Path) -> None:
    base = GgufWriter({"a": 1}, [Tensor("t", (8,), F32_ID, bytes(32))])
    other_weights = GgufWriter({"a": 1}, [Tensor("t", (8,), F32_ID, b"\1" * 32)])
    other_header = GgufWriter({"a": 2}, [Tensor("t", (8,), F32_ID, bytes(32))])
    sums = [read_header(save(file, w.to_bytes())).sha256 for w in (base, other_weights, other_header)]
    assert sums[0] == sums[1] != sums[2]


def test_alignment_key_moves_the_data(file: Path) -> None:
    writer = GgufWriter({"general.alignment": 256}, [Tensor("t", (8,), F32_ID, bytes(32))], alignment=256)
    assert read_header(save(file, writer.to_bytes())).data_offset % 256 == 0


GOOD = GgufWriter({"general.architecture": "llama", "x.names": ["a", "b"]}, TENSORS)


def broken(**changes: Any) -> GgufWriter:
    return GgufWriter({"general.architecture": "llama"}, TENSORS, **changes)


def raw_key(kind: int, body: bytes) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k" + struct.pack("<I", kind) + body


BAD_FILES = {
    "empty": (b"", "byte 0", "empty"),
    "one byte": (b"G", "byte 0", "not a GGUF file"),
    "another format": (b"PK\3\4" + bytes(60), "byte 0", "not a GGUF file"),
    "magic alone": (b"GGUF\3\0\0\0", "byte 8", "ends inside"),
    "version 1": (b"GGUF" + struct.pack("<I", 1) + bytes(40), "byte 4", "version 1"),
    "version 4": (b"GGUF" + struct.pack("<I", 4) + bytes(40), "byte 4", "version 4"),
    "a billion keys": (broken(num_keys=10**9).to_bytes(), "byte 16", "1000000000 metadata keys"),
    "2**64 - 1 tensors": (broken(num_tensors=2**64 - 1).to_bytes(), "byte 8", "tensors"),
    "more keys than limit": (b"GGUF" + struct.pack("<IQQ", 3, 0, 200_000) + bytes(13 * 200_000), "byte 16", "at most"),
    "string beyond the file": (raw_key(8, struct.pack("<Q", 2**63)), "byte 37", "claims 9223372036854775808 bytes"),
    "string array beyond the file": (raw_key(9, struct.pack("<IQ", 8, 2**60)), "byte 37", "claims 1152921504606846976"),
    "number array beyond the file": (raw_key(9, struct.pack("<IQ", 4, 2**62)), "byte 37", "claims"),
    "string in array beyond the file": (
        raw_key(9, struct.pack("<IQQQ", 8, 2, 2**62, 0)),
        "byte 49",
        "past the end",
    ),
    "nested array": (raw_key(9, struct.pack("<IQ", ARRAY, 1) + bytes(64)), "byte 37", "array of arrays"),
    "array of unknown type": (raw_key(9, struct.pack("<IQ", 77, 1) + bytes(64)), "byte 37", "unknown type 77"),
    "unknown value type": (raw_key(13, bytes(64)), "byte 33", "unknown type 13"),
    "key not text": (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2) + b"\xff\xfe" + bytes(20), "byte 24", "not UTF-8"),
    "key longer than any": (
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 70_000) + bytes(70_100),
        "byte 24",
        "at most 65535",
    ),
    "dimensions overflow": (
        GgufWriter({}, [Tensor("t", (2**40, 2**40), F32_ID, 0)]).to_bytes(),
        "byte 24",
        "overflow",
    ),
    "five dimensions": (GgufWriter({}, [Tensor("t", (1, 1, 1, 1, 1), F32_ID, 0)]).to_bytes(), "byte 37", "claims 5"),
    "unknown tensor type": (GgufWriter({}, [Tensor("t", (8,), 99, bytes(32))]).to_bytes(), "t", "unknown type 99"),
    "removed tensor type": (GgufWriter({}, [Tensor("t", (8,), 4, bytes(32))]).to_bytes(), "t", "unknown type 4"),
    "row no whole blocks": (GgufWriter({}, [Tensor("t", (33,), Q8_0_ID, 34)]).to_bytes(), "t", "blocks of 32"),
    "data missing": (GOOD.to_bytes()[:-1], "blk.11.ffn.weight", "ends at byte"),
    "tensor in the wrong place": (
        broken(offsets=[0, 64, 192]).to_bytes(),
        "blk.0.attn_norm.weight",
        "160 was expected",
    ),
    "alignment of 3": (GgufWriter({"general.alignment": 3}).to_bytes(), "general.alignment", "power of two"),
    "alignment of 0": (GgufWriter({"general.alignment": 0}).to_bytes(), "general.alignment", "power of two"),
    "alignment not a number": (GgufWriter({"general.alignment": "x"}).to_bytes(), "general.alignment", "power of two"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_files_say_where_and_what(file: Path, case: str) -> None:
    content, where, problem = BAD_FILES[case]
    started = time.perf_counter()
    with pytest.raises(MalformedFile, match=problem.replace("(", r"\(")) as caught:
        read_header(save(file, content))
    assert caught.value.where == where
    assert caught.value.hint
    assert time.perf_counter() - started < HANG_S


def test_duplicates_are_refused(file: Path) -> None:
    twice = b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + 2 * (struct.pack("<Q", 1) + b"k" + struct.pack("<IB", 7, 1))
    with pytest.raises(MalformedFile, match="'k' occurs twice"):
        read_header(save(file, twice))
    same_name = GgufWriter({}, [Tensor("t", (8,), F32_ID, bytes(32)), Tensor("t", (8,), F32_ID, bytes(32))])
    with pytest.raises(MalformedFile, match="'t' occurs twice"):
        read_header(save(file, same_name.to_bytes()))


def test_every_truncation_is_refused(file: Path) -> None:
    content = GOOD.to_bytes()
    read_header(save(file, content))
    for length in range(len(content)):
        with pytest.raises(MalformedFile):
            read_header(save(file, content[:length]))


def test_a_huge_sparse_file_is_refused_fast(file: Path) -> None:
    """4 GiB of zeros that claim to be empty strings: bounded by a count, not by the length of the file."""
    head = raw_key(9, struct.pack("<IQ", 8, 2**28))
    with file.open("wb") as out:
        out.write(head)
        out.truncate(2**32)
    started = time.perf_counter()
    with pytest.raises(MalformedFile, match="at most 5000000"):
        read_header(file)
    assert time.perf_counter() - started < HANG_S


def test_a_file_that_is_shortened_while_it_is_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its size is asked for once, at the start. (A mapped file would end the process with SIGBUS here.)"""
    content = GgufWriter({"general.architecture": "llama", "x.names": ["name"] * 300_000}, TENSORS).to_bytes()
    save(file, content)
    assert read_header(file).file_bytes == len(content) > 3_000_000

    def size_then_shorten(descriptor: int, real: Any = os.fstat) -> os.stat_result:
        found: os.stat_result = real(descriptor)
        os.truncate(file, 2_500_000)
        return found

    monkeypatch.setattr("kvscope.model.gguf_header.os.fstat", size_then_shorten)
    with pytest.raises(MalformedFile, match="ended at byte 2500000 while it was read"):
        read_header(file)


def test_a_header_larger_than_any_is_not_read_into_memory(file: Path) -> None:
    """One string of 8 GiB in a sparse file: the claim fits the file."""
    with file.open("wb") as out:
        out.write(raw_key(9, struct.pack("<IQQ", 8, 2, 2**33)))
        out.truncate(2**33 + 4096)
    started = time.perf_counter()
    with pytest.raises(MalformedFile, match="longer than"):
        read_header(file)
    assert time.perf_counter() - started < HANG_S


def test_a_pipe_is_refused_without_waiting_for_its_writer(file: Path) -> None:
    os.mkfifo(file)
    with pytest.raises(ModelNotFound, match="not a regular file"):
        read_header(file)


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="no file"):
        read_header(tmp_path / "absent.gguf")
    with pytest.raises(ModelNotFound, match="folder"):
        read_header(tmp_path)
    with pytest.raises(ModelNotFound, match="not a regular file"):
        read_header("/dev/null")


names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)
values = st.one_of(
    st.integers(0, 2**32 - 1),
    st.booleans(),
    st.floats(width=32, allow_nan=False),
    st.text(max_size=20),
    st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=20),
    st.lists(st.text(max_size=5), min_size=1, max_size=5),
)
SHARED_FILE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)


@SHARED_FILE
@given(
    metadata=st.dictionaries(names.filter(lambda n: not n.startswith(("general.", "split."))), values, max_size=6),
    tensors=st.dictionaries(names, st.lists(st.integers(0, 5), min_size=1, max_size=4), max_size=5),
    byte_order=st.sampled_from(["little", "big"]),
)
def test_what_is_written_is_read(
    file: Path, metadata: dict[str, Any], tensors: dict[str, list[int]], byte_order: str
) -> None:
    table = []
    for name, shape in tensors.items():
        elements = 1
        for size in shape:
            elements *= size
        table.append(Tensor(name, tuple(shape), F32_ID, bytes(4 * elements)))
    save(file, GgufWriter(metadata, table, byte_order=byte_order).to_bytes())
    header = read_header(file, with_arrays=True)
    assert header.metadata == {k: tuple(v) if isinstance(v, list) else v for k, v in metadata.items()}
    assert [(t.name, t.shape, t.num_bytes) for t in header.tensors] == [(t.name, t.shape, t.num_bytes) for t in table]


@SHARED_FILE
@given(st.data())
def test_damaged_headers_never_end_in_anything_but_our_errors(file: Path, data: st.DataObject) -> None:
    content = bytearray(GOOD.to_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] = data.draw(st.integers(0, 255))
    started = time.perf_counter()
    with contextlib.suppress(KvscopeError):
        read_header(save(file, bytes(content)), with_arrays=data.draw(st.booleans()))
    assert time.perf_counter() - started < HANG_S


@SHARED_FILE
@given(st.binary(max_size=300))
def test_random_bytes_after_the_magic(file: Path, tail: bytes) -> None:
    with contextlib.suppress(KvscopeError):
        read_header(save(file, b"GGUF\3\0\0\0" + tail))


@pytest.mark.parametrize("byte_order", ["little", "big"])
@pytest.mark.parametrize("longest", [20, 63, 64, 300])
def test_strings_of_any_length_are_stepped_over(file: Path, byte_order: str, longest: int) -> None:
    """More than are stepped over at once, short and long ones mixed, empty ones too; the key behind them is found."""
    texts = [bytes([65 + number % 26]) * (number * 7919 % (longest + 1)) for number in range(3000)]
    metadata = {"texts": [text.decode() for text in texts], "behind.them": 42}
    header = read_header(save(file, GgufWriter(metadata, TENSORS, byte_order=byte_order).to_bytes()))
    assert header.metadata == {"texts": SkippedArray(element_type=8, length=3000), "behind.them": 42}
    assert [tensor.name for tensor in header.tensors] == [tensor.name for tensor in TENSORS]


@pytest.mark.parametrize("shift", range(13))
def test_a_value_across_the_end_of_what_was_read_first(file: Path, shift: int) -> None:
    """The file is read in pieces, the first of 2 MiB: no value is lost where one piece ends."""
    filler = {f"filler.{index}": "x" * 2**20 for index in range(2)}
    # 24 bytes before the keys; each filler 8 + 8 + 4 + 8 and its text; so the next values stand around the end.
    filler["filler.1"] = "x" * (2**21 - 2**20 - 24 - 2 * 28 - shift - 20)
    metadata = {**filler, "general.name": "n", "a": Typed(U64, 5), "b": 0.5, "c": [1, 2, 3], "d": ["x", "y"]}
    for index in range(600):
        metadata[f"k{index}"] = index
    header = read_header(save(file, GgufWriter(metadata, TENSORS).to_bytes()), with_arrays=True)
    assert {key: header.metadata[key] for key in metadata if key not in filler} == {
        key: 5 if key == "a" else tuple(value) if isinstance(value, list) else value
        for key, value in metadata.items()
        if key not in filler
    }
    assert len(header.tensors) == len(TENSORS)


def test_texts_without_end_are_refused(file: Path) -> None:
    metadata = {f"key.{index}": "x" * 2**21 for index in range(10)}
    with pytest.raises(MalformedFile, match="texts of more than 16777216 bytes"):
        read_header(save(file, GgufWriter(metadata, ()).to_bytes()))
