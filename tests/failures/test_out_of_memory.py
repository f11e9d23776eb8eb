"""Memory that runs out for real: an address space too small, a control group with a limit, in load and in a run. Only
the engine is under the limit; the machine has enough."""

import os
import resource
import shlex
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from sitting import limited_group, own_group_folder, sit, sound

from kvscope.engine.base import ChatRequest, Engine, EngineReport, Generation
from kvscope.engine.llama_cpp import LlamaCppEngine
from kvscope.engine.llama_server import LlamaServerEngine
from kvscope.model.spec import ModelSpec
from kvscope.probe.cgroup import available_bytes
from kvscope.record.rows import TrialResult
from kvscope.scenario import SettingValue

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux"),
]
MIB = 1024**2
BYTES_PER_TOKEN = 23_040
STANDIN = Path(__file__).parent.parent / "engine" / "llama_server_standin.py"

needs_group = pytest.mark.skipif(
    isinstance(own_group_folder(), str), reason=f"no control group can be made here: {own_group_folder()}"
)


class SmallAddressSpace(LlamaCppEngine):
    """As after ``ulimit -v``: 8 GiB, which is enough for all but a very large cache."""

    def load(self) -> EngineReport:
        (pid,) = self.pids()
        resource.prlimit(pid, resource.RLIMIT_AS, (8192 * MIB, 8192 * MIB))
        return super().load()


def too_large(model: ModelSpec, settings: Mapping[str, SettingValue]) -> Engine:
    return SmallAddressSpace(model=model, settings={**settings, "n_ctx": 512_000})


def too_many_cells() -> int:
    """A context whose cache alone is a quarter more than this machine has left."""
    available = available_bytes()
    assert available is not None
    return int(1.25 * available / BYTES_PER_TOKEN)


class InGroup(LlamaCppEngine):
    """Put into a control group with a limit once it is started: what it takes from then on counts there."""

    def __init__(self, folder: Path, model: ModelSpec, settings: Mapping[str, SettingValue]) -> None:
        super().__init__(model=model, settings=settings)
        self.folder = folder
        self.asked = 0

    def launch(self) -> None:
        super().launch()
        (pid,) = self.pids()
        (self.folder / "cgroup.procs").write_text(str(pid))


class TightInRun(InGroup):
    """Loads in peace; then there is 1 MiB left, less than the first prompt touches of the compute buffer."""

    def generate(self, request: ChatRequest) -> Generation:
        self.asked += 1
        if self.asked == 2:  # the first is the warm-up
            used = int((self.folder / "memory.usage_in_bytes").read_text())
            (self.folder / "memory.limit_in_bytes").write_text(str(used + MIB))
        return super().generate(request)


@pytest.fixture(scope="module")
def at_load(smollm2: ModelSpec, tmp_path_factory: pytest.TempPathFactory) -> list[TrialResult]:
    return sit(tmp_path_factory.mktemp("at-load"), smollm2, [too_large, sound])


@pytest.fixture(scope="module")
def in_group(smollm2: ModelSpec, tmp_path_factory: pytest.TempPathFactory) -> list[TrialResult]:
    # 16 MiB: more than the worker holds before it loads, less than 1,024 cells (22.5 MiB) and the weights it repacks.
    with limited_group(16 * MIB) as small, limited_group(1024 * MIB) as large:
        makers = [
            lambda model, settings: InGroup(small, model, settings),
            lambda model, settings: TightInRun(large, model, settings),
            sound,
        ]
        return sit(tmp_path_factory.mktemp("in-group"), smollm2, makers, prompt_tokens=200, n_ctx=1024)


def test_the_engine_is_refused_memory_and_says_so(at_load: list[TrialResult]) -> None:
    trial = at_load[0].trial
    assert (trial.outcome, trial.error_slug) == ("out_of_memory", "out-of-memory")
    assert trial.evidence["known_by"] == "message"
    # 512,000 cells × 23,040 B; llama.cpp rounds n_ctx up to 256, which 512,000 is a multiple of.
    assert f"{512_000 * BYTES_PER_TOKEN / MIB:.2f} MB" in str(trial.error_message)
    assert "failed to allocate" in str(trial.engine_log_tail)
    assert trial.error_hint
    assert [mark.phase for mark in at_load[0].marks] == ["launched", "exited"]
    assert at_load[0].requests == ()


def test_the_next_trial_begins_with_memory_as_it_was(at_load: list[TrialResult]) -> None:
    """R16, ollama/ollama#11997: after a crash memory is free already. It is read, not waited for."""
    failed, following = at_load
    assert following.trial.outcome == "ok"
    held = {result.marks[0].phase: result.marks[0].anon_bytes for result in (failed, following)}
    assert list(held) == ["launched"]
    (exited,) = (mark for mark in failed.marks if mark.phase == "exited")
    assert exited.anon_bytes == 0
    assert abs(failed.marks[0].anon_bytes - following.marks[0].anon_bytes) < 4 * MIB


