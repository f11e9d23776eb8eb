"""A device is measured by one trial at a time, whoever measures: a lock file for each device of the machine.

The lock (flock) belongs to the open file. kvscope opens it for each trial and lets the engine that it starts inherit
it, so it is held until both are gone: an engine that outlives a killed kvscope is never measured over. What an engine
started in turn may have closed it; therefore whoever takes a lock whose last holder did not give it back looks for
processes that still carry that kvscope's mark, and waits for them. (Who shares a device writes no mark there; it has
its accelerators alone, and writes it there.)

Who waits has the lock of the device's queue, so that nobody who has just given the device back gets it again before
them. It is for fairness alone: who has it and does not go on (Ctrl-Z) is passed over. While somebody is told for whom
one waits, which may take for ever (a pipe that nobody reads), no lock is kept.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field

from kvscope.engine.inherited import inherited_by_engines
from kvscope.errors import DeviceBusy
from kvscope.experiment.device_holder import Busy as Busy
from kvscope.experiment.device_holder import is_running, is_stopped, left_behind, own_note, takers, who_has
from kvscope.experiment.lock_file import VARIABLE as VARIABLE
from kvscope.experiment.lock_file import (
    close_lock,
    is_still_there,
    lock_path,
    make_folder,
    open_lock,
    read_note,
    try_lock,
    write_note,
)

_TRY_EVERY_S = 0.05
# Whom one waits for is looked up anew, and first when one has waited so long that it is worth a word.
_ASK_EVERY_S = 2.0
_ASK_FIRST_S = 0.2
_UNTIL_KNOWN_S = 1.0
# Who is first in the queue shows every so often that it goes on; who did not for so long is passed over.
_SHOW_EVERY_S = 0.5
_SILENT_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """``name``: cpu, nvidia0, server-HOST-PORT ... ``shared``: several that say so may have it at once."""

    name: str
    shared: bool = False


@contextmanager
def hold_devices(
    devices: Sequence[Device], *, on_wait: Callable[[Busy], None], max_wait_s: float | None = None
) -> Iterator[Callable[[], tuple[str, ...]]]:
    """Have the devices alone, waiting until they are free. Gives what tells, whenever it is asked, why one could not be
    locked or is no longer, for each such. Who has one already in this thread has it again. ``on_wait`` is told each
    time it turns out who has a device.

    Raises DeviceBusy where one is not free after ``max_wait_s``, and UsageError where something else is in a lock's
    place, or no folder is where KVSCOPE_LOCKS names one and none can be made."""
    make_folder()
    until_s = None if max_wait_s is None else time.monotonic() + max_wait_s
    unlocked: list[str] = []
    held: dict[str, int] = {}
    with ExitStack() as stack:
        for device in devices:
            key = (device.name, threading.get_ident())
            if key in _held_here:
                continue
            try:
                file = _acquire(device, on_wait, until_s)
            except OSError as error:
                unlocked.append(f"{lock_path(device.name)} cannot be used ({error.strerror}).")
                continue
            _held_here[key] = held[device.name] = file
            stack.callback(_release, key, is_noted=not device.shared)
            stack.enter_context(inherited_by_engines(file))
        yield lambda: (*unlocked, *_removed(held))


# (device, thread) → open file.
_held_here: dict[tuple[str, int], int] = {}
os.register_at_fork(after_in_child=_held_here.clear)


def _removed(held: dict[str, int]) -> list[str]:
    paths = {lock_path(name): file for name, file in held.items()}
    return [f"{path} was removed meanwhile." for path, file in paths.items() if not is_still_there(path, file)]


def _release(key: tuple[str, int], *, is_noted: bool) -> None:
    file = _held_here.pop(key)
    if is_noted:
        write_note(file, "")
    close_lock(file)


def _acquire(device: Device, on_wait: Callable[[Busy], None], until_s: float | None) -> int:
    """The open file that holds the lock."""
    waiting = _Waiting(device.name, until_s)
    place = _Place(_queue(device.name))
    orphan: int | None = None
    try:
        while True:
            if orphan is not None and not is_running(orphan):
                orphan = None
            if place.is_next() and orphan is None:
                file, orphan = _try(device)
                if file is not None:
                    return file
            news = waiting.look()
            if news is None:
                time.sleep(_TRY_EVERY_S)
            else:
                place.leave()
                on_wait(news)
    finally:
        place.leave()


def _queue(device: str) -> str:
    return f"{device}.queue"


def _try(device: Device) -> tuple[int | None, int | None]:
    """The open file that holds the device's lock, where it is free; else a process that was left behind, if any."""
    path = lock_path(device.name)
    file = open_lock(path)
    orphan = None
    try:
        if try_lock(file, shared=device.shared) and is_still_there(path, file):
            orphan = next(iter(left_behind(read_note(file))), None)
            if orphan is None:
                write_note(file, "" if device.shared else own_note())
                return file, None
    except BaseException:
        close_lock(file)
        raise
    close_lock(file)
    return None, orphan


