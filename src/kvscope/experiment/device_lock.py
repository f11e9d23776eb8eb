"""A device is measured by one trial at a time, whoever measures: a lock file for each device of the machine.

The lock (flock) belongs to the open file. kvscope opens it for each trial and lets the engine that it starts inherit
it, so it is held until both are gone: an engine that outlives a killed kvscope is never measured over. What an engine
started in turn may have closed it; therefore whoever takes a lock whose last holder did not give it back looks for
processes that still carry that kvscope's mark, and waits for them.

The files lie where all users of a machine can write and only an owner can delete (/tmp), or in the folder that
KVSCOPE_LOCKS names, such as one that several containers share. They hold nothing but numbers, and nothing that is read
from them is believed further than to be shown.
"""

import errno
import fcntl
import json
import os
import re
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from kvscope.engine.guard import marked_processes, started_at
from kvscope.engine.inherited import forget_inherited, inherited_by_engines
from kvscope.engine.tied import own_mark
from kvscope.errors import DeviceBusy, UsageError
from kvscope.probe.machine_memory import process_name

VARIABLE = "KVSCOPE_LOCKS"
_LOOK_EVERY_S = 0.05
_MOST_READ = 1000
# Who has just taken a lock has not said so yet.
_UNTIL_KNOWN_S = 1.0
_OPEN = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """``name``: cpu, nvidia0, server-HOST-PORT ... ``shared``: several that say so may have it at once."""

    name: str
    shared: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """Who has a device. ``pid``: a process that has it, None where that cannot be seen. ``is_left_behind``: the process
    is not a kvscope but what one that was killed had started. ``since``: local time of day; None: not known."""

    device: str
    pid: int | None = None
    program: str = ""
    is_left_behind: bool = False
    since: str | None = None

    def __str__(self) -> str:
        if self.pid is None:
            return f"{self.device} is being measured by another kvscope"
        who = f"process {self.pid}" + (f" ({self.program})" if self.program else "")
        if self.is_left_behind:
            return f"{self.device} is in use by {who}, which a kvscope that was killed left behind"
        since = f" since {self.since}" if self.since else ""
        return f"{self.device} is being measured by another kvscope, {who}{since}"


@contextmanager
def hold_devices(
    devices: Sequence[Device], *, on_wait: Callable[[Busy], None], max_wait_s: float | None = None
) -> Iterator[tuple[str, ...]]:
    """Have the devices alone, waiting until they are free; gives why one could not be locked, for each such. Who has
    one already in this thread has it again. ``on_wait`` is told each time it turns out who has a device.

    Raises DeviceBusy where one is not free after ``max_wait_s``, and UsageError where something else is in a lock's
    place."""
    until_s = None if max_wait_s is None else time.monotonic() + max_wait_s
    unlocked = []
    with ExitStack() as stack:
        for device in devices:
            key = (device.name, threading.get_ident())
            if key in _held_here:
                continue
            try:
                file = _acquire(device, on_wait, until_s)
            except OSError as error:
                unlocked.append(f"{_path(device.name)} cannot be used ({error.strerror}).")
                continue
            _held_here[key] = file
            stack.callback(_release, key, is_noted=not device.shared)
            stack.enter_context(inherited_by_engines(file))
        yield tuple(unlocked)


# (device, thread) → open file.
_held_here: dict[tuple[str, int], int] = {}


def _in_forked_copy() -> None:
    """The locks are the original's; its copy must not keep them when the original gives them back."""
    for file in _held_here.values():
        with suppress(OSError):
            os.close(file)
    _held_here.clear()
    forget_inherited()


os.register_at_fork(after_in_child=_in_forked_copy)


def _path(name: str) -> Path:
    folder = os.environ.get(VARIABLE) or ("/tmp" if Path("/tmp").is_dir() else tempfile.gettempdir())
    return Path(folder) / f"kvscope-{re.sub(r'[^A-Za-z0-9._-]', '_', name)}.lock"


def _acquire(device: Device, on_wait: Callable[[Busy], None], until_s: float | None) -> int:
    """The open file that holds the lock. Two locks are taken: who waits for the device has the queue's, so that nobody
    who has just given the device back gets it again before them."""
    waiting = _Waiting(device.name, on_wait, until_s)
    queue = _locked(_path(f"{device.name}.queue"), fcntl.LOCK_EX, waiting)
    try:
        file = _locked(_path(device.name), fcntl.LOCK_SH if device.shared else fcntl.LOCK_EX, waiting)
        try:
            _wait_for_left_behind(file, waiting)
            if not device.shared:
                _write(file, _own_note())
        except BaseException:
            os.close(file)
            raise
    finally:
        os.close(queue)
    return file


def _release(key: tuple[str, int], *, is_noted: bool) -> None:
    """Closed, not unlocked: an engine that should be gone and is not keeps it."""
    file = _held_here.pop(key)
    if is_noted:
        _write(file, "")
    os.close(file)


def _locked(path: Path, kind: int, waiting: "_Waiting") -> int:
    while True:
        file = _opened(path)
        try:
            while not _try_lock(file, kind):
                waiting.wait()
            if _is_still_there(path, file):
                return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)  # somebody tidied up meanwhile


