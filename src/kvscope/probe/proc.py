"""Memory of a process tree, from Linux's /proc: what is the program's own, what is a file's, what was the most."""

import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from kvscope.errors import ProbeLost, ProbeUnavailable
from kvscope.probe.base import MemoryMapping
from kvscope.probe.machine_memory import PROC
from kvscope.probe.smaps import DEFAULT_STACK_BYTES, parse_smaps, sum_small
from kvscope.units import KIB, MIB

# Fields of /proc/PID/status in the kernel's own words and order: proc_pid_status(5). One search finds them all, because
# this runs 50 times a second. VmSwap is absent in a kernel built without swap.
_QUANTITIES = ("peak_bytes", "anon_bytes", "file_bytes", "shmem_bytes", "swap_bytes")
_STATUS = re.compile(
    rb"\nVmHWM:\s+(\d+) kB.*?\nRssAnon:\s+(\d+) kB\nRssFile:\s+(\d+) kB\nRssShmem:\s+(\d+) kB"
    rb"(?:.*?\nVmSwap:\s+(\d+) kB)?",
    re.DOTALL,
)

# Looking for new child processes can mean a walk over all of /proc; an engine starts few, and seldom.
_TREE_REFRESH_S = 1.0
_STATUS_MOST_BYTES = 16 * KIB


class ProcessTreeProbe:
    """Reads the processes that ``pids`` names, and their descendants.

    ``read()`` gives anon_bytes (RssAnon), swap_bytes (VmSwap), file_bytes (RssFile), shmem_bytes (RssShmem) and
    peak_bytes (VmHWM: the most that was resident of all kinds together since start or ``reset_peak``), summed over the
    tree. A sum of peaks of several processes is an upper bound: they need not have peaked together. The kernel keeps
    the peak from counters that each processor adds to in batches, so it can be off by a few hundred KiB.
    """

    name = "process tree"

    def __init__(self, pids: Callable[[], tuple[int, ...]], *, proc: Path = PROC) -> None:
        self._pids = pids
        self._proc = proc
        self._tree: tuple[int, ...] = ()
        self._roots: tuple[int, ...] = ()
        self._tree_until_s = 0.0
        self._answering = 0  # processes that the last reading was of
        # Kept open: opening a file of /proc costs several times what reading it does.
        self._open: dict[int, int] = {}
        self._started: dict[int, int] = {}
        # The sampler's thread and the trial's own read the same probe.
        self._lock = threading.Lock()

    def unavailable(self) -> str | None:
        """None where /proc states RssAnon (Linux 4.5 or newer), otherwise why not."""
        try:
            status = (self._proc / "self" / "status").read_bytes()
        except OSError:
            return "Memory of a process is read from Linux's /proc, which is not there."
        if b"RssAnon:" not in status:
            return "This kernel does not tell anonymous from file-backed memory (RssAnon); Linux 4.5 or newer does."
        return None

    def read(self) -> Mapping[str, int]:
        """Bytes now. Raises ProbeLost when no process of the tree is left."""
        with self._lock:
            found = self._found(self._watched())
            if len(found) < self._answering or not found:  # one has gone, or none was there yet
                self._tree_until_s = 0.0
                found = self._found(self._watched())
            self._answering = len(found)
        if not found:  # one that has ended but was not collected has a status without memory
            raise self._lost()
        totals = [
            sum(int(number or 0) for number in numbers) for numbers in zip(*(m.groups() for m in found), strict=True)
        ]
        return {quantity: total * KIB for quantity, total in zip(_QUANTITIES, totals, strict=True)}

    def close(self) -> None:
        """Give back the open status files. Reading again opens them again."""
        with self._lock:
            while self._open:
                os.close(self._open.popitem()[1])

    def __del__(self) -> None:
        self.close()

    def _status(self, pid: int) -> bytes:
        """The status of a process, empty when it has gone."""
        try:
            if pid not in self._open:
                self._open[pid] = os.open(self._proc / str(pid) / "status", os.O_RDONLY | os.O_CLOEXEC)
            return os.pread(self._open[pid], _STATUS_MOST_BYTES, 0)
        except (FileNotFoundError, ProcessLookupError):
            return b""
        except PermissionError as error:
            raise ProbeUnavailable(
                f"Process {pid} may not be read ({error.strerror}).", hint=_PERMISSION_HINT
            ) from error

    def tree(self) -> tuple[int, ...]:
        """Process ids watched now: those named and their descendants, looked for once a second, and when one has gone.
        A named one whose id has passed to another process is no longer watched."""
        with self._lock:
            return self._watched()

    def look_again(self) -> None:
        """Look for new descendants at the next reading, however short the last look was ago: an engine may have
        started one just now (Ollama: a runner for each model)."""
        with self._lock:
            self._tree_until_s = 0.0

    def _found(self, pids: tuple[int, ...]) -> list[re.Match[bytes]]:
        return [match for pid in pids if (match := _STATUS.search(self._status(pid)))]

    def _watched(self) -> tuple[int, ...]:
        now = time.monotonic()
        if now >= self._tree_until_s:
            self._roots = self._pids()  # which an engine may have to look up, too: not 50 times a second
            self._tree = process_tree(filter(self._is_the_same, self._roots), self._proc)
            self._tree_until_s = now + _TREE_REFRESH_S
            for pid in self._open.keys() - set(self._tree):
                os.close(self._open.pop(pid))
        return self._tree

    def _is_the_same(self, pid: int) -> bool:
        """Whether a process id still means the process that it meant when it was first named."""
        started = start_ticks(pid, self._proc)
        return started is None or self._started.setdefault(pid, started) == started

    def reset_peak(self) -> str | None:
        """Set the kernel's peak (VmHWM) back to what is resident now. None when done, otherwise why it could not be."""
        done = False
        for pid in self.tree():
            try:
                (self._proc / str(pid) / "clear_refs").write_text("5\n")  # 5: reset VmHWM, proc_pid_clear_refs(5)
                done = True
            except (FileNotFoundError, ProcessLookupError):
                continue
            except OSError as error:
                return f"The peak counter of process {pid} cannot be reset ({error.strerror})."
        return None if done else "There is no process left whose peak could be reset."

    def maps(self) -> tuple[MemoryMapping, ...]:
        """Mappings of the whole tree. Each anonymous or file mapping of 1 MiB or more stands alone; smaller ones are
        summed by kind. Raises ProbeLost when nothing is left, ProbeUnavailable when they may not be read."""
        found: list[MemoryMapping] = []
        for pid in self.tree():
            try:
                text = (self._proc / str(pid) / "smaps").read_text(errors="surrogateescape")
            except (FileNotFoundError, ProcessLookupError):
                continue
            except PermissionError as error:
                raise ProbeUnavailable(
                    f"The mappings of process {pid} may not be read ({error.strerror}).", hint=_PERMISSION_HINT
                ) from error
            found += parse_smaps(text, stack_bytes=self._stack_bytes(pid))
        if not found:
            raise self._lost()
        return sum_small(found)

    def pss_bytes(self) -> int | None:
        """Proportional set size of the tree, from smaps_rollup: information, and no measure of the engine. A page that
        several processes map counts to each in part, so it moves with what strangers map. None where the kernel (before
        Linux 4.14) does not state it, or it may not be read."""
        total = 0
        for pid in self.tree():
            try:
                text = (self._proc / str(pid) / "smaps_rollup").read_text()
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                return None
            found = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
            if found is None:
                return None
            total += int(found[1]) * KIB
        return total

    def _stack_bytes(self, pid: int) -> int:
        """Size of a new thread's stack in that process: its soft limit; glibc takes 2 MiB where there is no limit."""
        try:
            limits = (self._proc / str(pid) / "limits").read_text()
        except OSError:
            return DEFAULT_STACK_BYTES
        found = re.search(r"^Max stack size +(\S+)", limits, re.MULTILINE)
        if found is None:
            return DEFAULT_STACK_BYTES
        return 2 * MIB if found[1] == "unlimited" else int(found[1])

    def _lost(self) -> ProbeLost:
        named = ", ".join(map(str, self._roots)) or "none"
        return ProbeLost(
            f"The process to be watched has gone (process id: {named}).",
            hint="The engine ended while its memory was read; its log says why.",
        )


