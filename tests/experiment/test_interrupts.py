"""Ctrl-C while something is written comes after it."""

import signal
import threading

import pytest

from kvscope.experiment.interrupts import interrupts_held


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_comes_when_all_is_written(number: signal.Signals) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(number, stop)
    written = []
    try:
        with pytest.raises(KeyboardInterrupt), interrupts_held():  # noqa: PT012  # when it is raised is the point
            signal.raise_signal(number)
            signal.raise_signal(number)
            written.append("row")
        assert written == ["row"]
        assert signal.getsignal(number) is stop
    finally:
        signal.signal(number, before)


def test_without_one_nothing_is_changed() -> None:
    before = signal.getsignal(signal.SIGINT)
    with interrupts_held():
        pass
    assert signal.getsignal(signal.SIGINT) is before


def test_an_error_goes_on_as_it_is() -> None:
    with pytest.raises(ValueError, match="full"), interrupts_held():
        raise ValueError("full")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_error_is_not_hidden_by_a_signal(number: signal.Signals) -> None:
    """The disk is full, and the user has pressed Ctrl-C: that nothing was written is what is raised."""
    answered = []

    def stop(*_: object) -> None:
        answered.append(1)
        raise KeyboardInterrupt

    before = signal.signal(number, stop)
    try:
        with pytest.raises(ValueError, match="full"), interrupts_held():  # noqa: PT012
            signal.raise_signal(number)
            raise ValueError("full")
        assert answered
        assert signal.getsignal(number) is stop
    finally:
        signal.signal(number, before)


def test_other_threads_are_never_interrupted() -> None:
    written = []

    def write() -> None:
        with interrupts_held():
            written.append("row")

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()
    assert written == ["row"]
