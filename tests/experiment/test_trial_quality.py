"""The questions at the end of a trial: what they leave, and what they leave alone. The engine is the fake one, which
reads and answers with errors that are known."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from kvscope.engine.base import Capabilities, ChatRequest, Generation, Read, TokenEvent
from kvscope.engine.fake import FakeEngine, VirtualClock
from kvscope.errors import EngineDied, EngineStalled, KvscopeError, ServerError
from kvscope.experiment.design import Condition, Trial
from kvscope.experiment.quality_asked import QualityAsked
from kvscope.experiment.trial import run_trial
from kvscope.record.export import export_row
from kvscope.record.metrics import metrics_of
from kvscope.record.rows import DesignRow, RunRow, TrialResult, TrialRow
from kvscope.record.turns import request_outcome

ROW = TrialRow(
    trial_id="t",
    attempt=1,
    design_id="d",
    run_id="r",
    role="measured",
    levels={},
    level=250,
    repeat=0,
    block=0,
    position=0,
    started_at="2026-01-01T00:00:00.000+00:00",
    settings={},
)
RUN = RunRow(run_id="r", started_at="", kvscope_version="", command="", machine_id="m", machine={})
DESIGN = DesignRow(
    design_id="d",
    name="input_length",
    version=1,
    question="?",
    factor="prompt_tokens",
    levels=(250,),
    baseline_level=250,
    held={},
    confounders=(),
    is_grid=False,
    repeats=1,
    seed=0,
    model_name="m",
    model_source="m",
    model_fingerprint="f",
    engine="fake",
    engine_version="1",
    engine_build="fake",
    settings={},
    machine_id="m",
    created_at="",
)
KEYS = QualityAsked(task="keys", documents=3)
# Copies of old prompts are kept, so that every request makes memory grow.
GROWING = {"cache_ram_mib": 256, "natural_end_tokens": 40}

Make = Callable[[dict[str, Any], VirtualClock], FakeEngine]


def plain(settings: dict[str, Any], clock: VirtualClock) -> FakeEngine:
    return FakeEngine(settings=settings, clock=clock)


def run(
    quality: QualityAsked | None = KEYS, *, make: Make = plain, role: str = "measured", seed: int = 3, **law: Any
) -> TrialResult:
    condition: dict[str, Any] = law.pop("condition", {})
    clock = VirtualClock()
    point = Condition(**{"settings": {}, "prompt_tokens": 250, "output_tokens": 8, "quality": quality, **condition})
    trial = Trial(trial_id="t", role=role, levels={}, level=250, repeat=0, block=0, position=0, condition=point)
    settings = {"answer_right": 1.0, **law}
    return run_trial(lambda: make(settings, clock), trial, ROW, seed=seed, now=clock.now, sleep=clock.sleep)


def exported(result: TrialResult) -> dict[str, Any]:
    return export_row(result, DESIGN, RUN, None)


def slugs(result: TrialResult) -> list[str]:
    return [warning.slug for warning in result.warnings]


def own(result: TrialResult, task: str = "keys") -> list[str]:
    return [row.reading for row in result.answers if row.task == task and not row.is_twin]


def test_right_answers_are_right_and_twins_are_not() -> None:
    result = run()
    assert result.trial.outcome == "ok"
    assert set(own(result)) == {"right"}
    assert len(own(result)) == 9  # three crates to 250 tokens, and three documents
    assert {row.reading for row in result.answers if row.is_twin} == {"wrong"}
    assert {row.evidence_in_prompt for row in result.answers if row.is_twin} == {False}
    assert {row.evidence_in_prompt for row in result.answers if not row.is_twin} == {True}
    metrics = metrics_of(result)
    assert (metrics.quality_task, metrics.quality_score, metrics.quality_items) == ("keys", 1.0, 9)
    assert (metrics.quality_twin_score, metrics.quality_truncated, metrics.quality_unread) == (0.0, 0, 0)


def test_the_share_right_is_the_engines_own() -> None:
    """Of an engine that is right with probability 0.7, its score's interval holds 0.7."""
    metrics = metrics_of(run(QualityAsked(task="keys", documents=30), answer_right=0.7))
    assert metrics.quality_items == 90
    assert metrics.quality_low is not None
    assert metrics.quality_high is not None
    assert metrics.quality_low < 0.7 < metrics.quality_high


