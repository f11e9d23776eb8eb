"""A timer of an event loop that is due to the microsecond, on ``time.perf_counter``'s clock.

The loops' own timers are not: asyncio rounds up to the next millisecond, uvloop to the nearest. On Linux the kernel
keeps this one (timerfd), and the loop watches it like a socket. Elsewhere the loop's own is used.
"""

import asyncio
import contextlib
import ctypes
import os
import sys
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

_CLOCK_MONOTONIC, _ABSOLUTE = 1, 1  # of Linux's time.h and timerfd.h


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _TimeSpec), ("value", _TimeSpec))


def _spec(seconds: float) -> _TimeSpec:
    whole = int(seconds)
    return _TimeSpec(whole, int((seconds - whole) * 1e9))


@lru_cache(maxsize=1)
def _kernel() -> Any:
    """The C library, where it has timers that can be watched and ``perf_counter`` is their clock; None elsewhere."""
    is_its_clock = "CLOCK_MONOTONIC" in time.get_clock_info("perf_counter").implementation
    if not sys.platform.startswith("linux") or not is_its_clock:
        return None
    library = ctypes.CDLL(None, use_errno=True)
    return library if hasattr(library, "timerfd_create") else None


class LoopTimer:
    """Calls ``callback`` in the loop when it is due. To be made, armed and closed in the loop's own thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._every_s = 0.0
        self._due_s = 0.0
        self._handle: asyncio.TimerHandle | None = None
        self._fd = -1
        kernel = _kernel()
        if kernel is None:
            return
        self._fd = kernel.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd >= 0:
            loop.add_reader(self._fd, self._read)

    def arm(self, due_s: float, *, every_s: float = 0.0) -> None:
        """Due at ``due_s`` (now, where that has passed), then every ``every_s``, if any. Replaces what was armed."""
        self._due_s, self._every_s = due_s, every_s
        if self._fd >= 0:
            # A value of 0 would turn it off.
            wanted = _TimerSpec(_spec(every_s), _spec(max(due_s, 1e-9)))
            _kernel().timerfd_settime(self._fd, _ABSOLUTE, ctypes.byref(wanted), None)
            return
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._loop.call_later(max(0.0, due_s - time.perf_counter()), self._called)

    def close(self) -> None:
        """Never due again."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):  # armed anew meanwhile
            os.read(self._fd, 8)
            self._callback()

    def _called(self) -> None:
        if self._every_s:
            now = time.perf_counter()
            self._due_s += self._every_s * max(1, int((now - self._due_s) / self._every_s))
            self._handle = self._loop.call_later(max(0.0, self._due_s - now), self._called)
        self._callback()
