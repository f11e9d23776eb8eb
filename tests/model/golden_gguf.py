"""The models of tests/golden/llamacpp as GGUF files: their real metadata and tensor table, empty vocabulary entries,
holes for weights."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from gguf_writer import GgufWriter, Tensor

from kvscope.dtypes import dtype_named

GOLDEN = Path(__file__).parent.parent / "golden" / "llamacpp"
REAL_MODELS = ("smollm2-135m-instruct-q4_1", "gemma3-270m-q4_k_m")
ALL_MODELS = tuple(sorted(path.stem for path in GOLDEN.glob("*.json")))


@cache
def golden(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((GOLDEN / f"{name}.json").read_text())
    return content


def writer(name: str) -> GgufWriter:
    content = golden(name)
    metadata: dict[str, Any] = {}
    for key, value in content["metadata"].items():
        if key.endswith(".length"):
            real_key = key.removesuffix(".length")
            is_text = real_key.endswith((".tokens", ".merges"))
            metadata[real_key] = ([""] if is_text else [0]) * value
        else:
            metadata[key] = value
    tensors = [Tensor(n, tuple(shape), ggml_id(kind), size) for n, shape, kind, size in content["tensors"]]
    return GgufWriter(metadata, tensors)


def ggml_id(name: str) -> int:
    found = dtype_named(name).ggml_id
    assert found is not None
    return found
