"""The process probe against a child that takes known amounts."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvscope.errors import ProbeLost, ProbeUnavailable
from kvscope.probe.proc import ProcessTreeProbe, process_exists, process_tree
from kvscope.units import MIB

if TYPE_CHECKING:
    from conftest import Occupant

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's /proc")

# What Python itself may take or give back around a command.
SLACK_BYTES = 256 * 1024


def test_anonymous_memory_is_seen_when_it_is_touched(occupant: "Occupant") -> None:
    probe = ProcessTreeProbe(occupant.pids)
    before = probe.read()
    occupant.do("reserve 64")
    assert probe.read()["anon_bytes"] - before["anon_bytes"] < SLACK_BYTES
    occupant.do("anon 64")
    after = probe.read()
    assert 64 * MIB <= after["anon_bytes"] - before["anon_bytes"] < 64 * MIB + SLACK_BYTES
    assert after["swap_bytes"] == before["swap_bytes"] == 0
    occupant.do("free")
    assert probe.read()["anon_bytes"] - before["anon_bytes"] < SLACK_BYTES


def test_a_mapped_file_is_file_backed(occupant: "Occupant", tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    path.write_bytes(os.urandom(8 * MIB))
    probe = ProcessTreeProbe(occupant.pids)
    before = probe.read()
    occupant.do(f"file {path}")
    after = probe.read()
    assert 8 * MIB <= after["file_bytes"] - before["file_bytes"] < 8 * MIB + SLACK_BYTES
    assert after["anon_bytes"] - before["anon_bytes"] < SLACK_BYTES


def test_shared_memory_is_neither(occupant: "Occupant") -> None:
    probe = ProcessTreeProbe(occupant.pids)
    before = probe.read()
    occupant.do("shared 4")
    after = probe.read()
    assert after["shmem_bytes"] - before["shmem_bytes"] == 4 * MIB
    assert after["anon_bytes"] - before["anon_bytes"] < SLACK_BYTES


def test_the_peak_stays_until_it_is_reset(occupant: "Occupant") -> None:
    probe = ProcessTreeProbe(occupant.pids)
    before = probe.read()["peak_bytes"]
    occupant.do("anon 32")
    occupant.do("free")
    peak = probe.read()["peak_bytes"]
    assert peak - before >= 31 * MIB
    assert probe.reset_peak() is None
    after = probe.read()
    resident = after["anon_bytes"] + after["file_bytes"] + after["shmem_bytes"]
    assert after["peak_bytes"] < peak - 31 * MIB
    assert abs(after["peak_bytes"] - resident) < SLACK_BYTES
    occupant.do("anon 16")
    occupant.do("free")
    assert abs(probe.read()["peak_bytes"] - resident - 16 * MIB) < SLACK_BYTES


def test_children_and_theirs_are_counted(occupant: "Occupant") -> None:
    probe = ProcessTreeProbe(occupant.pids)
    before = probe.read()["anon_bytes"]
    occupant.do("fork fork=anon=32")
    fresh = ProcessTreeProbe(occupant.pids)
    assert len(fresh.tree()) == 3
    assert fresh.tree()[0] == occupant.pid
    assert fresh.read()["anon_bytes"] - before >= 32 * MIB
    until_s = time.monotonic() + 5
    while len(probe.tree()) < 3 and time.monotonic() < until_s:
        time.sleep(0.05)
    assert probe.tree() == fresh.tree()  # one that was watching already finds them too, a little later


def test_a_child_that_was_started_just_now_is_seen_where_it_is_looked_for_again(occupant: "Occupant") -> None:
    """Within the second in which the tree is not looked for anew: Ollama's runner of a small model is up sooner."""
    probe = ProcessTreeProbe(occupant.pids)
    before = probe.tree()
    occupant.do("fork anon=8")
    probe.look_again()
    assert len(probe.tree()) == len(before) + 1


def test_the_tree_where_the_kernel_lists_no_children(occupant: "Occupant", tmp_path: Path) -> None:
    """A /proc with a process whose name holds spaces and parentheses, as names may."""
    for pid, parent, name in ((10, 1, "engine"), (11, 10, "a (b) c"), (12, 11, "x) S 1 "), (13, 1, "other")):
        folder = tmp_path / str(pid)
        folder.mkdir()
        (folder / "stat").write_text(f"{pid} ({name}) S {parent} 0 0")
    (tmp_path / "self").mkdir()
    assert process_tree([10], tmp_path) == (10, 11, 12)
    assert process_tree([13, 10, 11], tmp_path) == (13, 10, 11, 12)


