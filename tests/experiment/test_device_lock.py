"""One trial at a time on a device, across real processes, also where one of them was killed and its engine lives on."""

import json
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvscope.engine.guard import started_at
from kvscope.engine.process import EngineProcess
from kvscope.errors import DeviceBusy, UsageError
from kvscope.experiment.device_holder import is_running, is_stopped, takers, who_has
from kvscope.experiment.device_lock import VARIABLE, Busy, Device, hold_devices
from kvscope.experiment.lock_file import close_lock, lock_path, open_lock, try_lock

HOLDER = Path(__file__).with_name("lock_holder.py")
CPU = Device(name="cpu")
SHARED_CPU = Device(name="cpu", shared=True)
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="who holds a lock is read from /proc")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return tmp_path


class Holder:
    """Another kvscope, as lock_holder.py."""

    def __init__(self, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(HOLDER), *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


Start = Callable[..., Holder]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[Holder] = []

    def start_one(*words: str) -> Holder:
        started.append(Holder(*words))
        return started[-1]

    yield start_one
    for holder in started:
        holder.close()


@pytest.fixture
def ended() -> Iterator[list[int]]:
    """Ids of programs that outlive the one that started them, to be ended."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        end(pid)


def end(pid: int) -> None:
    """SIGKILL, to a program that lock_holder.py started and that nothing else can have ended."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        os.close(handle)


def until(is_so: Callable[[], bool]) -> None:
    """Wait for what comes soon."""
    end_s = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def is_first_in_the_queue(holder: Holder) -> bool:
    return takers(lock_path("cpu.queue")) == [holder.process.pid]


def why_busy(*devices: Device) -> str:
    """What is said of whoever has them; "" where they are free."""
    try:
        with hold_devices(devices, on_wait=lambda busy: None, max_wait_s=0):
            return ""
    except DeviceBusy as error:
        return error.message


def test_who_has_it_is_told_and_waited_for(start: Start) -> None:
    first = start("cpu")
    assert first.hear() == "holding"
    second = start("cpu")
    said = second.hear()
    assert f"process {first.process.pid} (python" in said
    assert " since " in said
    first.tell("release")
    assert first.hear() == "released"
    assert second.hear() == "holding"


def test_after_the_longest_wait_it_says_so(start: Start) -> None:
    holder = start("cpu")
    assert holder.hear() == "holding"
    assert f"process {holder.process.pid}" in why_busy(CPU)
    assert why_busy(Device(name="nvidia0")) == ""
    holder.tell("release")
    assert holder.hear() == "released"
    assert why_busy(CPU) == ""


def test_nobody_measures_over_an_engine_whose_kvscope_was_killed(start: Start, ended: list[int]) -> None:
    holder = start("cpu")
    assert holder.hear() == "holding"
    holder.tell("child")
    ended.append(engine := int(holder.hear()))
    holder.kill()
    said = why_busy(CPU)
    assert f"process {engine} " in said
    assert "left behind" in said
    waiting = start("cpu")
    assert f"process {engine} " in waiting.hear()
    end(engine)
    assert waiting.hear() == "holding"


def test_nor_over_what_that_engine_started_in_turn(start: Start, ended: list[int]) -> None:
    holder = start("cpu")
    assert holder.hear() == "holding"
    holder.tell("bare")
    ended.append(worker := int(holder.hear()))
    holder.kill()
    assert f"process {worker} " in why_busy(CPU)
    assert f"process {worker} " in why_busy(SHARED_CPU)
    waiting = start("cpu")
    assert f"process {worker} " in waiting.hear()
    end(worker)
    assert waiting.hear() == "holding"


def test_killed_alone_it_is_free_at_once(start: Start) -> None:
    holder = start("cpu")
    assert holder.hear() == "holding"
    holder.kill()
    assert why_busy(CPU) == ""


def test_engines_inherit_the_lock_and_nothing_else_does() -> None:
    with hold_devices([CPU], on_wait=print):
        engine = EngineProcess(("sleep", "60"), name="sleep", talks=False)
        engine.start()
    try:
        # The lock is given back here, and the engine still has it.
        assert engine.pid is not None
        assert f"process {engine.pid} (" in why_busy(CPU)
    finally:
        engine.stop()
    # Not even the guard, which lives on, has it.
    assert why_busy(CPU) == ""
    later = EngineProcess(("sleep", "60"), name="sleep", talks=False)
    later.start()
    try:
        with hold_devices([CPU], on_wait=print, max_wait_s=0):
            assert not [path for path in Path(f"/proc/{later.pid}/fd").iterdir() if ".lock" in str(path.readlink())]
    finally:
        later.stop()


def test_a_thread_that_has_it_has_it_again_and_others_wait() -> None:
    found: list[str] = []
    with hold_devices([CPU], on_wait=print), hold_devices([CPU], on_wait=print, max_wait_s=0):
        other = threading.Thread(target=lambda: found.append(why_busy(CPU)))
        other.start()
        other.join()
    assert f"process {os.getpid()} " in found[0]
    assert why_busy(CPU) == ""


FORKS = """
import os, sys, threading
from kvscope.experiment.device_lock import Device, hold_devices
copied, waits = threading.Event(), threading.Event()
def take():
    with hold_devices([Device(name='cpu')], on_wait=lambda busy: waits.set()):
        {when}.set()
        copied.wait()
thread = threading.Thread(target=take)
thread.start()
waits.wait()
{between}
reading, writing = os.pipe()
if os.fork() == 0:
    os.write(writing, b'1')
    sys.stdin.read()
    os._exit(0)
os.read(reading, 1)
copied.set()
print('copied', flush=True)
thread.join()
print('given back', flush=True)
os.wait()
"""
# It goes on waiting, with the queue's lock, when it has said so.
IN_THE_QUEUE = """
from kvscope.experiment.device_holder import takers
from kvscope.experiment.lock_file import lock_path
while takers(lock_path('cpu.queue')) != [os.getpid()]:
    pass
"""


@pytest.mark.parametrize(
    ("when", "between", "is_taken"),
    [("waits", "", False), ("threading.Event()", IN_THE_QUEUE, True)],
    ids=["while it is held", "while it is waited for"],
)
def test_a_forked_copy_does_not_keep_it(start: Start, when: str, between: str, is_taken: bool) -> None:
    holder = start("cpu")
    assert holder.hear() == "holding"
    if not is_taken:
        holder.tell("release")
        assert holder.hear() == "released"
    command = [sys.executable, "-c", FORKS.format(when=when, between=between)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "copied\n"
        if is_taken:
            holder.tell("release")
        assert process.stdout.readline() == "given back\n"
        assert why_busy(CPU) == ""
        process.communicate()


def test_several_that_share_it_keep_those_out_that_do_not(start: Start) -> None:
    killed = start("cpu")
    assert killed.hear() == "holding"
    killed.kill()  # its note is not believed of those who come later
    sharing = []
    for _ in range(2):
        sharing.append(start("cpu", "shared"))
        assert sharing[-1].hear() == "holding"
    pids = "|".join(str(holder.process.pid) for holder in sharing)
    said = why_busy(CPU)
    assert re.match(rf"cpu is being measured by another kvscope, process ({pids}) \(python\S*\)\. Not", said), said
    assert why_busy(SHARED_CPU) == ""


def test_whoever_waits_is_next(start: Start) -> None:
    """Who gives it back and wants it again at once does not get it before one who has been waiting."""
    with hold_devices([CPU], on_wait=print):
        waiting = start("cpu")
        assert waiting.hear().startswith("waiting")
        until(lambda: is_first_in_the_queue(waiting))
    told: list[Busy] = []

    def let_go(busy: Busy) -> None:
        told.append(busy)
        waiting.tell("release")

    with hold_devices([CPU], on_wait=let_go):
        assert waiting.hear() == "holding"
    assert told


def test_one_that_is_stopped_while_it_waits_is_passed_over(start: Start) -> None:
    with hold_devices([CPU], on_wait=print):
        stopped = start("cpu")
        assert stopped.hear().startswith("waiting")
        until(lambda: is_first_in_the_queue(stopped))
        stopped.process.send_signal(signal.SIGSTOP)
        until(lambda: is_stopped(stopped.process.pid))
        assert f"process {os.getpid()} " in start("cpu").hear()
    assert why_busy(CPU) == ""
    stopped.process.send_signal(signal.SIGCONT)
    assert stopped.hear() == "holding"


def test_one_that_shows_no_sign_is_passed_over() -> None:
    """As where it is frozen: here, one that holds the queue's lock and does nothing."""
    file = open_lock(lock_path("cpu.queue"))
    assert try_lock(file)
    told: list[Busy] = []
    with hold_devices([CPU], on_wait=told.append, max_wait_s=60):
        pass
    close_lock(file)


def test_one_that_cannot_say_for_whom_it_waits_keeps_no_lock(start: Start) -> None:
    with hold_devices([CPU], on_wait=print):
        stuck = start("cpu", "stuck")
        assert stuck.hear().startswith("waiting")
        until(lambda: not takers(lock_path("cpu.queue")))
    for _ in range(3):
        assert why_busy(CPU) == ""


def test_who_stands_still_while_measuring_is_said_to(start: Start) -> None:
    holder = start("cpu")
    assert holder.hear() == "holding"
    holder.process.send_signal(signal.SIGSTOP)
    until(lambda: is_stopped(holder.process.pid))
    assert "and is stopped. Not measured" in why_busy(CPU)


def test_who_is_next_is_named_where_nobody_measures(start: Start, ended: list[int]) -> None:
    first = start("cpu")
    assert first.hear() == "holding"
    first.tell("bare")
    ended.append(worker := int(first.hear()))
    first.kill()
    waiting = start("cpu")
    assert f"process {worker} " in waiting.hear()
    until(lambda: is_first_in_the_queue(waiting))
    # What all wait for is what is said; and without its mark, it is not known.
    assert f"process {worker} " in why_busy(CPU)
    lock_path("cpu").write_text("")
    assert str(who_has("cpu", "cpu.queue")).startswith(f"process {waiting.process.pid} (python")


def test_who_has_it_is_looked_up_anew(start: Start) -> None:
    """A kvscope that gave it back and waits in turn is not named for ever."""
    first, second = start("cpu"), start("cpu")
    said = first.hear(), second.hear()
    holding, waiting = (first, second) if said[0] == "holding" else (second, first)
    until(lambda: is_first_in_the_queue(waiting))
    third = start("cpu")
    assert f"process {holding.process.pid} " in third.hear()
    holding.tell("release")
    assert waiting.hear() == "holding"
    assert f"process {waiting.process.pid} " in third.hear()


def test_one_that_nobody_has_reaped_does_not_measure(start: Start, ended: list[int]) -> None:
    holder = start("cpu")
    assert holder.hear() == "holding"
    holder.tell("child")
    ended.append(engine := int(holder.hear()))
    holder.process.kill()
    until(lambda: not is_running(holder.process.pid))  # and it is still there, a zombie
    said = why_busy(CPU)
    assert f"process {engine} " in said
    assert "left behind" in said


def test_a_lock_that_is_removed_while_it_is_held_is_noticed() -> None:
    with hold_devices([CPU], on_wait=print) as not_had:
        assert not_had() == ()
        lock_path("cpu").unlink()
        assert not_had() == (f"{lock_path('cpu')} was removed meanwhile.",)
        with pytest.raises(FileNotFoundError):
            lock_path("cpu").stat()


def test_what_is_put_in_the_locks_place_is_refused(folder: Path) -> None:
    precious = folder / "precious"
    precious.write_text("mine")
    lock = folder / "kvscope-cpu.lock"
    for put in (lock.symlink_to, lock.hardlink_to):
        put(precious)
        with pytest.raises(UsageError, match="something else is there"), hold_devices([CPU], on_wait=print):
            pass
        lock.unlink()
    os.mkfifo(lock)
    with pytest.raises(UsageError, match="something else is there"), hold_devices([CPU], on_wait=print):
        pass
    assert precious.read_text() == "mine"


def test_what_is_written_in_a_lock_is_not_believed(folder: Path, start: Start) -> None:
    lock = folder / "kvscope-cpu.lock"
    texts = ("[" * 900, '{"pid": "1", "mark": "../x", "since": 1e400}', '{"mark": "' + "0" * 32 + '"}', "\0")
    for text in texts:
        lock.write_text(text)
        assert why_busy(CPU) == ""
    holder = start("cpu", "shared")
    assert holder.hear() == "holding"
    of_another = json.dumps({"pid": os.getpid(), "started": started_at(os.getpid()), "since": 0.0})
    wrong = ('{"pid": true, "started": null}', '{"pid": -1}', '{"pid": 99999999999999999999999}', of_another)
    for text in (*texts, *wrong):
        lock.write_text(text)
        said = why_busy(CPU)
        assert f"another kvscope, process {holder.process.pid} (" in said
        assert " since " not in said


def test_a_mark_is_not_believed_while_its_kvscope_runs(folder: Path, start: Start, ended: list[int]) -> None:
    """Nobody waits for what another kvscope measures elsewhere, whoever copied its note."""
    elsewhere = start("nvidia0")
    assert elsewhere.hear() == "holding"
    elsewhere.tell("bare")
    ended.append(worker := int(elsewhere.hear()))
    (folder / "kvscope-cpu.lock").write_text((folder / "kvscope-nvidia0.lock").read_text())
    assert why_busy(CPU) == ""
    # That it would have been waited for: with its kvscope gone, it is what that one left behind.
    (folder / "kvscope-cpu.lock").write_text((folder / "kvscope-nvidia0.lock").read_text())
    elsewhere.kill()
    assert f"process {worker} " in why_busy(CPU)


def test_a_folder_without_room_for_locks_is_a_reason_not_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/proc")
    with hold_devices([CPU], on_wait=print) as not_had:
        assert len(not_had()) == 1
        assert "/proc/kvscope-cpu.lock" in not_had()[0]


def test_a_folder_that_is_not_there_is_made_or_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistyped name would else be a warning in every trial, with the advice to do what was done."""
    monkeypatch.setenv(VARIABLE, str(folder / "new" / "locks"))
    with hold_devices([CPU], on_wait=print) as not_had:
        assert not_had() == ()
    assert (folder / "new" / "locks" / "kvscope-cpu.lock").is_file()
    (folder / "file").write_text("")
    for name in ("/proc/no-such-folder", str(folder / "file")):
        monkeypatch.setenv(VARIABLE, name)
        with pytest.raises(UsageError, match=name), hold_devices([CPU], on_wait=print):
            pass


def test_every_user_can_take_it(folder: Path) -> None:
    before = os.umask(0o077)
    try:
        with hold_devices([CPU], on_wait=print):
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE((folder / "kvscope-cpu.lock").stat().st_mode) == 0o666
