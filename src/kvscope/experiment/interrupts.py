"""Ctrl-C, and being asked to end, put off for the moment in which something is written that must not be lost."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

_NUMBERS = (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))


@contextmanager
def interrupts_held() -> Iterator[None]:
    """While this lasts, such a signal is only noted; what it would have done, it does at the end; an error from within
    goes before it. Only signals that
    Python answers are held (one that ends the process at once does), and only the main thread gets any."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    noted: list[tuple[int, FrameType | None]] = []
    answered = _noting(noted)
    try:
        yield
    except BaseException:
        # That it could not be written is what has to be known; the error ends what the signal would have ended.
        with suppress(BaseException):
            _answer(answered, noted)
        raise
    _answer(answered, noted)


_Answer = Callable[..., Any]


def _noting(noted: list[tuple[int, FrameType | None]]) -> dict[int, _Answer]:
    """Note signals from now on; gives what answered them before."""
    answered: dict[int, _Answer] = {}
    for number in _NUMBERS:
        before = signal.getsignal(number)
        if callable(before):
            answered[number] = before
            signal.signal(number, lambda *event: noted.append(event))
    return answered


def _answer(answered: dict[int, _Answer], noted: list[tuple[int, FrameType | None]]) -> None:
    for number, answer in answered.items():
        signal.signal(number, answer)
    if noted:
        answered[noted[0][0]](*noted[0])
