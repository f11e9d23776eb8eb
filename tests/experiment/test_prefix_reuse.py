"""prefix_reuse: what is sent before, how it differs from what is measured, and what is said of it. The engine is the
fake one, whose tokens are words, and which keeps what it read last."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from kvscope.analysis.design_claims import recorded_claims
from kvscope.engine.base import ChatRequest, Generation, Message
from kvscope.engine.fake import (
    TEMPLATE_TOKENS_PER_MESSAGE,
    TEMPLATE_TOKENS_TO_OPEN,
    FakeEngine,
    FakeLaw,
    VirtualClock,
)
from kvscope.errors import BadDesign, UnknownName, UsageError
from kvscope.experiment.design import Condition, Trial
from kvscope.experiment.measure import Held, measure, plan_design
from kvscope.experiment.prefix_levels import prefix_level
from kvscope.experiment.request_counts import Expected
from kvscope.experiment.reuse_prediction import NotPredicted, ReusePredictor, SentBefore
from kvscope.experiment.trial import run_trial
from kvscope.experiment.trial_prefix import BEFORE, changed_character
from kvscope.prompt.reuse.rules import Reusable
from kvscope.record.rows import RequestRow, TrialResult, TrialRow
from kvscope.record.store import open_records
from kvscope.report.claims import claim_text
from kvscope.scenario import SettingValue

ROW = TrialRow(
    trial_id="t",
    attempt=1,
    design_id="d",
    run_id="r",
    role="measured",
    levels={},
    level="warm",
    repeat=0,
    block=0,
    position=0,
    started_at="2026-01-01T00:00:00.000+00:00",
    settings={},
)
TOKENS = 120
TEMPLATE_TOKENS = TEMPLATE_TOKENS_PER_MESSAGE + TEMPLATE_TOKENS_TO_OPEN


class Listening(FakeEngine):
    """Keeps what it was asked and counted, and when."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(settings={}, clock=clock)
        self.time = clock
        self.asked: list[tuple[float, ChatRequest]] = []
        self.counted: list[str] = []

    def generate(self, request: ChatRequest) -> Generation:
        self.asked.append((self.time.now(), request))
        counted = list(self.counted)
        answer = super().generate(request)
        self.counted = counted  # answering counts too, which is not meant here
        return answer

    def count_prompt_tokens(self, messages: Sequence[Message], *more: object, **others: object) -> int:
        self.counted.append(messages[-1].content)
        return super().count_prompt_tokens(messages)


def run(level: str, *, trial_id: str = "t", engine: Listening | None = None, predict: object = None) -> TrialResult:
    engine = engine or Listening(VirtualClock())
    clock = engine.time
    point = Condition(settings={}, prompt_tokens=TOKENS, output_tokens=8, reuse_prefix=True, prefix=level)
    trial = Trial(
        trial_id=trial_id, role="measured", levels={}, level=level, repeat=0, block=0, position=0, condition=point
    )
    expected = Expected(predict_reuse=predict)  # type: ignore[arg-type]  # as each test needs
    return run_trial(lambda: engine, trial, ROW, seed=3, expected=expected, now=clock.now, sleep=clock.sleep)


def texts(engine: Listening) -> tuple[str, str]:
    """What was sent before, and what was measured."""
    assert len(engine.asked) == 3  # the warm-up first
    return engine.asked[1][1].messages[-1].content, engine.asked[2][1].messages[-1].content


def of_role(result: TrialResult, role: str) -> RequestRow:
    (row,) = [row for row in result.requests if row.role == role]
    return row


def test_every_trial_has_the_same_course() -> None:
    for level in ("cold", "warm", "changed_start", "changed_middle", "changed_end", "after_60s"):
        result = run(level)
        assert result.trial.outcome == "ok", result.trial.error_message
        assert [row.role for row in result.requests] == ["warmup", BEFORE, "measured"]
        assert of_role(result, "measured").prompt_tokens_server == TOKENS


