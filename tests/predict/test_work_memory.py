"""Memory of a prompt under way, against mappings of a real llama.cpp and by hand."""

from dataclasses import replace
from pathlib import Path

import pytest

from kvscope.model.load import load_model
from kvscope.model.spec import SlidingWindow
from kvscope.model.tiny_config import widths_of, write_tiny_config
from kvscope.predict.work_memory import activation_bytes_per_token, query_heads, score_copy_bytes

PAGE = 4096


@pytest.mark.parametrize(
    ("prompt_tokens", "mapping_bytes"),
    # SmolLM2 135M (9 query heads) on xllamacpp 2026.10.11549, flash_attn off, n_ctx 4,096, microbatch 512, one thread:
    # sizes of the one new mapping after the request, as /proc/PID/smaps had them on 2026-11-30.
    [(512, 4_722_688), (2048, 18_878_464), (3800, 33_034_240)],
)
def test_the_work_buffer_is_a_mapping_of_that_size(prompt_tokens: int, mapping_bytes: int) -> None:
    size = score_copy_bytes(
        prompt_tokens=prompt_tokens, cached_tokens=0, microbatch=512, cells=4096, heads=9, threads=1
    )
    # malloc adds a header of 16 B and rounds up to pages.
    assert mapping_bytes == -(-(size + 16) // PAGE) * PAGE


@pytest.mark.parametrize(("prompt_tokens", "cells"), [(1000, 1024), (2500, 2560)])
def test_where_checkpoints_are_made_a_whole_microbatch_comes_last(prompt_tokens: int, cells: int) -> None:
    size = score_copy_bytes(
        prompt_tokens=prompt_tokens,
        cached_tokens=0,
        microbatch=512,
        cells=4096,
        heads=4,
        threads=2,
        has_checkpoints=True,
    )
    # Seen on Gemma 3 270M (4 query heads) after 2,500 tokens: a mapping of 18,362,368 B beside one of 7,872,512, a
    # checkpoint; the kernel had joined another checkpoint of that size to 10,489,856 B: 2,560 × 512 × 8 and a page.
    assert size == cells * 512 * 8 + 128
    if prompt_tokens == 2500:
        assert -(-(size + 16) // PAGE) * PAGE == 18_362_368 - 7_872_512


def test_it_is_of_the_largest_microbatch_and_its_cells_are_rounded_up() -> None:
    def size(prompt: int, cached: int = 0, cells: int = 4096) -> int:
        return score_copy_bytes(
            prompt_tokens=prompt, cached_tokens=cached, microbatch=512, cells=cells, heads=4, threads=2
        )

    # 600 tokens: 512 over 512 cells (262,144), then 88 over 768 (67,584). Times 4 heads, 2 B; 64 B for each thread.
    assert size(600) == 262_144 * 8 + 128
    # 500 of them kept from before: 100 over 768 cells.
    assert size(600, cached=500) == 76_800 * 8 + 128
    assert size(600, cached=500, cells=512) == 51_200 * 8 + 128
    assert size(600, cached=600) == 0


def test_activations_of_a_llama_by_its_widths(tmp_path: Path) -> None:
    write_tiny_config(tmp_path, {"hidden_size": 256, "intermediate_size": 512, "head_dim": 32})
    model = load_model(str(tmp_path))
    # 4 × 256 + 3 × 512 + 2 × 32 = 2,624 floats. Seen with the allocator's count at its highest: 20.53 MiB for 2,048
    # tokens, of 2,624 × 4 × 2,048 B = 20.50.
    assert activation_bytes_per_token(model, 4) == 2_624 * 4
    assert query_heads(model) == 2
    assert widths_of(model) == {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 32,
    }


def test_of_layers_that_are_no_llamas_nothing_is_said(tmp_path: Path) -> None:
    write_tiny_config(tmp_path)
    model = load_model(str(tmp_path))
    window = SlidingWindow(window_tokens=128, num_kv_heads=2, key_dim=32, value_dim=32)
    other = replace(model, layers=(replace(model.layers[0], cache=window),))
    assert activation_bytes_per_token(other, 4) is None
    assert widths_of(other) == {}
    assert widths_of(replace(model, hidden_size=2**20)) == {}
