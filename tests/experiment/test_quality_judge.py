"""A judge in place of the strict reading: asked only where it was named, and never more than it said."""

from collections.abc import Mapping
from typing import Any

import pytest
from test_trial_quality import own, run, slugs

from kvscope.engine.base import ChatRequest, EngineReport, Generation, TokenEvent
from kvscope.engine.fake import FakeEngine, VirtualClock
from kvscope.engine.registry import EngineChoice
from kvscope.errors import BadDesign, ConnectionRefused
from kvscope.experiment.asked import Asked
from kvscope.experiment.plan import plan
from kvscope.experiment.quality_asked import QualityAsked

URL = "http://127.0.0.1:1"
JUDGED = QualityAsked(task="keys", documents=2, judge=URL, judge_model="a-judge")


class Judge(FakeEngine):
    """Says the same of every answer. What it was sent is kept."""

    asked: list[str]

    def __init__(self, verdict: str) -> None:
        super().__init__(settings={}, clock=VirtualClock())
        self.verdict = verdict
        self.asked = []

    def load(self) -> EngineReport:
        if self.verdict == "away":
            raise ConnectionRefused("Nobody listens there.", hint="Start it.")
        return super().load()

    def generate(self, request: ChatRequest) -> Generation:
        self.asked.append(request.messages[-1].content)
        event = TokenEvent(at_s=0.1, text=self.verdict)
        return Generation(
            events=(event,),
            reads=(),
            completed_s=0.1,
            prompt_tokens=1,
            cached_tokens=0,
            output_tokens=1,
            finish_reason="stop",
        )


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Judge:
    made = Judge(request.param)

    def create(self: EngineChoice, model: object, settings: Mapping[str, Any]) -> Judge:
        assert (self.name, self.url, self.served_model) == ("openai", URL, "a-judge")
        return made

    monkeypatch.setattr(EngineChoice, "create", create)
    return made


@pytest.mark.parametrize("judge", ["right"], indirect=True)
def test_its_word_stands_and_the_strict_reading_beside_it(judge: Judge) -> None:
    result = run(JUDGED, answer_right=0.0)
    assert set(own(result)) == {"right"}
    facts = [row.facts for row in result.answers if row.task == "keys" and not row.is_twin]
    assert {(each["judge"], each["verdict"], each["strict_score"]) for each in facts} == {("a-judge", "right", 0.0)}
    # Neither twins nor marks are put to it, and of a document it sees nothing.
    assert len(judge.asked) == len(facts)
    assert {row.reading for row in result.answers if row.is_twin} == {"wrong"}
    assert all(len(text) < 600 for text in judge.asked)


@pytest.mark.parametrize("judge", ["I could not say"], indirect=True)
def test_what_is_no_verdict_is_not_scored(judge: Judge) -> None:
    assert set(own(run(JUDGED))) == {"failed"}


@pytest.mark.parametrize("judge", ["away"], indirect=True)
def test_one_that_cannot_be_asked_is_a_doubt_and_the_strict_reading_stands(judge: Judge) -> None:
    result = run(JUDGED)
    assert result.trial.outcome == "ok"
    assert set(own(result)) == {"right"}
    assert slugs(result) == ["quality-judge-failed"]


def test_without_one_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EngineChoice, "create", None)
    assert set(own(run(QualityAsked(task="keys", documents=1)))) == {"right"}


def test_who_judges_is_part_of_what_is_asked() -> None:
    def identity(**asked: Any) -> object:
        return plan(Asked(design="input_length", engine="fake", quality="keys", **asked)).design.definition()

    named = identity(quality_judge=URL, quality_judge_model="a-judge")
    assert named != identity()
    assert named == identity(quality_judge="http://127.0.0.1:2", quality_judge_model="a-judge")
    with pytest.raises(BadDesign, match="judge"):
        identity(quality_judge_model="a-judge")
