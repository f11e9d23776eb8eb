"""Element formats and their exact sizes. Quantised formats store whole blocks, so bytes are counted per row, never
per element: a q8_0 row of 64 elements is 2 blocks × 34 B.

Source of ids and sizes: ``enum ggml_type`` in llama.cpp's ggml.h and GGML_QUANT_SIZES in its gguf-py constants;
safetensors names from the safetensors format description.
"""

from dataclasses import dataclass

from kvscope.errors import UnknownName, UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Dtype:
    """``block_elements`` elements take ``block_bytes`` bytes. ``ggml_id`` is None for formats GGUF does not have."""

    name: str
    ggml_id: int | None
    block_elements: int
    block_bytes: int

    @property
    def is_quantised(self) -> bool:
        return self.block_elements > 1


def _plain(name: str, ggml_id: int | None, num_bytes: int) -> Dtype:
    return Dtype(name=name, ggml_id=ggml_id, block_elements=1, block_bytes=num_bytes)


def _blocks(name: str, ggml_id: int, elements: int, num_bytes: int) -> Dtype:
    return Dtype(name=name, ggml_id=ggml_id, block_elements=elements, block_bytes=num_bytes)


# Ids that were removed from the format (4, 5, 31-33, 36-38) are absent on purpose: a file with one is refused.
_DTYPES = (
    _plain("float32", 0, 4),
    _plain("float16", 1, 2),
    _blocks("q4_0", 2, 32, 18),
    _blocks("q4_1", 3, 32, 20),
    _blocks("q5_0", 6, 32, 22),
    _blocks("q5_1", 7, 32, 24),
    _blocks("q8_0", 8, 32, 34),
    _blocks("q8_1", 9, 32, 36),
    _blocks("q2_k", 10, 256, 84),
    _blocks("q3_k", 11, 256, 110),
    _blocks("q4_k", 12, 256, 144),
    _blocks("q5_k", 13, 256, 176),
    _blocks("q6_k", 14, 256, 210),
    _blocks("q8_k", 15, 256, 292),
    _blocks("iq2_xxs", 16, 256, 66),
    _blocks("iq2_xs", 17, 256, 74),
    _blocks("iq3_xxs", 18, 256, 98),
    _blocks("iq1_s", 19, 256, 50),
    _blocks("iq4_nl", 20, 32, 18),
    _blocks("iq3_s", 21, 256, 110),
    _blocks("iq2_s", 22, 256, 82),
    _blocks("iq4_xs", 23, 256, 136),
    _plain("int8", 24, 1),
    _plain("int16", 25, 2),
    _plain("int32", 26, 4),
    _plain("int64", 27, 8),
    _plain("float64", 28, 8),
    _blocks("iq1_m", 29, 256, 56),
    _plain("bfloat16", 30, 2),
    _blocks("tq1_0", 34, 256, 54),
    _blocks("tq2_0", 35, 256, 66),
    _blocks("mxfp4", 39, 32, 17),
    _blocks("nvfp4", 40, 64, 36),
    _blocks("q1_0", 41, 128, 18),
    _blocks("q2_0", 42, 64, 18),
    _plain("bool", None, 1),
    _plain("uint8", None, 1),
    _plain("uint16", None, 2),
    _plain("uint32", None, 4),
    _plain("uint64", None, 8),
    _plain("float8_e4m3fn", None, 1),
    _plain("float8_e5m2", None, 1),
)

_BY_GGML_ID = {dtype.ggml_id: dtype for dtype in _DTYPES if dtype.ggml_id is not None}
_BY_NAME = {dtype.name: dtype for dtype in _DTYPES}
# What files and engines call the same formats: ggml and safetensors names, and people's short forms.
_ALIASES = {
    "f32": "float32", "fp32": "float32", "float": "float32",
    "f16": "float16", "fp16": "float16", "half": "float16",
    "bf16": "bfloat16",
    "f64": "float64", "double": "float64",
    "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64",
    "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64",
    "f8_e4m3": "float8_e4m3fn", "f8_e5m2": "float8_e5m2",
}  # fmt: skip


def dtype_named(name: str) -> Dtype:
    """The format of this name in any of its spellings: ``f16``, ``F16``, ``float16``, ``torch.float16``, ``Q4_K``.
    Raises UnknownName."""
    key = name.lower().removeprefix("torch.")
    found = _BY_NAME.get(_ALIASES.get(key, key))
    if found is None:
        raise UnknownName("element format", name, _BY_NAME.keys() | _ALIASES.keys())
    return found


def dtype_of_ggml_id(ggml_id: int) -> Dtype | None:
    """The format of a GGUF tensor type id, or None for an id that no current file may have."""
    return _BY_GGML_ID.get(ggml_id)


def row_bytes(dtype: Dtype | str, num_elements: int) -> int:
    """Exact bytes of one row. Raises UsageError when ``num_elements`` is not a whole number of blocks."""
    if isinstance(dtype, str):
        dtype = dtype_named(dtype)
    blocks, rest = divmod(num_elements, dtype.block_elements)
    if rest or num_elements < 0:
        raise UsageError(
            f"A {dtype.name} row cannot hold {num_elements} elements: they come in blocks of {dtype.block_elements}.",
            hint="Choose a format whose block divides the row, or an unquantised one such as f16.",
        )
    return blocks * dtype.block_bytes
