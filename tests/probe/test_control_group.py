"""The control group of the engine's process: for real where this machine lets a group be made (version 1, as root), and
on files as the kernel's documentation writes them (admin-guide/cgroup-v2.rst)."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvscope.errors import ProbeLost, ProbeUnavailable
from kvscope.probe.control_group import ControlGroupProbe
from kvscope.units import MIB

MEMORY_V1 = Path("/sys/fs/cgroup/memory")
LIMIT = 32 * MIB
# Joins the group, says so, and takes as many MiB as each line of its input says.
TAKES = """
import sys
from pathlib import Path
Path(sys.argv[1], "cgroup.procs").write_text("0")
print("joined", flush=True)
held = []
for line in sys.stdin:
    held.append(bytearray(b"x") * (int(line) * 1024 * 1024))
    print("ok", flush=True)
"""


@pytest.fixture
def group() -> Iterator[Path]:
    """A group of version 1 with a small limit, made for this test and taken away after it."""
    folder = MEMORY_V1 / f"kvscope-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / "memory.limit_in_bytes").write_text(str(LIMIT))
    except OSError as error:
        with contextlib.suppress(OSError):
            folder.rmdir()
        pytest.skip(f"no control group of version 1 can be made here ({error})")
    with contextlib.suppress(OSError):  # where swap is accounted for: no way around the limit
        (folder / "memory.memsw.limit_in_bytes").write_text(str(LIMIT))
    yield folder
    for _ in range(100):
        try:
            folder.rmdir()
        except OSError:  # the last process is still being taken down
            time.sleep(0.05)
        else:
            return
    raise AssertionError(f"{folder} could not be taken away")


@pytest.fixture
def taker(group: Path) -> Iterator["subprocess.Popen[str]"]:
    child = subprocess.Popen(
        [sys.executable, "-c", TAKES, str(group)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdin is not None
    assert child.stdout.readline() == "joined\n"
    yield child
    if child.poll() is None:
        child.kill()
    child.wait()
    child.stdout.close()
    with contextlib.suppress(BrokenPipeError):
        child.stdin.close()


def take(child: "subprocess.Popen[str]", mib: int) -> str:
    """Empty where the child did not survive it."""
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(f"{mib}\n")
    child.stdin.flush()
    return child.stdout.readline()


class TestForReal:
    def test_what_it_holds_and_the_most_it_held(self, group: Path, taker: "subprocess.Popen[str]") -> None:
        probe = ControlGroupProbe(lambda: (taker.pid,))
        before = probe.read()
        assert take(taker, 12) == "ok\n"
        after = probe.read()
        assert 12 * MIB <= after["cgroup_bytes"] - before["cgroup_bytes"] < 14 * MIB
        assert after["cgroup_peak_bytes"] >= after["cgroup_bytes"] - MIB
        assert after["cgroup_oom_kills"] == 0

    def test_a_kill_for_want_of_memory_is_seen_after_the_process_has_gone(
        self, group: Path, taker: "subprocess.Popen[str]"
    ) -> None:
        probe = ControlGroupProbe(lambda: (taker.pid,))
        assert probe.read()["cgroup_oom_kills"] == 0
        assert take(taker, 64) == ""  # twice the limit
        assert taker.wait() == -signal.SIGKILL
        reading = probe.read()
        assert reading["cgroup_oom_kills"] == 1
        assert LIMIT - MIB <= reading["cgroup_peak_bytes"] <= LIMIT

    def test_a_kill_by_someone_is_not_one(self, group: Path, taker: "subprocess.Popen[str]") -> None:
        probe = ControlGroupProbe(lambda: (taker.pid,))
        probe.read()
        taker.kill()
        taker.wait()
        assert probe.read()["cgroup_oom_kills"] == 0

    def test_the_peak_starts_anew_where_nobody_else_is_inside(
        self, group: Path, taker: "subprocess.Popen[str]"
    ) -> None:
        probe = ControlGroupProbe(lambda: (taker.pid,))
        (group / "memory.max_usage_in_bytes").write_text("0")
        take(taker, 12)
        counter = group / "memory.max_usage_in_bytes"
        # The kernel charges pages in batches, so use right after a reset is not zero but what is held now.
        assert probe.reset_peak() is None
        reading = probe.read()
        assert abs(reading["cgroup_peak_bytes"] - reading["cgroup_bytes"]) < MIB
        assert int(counter.read_text()) == reading["cgroup_peak_bytes"]

    def test_a_counter_that_others_read_too_is_left_alone(self, group: Path, taker: "subprocess.Popen[str]") -> None:
        stranger = subprocess.Popen(["sleep", "60"])
        try:
            (group / "cgroup.procs").write_text(str(stranger.pid))
            # Both are children of this process, which stands for kvscope: nobody else is inside.
            assert ControlGroupProbe(lambda: (taker.pid,)).reset_peak() is None
            take(taker, 4)
            peak = (group / "memory.max_usage_in_bytes").read_text()
            # Seen from another kvscope that watches only one of them.
            code = "import sys; from kvscope.probe.control_group import ControlGroupProbe as P\n"
            code += "print(P(lambda: (int(sys.argv[1]),)).reset_peak())"
            command = [sys.executable, "-c", code, str(taker.pid)]
            assert "other programs" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
            assert (group / "memory.max_usage_in_bytes").read_text() == peak
        finally:
            stranger.kill()
            stranger.wait()

    def test_a_group_that_has_gone(self, group: Path) -> None:
        child = subprocess.Popen(
            [sys.executable, "-c", TAKES, str(group)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        child.stdout.readline()
        probe = ControlGroupProbe(lambda: (child.pid,))
        probe.read()
        child.communicate()
        for _ in range(100):
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.05)
        with pytest.raises(ProbeLost, match="has gone"):
            probe.read()
        group.mkdir()  # the fixture takes it away


EVENTS = "low 0\nhigh 3\nmax 12\noom 2\noom_kill {}\noom_group_kill 0\n"


def version_2(tmp_path: Path, files: dict[str, str], path: str = "/job", own: str = "/") -> Path:
    """A /proc with process 7 in the group ``path``, this process in ``own``; files of the group beside it."""
    proc, root = tmp_path / "proc", tmp_path / "cgroup"
    for name, member in (("7", path), ("self", own)):
        (proc / name).mkdir(parents=True)
        (proc / name / "cgroup").write_text(f"0::{member}\n")
    (proc / "self" / "mountinfo").write_text(f"29 23 0:26 / {root} rw - cgroup2 cgroup2 rw,nsdelegate\n")
    (root / "job").mkdir(parents=True)
    for file, text in files.items():
        (root / "job" / file).write_text(text)
    return proc


FILES = {
    "memory.current": f"{300 * MIB}\n",
    "memory.peak": f"{700 * MIB}\n",
    "memory.events": EVENTS.format(3),
    "memory.events.local": EVENTS.format(1),
}


def test_version_2(tmp_path: Path) -> None:
    probe = ControlGroupProbe(lambda: (7,), proc=version_2(tmp_path, FILES))
    assert probe.read() == {
        "cgroup_bytes": 300 * MIB,
        "cgroup_peak_bytes": 700 * MIB,
        "cgroup_oom_kills": 3,
        "cgroup_oom_kills_local": 1,
    }
    assert probe.unavailable() is None


def test_what_an_older_kernel_does_not_state_is_left_out(tmp_path: Path) -> None:
    """memory.peak came with 5.19, memory.events.local with 5.2."""
    files = {name: FILES[name] for name in ("memory.current", "memory.events")}
    probe = ControlGroupProbe(lambda: (7,), proc=version_2(tmp_path, files))
    assert probe.read() == {"cgroup_bytes": 300 * MIB, "cgroup_oom_kills": 3}
    assert "cannot be reset" in str(probe.reset_peak())


def test_the_reset_peak_of_version_2_is_read_from_the_file_that_reset_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ "A write of any non-empty string to this file resets it to the current memory usage for subsequent reads through
    the same file descriptor." Stood in for by a patched write, since a plain file has no such counter."""
    written: list[int] = []

    def reset(file: int, text: bytes) -> int:
        assert text
        written.append(file)
        os.ftruncate(file, 0)
        return os.pwrite(file, b"314572800\n", 0)

    proc = version_2(tmp_path, FILES)
    probe = ControlGroupProbe(lambda: (7,), proc=proc)
    monkeypatch.setattr(os, "write", reset)
    assert probe.reset_peak() is None
    peak = tmp_path / "cgroup" / "job" / "memory.peak"
    peak.unlink()
    peak.write_text(f"{900 * MIB}\n")  # what any other reader sees
    assert probe.read()["cgroup_peak_bytes"] == 300 * MIB
    assert probe.reset_peak() is None
    assert written[0] == written[1]
    probe.close()
    assert probe.read()["cgroup_peak_bytes"] == 900 * MIB


def test_groups_that_cannot_be_seen(tmp_path: Path) -> None:
    outside = ControlGroupProbe(lambda: (7,), proc=version_2(tmp_path / "a", FILES, path="/../other"))
    with pytest.raises(ProbeUnavailable, match="shows the process's group"):
        outside.read()
    root = ControlGroupProbe(lambda: (7,), proc=version_2(tmp_path / "b", FILES, path="/"))
    with pytest.raises(ProbeUnavailable, match="no memory accounting"):
        root.read()
    assert "no memory accounting" in str(root.unavailable())
    with pytest.raises(ProbeLost, match="no process"):
        ControlGroupProbe(lambda: ()).read()
