"""What a trial reads beside the engine's answers: real processes and, where it can be made, a real control group; the
answers themselves are the fake engine's."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from kvscope.engine.base import ChatRequest, Generation
from kvscope.engine.fake import FakeEngine
from kvscope.errors import EngineDied, ProbeLost, ProbeUnavailable
from kvscope.experiment import neighbours, trial_memory
from kvscope.experiment.design import Condition, Trial
from kvscope.experiment.trial import run_trial
from kvscope.probe import occupants
from kvscope.probe.base import DeviceOccupant
from kvscope.probe.devices import DevicesProbe
from kvscope.probe.proc import process_exists
from kvscope.record.metrics import metrics_of
from kvscope.record.rows import TrialResult, TrialRow
from kvscope.units import MIB

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's /proc")

OCCUPANT = Path(__file__).parents[1] / "probe" / "occupant.py"
ROW = TrialRow(
    trial_id="t", attempt=1, design_id="d", run_id="r", role="measured", levels={}, level=100, repeat=0, block=0,
    position=0, started_at="2026-01-01T00:00:00.000+00:00", settings={},
)  # fmt: skip


@pytest.fixture(autouse=True)
def no_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever GPU this machine has is no matter of these tests."""
    monkeypatch.setattr(trial_memory, "devices_here", lambda pids: (None, None))
    monkeypatch.setattr(neighbours, "devices_here", lambda pids: (None, None))


class Child:
    """A program that takes memory on command."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(OCCUPANT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.do("nothing")  # answered once Python has started

    @property
    def pid(self) -> int:
        return self.process.pid

    def do(self, command: str) -> bool:
        """Whether it survived it."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline() == "ok\n"

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


@pytest.fixture
def child() -> Iterator[Child]:
    child = Child()
    yield child
    child.end()


class InProcess(FakeEngine):
    """Answers as the law says; its memory is that of a real process, which takes ``takes_mib`` when it is asked."""

    def __init__(self, child: Child, takes_mib: int = 0) -> None:
        super().__init__(settings={"load_s": 0.0})
        self.child = child
        self.takes_mib = takes_mib
        self.counters: Mapping[str, float] | Exception = {"requests_running": 0.0, "prompt_tokens": 9.0}
        self.told: list[str] = []

    def pids(self) -> tuple[int, ...]:
        return (self.child.pid,)

    def memory_probe(self):  # type: ignore[no-untyped-def]  # the class it extends always has one
        return None

    def statistics(self) -> Mapping[str, float]:
        self.told.append("statistics")
        if isinstance(self.counters, Exception):
            raise self.counters
        return self.counters

    def generate(self, request: ChatRequest) -> Generation:
        self.told.append("asked")
        answer = super().generate(request)
        if self.takes_mib and len([word for word in self.told if word == "asked"]) == 2:
            survived = self.child.do(f"anon {self.takes_mib}")
            if not survived:
                raise EngineDied("The engine's process has ended.")
        self.told.append("answered")
        return answer

    def stop(self) -> None:
        super().stop()
        if self.capabilities.owns_process:
            self.child.process.kill()
            self.child.process.wait()


class Attached(InProcess):
    """It was running before."""

    capabilities = replace(FakeEngine.capabilities, owns_process=False, has_pid=True, can_unload=False)


class Unseen(Attached):
    """It was running before, nobody knows where."""

    capabilities = replace(Attached.capabilities, has_pid=False)

    def pids(self) -> tuple[int, ...]:
        return ()


def run(engine: FakeEngine) -> TrialResult:
    point = Condition(settings={}, prompt_tokens=100, output_tokens=4)
    trial = Trial(trial_id="t", role="measured", levels={}, level=100, repeat=0, block=0, position=0, condition=point)
    return run_trial(lambda: engine, trial, ROW, seed=3)


def slugs(result: TrialResult) -> list[str]:
    return [warning.slug for warning in result.warnings]


def marks(result: TrialResult) -> dict[str, trial_memory.MarkRow]:
    return {mark.phase: mark for mark in result.marks}


