"""Every finding has its evidence, a size or where its number comes from, what else could explain it, and how to check;
and what is said of the cache paid at load, of weights, of windows, of swapped memory and of history computed again."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from study_rows import (
    KV_BYTES_PER_CELL,
    answered,
    attempt,
    design_row,
    log_lines,
    memory,
    prediction,
    request_row,
    token_rows,
    trial_row,
    whole_lab,
    write_record,
)

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.design_claims.turns_reuse import reuse_findings
from kvscope.analysis.finding import Finding
from kvscope.analysis.finding_remarks import with_remarks
from kvscope.analysis.memory_claims import in_used_memory
from kvscope.analysis.study import Study, analyse
from kvscope.record.store import open_records
from kvscope.report.claims import remarks
from kvscope.report.words import WORDS

SLUGS = [slug.removeprefix("finding.") for slug in WORDS if slug.startswith("finding.")]
# Contradictions that say themselves what else could explain them: the same words everywhere would hide which.
SAY_THEMSELVES = ("reported_differs", "kv_not_resident", "kv_swapped_out")


@pytest.mark.parametrize("slug", [slug for slug in SLUGS if slug not in SAY_THEMSELVES])
def test_every_finding_says_what_else_and_how_to_check(slug: str) -> None:
    found = with_remarks(Finding(slug=slug), evidence=("trial/1",))
    assert found.evidence == ("trial/1",)
    assert found.also_possible
    assert all(f"also.{name}" in WORDS for name in found.also_possible)
    assert f"check_by.{found.how_to_check}" in WORDS
    assert f"size_from.{found.size_from}" in WORDS
    assert len(remarks(found)) >= 3


def test_what_a_finding_says_itself_stays() -> None:
    own = Finding(slug="time_more", evidence=("a/1",), also_possible=("one_of_several",), how_to_check="more_repeats")
    found = with_remarks(own, evidence=("b/1",))
    assert (found.evidence, found.also_possible, found.how_to_check) == (("a/1",), ("one_of_several",), "more_repeats")


def study_of(path: Path, attempts: list[Attempt]) -> Study:
    with open_records(write_record(path / "r.db", attempts)) as records:
        (study,) = analyse(records).studies
    return study


def test_every_finding_of_a_whole_lab_has_all_four(tmp_path: Path) -> None:
    study = study_of(tmp_path, whole_lab())
    for finding in study.findings:
        assert finding.evidence, finding.slug
        assert finding.size is not None or finding.size_from, finding.slug
        assert finding.also_possible, finding.slug
        assert finding.how_to_check, finding.slug


def test_the_cache_is_paid_at_load_and_weights_do_not_change(tmp_path: Path) -> None:
    study = study_of(tmp_path, whole_lab())
    found = {finding.slug: finding for finding in study.findings}
    paid = found["kv_paid_at_load"]
    # 8,192 cells of 23,040 B; the requests added 14,000 KiB, none of it to the cache.
    assert paid.values["kv_bytes"] == 8192 * KV_BYTES_PER_CELL
    assert found["weights_unchanged"].values["reported_mib"] == "92.10"
    assert "window_saves_nothing" not in found


def one(n_ctx: int = 2048, **changes: Any) -> Attempt:
    design = design_row(levels=(n_ctx,), baseline_level=n_ctx)
    rows = {**memory(n_ctx), **answered(), "reported": log_lines(n_ctx), "effective": {"n_ctx": n_ctx}, **changes}
    return attempt(trial_row(design, n_ctx), design=design, predicted=prediction(n_ctx), **rows)


@pytest.mark.parametrize(("window", "says"), [(4096, True), (1024, False)])
def test_a_window_longer_than_the_context_saves_nothing(window: int, *, says: bool, tmp_path: Path) -> None:
    predicted = prediction(2048)
    predicted["layers"] = [{**layer, "kind": "sliding_window"} for layer in predicted["layers"][:20]]
    predicted["growth"] = {"bytes_per_token": KV_BYTES_PER_CELL, "knees": [{"tokens": window, "why": "window full"}]}
    study = study_of(tmp_path, [replace(one(), prediction=predicted)])
    found = [f for f in study.findings if f.slug == "window_saves_nothing"]
    assert bool(found) is says
    if found:
        assert found[0].values == {"context_tokens": 2048, "window_tokens": window, "layers": 20}


def test_a_cache_that_is_swapped_out_contradicts_nothing(tmp_path: Path) -> None:
    whole = one()
    swapped = 4 * 1024 * 1024
    # The cache has a mapping of its own size, of which 4 MiB are not resident; the process has 4 MiB in swap.
    size = 2048 * KV_BYTES_PER_CELL
    maps = tuple(
        replace(m, size_bytes=size, anonymous_bytes=size - swapped, resident_bytes=size - swapped)
        if m.phase != "launched" and m.kind == "anonymous" and m.anonymous_bytes > 40 * 2**20
        else m
        for m in whole.result.maps
    )
    marks = tuple(
        replace(m, anon_bytes=m.anon_bytes - swapped, swap_bytes=swapped) if m.phase == "loaded" else m
        for m in whole.result.marks
    )
    for name, changed, slug in (
        ("without", {"maps": maps}, "kv_not_resident"),
        ("swap", {"maps": maps, "marks": marks}, "kv_swapped_out"),
    ):
        (tmp_path / name).mkdir()
        study = study_of(tmp_path / name, [replace(whole, result=replace(whole.result, **changed))])
        (found,) = [f for f in study.findings if f.slug in ("kv_not_resident", "kv_swapped_out")]
        assert (found.slug, found.is_contradiction) == (slug, slug == "kv_not_resident")


def test_a_cost_of_context_that_nothing_hides_stays_a_contradiction() -> None:
    values = {"measured_bytes": 9224.0, "predicted_bytes": 8192, "from_tokens": 512, "to_tokens": 2048}
    finding = Finding(slug="step_differs", is_contradiction=True, values=values)
    assert in_used_memory(finding, ()) is None
    assert in_used_memory(replace(finding, is_contradiction=False), ()) is None


TURNS = design_row("turns", levels=(4,), baseline_level=4, held={"reuse_prefix": True})


def played(cached: tuple[int, ...], prompts: tuple[int, ...] = (100, 200, 300, 400), **changes: Any) -> Attempt:
    """Four turns of growing prompts with answers of 20 tokens, of which so many were reused."""
    requests, tokens = [request_row(index=0, role="warmup")], []
    for turn, (prompt, reused) in enumerate(zip(prompts, cached, strict=True), start=1):
        role = "measured" if turn == len(prompts) else "earlier_turn"
        timings = changes.get("timings", {})
        requests.append(
            request_row(index=turn, prompt=prompt, output=20, cached_tokens=reused, role=role, engine_timings=timings)
        )
        tokens += token_rows(turn, [0.2 * turn, 0.2 * turn + 0.1])
    made = attempt(trial_row(TURNS, 4), design=TURNS, requests=tuple(requests), tokens=tuple(tokens))
    return replace(made, prediction=changes["predicted"]) if "predicted" in changes else made


def test_nothing_is_said_of_a_history_that_is_reused_or_was_not_to_be() -> None:
    assert reuse_findings(TURNS, [played((0, 119, 219, 319))]) == ()
    silent = replace(TURNS, held={"reuse_prefix": False})
    assert reuse_findings(silent, [played((0, 0, 0, 0))]) == ()


def test_history_is_computed_again_from_the_third_turn_on() -> None:
    (found,) = reuse_findings(TURNS, [played((0, 119, 30, 30))])
    assert found.slug == "turns_reuse_lost"
    assert (found.values["turn"], found.values["cached_tokens"], found.values["held_tokens"]) == (3, 30, 300)
    assert (found.values["first_s"], found.values["last_s"]) == (pytest.approx(0.2), pytest.approx(0.8))
    assert "history_edited" in found.also_possible


@pytest.mark.parametrize(("cached", "turns"), [((0, 119, 219, 30), (4,)), ((0, 10, 20, 319), (2, 3))])
def test_single_turns_that_lost_their_history_are_not_from_then_on(
    cached: tuple[int, ...], turns: tuple[int, ...]
) -> None:
    (found,) = reuse_findings(TURNS, [played(cached)])
    assert found.slug == "turns_reuse_at_lost"
    assert found.values["turns"] == turns


def test_a_template_that_drops_reasoning_is_named() -> None:
    # Answers of 20 tokens with 15 of thought; each next prompt has fewer tokens than the one before and its answer.
    thought = {"reasoning_tokens": 15}
    prompts = (100, 115, 130, 145)
    (found,) = reuse_findings(TURNS, [played((0, 100, 30, 30), prompts, timings=thought)])
    assert found.slug == "turns_reuse_reasoning_dropped"
    assert found.values["reasoning_tokens"] == 60
    # Where every answer is in the next prompt, thoughts are not what was dropped.
    (other,) = reuse_findings(TURNS, [played((0, 119, 30, 30), timings=thought)])
    assert other.slug == "turns_reuse_lost"


def test_windows_and_states_are_named() -> None:
    predicted = prediction(2048)
    windows = {**predicted, "layers": [{**layer, "kind": "sliding_window"} for layer in predicted["layers"]]}
    state = {**predicted, "totals": {**predicted["totals"], "recurrent_state_bytes": 4096}}
    for known, slug in ((windows, "turns_reuse_window"), (state, "turns_reuse_recurrent")):
        (found,) = reuse_findings(TURNS, [played((0, 119, 30, 30), predicted=known)])
        assert found.slug == slug
