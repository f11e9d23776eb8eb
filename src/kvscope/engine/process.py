"""A program that kvscope starts: its log, its death and the reason, its end.

Only what was started here is ever signalled. The program leads a session and process group of its own, so that Ctrl-C
in the terminal reaches kvscope alone, and ending the group ends what the program started in turn. As long as its group
may be signalled, the program is a child of ours that nobody has waited for: its id cannot be anybody else's.
"""

import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, BinaryIO

from kvscope.engine.failure import Death, death_error
from kvscope.engine.guard import VARIABLE, descendants, end_marked, end_these, end_writers, started_at
from kvscope.engine.oom_kills import (
    group_oom_kills,
    has_others,
    is_ending,
    machine_oom_kills,
    membership,
    memory_group,
    memory_limits,
    stays_known,
)
from kvscope.engine.tied import next_mark, start_tied, tell_guard
from kvscope.errors import EngineError, EngineNotFound, EngineReplyError, EngineStartFailed, EngineTimeout

LOG_TAIL_LINES = 60
_TAIL_BYTES = 256 * 1024
# Far more than any load logs. Whatever an engine writes, kvscope never holds more of it at once than this.
MOST_READ_BYTES = 8 * 1024 * 1024
_PART_BYTES = 256 * 1024
_MOST_KEPT = 64 * 1024
# What was sent SIGKILL and holds much memory takes a moment to be gone.
_GONE_WITHIN_S = 2.0

# With less room than this for the log, nothing is started: a log that is cut explains nothing.
_ROOM_FOR_LOG_BYTES = 1024 * 1024

_LOG_IS_CUT = "[The log is cut: the disk that holds it is full.]"

# How often it is looked which control group a program is in that is waited for.
_LOOK_EVERY_S = 0.25


