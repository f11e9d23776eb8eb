"""Ends what an engine started in turn and left behind. Linux only: it reads /proc.

An engine's own process goes with its group when it is stopped, and by the kernel when kvscope is killed
(die_with_parent.py). What is left are the programs that it started: with kvscope killed, all of them; with the engine
stopped, those that had moved into a session of their own, as daemons do. They are known by a mark in their environment,
which is inherited, by their session, which is the engine's, as children of an engine that still runs, and by the
engine's log, to which they write.

Run as a plain file: ``python guard.py MARK``. It is told on stdin which engines run (``+PID STARTED``, and ``-PID``
when one has been stopped), and waits. When stdin closes, kvscope is gone, however it went: then it ends what is left.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

VARIABLE = "KVSCOPE_STARTED_BY"
PROC = Path("/proc")
# What is being ended may start more meanwhile.
_ROUNDS = 5


def started_at(pid: int) -> int | None:
    """When a process started, in the kernel's ticks since boot (proc_pid_stat(5), field 22): with its id, who it is.
    None where there is no such process, or one cannot know."""
    fields = _stat(pid)
    return None if fields is None else int(fields[19])


def descendants(pid: int) -> dict[int, int]:
    """What a process that runs has started, and they in turn: id → when it was started. Of those whose parent has
    ended already, nothing is known here."""
    children: dict[int, list[int]] = {}
    for each in _pids():
        if (fields := _stat(each)) is not None:
            children.setdefault(int(fields[1]), []).append(each)
    found: dict[int, int] = {}
    unseen = list(children.get(pid, ()))
    while unseen:
        child = unseen.pop()
        if child not in found and (started := started_at(child)) is not None:
            found[child] = started
            unseen += children.get(child, ())
    return found


def end_these(found: dict[int, int], *, within_s: float) -> None:
    """End by SIGKILL those of the processes (id → when it was started) that are still there, and wait at most so long
    until they are gone: they give their memory back only then."""
    for pid in found:
        _end(pid, lambda each: started_at(each) == found[each])
    until_s = time.monotonic() + within_s
    while any(started_at(pid) == found[pid] and _session(pid) is not None for pid in found):
        if time.monotonic() > until_s:
            return
        time.sleep(0.01)


def end_writers(log: int) -> None:
    """End by SIGKILL every process whose stdout or stderr is the file that is open here as ``log``: it got it from an
    engine, as a file without a name cannot be opened."""
    file = os.fstat(log)
    _end_all(lambda pid: _writes_to(pid, file))


def end_marked(mark: str) -> None:
    """End by SIGKILL every process that carries ``mark``, or one that begins with it and a dot."""
    _end_all(lambda pid: _carries(pid, mark))


def marked_processes(mark: str) -> list[int]:
    """Processes that run and carry ``mark``, or one that begins with it and a dot."""
    return [pid for pid in _pids() if _carries(pid, mark) and _session(pid) is not None]


def _end_session(leader: int, started: int) -> None:
    """End what is left of the session that the process ``leader`` began, unless the id is somebody else's by now."""
    if started_at(leader) in (None, started):
        _end_all(lambda pid: _session(pid) == leader)


def _end_all(belongs: Callable[[int], bool]) -> None:
    for _ in range(_ROUNDS):
        found = [pid for pid in _pids() if belongs(pid)]
        for pid in found:
            _end(pid, belongs)
        if not found:
            return


def _end(pid: int, belongs: Callable[[int], bool]) -> None:
    """SIGKILL to a process that belongs. It is held on to before it is looked at, so that the signal cannot reach
    another one with the same id."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if belongs(pid):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    except OSError:
        pass  # it has gone
    finally:
        os.close(handle)


def _pids() -> Iterator[int]:
    try:
        names = [folder.name for folder in PROC.iterdir()]
    except OSError:
        return
    yield from (int(name) for name in names if name.isdigit())


def _carries(pid: int, mark: str) -> bool:
    try:
        environment = (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return False
    entry = f"{VARIABLE}={mark}".encode()
    return any(each == entry or each.startswith(entry + b".") for each in environment.split(b"\0"))


def _writes_to(pid: int, file: os.stat_result) -> bool:
    for number in (1, 2):
        try:
            found = (PROC / str(pid) / "fd" / str(number)).stat()
        except OSError:
            continue
        if (found.st_dev, found.st_ino) == (file.st_dev, file.st_ino):
            return True
    return False


def _session(pid: int) -> int | None:
    fields = _stat(pid)
    return None if fields is None or fields[0] == b"Z" else int(fields[3])


def _stat(pid: int) -> list[bytes] | None:
    """Fields of /proc/PID/stat from the third on (the second is a name, which may hold anything)."""
    try:
        return (PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None


def main() -> None:
    """Wait for the end of kvscope, then tidy up."""
    running: dict[int, int] = {}
    for line in sys.stdin:
        if line.startswith("+"):
            pid, started = line[1:].split()
            running[int(pid)] = int(started)
        elif line.startswith("-"):
            running.pop(int(line[1:]), None)
    for pid, started in running.items():
        _end_session(pid, started)
    end_marked(sys.argv[1])


if __name__ == "__main__":
    main()
