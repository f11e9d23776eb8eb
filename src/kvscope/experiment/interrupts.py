"""Ctrl-C, and being asked to end, put off for the moment in which something is written that must not be lost."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_NUMBERS = (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))


@contextmanager
def interrupts_held() -> Iterator[None]:
    """While this lasts, such a signal is only noted; what it would have done, it does at the end. Only signals that
    Python answers are held (one that ends the process at once does), and only the main thread gets any."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    noted: list[tuple[int, FrameType | None]] = []
    answered: dict[int, Callable[..., Any]] = {}
    try:
        for number in _NUMBERS:
            before = signal.getsignal(number)
            if callable(before):
                answered[number] = before
                signal.signal(number, lambda *event: noted.append(event))
        yield
    finally:
        for each, answer in answered.items():
            signal.signal(each, answer)
        if noted:
            answered[noted[0][0]](*noted[0])
