"""What an engine used instead of a level that it did not take, by the settings it states, worked out by hand."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from study_rows import attempt, design_row, trial_row

from kvscope.analysis.design_claims import claims_of
from kvscope.record.rows import DesignRow


def said(
    design: DesignRow, asked: Mapping[Any, Mapping[str, Any]], effective: Mapping[Any, Mapping[str, Any]]
) -> list[Any]:
    """(level, used) of each finding; ``asked`` and ``effective``: settings by place in the design's levels."""
    attempts = [
        attempt(replace(trial_row(design, level, 0), settings=asked[place]), design=design, effective=effective[place])
        for place, level in enumerate(design.levels)
    ]
    found = [finding for finding in claims_of(design, attempts) if finding.slug == "level_not_taken"]
    return [(finding.values["level"], finding.values["used"]) for finding in found]


def a_design(
    name: str, factor: str, levels: tuple[Any, ...], factors: list[Any], *, is_grid: bool = False
) -> DesignRow:
    return replace(
        design_row("context_limit"),
        name=name,
        factor=factor,
        levels=levels,
        baseline_level=levels[0],
        is_grid=is_grid,
        definition={"factors": factors},
    )


def test_each_factor_of_a_grid_is_looked_at() -> None:
    cells = tuple({"n_batch": batch, "n_ubatch": ubatch} for batch in (512, 64) for ubatch in (64, 128))
    grid = a_design(
        "grid", "n_batch × n_ubatch", cells, [["n_batch", [512, 64]], ["n_ubatch", [64, 128]]], is_grid=True
    )
    # llama.cpp takes no microbatch larger than n_batch.
    used = [{**cell, "n_ubatch": min(cell.values())} for cell in cells]
    assert said(grid, dict(enumerate(cells)), dict(enumerate(used))) == [(cells[3], "n_ubatch = 64")]


def test_settings_that_a_level_stands_for_are_looked_at() -> None:
    sets = [{"cache_type_k": word, "cache_type_v": word} for word in ("f16", "q8_0")]
    design = a_design("kv_dtype", "kv_dtype", ("f16", "q8_0"), [["kv_dtype", ["f16", "q8_0"], sets]])
    used = {0: sets[0], 1: {**sets[1], "cache_type_v": "f16"}}
    assert said(design, dict(enumerate(sets)), used) == [("q8_0", "cache_type_v = f16")]


@pytest.mark.parametrize(
    ("name", "asked", "used", "expected"),
    [
        ("n_ctx", 1000, 1024, []),  # rounded up
        ("n_ctx", 8192, 4096, [(8192, 4096)]),
        ("flash_attn", "auto", "on", []),  # left to the engine
        ("swa_full", True, False, [(True, False)]),
        ("n_ubatch", 512, None, []),  # not stated
        ("prompt_tokens", 512, None, []),
    ],
)
def test_one_setting_alone(name: str, asked: Any, used: Any, expected: list[Any]) -> None:
    design = a_design("turns", name, (asked,), [[name, [asked]]])
    settings = {} if name == "prompt_tokens" else {name: asked}
    assert said(design, {0: settings}, {0: {} if used is None else {name: used}}) == expected


def test_more_layers_than_there_are_is_all_of_them() -> None:
    design = a_design("grid", "n_gpu_layers", (999,), [["n_gpu_layers", [999]]])
    all_there = {"n_gpu_layers": 31, "most_gpu_layers": 31}
    assert said(design, {0: {"n_gpu_layers": 999}}, {0: all_there}) == []
    assert said(design, {0: {"n_gpu_layers": 999}}, {0: {**all_there, "n_gpu_layers": 0}}) == [(999, 0)]


def test_a_record_without_definitions_is_read_by_its_factors_name() -> None:
    design = replace(a_design("microbatch", "n_ubatch", (1024,), []), definition={})
    assert said(design, {0: {}}, {0: {"n_ubatch": 512}}) == [(1024, 512)]
