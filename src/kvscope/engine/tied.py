"""Programs tied to kvscope: the kernel ends them when kvscope ends, a guard beside kvscope ends what they leave behind,
and each inherits the locks of the devices that it is measured on.
"""

import atexit
import contextlib
import itertools
import os
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

from kvscope.engine.inherited import inherited_files

_TIED = Path(__file__).with_name("die_with_parent.py")
_GUARD = Path(__file__).with_name("guard.py")

# Linux ends a child with its parent (PR_SET_PDEATHSIG) when the *thread* that started it ends. So one thread starts
# them all, and lives as long as kvscope does.
_starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="kvscope-starter")


class _Guard:
    """The one process beside kvscope that outlives it for a moment: guard.py, started with the first engine."""

    def __init__(self) -> None:
        self.mark = uuid.uuid4().hex
        self._numbers = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None

    def next_mark(self) -> str:
        """A mark of kvscope's for one engine."""
        return f"{self.mark}.{next(self._numbers)}"

    def tell(self, line: str) -> None:
        if sys.platform != "linux":
            return
        if self._process is None:
            self._process = subprocess.Popen(
                (sys.executable, "-I", "-S", str(_GUARD), self.mark),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # somebody ended it; what is stopped in order needs none
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()

    def close(self) -> None:
        """Let it tidy up and end."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                process.communicate(timeout=5)

    def forget(self) -> None:
        """In a forked copy of kvscope: the guard is the original's, which must not wait for the copy's end."""
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.returncode = 0  # not the copy's child
            with contextlib.suppress(OSError):
                process.stdin.close()


_guard = _Guard()
atexit.register(_guard.close)


def _in_forked_copy() -> None:
    global _starter
    _starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="kvscope-starter")
    _guard.forget()
    _guard.mark = uuid.uuid4().hex


os.register_at_fork(after_in_child=_in_forked_copy)  # it has the starter's object but not its thread


def next_mark() -> str:
    """A mark of kvscope's for one engine, to be put into its environment (``guard.VARIABLE``)."""
    return _guard.next_mark()


def own_mark() -> str:
    """What every mark of this kvscope begins with, a dot after it."""
    return _guard.mark


def tell_guard(line: str) -> None:
    """See guard.py for what it understands."""
    _guard.tell(line)


def start_tied(
    command: Sequence[str], *, log: BinaryIO, talks: bool, environment: Mapping[str, str]
) -> "subprocess.Popen[bytes]":
    """Start a program that the kernel ends with kvscope, in a session of its own. ``talks``: stdin and stdout are
    pipes; otherwise stdout joins ``log``, as stderr does."""
    return _starter.submit(_popen, command, log, talks, environment).result()


def _popen(
    command: Sequence[str], log: BinaryIO, talks: bool, environment: Mapping[str, str]
) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        (sys.executable, "-I", "-S", str(_TIED), str(os.getpid()), *command),
        stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
        stdout=subprocess.PIPE if talks else log,
        stderr=log,
        env={**os.environ, **environment},
        pass_fds=inherited_files(),
        start_new_session=True,
    )