def test_one_that_has_gone(occupant: "Occupant") -> None:
    probe = ProcessTreeProbe(occupant.pids)
    probe.read()
    os.kill(occupant.pid, signal.SIGKILL)
    os.waitid(os.P_PID, occupant.pid, os.WEXITED | os.WNOWAIT)
    # It has ended and was not collected: there is an entry, and nothing behind it.
    assert not process_exists(occupant.pid)
    with pytest.raises(ProbeLost, match=str(occupant.pid)):
        probe.read()
    occupant.end()
    with pytest.raises(ProbeLost):
        probe.read()
    with pytest.raises(ProbeLost):
        probe.maps()
    assert probe.reset_peak() is not None


def test_nothing_to_watch() -> None:
    with pytest.raises(ProbeLost, match="none"):
        ProcessTreeProbe(lambda: ()).read()


def test_what_may_not_be_read_is_said(tmp_path: Path, occupant: "Occupant", monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    probe = ProcessTreeProbe(occupant.pids)
    with pytest.raises(ProbeUnavailable, match=f"{occupant.pid} may not be read") as caught:
        probe.read()
    assert "another user" in str(caught.value.hint)


def test_where_there_is_no_proc(tmp_path: Path) -> None:
    assert ProcessTreeProbe(lambda: ()).unavailable() is None
    assert "is not there" in str(ProcessTreeProbe(lambda: (), proc=tmp_path).unavailable())
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "status").write_text("VmRSS:\t 1 kB\n")
    assert "RssAnon" in str(ProcessTreeProbe(lambda: (), proc=tmp_path).unavailable())


class TestMaps:
    def test_each_large_mapping_stands_alone(self, occupant: "Occupant", tmp_path: Path) -> None:
        path = tmp_path / "weights.bin"
        path.write_bytes(os.urandom(3 * MIB))
        occupant.do(f"file {path}")
        occupant.do("anon 40")
        maps = ProcessTreeProbe(occupant.pids).maps()
        file = next(m for m in maps if m.name == str(path))
        assert (file.kind, file.size_bytes, file.resident_bytes, file.anonymous_bytes) == ("file", 3 * MIB, 3 * MIB, 0)
        # The kernel may join it to an idle neighbour, which adds size but nothing resident.
        large = [m for m in maps if m.kind == "anonymous" and m.size_bytes >= 40 * MIB]
        assert [m for m in large if 40 * MIB <= m.anonymous_bytes < 40 * MIB + SLACK_BYTES]

    def test_all_anonymous_bytes_are_somewhere(self, occupant: "Occupant") -> None:
        occupant.do("anon 8")
        occupant.do("thread")
        probe = ProcessTreeProbe(occupant.pids)
        mapped = sum(m.anonymous_bytes for m in probe.maps())
        assert abs(mapped - probe.read()["anon_bytes"]) < SLACK_BYTES

    def test_heap_arena_and_stacks_are_told_apart(self, occupant: "Occupant") -> None:
        probe = ProcessTreeProbe(occupant.pids)
        before = {m.kind: m for m in probe.maps()}
        occupant.do("thread")
        after = {m.kind: m for m in probe.maps()}
        assert after["heap"].count == 1
        # 2,000 pieces of 1,000 bytes each, from the thread's own arena.
        grown = after["arena"].resident_bytes - (before["arena"].resident_bytes if "arena" in before else 0)
        assert 2_000_000 <= grown < 4_000_000
        assert after["stack"].count == before["stack"].count + 1


def test_the_probe_of_a_process_that_was_never_ours_only_reads(occupant: "Occupant") -> None:
    """Nothing is signalled: the child would not survive it."""
    probe = ProcessTreeProbe(occupant.pids)
    for _ in range(5):
        probe.read()
        probe.maps()
        probe.reset_peak()
    occupant.do("nothing")
    assert subprocess.Popen.poll(occupant.process) is None


def status(anon_kib: int, swap_kib: int, file_kib: int) -> str:
    """The lines of proc_pid_status(5) that matter, in the kernel's order."""
    resident = anon_kib + file_kib
    return (
        f"Name:\tollama\nState:\tS (sleeping)\nVmPeak:\t 99999999 kB\nVmSize:\t 99999999 kB\nVmHWM:\t {resident} kB\n"
        f"VmRSS:\t {resident} kB\nRssAnon:\t {anon_kib} kB\nRssFile:\t {file_kib} kB\nRssShmem:\t 0 kB\n"
        f"VmData:\t 99999999 kB\nVmSwap:\t {swap_kib} kB\n"
    )


def process_folder(proc: Path, pid: int, text: str, started: int = 500) -> Path:
    folder = proc / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "status").write_text(text)
    fields = ["S", "1", *["0"] * 17, str(started), "0"]  # state is the 3rd field, the start time the 22nd
    (folder / "stat").write_text(f"{pid} (ollama) {' '.join(fields)}\n")
    return folder


