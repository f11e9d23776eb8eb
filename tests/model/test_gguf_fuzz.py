"""Damaged headers of real and generated models: whatever is changed, the reader returns a model or says, as a kvscope
error that names the file, what is wrong where; in under a second and 100 MB.

Seeded, so that a failure can be repeated: the seed is in the test's name.
"""

import json
import random
import struct
import time
import tracemalloc
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from gguf_writer import F64, I64, STRING, U64, GgufWriter, Tensor, Typed
from golden_gguf import ALL_MODELS, writer

from kvscope.errors import ModelError
from kvscope.model.gguf import load_gguf
from kvscope.model.spec import ModelSpec

LIMIT_S = 1.0
LIMIT_BYTES = 100 * 1000**2
ROUNDS = 30
GENERATED = Path(__file__).parent.parent / "golden" / "gguf" / "generated.jsonl"
EXTREMES = (0, 1, 2, 127, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1)


@cache
def models() -> dict[str, GgufWriter]:
    """The small recorded models and one generated model of each architecture."""
    found = {name: writer(name) for name in ALL_MODELS if name.startswith("tiny-")}
    for line in GENERATED.read_text().splitlines():
        case = json.loads(line)
        tensors = [Tensor(name, tuple(shape), 0, 4 * product(shape)) for name, shape in case["tensors"]]
        if len(tensors) < 200:
            found[case["name"]] = GgufWriter({**case["metadata"], "tokenizer.ggml.tokens": ["a"] * 16}, tensors)
    return found


def product(shape: list[int]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def flip_bytes(rng: random.Random, header: bytearray) -> None:
    for _ in range(rng.randint(1, 8)):
        header[rng.randrange(4, len(header))] = rng.randrange(256)


def overwrite_number(rng: random.Random, header: bytearray) -> None:
    """An extreme 64-bit number anywhere: a length, a count, a dimension, an offset or a value."""
    at = rng.randrange(4, len(header) - 8)
    struct.pack_into("<Q", header, at, rng.choice(EXTREMES))


def cut(rng: random.Random, header: bytearray) -> None:
    del header[rng.randrange(len(header)) :]


def swap_pieces(rng: random.Random, header: bytearray) -> None:
    length = rng.randint(1, 200)
    first, second = (rng.randrange(24, len(header) - length) for _ in range(2))
    header[first : first + length] = header[second : second + length]


def insert_noise(rng: random.Random, header: bytearray) -> None:
    at = rng.randrange(4, len(header))
    header[at:at] = rng.randbytes(rng.randint(1, 64))


MUTATIONS: tuple[Callable[[random.Random, bytearray], None], ...] = (
    flip_bytes, overwrite_number, cut, swap_pieces, insert_noise,
)  # fmt: skip
ODD_VALUES: tuple[Any, ...] = (
    0, 1, 3, 2**31, Typed(U64, 2**64 - 1), Typed(I64, -1), -1.0, float("nan"), float("inf"), Typed(F64, 1e308), True,
    False, "", "7", "\N{SNOWMAN}" * 50, [0, 0], [1] * 2000, [True, False], ["x"], [0.5], [-1, 2],
)  # fmt: skip


def read(path: Path) -> ModelSpec | ModelError:
    """The outcome, in time and memory. Any other error fails the test."""
    tracemalloc.start()
    began = time.perf_counter()
    try:
        outcome: ModelSpec | ModelError = load_gguf(path)
    except ModelError as error:
        outcome = error
    seconds = time.perf_counter() - began
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < LIMIT_BYTES
    assert seconds < LIMIT_S * 5  # tracemalloc slows it several times
    if isinstance(outcome, ModelError):
        assert path.name in outcome.message
    else:
        assert all(layer.index == number for number, layer in enumerate(outcome.layers))
    return outcome


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_headers_with_damaged_bytes(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    path = tmp_path / "damaged.gguf"
    outcomes = []
    for name in rng.sample(sorted(models()), 12):
        header = bytearray(models()[name].header())
        rng.choice(MUTATIONS)(rng, header)
        with path.open("wb") as file:
            file.write(header)
            file.truncate(len(header) + sum(t.num_bytes + 64 for t in models()[name].tensors))
        outcomes.append(read(path))
    assert len(outcomes) == 12


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_keys_with_odd_values(tmp_path: Path, seed: int) -> None:
    """The bytes are well-formed, what they say is not: keys changed, removed, or of another architecture."""
    rng = random.Random(1000 + seed)
    refused = 0
    for name in rng.sample(sorted(models()), 12):
        source = models()[name]
        metadata = dict(source.metadata)
        architecture = str(metadata["general.architecture"])
        own = [key for key in metadata if key.startswith(architecture)]
        for _ in range(rng.randint(1, 3)):
            key = rng.choice(own)
            if rng.random() < 0.25:
                metadata.pop(key, None)
            elif rng.random() < 0.1:
                donor = models()[rng.choice(sorted(models()))].metadata
                metadata["general.architecture"] = donor["general.architecture"]
            else:
                metadata[key] = rng.choice(ODD_VALUES)
        tensors = source.tensors if rng.random() < 0.7 else ()
        path = GgufWriter(metadata, tensors).write(tmp_path / f"{seed}.gguf")
        refused += isinstance(read(path), ModelError)
    assert refused > 0  # the changes are not so small that nothing is ever wrong


def test_undamaged_they_are_all_read(tmp_path: Path) -> None:
    for name, source in models().items():
        assert isinstance(read(source.write(tmp_path / "whole.gguf")), ModelSpec), name


@pytest.mark.parametrize("where", ["key", "value", "tensor"])
def test_a_string_of_a_gigabyte_is_refused_where_it_is(tmp_path: Path, where: str) -> None:
    """The file really has the gigabyte (as a hole), so that no check against its length helps."""
    head = b"GGUF" + struct.pack("<IQQ", 3, 1 if where == "tensor" else 0, 1 if where != "tensor" else 0)
    if where == "value":
        head += struct.pack("<Q", 1) + b"k" + struct.pack("<I", STRING)
    path = tmp_path / "long.gguf"
    with path.open("wb") as file:
        file.write(head + struct.pack("<Q", 2**30))
        file.truncate(2**30 + 4096)
    outcome = read(path)
    assert isinstance(outcome, ModelError)
    assert f"byte {len(head)}" in outcome.message