@dataclass(slots=True)
class _Place:
    """A place in the queue for a device: whoever has its lock is next."""

    queue: str
    file: int | None = None
    has_it: bool = False
    sign: int | None = None
    sign_s: float = 0.0
    asked_s: float | None = None
    first_is_stopped: bool = False

    def is_next(self) -> bool:
        """Whether the device may be taken now. Raises as ``open_lock``."""
        if self.file is not None and not is_still_there(lock_path(self.queue), self.file):
            self.leave()
        if self.file is None:
            self.file = open_lock(lock_path(self.queue))
        if not self.has_it:
            self.has_it = try_lock(self.file)
        return self._show() if self.has_it else self._is_first_passed_over(self.file)

    def leave(self) -> None:
        """Let others be next."""
        file, self.file, self.has_it = self.file, None, False
        if file is not None:
            close_lock(file)

    def _show(self) -> bool:
        now_s = time.monotonic()
        if self.file is not None and (self.sign is not None or now_s - self.sign_s >= _SHOW_EVERY_S):
            self.sign, self.sign_s = None, now_s
            with suppress(OSError):  # another user's file: at worst one is passed over
                os.utime(self.file)
        return True

    def _is_first_passed_over(self, file: int) -> bool:
        """Whether whoever is next does not go on: it is seen to be stopped, or has shown no sign for long."""
        now_s, sign = time.monotonic(), os.fstat(file).st_mtime_ns
        if sign != self.sign:
            self.sign, self.sign_s = sign, now_s
        if self.asked_s is None or now_s - self.asked_s >= _UNTIL_KNOWN_S:
            first = takers(lock_path(self.queue))
            self.asked_s, self.first_is_stopped = now_s, bool(first) and all(map(is_stopped, first))
        return self.first_is_stopped or now_s - self.sign_s > _SILENT_S


@dataclass(slots=True)
class _Waiting:
    """What is known of whom one waits for."""

    device: str
    until_s: float | None
    told: Busy | None = None
    asked_s: float = field(default_factory=time.monotonic)
    unsure_since_s: float = field(default_factory=time.monotonic)

    def look(self) -> Busy | None:
        """Whom one waits for, where that is to be told now. Raises DeviceBusy where it was waited for long enough."""
        now_s = time.monotonic()
        is_late = self.until_s is not None and now_s >= self.until_s
        pause_s = _ASK_FIRST_S if self.told is None else _ASK_EVERY_S
        if not is_late and now_s - self.asked_s < pause_s:
            return None
        self.asked_s = now_s
        busy = who_has(self.device, _queue(self.device))
        if is_late:
            raise DeviceBusy(
                f"{busy}. Not measured meanwhile.",
                hint="Wait for it, or end that process; then run the same command again.",
            )
        return self._news(busy, now_s)

    def _news(self, busy: Busy, now_s: float) -> Busy | None:
        if busy.pid is not None and not busy.is_next:
            self.unsure_since_s = now_s
        elif now_s - self.unsure_since_s < _UNTIL_KNOWN_S:
            return None
        if busy == self.told:
            return None
        self.told = busy
        return busy