def test_cold_is_another_text_of_the_same_length_and_warm_the_same() -> None:
    engine = Listening(VirtualClock())
    run("cold", engine=engine)
    before, measured = texts(engine)
    assert before.split()[0] != measured.split()[0]
    assert len(before.split()) == len(measured.split())
    engine = Listening(VirtualClock())
    run("warm", engine=engine)
    assert len(set(texts(engine))) == 1


@pytest.mark.parametrize(("level", "place"), [("changed_start", 0.0), ("changed_middle", 0.5), ("changed_end", 1.0)])
def test_one_character_is_changed_at_its_place(level: str, place: float) -> None:
    engine = Listening(VirtualClock())
    result = run(level, engine=engine)
    before, measured = texts(engine)
    differing = [index for index, pair in enumerate(zip(before, measured, strict=True)) if pair[0] != pair[1]]
    assert len(differing) == 1
    assert abs(differing[0] / (len(measured) - 1) - place) < 0.02
    assert of_role(result, BEFORE).prompt_tokens_server == TOKENS


def test_what_is_reused_is_what_stands_before_the_change() -> None:
    """The fake engine keeps whole words, and none of its template."""
    cached = {level: of_role(run(level), "measured").cached_tokens or 0 for level in ("warm", "changed_middle", "cold")}
    assert cached["warm"] == TOKENS - TEMPLATE_TOKENS
    assert cached["cold"] < 0.2 * TOKENS < cached["changed_middle"] < 0.8 * TOKENS


def test_the_wait_is_between_the_answer_and_the_next_request() -> None:
    engine = Listening(VirtualClock())
    result = run("after_60s", engine=engine)
    before, measured = of_role(result, BEFORE), of_role(result, "measured")
    assert before.completed_s is not None
    waited = measured.sent_at_s - before.sent_at_s - before.completed_s
    assert 60.0 <= waited < 62.0


def test_what_was_said_before_stands_beside_what_the_engine_says() -> None:
    asked: list[int] = []

    def predict(
        before: Sequence[SentBefore], request: ChatRequest, settings: Mapping[str, SettingValue]
    ) -> Reusable | NotPredicted:
        asked.append(len(before))
        return Reusable(tokens=40 + len(before), status="exact", because="", source="")

    result = run("warm", predict=predict)
    assert asked == [1, 2]  # before each of the two, with all that was answered until then
    assert [row.cached_tokens_predicted for row in result.requests] == [None, 41, 42]
    assert "reuse-not-predicted" not in [warning.slug for warning in result.warnings]


def test_what_cannot_be_said_is_not_said() -> None:
    result = run("warm")
    assert [row.cached_tokens_predicted for row in result.requests] == [None] * 3
    assert [warning.slug for warning in result.warnings] == ["reuse-not-predicted"]


@pytest.mark.parametrize(
    ("change", "because"),
    [
        ({"engine": "logical"}, "no rule"),
        ({}, "files are not known"),
        ({"is_shared": True, "counter": object(), "settings": {"n_parallel": 4}}, "others"),
    ],
)
def test_why_nothing_is_predicted(change: dict[str, object], because: str) -> None:
    plain = ReusePredictor(counter=None, model=None, engine="llama.cpp", engine_version=None)
    predictor = replace(plain, **change)  # type: ignore[arg-type]  # field by field
    found = predictor.predict([], ChatRequest(messages=(), max_output_tokens=1), {})
    assert isinstance(found, NotPredicted)
    assert because in found.because


class CountsBySending(Listening):
    """A server that has to be sent a prompt to count it."""

    capabilities = replace(FakeEngine.capabilities, counts_by_requests=True)


def test_a_server_that_counts_by_requests_is_measured_with_a_prompt_it_was_never_sent() -> None:
    engine = CountsBySending(VirtualClock())
    result = run("cold", engine=engine)
    assert result.trial.outcome == "ok", result.trial.error_message
    before, measured = texts(engine)
    assert not {before, measured} & set(engine.counted)
    assert measured.split()[0] not in {text.split()[0] for text in engine.counted if text}
    assert of_role(result, "measured").prompt_tokens_ours is None


