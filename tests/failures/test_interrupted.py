"""Ctrl-C in every phase of a trial, and a bug in one: each is recorded as what it is, nothing runs on, and the next
sitting carries on."""

import signal
from collections.abc import Mapping
from pathlib import Path

import pytest
from sitting import Maker, sit, sound

from kvscope.engine.base import ChatRequest, Engine, EngineReport, Generation, ReportedBuffer
from kvscope.engine.llama_cpp import LlamaCppEngine
from kvscope.model.spec import ModelSpec
from kvscope.probe.proc import process_exists
from kvscope.record.rows import TrialResult
from kvscope.scenario import SettingValue

pytestmark = pytest.mark.engine
STARTED: list[int] = []


@pytest.fixture(autouse=True)
def heard() -> None:
    """A shell in the background has Ctrl-C ignored, and its children inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Watched(LlamaCppEngine):
    """Tells which process it was."""

    def launch(self) -> None:
        super().launch()
        STARTED.extend(self.pids())


class InLaunch(Watched):
    def launch(self) -> None:
        super().launch()
        signal.raise_signal(signal.SIGINT)


class InLoad(Watched):
    def load(self) -> EngineReport:
        report = super().load()
        signal.raise_signal(signal.SIGINT)
        return report


class InAnswer(Watched):
    def generate(self, request: ChatRequest) -> Generation:
        signal.raise_signal(signal.SIGINT)
        return super().generate(request)


class InUnload(Watched):
    def unload(self) -> None:
        super().unload()
        signal.raise_signal(signal.SIGINT)


class InStop(Watched):
    interrupted = False

    def stop(self) -> None:
        if not self.interrupted:
            self.interrupted = True
            signal.raise_signal(signal.SIGINT)
        super().stop()


class Buggy(Watched):
    def host_cache(self) -> ReportedBuffer | None:
        raise ZeroDivisionError("a bug of kvscope's own")


def of_kind(kind: type[LlamaCppEngine]) -> Maker:
    def make(model: ModelSpec, settings: Mapping[str, SettingValue]) -> Engine:
        return kind(model=model, settings=settings)

    return make


def check_nothing_runs_on() -> None:
    assert not [pid for pid in STARTED if process_exists(pid)]
    STARTED.clear()


@pytest.mark.parametrize(
    ("kind", "phases", "requests"),
    [
        (InLoad, ["launched", "exited"], 0),
        (InAnswer, ["launched", "loaded", "exited"], 1),
    ],
)
def test_ctrl_c(
    smollm2: ModelSpec, tmp_path: Path, kind: type[LlamaCppEngine], phases: list[str], requests: int
) -> None:
    # The sitting ends with it: the second maker is not called.
    (result,) = sit(tmp_path, smollm2, [of_kind(kind), sound])
    trial = result.trial
    assert (trial.outcome, trial.error_slug, trial.traceback) == ("interrupted", "interrupted", None)
    assert [mark.phase for mark in result.marks] == phases
    assert [row.error_slug for row in result.requests] == ["interrupted"] * requests
    assert STARTED
    check_nothing_runs_on()


@pytest.mark.parametrize("kind", [InUnload, InStop])
def test_ctrl_c_once_all_is_measured_keeps_what_was_measured(
    smollm2: ModelSpec, tmp_path: Path, kind: type[LlamaCppEngine]
) -> None:
    (result,) = sit(tmp_path, smollm2, [of_kind(kind), sound])
    assert result.trial.outcome == "interrupted"
    assert [(row.role, row.error_slug, row.output_tokens) for row in result.requests] == [
        ("warmup", None, 4),
        ("measured", None, 4),
    ]
    assert STARTED
    check_nothing_runs_on()


@pytest.fixture(scope="module")
def two_sittings(smollm2: ModelSpec, tmp_path_factory: pytest.TempPathFactory) -> list[TrialResult]:
    """The first is stopped in its first trial; the second finds a bug there, and goes on."""
    folder = tmp_path_factory.mktemp("sittings")
    sit(folder, smollm2, [of_kind(InLaunch), sound])
    return sit(folder, smollm2, [of_kind(Buggy), sound])


def test_the_next_sitting_runs_what_was_interrupted_anew(two_sittings: list[TrialResult]) -> None:
    trials = [result.trial for result in two_sittings]
    assert [(trial.attempt, trial.outcome) for trial in trials] == [(1, "interrupted"), (2, "internal"), (1, "ok")]
    assert trials[0].trial_id == trials[1].trial_id != trials[2].trial_id
    check_nothing_runs_on()


def test_a_bug_is_recorded_with_its_traceback(two_sittings: list[TrialResult]) -> None:
    trial = two_sittings[1].trial
    assert trial.error_slug == "internal"
    assert trial.error_message == "ZeroDivisionError: a bug of kvscope's own"
    assert "in host_cache" in str(trial.traceback)
    assert trial.engine_log_tail
