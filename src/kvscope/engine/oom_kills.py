"""The control group (container, service, job) that an engine is in, for one thing: how often the kernel has killed in
it for want of memory. And the limits of a process's own on the memory that it may ask for.

Files: kernel documentation, admin-guide/cgroup-v2.rst (memory.events) and cgroup-v1/memory.rst (memory.oom_control).
The kernel counts a kill in the group of the process that it killed, whatever made memory short: that group's limit, one
around it, or the machine (mm/oom_kill.c, Linux 4.13 and newer). So a kill in another container does not move it.
"""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
# Of the flags in proc_pid_stat(5), field 9 (linux/sched.h): set before a process leaves its groups.
_PF_EXITING = 0x4
# File with the count, by version of control groups.
_EVENTS = {1: "memory.oom_control", 2: "memory.events"}


def membership(pid: int, proc: Path = PROC) -> str:
    """The groups of a process, as the kernel writes them; "" where it does not say. To be believed only if the process
    is not ``is_ending`` afterwards."""
    try:
        return (proc / str(pid) / "cgroup").read_text()
    except OSError:
        return ""


def is_ending(pid: int, proc: Path = PROC) -> bool:
    """Whether a process has begun to end, or is gone. Under version 1 the kernel lists it in the outermost group from
    then on, which may be some time before it is seen to have ended: its other threads end too."""
    try:
        flags = int((proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[6])
    except OSError:
        return True
    return bool(flags & _PF_EXITING)


def memory_group(groups: str, proc: Path = PROC) -> Path | None:
    """The folder of the memory group among ``groups``, as ``membership`` gave them; None where none can be seen that
    counts kills."""
    try:
        mounts = (proc / "self" / "mountinfo").read_text().splitlines()
    except OSError:
        return None
    for line in groups.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        version = 1 if "memory" in controllers.split(",") else 2 if (number, controllers) == ("0", "") else None
        folder = None if version is None else _mounted(mounts, version, path)
        if version is not None and folder is not None and (folder / _EVENTS[version]).exists():
            return folder
    return None


def _mounted(mounts: list[str], version: int, path: str) -> Path | None:
    """Where the group ``path`` stands in the file system: proc_pid_mountinfo(5)."""
    for line in mounts:
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        root, point = before.split()[3:5]
        wanted = kind == "cgroup" and "memory" in options.split(",") if version == 1 else kind == "cgroup2"
        if not wanted:
            continue
        inside = path.removeprefix(root) if root != "/" and path.startswith(root) else path
        folder = Path(point) / inside.lstrip("/")
        # A container may see only its own group, mounted as the root, while its path is told from outside.
        return folder if folder.exists() else Path(point)
    return None


def group_oom_kills(folder: Path) -> int | None:
    """How often the kernel has killed a process of this group for want of memory; None where it does not count."""
    for name in _EVENTS.values():
        try:
            lines = (folder / name).read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            key, _, value = line.partition(" ")
            if key == "oom_kill":
                return int(value)
    return None


def stays_known(folder: Path) -> bool:
    """Whether a process that has ended is still listed in the group that it was in: under version 2 (cgroups(7))."""
    return (folder / _EVENTS[2]).exists()


def has_others(folder: Path, session: int) -> bool:
    """Whether processes of another session than this one are in a group, or in one within it; False where who is there
    cannot be seen."""
    files = folder.rglob("cgroup.procs") if stays_known(folder) else [folder / "cgroup.procs"]
    for file in files:
        with contextlib.suppress(OSError):
            for line in file.read_text().split():
                with contextlib.suppress(OSError):  # it has gone, or (0) is in another container
                    if os.getsid(int(line)) != session:
                        return True
    return False


def memory_limits(pid: int, proc: Path = PROC) -> tuple[str, ...]:
    """Limits on the memory that a process may ask for (RLIMIT_AS, RLIMIT_DATA), in words; empty where it has none, or
    they cannot be read. One that has ended, and that nobody has waited for, still has them."""
    try:
        lines = (proc / str(pid) / "limits").read_text().splitlines()
    except OSError:
        return ()
    found = []
    for name in ("Max address space", "Max data size"):
        soft = next((line.removeprefix(name).split()[0] for line in lines if line.startswith(name)), "unlimited")
        if soft.isdecimal():
            found.append(f"{name.removeprefix('Max ')} {int(soft) // 1024**2:,} MiB")
    return tuple(found)


def machine_oom_kills(proc: Path = PROC) -> int | None:
    """How often the kernel has killed for want of memory since the machine started, in any container: /proc/vmstat,
    Linux 4.13 or newer. None where it does not say."""
    try:
        lines = (proc / "vmstat").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition(" ")
        if name == "oom_kill":
            return int(value)
    return None


@dataclass(frozen=True, slots=True)
class KillCounts:
    """The counts that concern one process, as they were when it was first looked at."""

    group: Path | None
    in_group: int | None
    on_machine: int | None

    @classmethod
    def of(cls, pid: int, proc: Path = PROC) -> "KillCounts":
        """Those of a process, now."""
        group = memory_group(membership(pid, proc), proc)
        return cls(group, None if group is None else group_oom_kills(group), machine_oom_kills(proc))

    def until_now(self, proc: Path = PROC) -> dict[str, tuple[int, int]]:
        """Before and after, by the names that evidence has for them; what is not counted is left out."""
        after = {
            "group.oom_kill": (self.in_group, None if self.group is None else group_oom_kills(self.group)),
            "machine.oom_kill": (self.on_machine, machine_oom_kills(proc)),
        }
        return {name: (one, two) for name, (one, two) in after.items() if one is not None and two is not None}