class TestAServerThatWasRunningBefore:
    def test_its_memory_is_read_and_nothing_is_done_to_it(self, child: Child) -> None:
        child.do("anon 64")
        child.do("free")
        high = peak_of(child.pid)
        result = run(Attached(child, takes_mib=16))
        assert result.trial.outcome == "ok"
        assert process_exists(child.pid)
        assert "exited" not in marks(result)
        assert slugs(result) == ["peak-not-reset"]
        assert "did not start" in result.warnings[0].message
        assert peak_of(child.pid) == high
        grown = marks(result)["after_request"].anon_bytes - marks(result)["before_request"].anon_bytes
        assert 16 * MIB <= grown < 17 * MIB
        # Its counter still holds the 64 MiB of before, which are not this trial's.
        peak = metrics_of(result).memory_peak_bytes
        assert peak is not None
        assert peak - marks(result)["before_request"].anon_bytes < 20 * MIB

    def test_one_that_is_nowhere_on_this_machine(self, child: Child) -> None:
        result = run(Unseen(child))
        assert result.trial.outcome == "ok"
        assert slugs(result) == ["memory-not-seen"]
        assert (result.marks, result.samples, result.maps) == ((), (), ())
        assert metrics_of(result).memory_peak_bytes is None
        assert {row.phase for row in result.statistics} == {"launched", "loaded", "before_request", "after_request"}
        assert process_exists(child.pid)


