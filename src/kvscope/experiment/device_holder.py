"""Who has the lock of a device, by what the kernel says of it (Linux: /proc).

For each open file, /proc/PID/fdinfo says whether it holds a lock and which process took that (proc_pid_fdinfo(5)). So
whoever took the lock and still has it is a kvscope that measures; whoever only inherited it is what one left behind.
/proc/locks says who took a lock also where that process is another user's. The note in the file is believed only where
the process that it names was started when the note says so.
"""

import json
import os
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kvscope.engine.guard import marked_processes, started_at
from kvscope.engine.tied import own_mark
from kvscope.experiment.lock_file import lock_path, read_note
from kvscope.probe.machine_memory import process_name

_PROC = Path("/proc")
_MOST_PIDS = 2**22  # PID_MAX_LIMIT
_ENDED = "ZX"
_STOPPED = "Tt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """Who has a device. ``pid``: a process that has it, None where that cannot be seen. ``is_left_behind``: the process
    is not a kvscope but what one had started. ``is_next``: nobody measures, and this process gets the device next.
    ``is_stopped``: it does not go on (Ctrl-Z). ``since``: local time of day; None: not known."""

    device: str
    pid: int | None = None
    program: str = ""
    is_left_behind: bool = False
    is_next: bool = False
    is_stopped: bool = False
    since: str | None = None

    def __str__(self) -> str:
        if self.pid is None:
            return f"{self.device} is being measured by another kvscope"
        who = f"process {self.pid}" + (f" ({self.program})" if self.program else "")
        state = ", and is stopped" if self.is_stopped else ""
        if self.is_next:
            return f"{who} waits for {self.device} before this one{state}"
        if self.is_left_behind:
            return f"{self.device} is in use by {who}, which another kvscope left behind{state}"
        since = f" since {self.since}" if self.since else ""
        return f"{self.device} is being measured by another kvscope, {who}{since}{state}"


def who_has(device: str, queue: str) -> Busy:
    """Who has the device now; without anybody, who has the lock of ``queue`` and so gets it next."""
    note = _note(lock_path(device))
    holders = _holders(lock_path(device), note)
    measuring = sorted(pid for pid, taken_by in holders if pid == taken_by)
    if measuring:
        writer = [pid for pid in _writer(note) if pid in measuring]
        return _busy(device, (writer or measuring)[0], since=_time_of_day(note.get("since")) if writer else None)
    inherited = sorted(pid for pid, _ in holders) or left_behind(note)
    if inherited:
        return _busy(device, inherited[0], is_left_behind=True)
    unseen = takers(lock_path(device)) or _writer(note)
    if unseen:
        return _busy(device, unseen[0])
    following = [pid for pid in takers(lock_path(queue)) if pid != os.getpid()]
    return _busy(device, following[0], is_next=True) if following else Busy(device=device)


def left_behind(note: dict[str, object]) -> list[int]:
    """What still runs of what the writer of a note had started, where that one has ended without giving the lock back.

    Processes are known by the mark in their environment, so by none but those of this user (or of root). Somebody who
    writes another mark into the file makes everybody wait for a process that they name; they could as well hold the
    lock."""
    mark = note.get("mark")
    if not isinstance(mark, str) or not re.fullmatch(r"[0-9a-f]{32}", mark) or mark == own_mark():
        return []
    return [] if _writer(note) else sorted(marked_processes(mark))


def own_note() -> str:
    """What this process writes into a lock that it has alone."""
    pid = os.getpid()
    return json.dumps({"pid": pid, "started": started_at(pid), "since": time.time(), "mark": own_mark()})


def is_running(pid: int) -> bool:
    """Whether there is such a process and it has not ended; one that nobody asked for its end yet (a zombie) has."""
    state = _state(pid)
    return state is not None and state not in _ENDED


def is_stopped(pid: int) -> bool:
    """Whether it stands still until it is told to go on (SIGSTOP, Ctrl-Z, a debugger)."""
    state = _state(pid)
    return state is not None and state in _STOPPED


def takers(path: Path) -> list[int]:
    """Processes that took a lock of the file and run, whosever they are, by /proc/locks."""
    try:
        found = path.stat()
        lines = (_PROC / "locks").read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    rows = [line.split() for line in lines]
    pids = {int(row[4]) for row in rows if len(row) > 5 and row[1] == "FLOCK" and row[5] == place and row[4].isdigit()}
    return sorted(pid for pid in pids if is_running(pid))


def _busy(
    device: str, pid: int, *, is_left_behind: bool = False, is_next: bool = False, since: str | None = None
) -> Busy:
    return Busy(
        device=device,
        pid=pid,
        program="".join(each if each.isprintable() else "?" for each in process_name(pid) or ""),
        is_left_behind=is_left_behind,
        is_next=is_next,
        is_stopped=is_stopped(pid),
        since=since,
    )


def _note(path: Path) -> dict[str, object]:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return {}
    try:
        return read_note(file)
    finally:
        os.close(file)


def _writer(note: dict[str, object]) -> list[int]:
    """The process that wrote the note, where it runs: ids are given again, so when it was started has to fit."""
    pid = _as_pid(note.get("pid"))
    if pid is None or not is_running(pid):
        return []
    started = started_at(pid)
    return [pid] if started is not None and started == note.get("started") else []


def _as_pid(found: object) -> int | None:
    is_one = isinstance(found, int) and not isinstance(found, bool) and 0 < found < _MOST_PIDS
    return found if is_one and isinstance(found, int) else None


def _holders(path: Path, note: dict[str, object]) -> list[tuple[int, int]]:
    """(process that has the lock, process that took it), as far as this user may see that. All processes are looked
    through only where it is none of those that can be known at once: it costs those time who are being measured."""
    try:
        wanted = path.stat()
    except OSError:
        return []
    known = dict.fromkeys((*takers(path), *_writer(note)))
    return _having(known, wanted) or _having(_pids(), wanted)


def _having(pids: Iterable[int], wanted: os.stat_result) -> list[tuple[int, int]]:
    return [(pid, taker) for pid in pids for taker in _takers_within(pid, wanted)]


def _takers_within(pid: int, wanted: os.stat_result) -> set[int]:
    """Who took the locks that a process has on a file."""
    found: set[int] = set()
    with suppress(OSError):
        for link in (_PROC / str(pid) / "fd").iterdir():
            with suppress(OSError):
                if os.path.samestat(link.stat(), wanted):
                    found |= _locks_of(_PROC / str(pid) / "fdinfo" / link.name)
    return found


def _locks_of(info: Path) -> set[int]:
    rows = [line.split() for line in info.read_text(encoding="ascii", errors="replace").splitlines()]
    return {
        int(row[5]) for row in rows if len(row) > 5 and row[0] == "lock:" and row[2] == "FLOCK" and row[5].isdigit()
    }


def _pids() -> list[int]:
    try:
        return [int(folder.name) for folder in _PROC.iterdir() if folder.name.isdigit()]
    except OSError:
        return []


def _state(pid: int) -> str | None:
    try:
        return (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[0].decode("ascii")
    except (OSError, IndexError, UnicodeDecodeError):
        return None


def _time_of_day(seconds: object) -> str | None:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        return None
    with suppress(OverflowError, ValueError, OSError):
        return datetime.fromtimestamp(seconds, UTC).astimezone().strftime("%H:%M:%S")
    return None
