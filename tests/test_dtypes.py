"""Sizes of element formats, against numbers written down elsewhere."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope.dtypes import dtype_named, dtype_of_ggml_id, row_bytes
from kvscope.errors import UnknownName, UsageError

# From ggml-common.h, field by field: a block's bytes are the sum of its parts.
BLOCKS = {
    "q4_0": (2, 32, 2 + 16),  # half scale + 32 nibbles
    "q4_1": (3, 32, 2 + 2 + 16),  # + half minimum
    "q5_0": (6, 32, 2 + 4 + 16),  # + 32 fifth bits
    "q5_1": (7, 32, 2 + 2 + 4 + 16),
    "q8_0": (8, 32, 2 + 32),
    "q8_1": (9, 32, 2 + 2 + 32),
    "q2_k": (10, 256, 16 + 64 + 2 + 2),
    "q3_k": (11, 256, 32 + 64 + 12 + 2),
    "q4_k": (12, 256, 2 + 2 + 12 + 128),
    "q5_k": (13, 256, 2 + 2 + 12 + 32 + 128),
    "q6_k": (14, 256, 128 + 64 + 16 + 2),
    "q8_k": (15, 256, 4 + 256 + 32),
    "iq4_nl": (20, 32, 2 + 16),
    "iq4_xs": (23, 256, 2 + 2 + 4 + 128),
    "mxfp4": (39, 32, 1 + 16),
    "nvfp4": (40, 64, 4 + 32),
    "q1_0": (41, 128, 2 + 16),
    "q2_0": (42, 64, 2 + 16),
}


@pytest.mark.parametrize(("name", "block"), BLOCKS.items())
def test_blocks_have_the_size_of_their_parts(name: str, block: tuple[int, int, int]) -> None:
    ggml_id, elements, num_bytes = block
    dtype = dtype_named(name)
    assert (dtype.ggml_id, dtype.block_elements, dtype.block_bytes) == (ggml_id, elements, num_bytes)
    assert dtype_of_ggml_id(ggml_id) is dtype


@pytest.mark.parametrize(
    ("dtype", "elements", "expected"),
    [
        ("f32", 192, 768),
        ("F16", 192, 384),
        ("bf16", 192, 384),
        ("Q8_0", 192, 204),  # 6 blocks × 34 B
        ("q4_0", 192, 108),  # 6 × 18
        ("q4_1", 192, 120),
        ("q5_0", 192, 132),
        ("q5_1", 192, 144),
        ("iq4_nl", 192, 108),
        ("torch.bfloat16", 1, 2),
        ("F8_E4M3", 7, 7),
        ("I64", 3, 24),
    ],
)
def test_row_bytes(dtype: str, elements: int, expected: int) -> None:
    assert row_bytes(dtype, elements) == expected


def test_a_row_is_a_whole_number_of_blocks() -> None:
    with pytest.raises(UsageError, match="blocks of 32"):
        row_bytes("q8_0", 48)
    with pytest.raises(UsageError):
        row_bytes("f16", -1)


def test_unknown_names_and_removed_ids() -> None:
    with pytest.raises(UnknownName, match="q8_9") as caught:
        dtype_named("q8_9")
    assert "q8_" in str(caught.value.hint)
    # 4 and 5 (q4_2, q4_3), 31 to 33 and 36 to 38 (interleaved forms) were removed from the format.
    assert all(dtype_of_ggml_id(removed) is None for removed in (4, 5, 31, 32, 33, 36, 37, 38, 43, -1))


@given(st.sampled_from(sorted(BLOCKS)), st.integers(0, 10**6), st.integers(0, 10**6))
def test_rows_add_up(name: str, first: int, second: int) -> None:
    block = dtype_named(name).block_elements
    both = row_bytes(name, (first + second) * block)
    assert both == row_bytes(name, first * block) + row_bytes(name, second * block)