def peak_of(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


class TestCountersOfTheEngine:
    def test_they_are_kept_at_marks_by_name(self, child: Child) -> None:
        result = run(InProcess(child))
        rows = [row for row in result.statistics if row.phase == "after_request"]
        assert {(row.name, row.value) for row in rows} == {("requests_running", 0.0), ("prompt_tokens", 9.0)}
        assert {row.request_index for row in rows} == {1}
        mark = marks(result)["after_request"]
        assert {row.at_s for row in rows} == {mark.at_s}
        # Before the load too: an engine may count its own heap then.
        assert "launched" in {row.phase for row in result.statistics}

    def test_they_are_never_asked_for_while_a_request_runs(self, child: Child) -> None:
        engine = InProcess(child)
        run(engine)
        between = [after for before, after in zip(engine.told, engine.told[1:], strict=False) if before == "asked"]
        assert between == ["answered", "answered"]
        assert "statistics" in engine.told

    def test_an_engine_that_does_not_give_them_is_still_measured(self, child: Child) -> None:
        engine = InProcess(child)
        engine.counters = EngineDied("no answer")
        result = run(engine)
        assert result.trial.outcome == "ok"
        assert slugs(result) == ["statistics-unavailable"]
        assert result.statistics == ()

    def test_without_a_model_there_is_nothing_to_ask(self, child: Child) -> None:
        class OnlyWithModel(InProcess):
            def statistics(self) -> Mapping[str, float]:
                if not self.memory.loaded:
                    raise EngineDied("no model loaded")
                return super().statistics()

        result = run(OnlyWithModel(child))
        assert "unloaded" in marks(result)
        assert slugs(result) == []
        assert {row.phase for row in result.statistics} == {"loaded", "before_request", "after_request"}


class Device:
    """A device on which the engine holds 70 MiB and somebody else the rest."""

    name = "a GPU"

    def __init__(self, fail_from: int | None = None) -> None:
        self.reads = 0
        self.fail_from = fail_from
        self.others = {"desktop": 300 * MIB}
        self.closed = False

    def unavailable(self) -> str | None:
        return None

    def device_names(self) -> tuple[str, ...]:
        return ("GPU #0",)

    def read(self) -> Mapping[str, int]:
        self.reads += 1
        if self.fail_from is not None and self.reads >= self.fail_from:
            raise ProbeLost("it fell off the bus")
        return {"device_bytes": 70 * MIB, "device_used_bytes": 400 * MIB, "device_total_bytes": 1000 * MIB}

    def occupants(self, exclude: Collection[int]) -> tuple[DeviceOccupant, ...]:
        return tuple(
            DeviceOccupant(device="GPU #0", pid=4, name=name, held_bytes=held) for name, held in self.others.items()
        )

    def doubts(self) -> tuple[str, ...]:
        return ()

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def device(no_devices: None, monkeypatch: pytest.MonkeyPatch) -> Device:
    device = Device()
    found = (DevicesProbe([device]), None)
    monkeypatch.setattr(trial_memory, "devices_here", lambda pids: found)
    monkeypatch.setattr(neighbours, "devices_here", lambda pids: found)
    return device


class TestDevices:
    def test_host_and_device_curves_have_one_clock(self, child: Child, device: Device) -> None:
        result = run(InProcess(child))
        assert slugs(result) == []
        curves = {s.quantity: [] for s in result.samples}  # type: dict[str, list[float]]
        for sample in result.samples:
            curves[sample.quantity].append(sample.at_s)
        assert {"anon_bytes", "device_bytes", "device_used_bytes"} <= set(curves)
        assert result.trial.duration_s is not None
        for times in curves.values():
            assert 0 <= min(times) <= max(times) <= result.trial.duration_s
        assert {mark.device_bytes for mark in result.marks if mark.phase != "exited"} == {70 * MIB}
        assert marks(result)["exited"].device_bytes == 0
        assert metrics_of(result).memory_peak_bytes_device == 70 * MIB
        probes = result.trial.client["probes"]
        assert probes["devices"]["interval_s"] > probes["process tree"]["interval_s"] == 0.02
        assert device.closed

    def test_one_that_fails_ends_alone(self, child: Child, device: Device) -> None:
        device.fail_from = 2
        result = run(InProcess(child))
        assert result.trial.outcome == "ok"
        assert set(slugs(result)) <= {"reading-failed", "samples-stopped"}
        assert "reading-failed" in slugs(result)
        last = result.marks[-2]  # before the exit
        assert last.device_bytes is None
        assert last.anon_bytes > 0
        # The curve of the host goes on to the end.
        assert max(s.at_s for s in result.samples if s.quantity == "anon_bytes") > marks(result)["loaded"].at_s

    def test_who_else_holds_memory_there_and_that_it_moved(
        self, child: Child, device: Device, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(neighbours, "MOVED_BYTES", 256 * MIB)

        class Game(InProcess):
            def generate(self, request: ChatRequest) -> Generation:
                device.others = {"desktop": 300 * MIB, "game": 900 * MIB}
                return super().generate(request)

        result = run(Game(child))
        found = [(row.phase, row.device, row.name, row.resident_bytes) for row in result.occupants if row.device]
        assert found == [
            ("before", "GPU #0", "desktop", 300 * MIB),
            ("after", "GPU #0", "desktop", 300 * MIB),
            ("after", "GPU #0", "game", 900 * MIB),
        ]
        assert slugs(result) == ["occupants-moved"]
        assert "game on GPU #0" in result.warnings[0].message
        assert "desktop" not in result.warnings[0].message

    def test_without_devices_nothing_is_claimed(self, child: Child) -> None:
        result = run(InProcess(child))
        assert {(mark.device_bytes, mark.device_peak_bytes) for mark in result.marks} == {(None, None)}
        assert metrics_of(result).memory_released_bytes_device is None

    def test_a_gpu_that_cannot_be_read_is_said(self, child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(trial_memory, "devices_here", lambda pids: (None, "install this"))
        result = run(InProcess(child))
        assert slugs(result) == ["device-not-seen"]
        assert "install this" in result.warnings[0].message


# No process has this id: above the most that Linux gives out (PID_MAX_LIMIT).
NOBODY = 2**22 + 1


class TestOthersOnTheMachine:
    def test_a_program_that_grew_while_the_trial_ran_is_named(
        self, child: Child, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real_look: Callable[..., occupants.Occupancy] = occupants.look
        # This test's own children are to be strangers: kvscope is looked for at a process that does not exist.
        monkeypatch.setattr(neighbours, "look", lambda pids: real_look(pids, kvscope_pid=NOBODY))
        monkeypatch.setattr(occupants, "MOVED_BYTES", 256 * MIB)
        monkeypatch.setattr(neighbours, "MOVED_BYTES", 256 * MIB)
        stranger = Child()
        name = f"sole-{os.getpid()}"  # nobody else's, so that only this process counts
        stranger.do(f"name {name}")

        class Busy(InProcess):
            def generate(self, request: ChatRequest) -> Generation:
                if "asked" not in self.told:
                    stranger.do("anon 300")
                return super().generate(request)

        try:
            result = run(Busy(child))
        finally:
            stranger.end()
        said = next(warning for warning in result.warnings if warning.slug == "occupants-moved")
        assert f"{name} " in said.message
        assert " → " in said.message
        assert {row.phase for row in result.occupants} == {"before", "after"}

    def test_neither_kvscope_nor_the_engine_are_others(self, child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(neighbours, "KEPT", 10_000)
        result = run(InProcess(child, takes_mib=32))
        assert {row.pid for row in result.occupants} & {child.pid, os.getpid()} == set()

    def test_a_server_that_is_found_only_when_it_is_asked_is_no_other(
        self, child: Child, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its process is known once it has been spoken to; until then it looks like anybody's."""
        real_look: Callable[..., occupants.Occupancy] = occupants.look
        monkeypatch.setattr(neighbours, "look", lambda pids: real_look(pids, kvscope_pid=NOBODY))
        monkeypatch.setattr(neighbours, "KEPT", 10_000)

        class FoundLater(Attached):
            is_found = False

            def launch(self) -> None:
                super().launch()
                self.is_found = True

            def pids(self) -> tuple[int, ...]:
                return super().pids() if self.is_found else ()

        result = run(FoundLater(child))
        assert {row.phase for row in result.occupants} == {"before", "after"}
        assert child.pid not in {row.pid for row in result.occupants}


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group of version 1 with room for 32 MiB, made for this test and taken away after it."""
    folder = Path("/sys/fs/cgroup/memory") / f"kvscope-trial-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / "memory.limit_in_bytes").write_text(str(32 * MIB))
    except OSError as error:
        with contextlib.suppress(OSError):
            folder.rmdir()
        pytest.skip(f"no control group of version 1 can be made here ({error})")
    with contextlib.suppress(OSError):
        (folder / "memory.memsw.limit_in_bytes").write_text(str(32 * MIB))
    yield folder
    for _ in range(100):
        with contextlib.suppress(OSError):
            folder.rmdir()
            return
        time.sleep(0.05)
    raise AssertionError(f"{folder} could not be taken away")


def test_a_kill_for_want_of_memory_is_seen(child: Child, small_group: Path) -> None:
    (small_group / "cgroup.procs").write_text(str(child.pid))
    result = run(InProcess(child, takes_mib=100))
    assert result.trial.outcome == "engine_died"
    assert "oom-kill-seen" in slugs(result)
    found = marks(result)
    assert found["before_request"].cgroup_oom_kills == 0
    assert found["exited"].cgroup_oom_kills == 1
    assert found["exited"].cgroup_peak_bytes is not None
    assert 31 * MIB <= found["exited"].cgroup_peak_bytes <= 32 * MIB


def test_what_the_group_holds_is_kept_beside_the_engines_own(child: Child, small_group: Path) -> None:
    (small_group / "cgroup.procs").write_text(str(child.pid))
    result = run(InProcess(child, takes_mib=16))
    assert result.trial.outcome == "ok"
    before, after = (marks(result)[phase].cgroup_bytes for phase in ("before_request", "after_request"))
    assert before is not None
    assert after is not None
    assert 16 * MIB <= after - before < 18 * MIB
    assert "cgroup_bytes" in {sample.quantity for sample in result.samples}
    assert "oom-kill-seen" not in slugs(result)


def test_pss_is_kept_as_information_only(child: Child) -> None:
    result = run(InProcess(child))
    kept = result.trial.client["information"]["pss_bytes"]
    assert set(kept) >= {"launched", "loaded", "after_request"}
    assert all(value > 0 for value in kept.values())


def test_another_users_engine_is_measured_without_its_memory(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def refuse(path: str, *arguments: int, **more: int) -> int:
        if str(child.pid) in str(path):
            raise PermissionError(13, "Permission denied")
        return opened(path, *arguments, **more)

    monkeypatch.setattr(os, "open", refuse)
    result = run(Attached(child))
    assert result.trial.outcome == "ok"
    assert "probe-unavailable" in slugs(result)
    assert result.marks == ()


def test_a_machine_without_proc(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Mac: nothing of /proc is there. The trial is measured, and says what it does not know."""

    def absent(*_: object, **__: object) -> None:
        raise ProbeUnavailable("There is no /proc.")

    monkeypatch.setattr(trial_memory, "machine_memory", absent)
    monkeypatch.setattr(occupants, "machine_memory", absent)
    monkeypatch.setattr(trial_memory.ProcessTreeProbe, "unavailable", lambda self: "There is no /proc.")
    monkeypatch.setattr(trial_memory.FootprintProbe, "unavailable", lambda self: None)
    monkeypatch.setattr(trial_memory.FootprintProbe, "read", lambda self: {"footprint_bytes": 5 * MIB})
    result = run(InProcess(child))
    assert result.trial.outcome == "ok"
    assert slugs(result) == ["probe-unavailable"]
    assert [mark.phase for mark in result.marks] == ["exited"]
    assert result.marks[0].machine_available_bytes is None
    assert {s.value_bytes for s in result.samples if s.quantity == "footprint_bytes"} == {5 * MIB}
    assert result.occupants == ()


class Shared(Unseen):
    """It counts as a server does, and works for somebody else too: so many tokens in each measured request."""

    name = "llama.cpp"

    def __init__(self, child: Child, *, prompt_beyond: int = 0, output_beyond: int = 0, at_work: int = 0) -> None:
        super().__init__(child)
        self.beyond = {"prompt_tokens": prompt_beyond, "output_tokens": output_beyond}
        self.counted = {"prompt_tokens": 1000, "output_tokens": 500}
        self.at_work = at_work

    def generate(self, request: ChatRequest) -> Generation:
        answer = super().generate(request)
        ours = {
            "prompt_tokens": (answer.prompt_tokens or 0) - (answer.cached_tokens or 0),
            "output_tokens": answer.output_tokens or 0,
        }
        for name in self.counted:
            self.counted[name] += ours[name] + (self.beyond[name] if request.max_output_tokens == 4 else 0)
        return answer

    def statistics(self) -> Mapping[str, float]:
        return {**self.counted, "requests_running": self.at_work, "requests_waiting": 0}


class TestAServerThatWorksForOthersToo:
    def test_what_it_computed_beyond_ours_is_told(self, child: Child) -> None:
        assert slugs(run(Shared(child))) == ["memory-not-seen"]
        (warning,) = (
            each for each in run(Shared(child, prompt_beyond=70, output_beyond=9)).warnings if "others" in each.slug
        )
        # The warm-up and the one measured request, of 4 tokens each.
        assert "140 prompt tokens and 18 output tokens." in warning.message
        assert "others-requests" in slugs(run(Shared(child, output_beyond=1)))

    def test_a_request_at_work_while_none_of_ours_is(self, child: Child) -> None:
        (warning,) = (each for each in run(Shared(child, at_work=2)).warnings if "others" in each.slug)
        assert "2 requests at work while none of these was" in warning.message
        late = Shared(child, at_work=2)
        late.capabilities = replace(late.capabilities, counts_by_requests=True)
        assert "others-requests" not in slugs(run(late))

    def test_a_counter_that_began_anew_says_nothing(self, child: Child) -> None:
        assert slugs(run(Shared(child, prompt_beyond=-2000))) == ["memory-not-seen"]

    def test_requests_that_only_count_are_not_taken_for_others(self, child: Child) -> None:
        engine = Shared(child)
        engine.capabilities = replace(engine.capabilities, counts_by_requests=True)
        assert "others-requests" not in slugs(run(engine))


def test_what_an_engine_left_running_is_told(child: Child) -> None:
    parent = subprocess.Popen(["sh", "-c", "sleep 300 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    left = int(parent.stdout.readline())

    class Leaving(InProcess):
        def pids(self) -> tuple[int, ...]:
            return (parent.pid,)

        def stop(self) -> None:
            parent.kill()
            parent.wait()

    try:
        result = run(Leaving(child))
        (warning,) = (each for each in result.warnings if each.slug == "engine-still-running")
        assert str([left]) in warning.message
        assert "exited" not in marks(result)
    finally:
        os.kill(left, signal.SIGKILL)  # started by this test
        parent.stdout.close()