class RunsAlready(Listening):
    """A server that kvscope did not start, and that keeps what it was sent."""

    capabilities = replace(FakeEngine.capabilities, owns_process=False)


def test_a_server_that_runs_on_is_never_sent_an_earlier_attempts_prompt() -> None:
    sent = []
    for engine in (RunsAlready(VirtualClock()), RunsAlready(VirtualClock()), Listening(VirtualClock())):
        run("cold", engine=engine)
        sent.append(texts(engine)[1])
    assert len(set(sent)) == 3
    again = Listening(VirtualClock())
    run("cold", engine=again)
    assert texts(again)[1] == sent[2]  # an engine started for the trial: the same text as ever


def words(messages: Sequence[Message]) -> int:
    return len(messages[-1].content.split())


def test_of_near_characters_one_is_changed_that_keeps_the_length() -> None:
    message = (Message(role="user", content="alpha beta gamma delta"),)

    def count(messages: Sequence[Message]) -> int:
        """Any change of the first word is a token more."""
        return words(messages) + (not messages[-1].content.startswith("alpha"))

    changed, tokens = changed_character(message, 0.0, 4, count)
    assert tokens == 4
    assert changed[-1].content.startswith("alpha ")
    assert changed[-1].content != message[-1].content


def test_where_none_keeps_the_length_the_nearest_is_changed_and_counted() -> None:
    message = (Message(role="user", content="가나다 라마바"),)
    changed, tokens = changed_character(message, 1.0, 2, lambda messages: 7)
    assert tokens == 7
    assert changed[-1].content[:-1] == "가나다 라마"
    unchanged, tokens = changed_character((Message(role="user", content="…"),), 0.5, 2, words)
    assert (unchanged[-1].content, tokens) == ("…", 2)


@pytest.mark.parametrize(
    ("name", "wait_s"), [("warm", 0), ("after_0s", 0), ("after_90s", 90), ("after_5m", 300), ("after_1h", 3600)]
)
def test_levels(name: str, wait_s: int) -> None:
    assert (prefix_level(name).wait_s, prefix_level(name).is_same) == (wait_s, True)


def test_what_is_no_level_says_so() -> None:
    with pytest.raises(UnknownName) as caught:
        plan_design("prefix_reuse", engine="fake", levels=["cold", "chnaged_end"])
    assert "changed_end" in (caught.value.hint or "")
    with pytest.raises(BadDesign):
        prefix_level(60)


@pytest.mark.parametrize(
    "held",
    [
        Held(concurrency=(4,)),
        Held(rate_per_s=(2.0,)),
        Held(requests=3),
        Held(shared_prefix_tokens=8),
        Held(reuse_prefix=False),
    ],
)
def test_what_contradicts_the_question_is_refused(held: Held) -> None:
    with pytest.raises(UsageError, match="contradicts"):
        plan_design("prefix_reuse", engine="fake", held=held)


def test_what_it_says_of_its_rows(tmp_path: Path) -> None:
    """On the fake engine, whose wait for the first token is a law of the words that it has to read."""
    path = tmp_path / "r.db"
    summary = measure(
        "prefix_reuse",
        engine="fake",
        levels=["cold", "warm", "changed_middle", "after_0s"],
        input_tokens=TOKENS,
        repeats=3,
        settings={"load_s": 0.0},
        records=path,
    )
    assert summary.failed == 0
    with open_records(path) as records:
        found = {(each.slug, each.values.get("level")): each for each in recorded_claims(records, summary.design_id)}
    assert ("prefix_not_predicted", None) in found
    assert found["prefix_reused", "warm"].values["recomputed_tokens"] == TEMPLATE_TOKENS
    assert found["prefix_held", "after_0s"].values["gone_tokens"] == 0
    saved = found["prefix_saved", "warm"]
    assert saved.size is not None
    assert saved.size.value == pytest.approx(FakeLaw().ttft_s_per_token)
    for finding in found.values():
        assert "unknown" not in claim_text(finding)
