"""Memory of the control group (container, service, job) that this process is in: how much more it may take.

Files: kernel documentation, admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst. A control group holds everything in it,
page cache included, so its use is no program's own memory; it is read for what its limit leaves.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from kvscope.probe.machine_memory import PROC, machine_memory

CURRENT = {1: "memory.usage_in_bytes", 2: "memory.current"}
_LIMIT = {1: "memory.limit_in_bytes", 2: "memory.max"}
# Fields of memory.stat with the group's page cache, those of the groups within it included.
_PAGE_CACHE = {1: ("total_inactive_file", "total_active_file"), 2: ("inactive_file", "active_file")}
# Version 1 writes "no limit" as the largest multiple of a page that fits 63 bits.
_NO_LIMIT_FROM_BYTES = 1 << 62


@dataclass(frozen=True, slots=True)
class Group:
    """A control group with memory accounting. ``folder`` is where its files are, ``top`` the outermost of the groups
    around it that can be seen."""

    version: int
    folder: Path
    top: Path


def available_bytes(proc: Path = PROC) -> int | None:
    """Bytes that this process can still get: the least of what the machine has (MemAvailable) and what the limits of
    its control group, and of every group around that one, leave. None where neither is stated.

    What a limit leaves is counted as the kernel counts the machine's: page cache is given up when memory is asked for,
    so it is not taken as used. Raises ProbeUnavailable where /proc/meminfo cannot be read.
    """
    left = [] if (machine := machine_memory(proc).available_bytes) is None else [machine]
    group = group_of(proc)
    if isinstance(group, Group):
        left += [each for folder in _upwards(group) if (each := _left(folder, group.version)) is not None]
    return min(left, default=None)


def unavailable(proc: Path = PROC) -> str | None:
    """None when the use of the control group can be read, otherwise why not, in words for a person."""
    group = group_of(proc)
    if isinstance(group, str):
        return group
    file = group.folder / CURRENT[group.version]
    if not file.exists():
        return f"The control group has no memory accounting ({file} does not exist; the root group has none)."
    return None


def memory_limit_bytes(proc: Path = PROC) -> int | None:
    """The least that this process's control group, and every one around it that can be seen, allow; None: no limit."""
    group = group_of(proc)
    if not isinstance(group, Group):
        return None
    found = [number_in(folder / _LIMIT[group.version]) for folder in _upwards(group)]
    return min((limit for limit in found if limit is not None and limit < _NO_LIMIT_FROM_BYTES), default=None)


def cpu_limit(proc: Path = PROC) -> float | None:
    """Seconds of processor time per second that the groups allow (cgroup-v2.rst, cpu.max; sched-bwc.rst,
    cpu.cfs_quota_us); None: no limit."""
    group = group_of(proc, controller="cpu")
    if not isinstance(group, Group):
        return None
    shares = []
    for folder in _upwards(group):
        quota, period = _cpu_time(folder, group.version)
        if quota.isdigit() and period.isdigit() and int(period):  # -1 and max: none
            shares.append(int(quota) / int(period))
    return min(shares, default=None)


def _cpu_time(folder: Path, version: int) -> tuple[str, str]:
    """Quota and period as they are written; empty where they are not."""
    files = ("cpu.max",) if version == 2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    try:
        words = " ".join((folder / file).read_text() for file in files).split()
    except OSError:
        words = []
    return (words[0], words[1]) if len(words) == 2 else ("", "")


def _left(folder: Path, version: int) -> int | None:
    """What one group's limit leaves; None where it states no limit or no use."""
    limit, current = number_in(folder / _LIMIT[version]), number_in(folder / CURRENT[version])
    if limit is None or current is None or limit >= _NO_LIMIT_FROM_BYTES:
        return None
    return max(limit - current + _page_cache_bytes(folder, version), 0)


def _page_cache_bytes(folder: Path, version: int) -> int:
    """Page cache held by the group. Where it is not stated nothing counts as cache: less is then said to be left."""
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    fields = dict(line.split(" ", 1) for line in lines if " " in line)
    return sum(int(fields.get(name, 0)) for name in _PAGE_CACHE[version])


def _upwards(group: Group) -> Iterator[Path]:
    """The group's folder and those around it."""
    folder = group.folder
    yield folder
    while folder != group.top:
        folder = folder.parent
        yield folder


def group_of(proc: Path = PROC, pid: int | None = None, *, controller: str = "memory") -> Group | str:
    """The control group with memory accounting that a process is in (None: this very process), or why there is none.
    ``controller``: what it accounts for, where that is not memory."""
    try:
        memberships = _memberships(proc / ("self" if pid is None else str(pid)), controller)
        own = memberships if pid is None else _memberships(proc / "self", controller)
        mounts = (proc / "self" / "mountinfo").read_text().splitlines()
    except OSError as error:
        return f"The process's control group cannot be read ({error})."
    for version in (1, 2):
        if version not in memberships:
            continue
        is_own = memberships[version] == own.get(version)
        found = _mounted(mounts, version, memberships[version], controller, is_own=is_own)
        if found is not None:
            return found
    return "No control group file system with memory accounting is mounted here that shows the process's group."


def _memberships(folder: Path, controller: str) -> dict[int, str]:
    """Version → path of the process's group, of those that may have this controller: cgroups(7)."""
    paths: dict[int, str] = {}
    for line in (folder / "cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            paths[1] = path
        elif number == "0" and not controllers:
            paths[2] = path
    return paths


def _mounted(mounts: list[str], version: int, path: str, controller: str, *, is_own: bool) -> Group | None:
    """Where the group ``path`` can be seen, given the lines of mountinfo: proc_pid_mountinfo(5)."""
    for line in mounts:
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        root, point = before.split()[3:5]
        if kind != ("cgroup" if version == 1 else "cgroup2"):
            continue
        if version == 1 and controller not in options.split(","):
            continue
        try:
            inside = PurePosixPath(path).relative_to(root)
        except ValueError:
            if not is_own:
                continue
            inside = PurePosixPath()  # a container that sees only its own group, mounted as the root
        if ".." in inside.parts:
            continue  # it lies outside the part of the tree that this container sees: cgroup_namespaces(7)
        return Group(version, Path(point) / inside, Path(point))
    return None


def number_in(file: Path) -> int | None:
    """The one number of a file; None where there is no such file, or it says "max"."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None
