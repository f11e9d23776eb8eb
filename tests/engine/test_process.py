"""Starting, watching and ending a program of ours; the program is Python itself, or a shell."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvscope.engine.process import MOST_READ_BYTES, EngineProcess
from kvscope.errors import EngineDied, EngineNotFound, EngineTimeout
from kvscope.probe.proc import process_exists, process_tree

Start = Callable[..., EngineProcess]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[EngineProcess] = []

    def run(code: str, *, talks: bool = True) -> EngineProcess:
        process = EngineProcess((sys.executable, "-c", textwrap.dedent(code)), name="program", talks=talks)
        started.append(process)
        process.start()
        return process

    yield run
    for process in started:
        process.stop(grace_s=0.2)


def await_that(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    until_s = time.monotonic() + seconds
    while not condition() and time.monotonic() < until_s:
        time.sleep(0.01)
    return condition()


def test_a_conversation(start: Start) -> None:
    process = start("import sys\nfor line in sys.stdin: print(line.strip().upper(), flush=True)")
    process.send("hello")
    process.send("안녕")
    assert process.receive(5, doing="testing") == "HELLO"
    assert process.receive(5, doing="testing") == "안녕"
    assert process.alive()
    process.stop()
    assert process.pid is None
    assert not process.alive()


def test_a_program_that_does_not_answer(start: Start) -> None:
    process = start("import time; time.sleep(60)")
    with pytest.raises(EngineTimeout, match=r"program did not answer within 0\.1 s while thinking"):
        process.receive(0.1, doing="thinking")


def test_the_log_is_kept_after_the_end(start: Start) -> None:
    process = start("import sys\nfor n in range(100): print('line', n, file=sys.stderr)\nprint('done', flush=True)")
    process.receive(5, doing="testing")
    assert process.log_text().splitlines()[0] == "line 0"
    size = process.log_size()
    assert process.log_text(since=size) == ""
    process.stop()
    assert process.log_tail(2) == "line 98\nline 99"


def test_stdout_joins_the_log_of_a_program_that_does_not_talk(start: Start) -> None:
    process = start("print('out', flush=True)\nimport sys; print('err', file=sys.stderr)", talks=False)
    assert process.exits_within(5)
    assert process.log_text() == "out\nerr\n"


def test_of_a_log_without_end_only_so_much_is_read(start: Start) -> None:
    line = "x" * 99 + "\\n"
    process = start(f"import sys\nprint('first'); sys.stdout.write('{line}' * 200_000); print('last')", talks=False)
    assert process.exits_within(30)
    text = process.log_text()
    assert process.log_size() == 20_000_011
    assert len(text) < MOST_READ_BYTES + 100
    lines = text.splitlines()
    assert (lines[0], lines[-1]) == ("first", "last")
    assert f"[{20_000_011 - MOST_READ_BYTES} bytes of the log are left out here.]" in lines


def test_a_log_is_read_on_by_whole_lines(start: Start) -> None:
    process = start(
        """
        import sys
        for piece in ("a\\nb", "c\\n", "y" * 300_000, "\\nend\\nunfinished"):
            sys.stdin.readline()
            sys.stderr.write(piece)
            sys.stderr.flush()
            print(flush=True)
        sys.stdin.readline()
        """
    )
    found, at = [], 0
    for _ in range(4):
        process.send("")
        process.receive(5, doing="testing")
        while True:
            text, end = process.log_lines(at)
            if end == at:
                break
            found.append(text)
            at = end
    assert found[:2] == ["a\n", "bc\n"]
    assert "".join(found[2:]) == "y" * 300_000 + "\nend\n"
    assert at == process.log_size() - len("unfinished")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import sys; sys.exit(3)", "exit code 3"),
        ("import os; os.abort()", "killed by signal 6 (SIGABRT)"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "killed by signal 9 (SIGKILL)"),
        ("import sys; print('because', file=sys.stderr); sys.exit(1)", "exit code 1. Its last words: because"),
    ],
)
def test_a_death_is_explained(start: Start, code: str, words: str) -> None:
    process = start(code)
    with pytest.raises(EngineDied) as caught:
        process.receive(5, doing="working")
    assert caught.value.message == f"program ended while working: {words}" + ("" if "because" in words else ".")
    assert not process.alive()


def test_sending_to_the_dead(start: Start) -> None:
    process = start("pass")
    assert process.exits_within(5)
    with pytest.raises(EngineDied, match="exit code 0"):
        process.send("x" * 1_000_000)


def test_there_is_no_such_program(tmp_path: Path) -> None:
    with pytest.raises(EngineNotFound, match="no program 'no-such-program-anywhere'"):
        EngineProcess(("no-such-program-anywhere",), name="program", talks=False).start()
    plain = tmp_path / "plain.txt"
    plain.write_text("not a program")
    with pytest.raises(EngineNotFound, match=r"may not be executed"):
        EngineProcess((str(plain),), name="program", talks=False).start()


def test_a_file_that_is_no_program_ends_with_the_reason(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_bytes(b"\x7fELFgarbage")
    wrong.chmod(0o755)
    process = EngineProcess((str(wrong),), name="program", talks=False)
    process.start()
    assert process.exits_within(5)
    assert "Exec format error" in process.death().message
    process.stop()


def test_stop_is_safe_at_any_moment() -> None:
    process = EngineProcess((sys.executable, "-c", "pass"), name="program", talks=False)
    process.stop()
    process.start()
    process.stop()
    process.stop()
    assert process.pid is None


def test_a_stubborn_program_and_all_it_started_is_ended_by_force(start: Start) -> None:
    process = start(
        """
        import signal, subprocess, sys, time
        deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\\n"
        exec(deaf)
        child = deaf + "import time; print('up', flush=True); time.sleep(60)"
        grandchild = subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE)
        grandchild.stdout.readline()
        print("ready", flush=True)
        time.sleep(60)
        """
    )
    process.receive(10, doing="starting")
    assert process.pid is not None
    tree = process_tree([process.pid])
    assert len(tree) == 2
    process.stop(farewell="please", grace_s=0.2)
    assert await_that(lambda: not any(map(process_exists, tree)))


def test_a_program_that_ended_but_left_a_child_behind(start: Start) -> None:
    """The child is in the group of ours and is ended with it, although its parent is gone."""
    process = start(
        """
        import subprocess, sys
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        print(child.pid, flush=True)
        """
    )
    child = int(process.receive(10, doing="starting"))
    assert process.exits_within(5)
    assert process_exists(child)
    process.stop()
    assert await_that(lambda: not process_exists(child))


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's /proc")
def test_a_child_in_a_session_and_with_an_environment_of_its_own_is_ended(start: Start) -> None:
    process = start(
        """
        import subprocess, sys, time
        child = subprocess.Popen(["sleep", "300"], start_new_session=True, env={})
        print(child.pid, flush=True)
        time.sleep(60)
        """
    )
    child = int(process.receive(5, doing="testing"))
    assert process_exists(child)
    process.stop()
    assert await_that(lambda: not process_exists(child))


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's /proc")
def test_an_orphan_that_still_writes_to_the_log_is_ended(start: Start) -> None:
    """Its session, its environment and its parent say nothing of who started it; its stderr does."""
    code = (
        "import subprocess, sys; p = subprocess.Popen(['sleep', '300'], start_new_session=True, env={}); print(p.pid)"
    )
    process = start(f"import subprocess, sys, time; subprocess.run([sys.executable, '-c', {code!r}]); time.sleep(60)")
    orphan = int(process.receive(5, doing="testing"))
    bystander = subprocess.Popen(["sleep", "300"], start_new_session=True)
    try:
        assert await_that(lambda: orphan not in process_tree([process.pid or 0]))
        process.stop()
        assert await_that(lambda: not process_exists(orphan))
        assert process_exists(bystander.pid)
    finally:
        bystander.kill()
        bystander.wait()


def test_ctrl_c_in_the_terminal_does_not_reach_it(start: Start) -> None:
    process = start("import os; print(os.getpgid(0), os.getsid(0), flush=True)")
    group, session = map(int, process.receive(5, doing="starting").split())
    assert group == session == process.pid
    assert group != os.getpgid(0)


def test_started_from_a_thread_that_ends_it_lives_on(start: Start) -> None:
    """PR_SET_PDEATHSIG speaks of the thread that started the child, not of the process."""
    started: list[EngineProcess] = []
    thread = threading.Thread(target=lambda: started.append(start("print('up', flush=True); input()")))
    thread.start()
    thread.join()
    started[0].receive(5, doing="starting")
    time.sleep(0.2)
    assert started[0].alive()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
@pytest.mark.parametrize("talks", [True, False])
def test_it_dies_with_its_parent_even_by_sigkill(talks: bool) -> None:
    """A parent of its own kind starts a program that ignores everything, and is then killed."""
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            textwrap.dedent(
                f"""
                import sys, time
                from kvscope.engine.process import MOST_READ_BYTES, EngineProcess
                code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
                process = EngineProcess((sys.executable, "-c", code), name="program", talks={talks})
                process.start()
                print(process.pid, flush=True)
                time.sleep(60)
                """
            ),
        ],
        stdout=subprocess.PIPE,
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert process_exists(child)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert await_that(lambda: not process_exists(child))