def _try_lock(file: int, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _opened(path: Path) -> int:
    """Raises UsageError where what is there is no plain file of one name, and OSError where none can be made. A file
    that is there is opened without O_CREAT: with it, Linux refuses another user's in /tmp (fs.protected_regular)."""
    while True:
        try:
            file = _open_or_create(path)
        except FileExistsError:  # made by another a moment ago
            continue
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
                raise _foreign(path) from error
            raise
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            os.close(file)
            raise _foreign(path)
        return file


def _open_or_create(path: Path) -> int:
    try:
        return os.open(path, _OPEN)
    except PermissionError:  # it can be locked all the same
        return os.open(path, (_OPEN & ~os.O_RDWR) | os.O_RDONLY)
    except FileNotFoundError:
        file = os.open(path, _OPEN | os.O_CREAT | os.O_EXCL, 0o666)
        with suppress(OSError):
            os.fchmod(file, 0o666)  # every user's trials take turns on a device; see the module's words
        return file


def _foreign(path: Path) -> UsageError:
    return UsageError(
        f"{path} is where kvscope locks a device, and something else is there.",
        hint=f"Remove it, or name a folder for the locks with the environment variable {VARIABLE}.",
    )


def _is_still_there(path: Path, file: int) -> bool:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    mine = os.fstat(file)
    return (found.st_dev, found.st_ino) == (mine.st_dev, mine.st_ino)


@dataclass(slots=True)
class _Waiting:
    device: str
    on_wait: Callable[[Busy], None]
    until_s: float | None
    told: Busy | None = None
    began_s: float = field(default_factory=time.monotonic)

    def wait(self, busy: Busy | None = None) -> None:
        """Let a moment pass. ``busy``: who is waited for; None: whoever holds the lock. Raises DeviceBusy."""
        late = self.until_s is not None and time.monotonic() >= self.until_s
        if busy is None and (late or self.told is None or not _is_running(self.told)):
            busy = _holder(self.device)
        is_known = busy is not None and (busy.pid is not None or time.monotonic() - self.began_s > _UNTIL_KNOWN_S)
        if busy is not None and (late or is_known) and busy != self.told:
            self.told = busy
            if not late:
                self.on_wait(busy)
        if late:
            raise DeviceBusy(
                f"{self.told or self.device}. Not measured meanwhile.",
                hint="Wait for it, or end that process; then run the same command again.",
            )
        time.sleep(_LOOK_EVERY_S)


def _is_running(busy: Busy) -> bool:
    return busy.pid is not None and started_at(busy.pid) is not None


def _wait_for_left_behind(file: int, waiting: _Waiting) -> None:
    """Wait until nothing runs any more that the last holder started, where that one did not give the lock back."""
    mark = _read(file).get("mark")
    if not isinstance(mark, str) or not re.fullmatch(r"[0-9a-f]{32}", mark) or mark == own_mark():
        return
    while found := marked_processes(mark):
        waiting.wait(_left_behind(waiting.device, found[0]))


# --- who has it -------------------------------------------------------------------------------------------------------


def _own_note() -> str:
    pid = os.getpid()
    return json.dumps({"pid": pid, "started": started_at(pid), "since": time.time(), "mark": own_mark()})


def _holder(device: str) -> Busy:
    path = _path(device)
    try:
        file = os.open(path, (_OPEN & ~os.O_RDWR) | os.O_RDONLY)
    except OSError:
        return Busy(device=device)
    try:
        note = _read(file)
        pid = note.get("pid")
        if isinstance(pid, int) and note.get("started") in (started_at(pid), None):
            return Busy(device=device, pid=pid, program=_program(pid), since=_time_of_day(note.get("since")))
        others = _who_has_open(file) - _who_has_open_path(_path(f"{device}.queue"))
        if not others:
            return Busy(device=device)
        return Busy(device=device, pid=min(others), program=_program(min(others)), is_left_behind="pid" in note)
    finally:
        os.close(file)


def _left_behind(device: str, pid: int) -> Busy:
    return Busy(device=device, pid=pid, program=_program(pid), is_left_behind=True)


def _program(pid: int) -> str:
    """Its name, as it can be shown: a process may call itself anything."""
    return "".join(each if each.isprintable() else "?" for each in process_name(pid) or "")


def _time_of_day(seconds: object) -> str | None:
    if not isinstance(seconds, int | float):
        return None
    with suppress(OverflowError, ValueError, OSError):
        return datetime.fromtimestamp(seconds, UTC).astimezone().strftime("%H:%M:%S")
    return None


def _who_has_open_path(path: Path) -> set[int]:
    try:
        file = os.open(path, (_OPEN & ~os.O_RDWR) | os.O_RDONLY)
    except OSError:
        return set()
    try:
        return _who_has_open(file)
    finally:
        os.close(file)


def _who_has_open(file: int) -> set[int]:
    """Other processes that have the file open, as far as this user may see that."""
    mine = os.fstat(file)
    found = set()
    for folder in _PROC.glob("[0-9]*/fd"):
        with suppress(OSError):
            if any(_is_same_file(each, mine) for each in folder.iterdir()):
                found.add(int(folder.parent.name))
    return found - {os.getpid()}


def _is_same_file(path: Path, wanted: os.stat_result) -> bool:
    try:
        found = path.stat()
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino)


def _read(file: int) -> dict[str, object]:
    try:
        note = json.loads(os.pread(file, _MOST_READ, 0) or b"{}")
    except (OSError, ValueError, RecursionError):
        return {}
    return note if isinstance(note, dict) else {}


def _write(file: int, text: str) -> None:
    with suppress(OSError):  # another user's file, or a full disk: the lock holds all the same
        os.ftruncate(file, 0)
        os.pwrite(file, text.encode(), 0)