@pytest.mark.parametrize(
    "condition",
    [
        {},
        {"requests": 2},
        {"requests": 2, "is_conversation": True},
        {"concurrency": 2, "as_load": True, "requests": 4},
        {"arrival": "constant", "rate_per_s": 5.0, "requests": 3},
        {"prefix": "warm", "reuse_prefix": True},
        {"same_again": 2},
    ],
    ids=str,
)
def test_no_time_and_no_memory_changes(condition: dict[str, Any]) -> None:
    """Every column but those of quality, and how long it all took, with the questions and without."""
    settings = {**GROWING, "n_parallel": 2, "n_ctx": 8192}
    without = exported(run(None, condition=condition, **settings))
    with_it = exported(run(condition=condition, **settings))
    assert with_it["quality_score"] is not None
    differing = {name for name in without if without[name] != with_it[name]}
    # The share of a processor is this test's own, over seconds that only pass by law.
    assert {name for name in differing if not name.startswith("quality_")} <= {"duration_s", "client_cpu_share"}


def test_what_is_seen_in_between_is_marked_and_not_sampled() -> None:
    result = run(**GROWING)
    phases = [mark.phase for mark in result.marks]
    assert phases == ["launched", "loaded", "before_request", "after_request", "after_quality", "unloaded"]
    held = {mark.phase: mark.anon_bytes for mark in result.marks}
    assert held["after_quality"] > held["after_request"]
    asked = [request.sent_at_s for request in result.requests if request.role == "quality"]
    assert not [sample for sample in result.samples if asked[0] < sample.at_s <= asked[-1]]


def test_each_document_is_read_once_and_the_rest_of_its_prompts_reused() -> None:
    result = run()
    rows = {request.index: request for request in result.requests}
    by_document: dict[tuple[str, bool], list[int]] = {}
    for answer in result.answers:
        assert answer.request_index is not None
        cached = rows[answer.request_index].cached_tokens
        assert cached is not None
        by_document.setdefault((answer.document, answer.is_twin), []).append(cached)
    assert len(by_document) == 6
    assert all(min(cached[1:]) > 150 for cached in by_document.values())


def test_every_level_and_repeat_is_asked_the_same() -> None:
    def items(result: TrialResult) -> list[tuple[str, bool, str | None]]:
        return [(row.item, row.is_twin, row.expected) for row in result.answers]

    assert items(run()) == items(run(answer_right=0.3, bytes_per_token=11_520))
    assert items(run()) != items(run(seed=4))
    assert items(run()) != items(run(condition={"prompt_tokens": 251}))


def test_the_answers_are_in_korean_where_the_prompts_are() -> None:
    result = run(condition={"language": "ko", "prompt_tokens": 300})
    assert {row.language for row in result.answers} == {"ko"}
    assert set(own(result)) == {"right"}
    code = run(condition={"language": "code"})
    assert {row.language for row in code.answers} == {"en"}


def test_a_warm_up_trial_is_asked_nothing() -> None:
    result = run(role="warmup")
    assert result.answers == ()
    assert "quality" not in {request.role for request in result.requests}


def test_a_short_answer_is_no_early_stop_and_no_doubt() -> None:
    result = run(natural_end_tokens=1)
    assert (result.trial.outcome, slugs(result)) == ("ok", [])
    rows = [request for request in result.requests if request.role == "quality"]
    assert {request_outcome(row, "ok") for row in rows} == {"ok"}


# --- cut prompts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keeps_head", [0, 1])
@pytest.mark.parametrize("states", [0, 1, 2])
def test_a_cut_prompt_is_never_a_wrong_answer(keeps_head: int, states: int) -> None:
    """Whatever the server says of its count: nothing, what it read, or what was sent."""
    result = run(cuts_at_tokens=120, cut_keeps_head=keeps_head, cut_states=states)
    assert {row.reading for row in result.answers if row.task == "keys"} == {"truncated_input"}
    assert {row.score for row in result.answers} <= {None}
    assert metrics_of(result).quality_score is None
    assert metrics_of(result).quality_truncated == 18
    assert {"quality-truncated", "quality-cut-by-markers"} & set(slugs(result))