@needs_group
@pytest.mark.parametrize(("number", "doing"), [(0, "loading the model"), (1, "answering")])
def test_the_kernel_kills_it_in_its_group_and_counts_that(in_group: list[TrialResult], number: int, doing: str) -> None:
    trial = in_group[number].trial
    assert (trial.outcome, trial.error_slug) == ("out_of_memory", "out-of-memory")
    assert trial.evidence["known_by"] == "counters"
    assert trial.evidence["signal"] == "SIGKILL"
    assert trial.evidence["counters"]["group.oom_kill"] == [0, 1]
    before, after = trial.evidence["counters"]["machine.oom_kill"]
    assert after > before
    assert f"while {doing}" in str(trial.error_message)
    # The machine itself has enough, and the prediction said so.
    assert trial.evidence["predicted_bytes"] < trial.evidence["available_bytes"]
    assert trial.engine_log_tail


@needs_group
def test_what_was_seen_before_it_ran_out_is_kept(in_group: list[TrialResult]) -> None:
    result = in_group[1]
    assert [mark.phase for mark in result.marks][:3] == ["launched", "loaded", "before_request"]
    assert [(request.role, request.error_slug) for request in result.requests] == [
        ("warmup", None),
        ("measured", "out-of-memory"),
    ]
    assert result.requests[-1].completed_s is None
    assert result.samples


@needs_group
def test_the_trial_after_them_runs(in_group: list[TrialResult]) -> None:
    assert [result.trial.outcome for result in in_group] == ["out_of_memory", "out_of_memory", "ok"]


@needs_group
def test_a_program_started_by_a_wrapper_that_limits_it(smollm2: ModelSpec, tmp_path: Path) -> None:
    """The wrapper puts itself into the group and then becomes the engine; the group is noticed all the same."""
    with limited_group(16 * MIB) as folder:
        script = f'echo $$ > {shlex.quote(str(folder))}/cgroup.procs; exec "$@"'
        command = shlex.join(["sh", "-c", script, "sh", sys.executable, str(STANDIN)])

        def wrapped(model: ModelSpec, settings: Mapping[str, SettingValue]) -> Engine:
            return LlamaServerEngine(
                command=command,
                model=model,
                settings={name: settings[name] for name in ("n_ctx", "n_threads", "cache_ram_mib")},
            )

        (result,) = sit(tmp_path, smollm2, [wrapped], n_ctx=1024)
    assert result.trial.outcome == "out_of_memory"
    assert result.trial.evidence["known_by"] == "counters"
    assert result.trial.evidence["counters"]["group.oom_kill"] == [0, 1]


@pytest.mark.parametrize("try_anyway", [False, True], ids=["as planned", "--try-anyway"])
def test_p73_what_was_predicted_not_to_fit_is_refused_or_said_to_be_ignored(
    smollm2: ModelSpec, tmp_path: Path, try_anyway: bool
) -> None:
    cells = too_many_cells()
    makers = [lambda model, settings: SmallAddressSpace(model=model, settings=settings)]
    (result,) = sit(tmp_path, smollm2, makers, n_ctx=cells, try_anyway=try_anyway)
    trial = result.trial
    if not try_anyway:
        assert (trial.outcome, trial.error_slug) == ("refused", "out-of-memory")
        return
    assert (trial.outcome, trial.evidence["known_by"]) == ("out_of_memory", "message")
    predicted, available = trial.evidence["predicted_bytes"], trial.evidence["available_bytes"]
    assert predicted > cells * BYTES_PER_TOKEN > available
    assert "Predicted and ignored" in str(trial.error_message)
    # The weights' pages are the file's and can be given up: CPU_Mapped model buffer size = 92.10 MiB.
    missing = predicted - 96_576_768 - available
    assert f"{missing / MIB:,.0f} MiB too few" in str(trial.error_message)


class Crashing(LlamaCppEngine):
    """Ends in load by a signal that says nothing of its reason."""

    def load(self) -> EngineReport:
        (pid,) = self.pids()
        os.kill(pid, signal.SIGSEGV)
        return super().load()


@pytest.mark.parametrize(
    ("is_predicted", "outcome", "slug", "known_by"),
    [(False, "engine_died", "engine-died", "exit"), (True, "out_of_memory", "memory-suspected", "prediction")],
)
def test_m10_a_signal_alone_is_no_evidence(
    smollm2: ModelSpec, tmp_path: Path, is_predicted: bool, outcome: str, slug: str, known_by: str
) -> None:
    makers = [lambda model, settings: Crashing(model=model, settings=settings)]
    cells = too_many_cells() if is_predicted else 256
    (result,) = sit(tmp_path, smollm2, makers, n_ctx=cells, try_anyway=True)
    trial = result.trial
    assert (trial.outcome, trial.error_slug, trial.evidence["known_by"]) == (outcome, slug, known_by)
    assert trial.evidence["signal"] == "SIGSEGV"