def test_what_was_swapped_out_is_held(tmp_path: Path) -> None:
    """R03 (ollama/ollama#18106): RSS of 70 MiB, while RssAnon + VmSwap are 9.35 GiB. VmSize is in no reading."""
    swap_kib = round(9.35 * 1024 * 1024) - 40 * 1024
    process_folder(tmp_path, 7, status(40 * 1024, swap_kib, 30 * 1024))
    reading = ProcessTreeProbe(lambda: (7,), proc=tmp_path).read()
    assert reading["anon_bytes"] + reading["file_bytes"] == 70 * MIB
    assert reading["anon_bytes"] + reading["swap_bytes"] == pytest.approx(9.35 * 1024**3, abs=1024)
    assert all(value < 10 * 1024**3 for value in reading.values())


def test_an_id_that_passed_to_another_process_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvscope.probe.proc._TREE_REFRESH_S", 0.0)
    process_folder(tmp_path, 7, status(1000, 0, 0), started=500)
    probe = ProcessTreeProbe(lambda: (7,), proc=tmp_path)
    assert probe.read()["anon_bytes"] == 1000 * 1024
    process_folder(tmp_path, 7, status(555_000, 0, 0), started=900)
    with pytest.raises(ProbeLost, match="7"):
        probe.read()


def test_one_that_ends_while_it_is_read(occupant: "Occupant") -> None:
    """Read as fast as it goes, in a thread, while the process is ended: every reading is whole, then it is lost."""
    probe = ProcessTreeProbe(occupant.pids)
    readings: list[int] = []
    ends: list[BaseException] = []

    def watch() -> None:
        try:
            while True:
                readings.append(probe.read()["anon_bytes"])
        except BaseException as error:
            ends.append(error)

    occupant.do("anon 8")
    watching = threading.Thread(target=watch)
    watching.start()
    while len(readings) < 100:
        probe.reset_peak()  # the trial's own thread uses the probe too
    occupant.process.kill()
    watching.join(10)
    assert isinstance(ends[0], ProbeLost)
    assert min(readings) >= 8 * MIB


UNPRIVILEGED = """
import os, sys
from kvscope.probe.proc import ProcessTreeProbe  # before, as another user may not read this checkout
os.setgroups([]); os.setgid(65534); os.setuid(65534)
probe = ProcessTreeProbe(lambda: (int(sys.argv[1]),))
for name in ("read", "maps", "reset_peak", "pss_bytes"):
    try:
        print(name, getattr(probe, name)())
    except Exception as error:
        print(name, type(error).__name__, error, error.hint)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_users_process(occupant: "Occupant") -> None:
    """/proc/PID/status may be read by all; its mappings and its peak counter may not."""
    command = [sys.executable, "-c", UNPRIVILEGED, str(occupant.pid)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert done.returncode == 0, done.stderr
    assert "anon_bytes" in said["read"]
    assert said["maps"].startswith("ProbeUnavailable")
    assert "another user" in said["maps"]
    assert "cannot be reset (Permission denied)" in said["reset_peak"]
    assert said["pss_bytes"] == "None"


def test_pss_is_shared_out_and_information_only(occupant: "Occupant") -> None:
    probe = ProcessTreeProbe(occupant.pids)
    pss, reading = probe.pss_bytes(), probe.read()
    assert pss is not None
    assert reading["anon_bytes"] - SLACK_BYTES <= pss <= sum(reading[k] for k in reading if k != "peak_bytes")
    assert "pss_bytes" not in reading
    occupant.end()
    assert probe.pss_bytes() is None


def test_the_engine_is_not_asked_for_its_processes_at_every_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An adapter looks them up, which can cost more than the reading; but one that has just come is seen at once."""
    monkeypatch.setattr("kvscope.probe.proc.time.monotonic", lambda: 100.0)
    asked: list[tuple[int, ...]] = [()]
    calls: list[None] = []

    def pids() -> tuple[int, ...]:
        calls.append(None)
        return asked[0]

    probe = ProcessTreeProbe(pids, proc=tmp_path)
    with pytest.raises(ProbeLost):
        probe.read()
    asked[0] = (7, 8)
    process_folder(tmp_path, 7, status(1000, 0, 0))
    process_folder(tmp_path, 8, status(500, 0, 0))
    assert probe.read()["anon_bytes"] == 1500 * 1024
    calls.clear()
    for _ in range(100):
        probe.read()
    assert calls == []
    # One ends: its share is gone at once, and who is there is looked up again, once.
    (tmp_path / "8" / "status").write_text("Name:\tollama\nState:\tZ (zombie)\n")
    for _ in range(100):
        assert probe.read()["anon_bytes"] == 1000 * 1024
    assert len(calls) == 1