def test_only_the_prompts_that_are_cut_are_left_out() -> None:
    """Documents differ by some tokens: of a window between them the shorter ones are read whole."""
    whole = {row.request_index: row.document_tokens or 0 for row in run().answers}
    window = sorted(whole.values())[len(whole) // 2]
    result = run(cuts_at_tokens=window, cut_states=1)
    for row in result.answers:
        if (row.document_tokens or 0) > window + 8:
            assert row.reading == "truncated_input"
        elif (row.document_tokens or 0) <= window:
            assert row.reading in ("right", "wrong")


def test_an_ignored_middle_is_no_cut() -> None:
    result = run(QualityAsked(task="keys", documents=6), ignores_middle=1)
    assert "truncated_input" not in {row.reading for row in result.answers}
    middle = [row.reading for row in result.answers if row.item.endswith("marker-middle")]
    assert set(middle) == {"wrong"}


# --- what goes wrong --------------------------------------------------------------------------------------------------


class Failing(FakeEngine):
    """Raises an error at some of the questions; ``at`` counts them from 0."""

    def __init__(self, settings: dict[str, Any], clock: VirtualClock, error: BaseException, at: Sequence[int]) -> None:
        super().__init__(settings=settings, clock=clock)
        self.error, self.at, self.asked = error, at, 0

    def generate(self, request: ChatRequest) -> Generation:
        if not request.ignore_end:
            self.asked += 1
            if self.asked - 1 in self.at:
                if isinstance(self.error, EngineDied):
                    self.stop()
                raise self.error
        return super().generate(request)


def failing(error: BaseException, at: Sequence[int]) -> Make:
    return lambda settings, clock: Failing(settings, clock, error, at)


def test_a_question_that_fails_is_a_row_and_the_trial_stands() -> None:
    result = run(make=failing(ServerError("Out of luck.", hint="Ask again."), [1, 7]))
    assert result.trial.outcome == "ok"
    assert slugs(result) == ["quality-failed"]
    failed = [row for row in result.answers if row.reading == "failed"]
    assert len(failed) == 2
    assert {row.score for row in failed} == {None}
    assert [request.error_slug for request in result.requests if request.error_slug] == ["server-error"] * 2
    assert metrics_of(result).ttft_s is not None
    assert metrics_of(result).quality_unread == 2


def test_after_three_failures_in_a_row_nothing_more_is_asked() -> None:
    result = run(make=failing(EngineStalled("Silence.", hint="Wait."), range(2, 99)))
    assert result.trial.outcome == "ok"
    assert set(slugs(result)) == {"quality-failed", "quality-given-up"}
    assert [row.reading for row in result.answers] == ["right", "right", "failed", "failed", "failed"]
    assert result.marks[-1].phase == "unloaded"


def test_where_the_engine_dies_nothing_measured_is_lost() -> None:
    without = metrics_of(run(None))
    result = run(make=failing(EngineDied("It fell over.", hint="Look."), [4]))
    assert (result.trial.outcome, result.trial.error_slug) == ("engine_died", "engine-died")
    found = metrics_of(result)
    for name in ("ttft_s", "tpot_s", "completion_s", "memory_loaded_bytes", "memory_peak_bytes", "memory_after_bytes"):
        assert getattr(found, name) == getattr(without, name)
    assert [row.reading for row in result.answers] == ["right"] * 4 + ["failed"]


def test_ctrl_c_keeps_what_was_answered() -> None:
    result = run(make=failing(KeyboardInterrupt(), [4]))
    assert result.trial.outcome == "interrupted"
    assert [row.reading for row in result.answers] == ["right"] * 4 + ["failed"]
    assert [request.error_slug for request in result.requests][-1] == "interrupted"
    assert metrics_of(result).ttft_s is not None


def test_no_room_for_a_document_is_a_doubt_and_no_score() -> None:
    result = run(condition={"prompt_tokens": 40})
    assert result.trial.outcome == "ok"
    (doubt,) = result.warnings
    assert doubt.slug == "quality-no-room"
    assert any(character.isdigit() for character in doubt.message)
    assert result.answers == ()
    assert metrics_of(result).quality_score is None
    assert metrics_of(result).ttft_s is not None


def test_a_question_that_does_not_fit_the_context_is_not_sent() -> None:
    result = run(n_ctx=260, condition={"prompt_tokens": 250})
    assert result.trial.outcome == "ok"
    assert {row.reading for row in result.answers} == {"failed"}
    assert {"quality-failed", "quality-given-up"} == set(slugs(result))
    told = next(warning for warning in result.warnings if warning.slug == "quality-failed")
    assert "260" in told.message


class Thinking(FakeEngine):
    """Thinks for so many tokens before each answer."""

    thinks_tokens = 200

    def generate(self, request: ChatRequest) -> Generation:
        answer = super().generate(request)
        if request.ignore_end:
            return answer
        room = request.max_output_tokens - self.thinks_tokens
        at_s = answer.completed_s
        thought = tuple(
            TokenEvent(at_s=at_s, text="so ", kind="reasoning")
            for _ in range(min(self.thinks_tokens, request.max_output_tokens))
        )
        said = tuple(replace(event, at_s=at_s) for event in answer.events[: max(0, room)])
        return replace(
            answer,
            events=(*thought, *said),
            reads=(Read(at_s=at_s, num_bytes=1, num_events=len(thought) + len(said)),),
            output_tokens=len(thought) + len(said),
            finish_reason=answer.finish_reason if room >= len(answer.events) else "length",
        )


def test_a_model_that_thinks_is_told_how_and_can_then_be_scored() -> None:
    """200 tokens of thought do not fit the task's 64; the warning names the flag, and 1,024 hold thought and answer."""

    def make(settings: dict[str, Any], clock: VirtualClock) -> FakeEngine:
        return Thinking(settings=settings, clock=clock)

    result = run(make=make)
    assert set(own(result)) == {"cut_output"}
    (doubt,) = result.warnings
    assert doubt.slug == "quality-thinking-cut"
    assert "64 tokens" in doubt.message
    assert "--quality-output-tokens 1024" in doubt.hint
    more = run(QualityAsked(task="keys", documents=3, output_tokens=1024), make=make)
    assert set(own(more)) == {"right"}
    assert slugs(more) == []
    assert {row.output_tokens_limit for row in more.requests if row.role == "quality"} == {1024}


class NoText(FakeEngine):
    """Takes messages alone, and states no log-probability."""

    capabilities: Capabilities = replace(FakeEngine.capabilities, completes_text=False, scores_tokens=False)


def no_text(settings: dict[str, Any], clock: VirtualClock) -> FakeEngine:
    return NoText(settings=settings, clock=clock)


@pytest.mark.parametrize(
    ("asked", "word"),
    [
        (QualityAsked(task="fidelity", documents=2), "log-probabilities"),
        (QualityAsked(task="copy_gain", documents=2), "log-probabilities"),
        (QualityAsked(task="keys", documents=2, form="cue"), "template"),
    ],
)
def test_what_an_engine_cannot_is_said(asked: QualityAsked, word: str) -> None:
    result = run(asked, make=no_text)
    assert result.trial.outcome == "ok"
    (doubt,) = result.warnings
    assert doubt.slug == "quality-unknown"
    assert word in doubt.message
    assert result.answers == ()


def test_by_cue_the_text_goes_without_a_template() -> None:
    result = run(QualityAsked(task="keys", documents=2, form="cue"))
    assert {row.facts["form"] for row in result.answers} == {"cue"}
    assert set(own(result)) == {"right"}
    counted = [(request.prompt_tokens_ours, request.prompt_tokens_server) for request in result.requests[2:]]
    assert all(ours == server for ours, server in counted)


def test_scored_texts_leave_their_positions() -> None:
    result = run(QualityAsked(task="copy_gain", documents=2))
    assert {row.reading for row in result.answers} == {"scored"}
    assert result.scored_tokens
    metrics = metrics_of(result)
    assert metrics.quality_score is not None
    assert metrics.quality_twin_score is not None


def test_an_error_of_building_is_no_error_of_the_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KvscopeError("Nobody can count here.", hint="Give the file.")

    monkeypatch.setattr("kvscope.experiment.trial_quality.text_count", broken)
    result = run()
    assert (result.trial.outcome, slugs(result)) == ("ok", ["quality-unknown"])
