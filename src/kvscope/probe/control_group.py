"""What the control group of the engine's process holds, the most it held, and the out-of-memory kills in it.

Files: kernel documentation, admin-guide/cgroup-v1/memory.rst (memory.usage_in_bytes, memory.max_usage_in_bytes,
memory.oom_control) and admin-guide/cgroup-v2.rst (memory.current, memory.peak, memory.events, memory.events.local). A
group counts all that its processes hold, page cache of the files they read included.
"""

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from kvscope.errors import ProbeLost, ProbeUnavailable
from kvscope.probe.cgroup import CURRENT, Group, group_of, number_in
from kvscope.probe.machine_memory import PROC
from kvscope.probe.proc import process_tree

_PEAK = {1: "memory.max_usage_in_bytes", 2: "memory.peak"}
_OOM_KILLS = {1: "memory.oom_control", 2: "memory.events"}


class ControlGroupProbe:
    """Reads the group that the first of ``pids`` is in; it is looked for once, and read on after the process has ended,
    so that the kill that ended it is seen.

    ``read()`` gives cgroup_bytes, and as far as the kernel states them cgroup_peak_bytes (since the group was made, or
    since ``reset_peak``), cgroup_oom_kills (so far, of the group and those within it; version 1: of the group alone)
    and cgroup_oom_kills_local (version 2: of the group alone).
    """

    name = "control group"

    def __init__(self, pids: Callable[[], tuple[int, ...]], *, proc: Path = PROC) -> None:
        self._pids = pids
        self._proc = proc
        self._group: Group | None = None
        # Version 2 resets the peak for the one open file that asked, and for nobody else: it has to stay open.
        self._peak_file: int | None = None

    def unavailable(self) -> str | None:
        """None when the group's use can be read, otherwise why not."""
        try:
            self.read()
        except (ProbeLost, ProbeUnavailable) as error:
            return error.message
        return None

    def read(self) -> Mapping[str, int]:
        """Now. Raises ProbeLost where there is no process yet whose group could be looked for, or the group itself has
        gone, and ProbeUnavailable where it cannot be seen or does not account for memory."""
        group = self._found()
        current = number_in(group.folder / CURRENT[group.version])
        if current is None:
            raise self._no_use(group)
        stated = {
            "cgroup_bytes": current,
            "cgroup_peak_bytes": self._peak(group),
            "cgroup_oom_kills": _field(group.folder / _OOM_KILLS[group.version], "oom_kill"),
            "cgroup_oom_kills_local": _field(group.folder / "memory.events.local", "oom_kill"),
        }
        return {quantity: value for quantity, value in stated.items() if value is not None}

    def reset_peak(self) -> str | None:
        """Start a new peak at what is held now. None when done, otherwise why it was not.

        Version 2 (Linux 6.12 or newer) does it for this reader alone. Version 1 has one counter for all who read it, so
        it is set back only where nothing but the watched processes and kvscope is in the group.
        """
        try:
            group = self._found()
        except (ProbeLost, ProbeUnavailable) as error:
            return error.message
        try:
            return self._reset_shared(group) if group.version == 1 else self._reset_own(group)
        except OSError as error:
            return f"The peak counter of the control group cannot be reset ({error.strerror})."

    def close(self) -> None:
        """Give back the open file of the peak, and with it the reset."""
        if self._peak_file is not None:
            os.close(self._peak_file)
            self._peak_file = None

    def __del__(self) -> None:
        self.close()

    def use(self, group: Group) -> None:
        """Read this group instead of looking for that of a process."""
        self._group = group

    def _found(self) -> Group:
        if self._group is not None:
            return self._group
        pids = self._pids()
        if not pids:
            raise ProbeLost("There is no process whose control group could be read.")
        group = group_of(self._proc, pids[0])
        if isinstance(group, str):
            raise ProbeUnavailable(group)
        self._group = group
        return group

    def _no_use(self, group: Group) -> ProbeLost | ProbeUnavailable:
        file = group.folder / CURRENT[group.version]
        if group.folder.exists():
            return ProbeUnavailable(
                f"The control group has no memory accounting ({file} cannot be read; the root group has none)."
            )
        return ProbeLost(f"The control group {group.folder} has gone.")

    def _peak(self, group: Group) -> int | None:
        if self._peak_file is None:
            return number_in(group.folder / _PEAK[group.version])
        with contextlib.suppress(OSError, ValueError):
            return int(os.pread(self._peak_file, 64, 0))
        return None

    def _reset_shared(self, group: Group) -> str | None:
        ours = set(process_tree((os.getpid(), *self._pids()), self._proc))
        inside = {int(pid) for pid in (group.folder / "cgroup.procs").read_text().split()}
        if inside - ours or any(entry.is_dir() for entry in group.folder.iterdir()):
            return (
                "The control group holds other programs too; its peak counter (version 1) is one for all who read it "
                "and was left alone."
            )
        (group.folder / _PEAK[1]).write_text("0\n")
        return None

    def _reset_own(self, group: Group) -> str | None:
        if self._peak_file is None:
            self._peak_file = os.open(group.folder / _PEAK[2], os.O_RDWR | os.O_CLOEXEC)
        try:
            os.write(self._peak_file, b"reset\n")
        except OSError:
            self.close()
            raise
        return None


def _field(file: Path, name: str) -> int | None:
    """The number after ``name`` in a file of "name number" lines; None where it is not stated."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    numbers = [line.split()[1] for line in lines if line.split()[:1] == [name] and len(line.split()) == 2]
    return int(numbers[0]) if numbers and numbers[0].isdigit() else None
