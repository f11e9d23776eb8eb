"""What is said on stderr while an experiment runs."""

from dataclasses import replace

import pytest

from kvscope.cli.progress import show_progress
from kvscope.experiment.device_lock import Busy
from kvscope.experiment.runner import Progress
from kvscope.record.rows import AnswerRow, TrialResult, TrialRow, WarningRow

TRIAL = TrialRow(
    trial_id="t",
    attempt=1,
    design_id="d",
    run_id="r",
    role="measured",
    levels={"prompt_tokens": 64},
    level=64,
    repeat=0,
    block=0,
    position=1,
    started_at="2026-01-01T00:00:00.000+00:00",
    settings={},
    outcome="ok",
)


def test_it_says_for_whom_it_waits(capsys: pytest.CaptureFixture[str]) -> None:
    busy = Busy(device="cpu", pid=4711, program="kvscope", since="12:00:01")
    show_progress(
        Progress(design="turns", done=1, total=3, kept=0, result=None, next_trial=None, left_s=None, waiting_for=busy)
    )
    said = " ".join(capsys.readouterr().err.split())
    assert said == "Waiting: cpu is being measured by another kvscope, process 4711 (kvscope) since 12:00:01."


def test_what_a_killed_one_left_behind_is_said_as_such() -> None:
    busy = Busy(device="nvidia0", pid=4711, program="llama-server", is_left_behind=True)
    assert str(busy) == "nvidia0 is in use by process 4711 (llama-server), which another kvscope left behind"
    assert str(Busy(device="cpu")) == "cpu is being measured by another kvscope"


def test_a_trial_whose_times_may_be_the_clients_is_marked(capsys: pytest.CaptureFixture[str]) -> None:
    for client, is_marked in (({}, False), ({"client_limited": False}, False), ({"client_limited": True}, True)):
        result = TrialResult(trial=replace(TRIAL, client=client))
        show_progress(Progress(design="x", done=1, total=3, kept=0, result=result, next_trial=None, left_s=None))
        assert ("client_limited: its times may be too long" in capsys.readouterr().err) == is_marked


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ([("keys", "right", 1.0), ("keys", "right", 1.0), ("keys", "wrong", 0.0)], "keys 67% of 3"),
        ([("keys", "right", 1.0), ("keys", "truncated_input", None)], "keys 100% of 1 (1 of its prompts cut)"),
        ([("keys", "truncated_input", None)], "keys not known (1 of its prompts cut)"),
        ([("fidelity", "scored", 0.01234)], "fidelity 0.0123 nats"),
        ([("fidelity", "scored", None)], "fidelity not known"),
        ([("copy_gain", "scored", -14.3)], "copy_gain: log-probability of its facts -14.3 nats"),
    ],
    ids=str,
)
def test_a_trials_answers_are_told(
    capsys: pytest.CaptureFixture[str], answers: list[tuple[str, str, float | None]], said: str
) -> None:
    rows = tuple(
        AnswerRow(index=n, task=task, item=str(n), document="d", language="en", reading=reading, score=score)
        for n, (task, reading, score) in enumerate(answers)
    )
    result = TrialResult(trial=TRIAL, answers=rows)
    show_progress(Progress(design="x", done=1, total=3, kept=0, result=result, next_trial=None, left_s=None))
    assert " ".join(capsys.readouterr().err.split()).endswith(said)


def test_a_reference_is_no_score_that_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    row = AnswerRow(index=0, task="fidelity", item="0", document="d", language="en", reading="scored", score=None)
    result = TrialResult(trial=TRIAL, answers=(replace(row, facts={"is_reference": True}),))
    show_progress(Progress(design="x", done=1, total=3, kept=0, result=result, next_trial=None, left_s=None))
    assert " ".join(capsys.readouterr().err.split()).endswith("fidelity scored: other levels are held against it")


def test_answers_that_cannot_be_had_are_told_with_the_first_trial(capsys: pytest.CaptureFixture[str]) -> None:
    why = "Answers were not asked for: openai states no log-probabilities, which the task fidelity needs."
    warnings = (WarningRow(slug="quality-unknown", message=why, hint="Ask another task."),)
    result = TrialResult(trial=TRIAL, warnings=warnings)
    show_progress(Progress(design="x", done=1, total=3, kept=0, result=result, next_trial=None, left_s=None))
    assert " ".join(capsys.readouterr().err.split()).endswith(why)