_PERMISSION_HINT = "It belongs to another user, or the system hides it (hidepid). Run kvscope as the user that owns it."


def process_exists(pid: int, proc: Path = PROC) -> bool:
    """Whether that process is there and still holds something: one that ended but was not collected does not."""
    try:
        stat = (proc / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def start_ticks(pid: int, proc: Path = PROC) -> int | None:
    """When a process started, in the kernel's ticks since boot: with its id, this names it for ever. None where it has
    gone."""
    try:
        stat = (proc / str(pid) / "stat").read_text(errors="replace")
        return int(stat.rpartition(")")[2].split()[19])  # field 22 of proc_pid_stat(5), counted from the name
    except (OSError, IndexError):
        return None


def process_tree(roots: Iterable[int], proc: Path = PROC) -> tuple[int, ...]:
    """``roots`` and all their descendants alive now, parents before children."""
    roots = tuple(roots)
    children = _children_by_parent(proc) if any(_listed_children(pid, proc) is None for pid in roots) else None
    found: list[int] = []
    waiting = list(roots)
    while waiting:
        pid = waiting.pop(0)
        if pid in found:
            continue
        found.append(pid)
        waiting += children.get(pid, []) if children is not None else _listed_children(pid, proc) or []
    return tuple(found)


def _listed_children(pid: int, proc: Path) -> list[int] | None:
    """Children as the kernel lists them, or None where it does not (it is a build option) or the process is gone."""
    try:
        threads = list((proc / str(pid) / "task").iterdir())
        return [int(child) for thread in threads for child in (thread / "children").read_text().split()]
    except OSError:
        return None


def _children_by_parent(proc: Path) -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for folder in proc.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            stat = (folder / "stat").read_text(errors="replace")
        except OSError:
            continue
        # The name, in parentheses, may itself hold spaces and parentheses: fields count from the last ")".
        parent = int(stat.rpartition(")")[2].split()[1])
        children.setdefault(parent, []).append(int(folder.name))
    return children