class EngineProcess:
    """One program, from its start to its end.

    stderr goes to a temporary file without a name, which the system takes back however kvscope ends. With
    ``talks=True``, stdin and stdout are pipes for ``send`` and ``receive``; otherwise stdout joins the log.
    """

    def __init__(
        self, command: Sequence[str], *, name: str, talks: bool, environment: Mapping[str, str] | None = None
    ) -> None:
        self.command = tuple(command)
        self.name = name
        self._talks = talks
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._log: BinaryIO | None = None
        self._kept_log = ""
        self._unread = b""
        self._mark = next_mark()
        self._started_at: int | None = None
        self._machine_kills_before: int | None = None
        self._groups = ""
        self._group: Path | None = None
        self._group_kills_before: int | None = None

    def start(self) -> None:
        """Raises EngineNotFound when there is no such program, or it may not be run; EngineStartFailed where there is
        no room for its log."""
        if shutil.which(self.command[0]) is None:
            raise EngineNotFound(
                f"{self.name}: there is no program {self.command[0]!r}, or it may not be executed.",
                hint="Give its full path, or put its folder on PATH.",
            )
        self._machine_kills_before = machine_oom_kills()
        self._log = _new_log(self.name)
        self._process = start_tied(
            self.command, log=self._log, talks=self._talks, environment={**self._environment, VARIABLE: self._mark}
        )
        self._started_at = started_at(self._process.pid)
        tell_guard(f"+{self._process.pid} {self._started_at}")
        self.alive()  # notes its control group

    @property
    def pid(self) -> int | None:
        """Process id; None before the start and after ``stop``."""
        return None if self._process is None else self._process.pid

    def alive(self) -> bool:
        """Whether the program runs. One that has ended keeps its process id reserved until ``stop``."""
        if self._process is not None:
            self._note_group(self._process.pid)
        return self._process is not None and self._exit_status() is None

    def _note_group(self, pid: int) -> None:
        """Note the control group that it is in, while it is in one: a wrapper may put it into another with a limit."""
        groups = membership(pid)
        if groups in ("", self._groups) or is_ending(pid):
            return
        self._groups = groups
        group = memory_group(groups)
        if group != self._group:
            self._group = group
            self._group_kills_before = None if group is None else group_oom_kills(group)

    def _exit_status(self) -> int | None:
        """Exit code, or minus the signal; None while it runs. Does not free the process id: a signal to the group
        must not be able to reach a stranger that got the same number."""
        if self._process is None or self._process.returncode is not None:
            return None if self._process is None else self._process.returncode
        state = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if state is None:
            return None
        return state.si_status if state.si_code == os.CLD_EXITED else -state.si_status

    # --- conversation with our own worker -------------------------------------------------------------------------

    def send(self, line: str) -> None:
        """Write one line to the program. Raises EngineDied when it has gone."""
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise self.death() from error

    def receive(self, timeout_s: float, *, doing: str) -> str:
        """The next line from the program. Raises EngineDied, OutOfMemory or EngineTimeout."""
        assert self._process is not None
        assert self._process.stdout is not None
        until_s = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                self._note_group(self._process.pid)
                if not selector.select(max(0.0, min(until_s - time.monotonic(), _LOOK_EVERY_S))):
                    if time.monotonic() < until_s:
                        continue
                    raise EngineTimeout(
                        f"{self.name} did not answer within {timeout_s:g} s while {doing}.",
                        hint="A large model on a slow disk can need longer. Its log is kept with the trial.",
                    )
                read = os.read(self._process.stdout.fileno(), 65536)
                if not read:
                    raise self.death(while_doing=doing)
                self._unread += read
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode(errors="replace")

    def receive_message(self, timeout_s: float, *, doing: str) -> dict[str, Any]:
        """The next line, which is to be a JSON object. Raises as ``receive``, and EngineReplyError."""
        line = self.receive(timeout_s, doing=doing)
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            raise EngineReplyError(
                f"{self.name}'s process said what is not understood while {doing}: {line[:200]}",
                hint="Something else writes to its standard output. The line is kept with the trial.",
                evidence={"known_by": "message", "body": line[:_MOST_KEPT]},
            )
        return message

    # --- the log --------------------------------------------------------------------------------------------------

    def log_size(self) -> int:
        """Bytes logged so far; 0 after ``stop``."""
        return 0 if self._log is None else os.fstat(self._log.fileno()).st_size

    def log_text(self, since: int = 0) -> str:
        """The log from byte ``since`` on; of more than MOST_READ_BYTES, its beginning and its end, and between them a
        line that says how much is left out. After ``stop``, the end of it that was kept."""
        if self._log is None:
            return self._kept_log
        size = max(0, self.log_size() - since)
        if size <= MOST_READ_BYTES:
            return self._read_log(since, size)
        half = MOST_READ_BYTES // 2
        left_out = f"\n[{size - 2 * half} bytes of the log are left out here.]\n"
        return self._read_log(since, half) + left_out + self._read_log(since + size - half, half)

    def log_lines(self, since: int) -> tuple[str, int]:
        """Whole lines of the log from byte ``since`` on, and the byte after them, to go on from: at most _PART_BYTES at
        once. A line that is longer is given in parts."""
        if self._log is None:
            return "", since
        part = os.pread(self._log.fileno(), _PART_BYTES, since)
        end = len(part) if len(part) == _PART_BYTES and b"\n" not in part else part.rfind(b"\n") + 1
        return part[:end].decode(errors="replace"), since + end

    def _read_log(self, since: int, size: int) -> str:
        assert self._log is not None
        return os.pread(self._log.fileno(), size, since).decode(errors="replace")

    def log_tail(self, lines: int = LOG_TAIL_LINES) -> str:
        """The last lines of the log."""
        text = self.log_text(since=max(0, self.log_size() - _TAIL_BYTES))
        full = self._log is not None and os.fstatvfs(self._log.fileno()).f_bavail == 0
        return "\n".join([*text.splitlines()[-lines:], *([_LOG_IS_CUT] if full else [])])

    # --- the end --------------------------------------------------------------------------------------------------

    def death(self, *, while_doing: str = "", since: int = 0) -> EngineError:
        """Why the program is gone, as an error to raise. Its log counts from byte ``since`` on."""
        assert self._process is not None
        pid = self._process.pid
        status = self._await_exit(2.0)
        group, is_sure = self._group, False
        last = memory_group(membership(pid))
        if last is not None and stays_known(last):  # where it was when it ended
            group, is_sure = (last, True) if last == self._group else (None, False)
        own = memory_group(membership(os.getpid()))
        return death_error(
            Death(
                name=self.name,
                doing=while_doing,
                status=status,
                is_alone=group is not None and group != own and not has_others(group, pid),
                is_group_sure=is_sure,
                log=self.log_text(max(since, self.log_size() - _TAIL_BYTES)),
                group_kills=None if group is None else _both(self._group_kills_before, group_oom_kills(group)),
                machine_kills=_both(self._machine_kills_before, machine_oom_kills()),
                memory_limits=memory_limits(pid),
                pid=pid,
            )
        )

    def memory_limits(self) -> tuple[str, ...]:
        """The limits in force on the memory that it may ask for, in words; empty after ``stop``."""
        return () if self._process is None else memory_limits(self._process.pid)

    def exits_within(self, seconds: float) -> bool:
        """Whether it has ended, or does so within that time (a socket closes a moment before its process is gone)."""
        return self._process is None or self._await_exit(seconds) is not None

    def _await_exit(self, seconds: float) -> int | None:
        until_s = time.monotonic() + seconds
        while (status := self._exit_status()) is None and time.monotonic() < until_s:
            time.sleep(0.01)
        return status

    def stop(self, *, farewell: str | None = None, grace_s: float = 5.0) -> None:
        """End the program and everything it started: ``farewell`` (a last line to say to it), then SIGTERM, then
        SIGKILL. Each step is given ``grace_s``. Safe to call twice; never raises for a program that is gone."""
        process = self._process
        if process is not None and process.returncode is None:
            started_in_turn = descendants(process.pid)  # while they can be told by their parent
            if farewell is not None and self.alive():
                try:
                    self.send(farewell)
                    self._await_exit(grace_s)
                except EngineError:
                    pass
            if self.alive():
                self._signal(signal.SIGTERM)
                self._await_exit(grace_s)
            self._signal(signal.SIGKILL)  # what is left of the group, the program itself included
            process.wait()
            tell_guard(f"-{process.pid}")
            end_marked(self._mark)  # what left the group
            if self._log is not None:
                end_writers(self._log.fileno())
            end_these(started_in_turn, within_s=_GONE_WITHIN_S)  # and its environment
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    _close(pipe)
        if self._log is not None:
            self._kept_log = self.log_tail(sys.maxsize)
            self._log.close()
            self._log = None
        self._process = None

    def _signal(self, number: int) -> None:
        assert self._process is not None
        if started_at(self._process.pid) != self._started_at:
            return  # cannot be, as long as nobody else waits for our children; then nobody's process is signalled
        try:
            os.killpg(self._process.pid, number)
        except (ProcessLookupError, PermissionError):
            return  # nobody is left in the group (macOS says "not permitted" where only an ended process is)


def _new_log(name: str) -> BinaryIO:
    """A temporary file. Raises EngineStartFailed where there is no room for one."""
    try:
        room = shutil.disk_usage(tempfile.gettempdir()).free
        if room >= _ROOM_FOR_LOG_BYTES:
            return tempfile.TemporaryFile()
        why = f"{tempfile.gettempdir()} has {room} bytes left"
    except OSError as error:
        why = str(error)
    raise EngineStartFailed(
        f"{name} was not started: there is no room for its log ({why}).",
        hint="Free some space, or set TMPDIR to a folder on another disk.",
        evidence={"known_by": "message"},
    )


def _close(pipe: IO[Any]) -> None:
    try:
        pipe.close()
    except OSError:
        return  # what was not written yet has no reader any more


def python_command(file: Path, *arguments: str) -> tuple[str, ...]:
    """This very Python, running ``file`` without putting its folder on the module path."""
    return (sys.executable, "-P", str(file), *arguments)


def _both(before: int | None, after: int | None) -> tuple[int, int] | None:
    return None if before is None or after is None else (before, after)
