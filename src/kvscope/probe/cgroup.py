"""Memory of the control group (container, service, job) that a process is in: its use, limit, peak and kills.

Files: kernel documentation, admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst. A control group holds everything in it,
page cache included, so its use is no program's own memory; it is read for its limit and its out-of-memory kills.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from kvscope.errors import ProbeLost
from kvscope.probe.machine_memory import PROC

# Quantity → file, by version of the control group interface.
_FILES = {
    1: {
        "current_bytes": "memory.usage_in_bytes",
        "peak_bytes": "memory.max_usage_in_bytes",
        "limit_bytes": "memory.limit_in_bytes",
    },
    2: {"current_bytes": "memory.current", "peak_bytes": "memory.peak", "limit_bytes": "memory.max"},
}
_EVENTS = {1: "memory.oom_control", 2: "memory.events"}
# Version 1 writes "no limit" as the largest multiple of a page that fits 63 bits.
_NO_LIMIT_FROM_BYTES = 1 << 62


@dataclass(frozen=True, slots=True)
class _Group:
    version: int
    folder: Path


class CgroupProbe:
    """Reads current_bytes, peak_bytes, limit_bytes and oom_kills (a count) of the group that ``pid`` is in. A quantity
    that the kernel does not state, or that is unlimited, is absent."""

    name = "control group"

    def __init__(self, pid: Callable[[], int] | None = None, *, proc: Path = PROC) -> None:
        self._pid = pid
        self._proc = proc

    def unavailable(self) -> str | None:
        """None when at least the current use can be read, otherwise why not."""
        group = self._group()
        if isinstance(group, str):
            return group
        file = group.folder / _FILES[group.version]["current_bytes"]
        if not file.exists():
            return f"The control group has no memory accounting ({file} does not exist; the root group has none)."
        return None

    def read(self) -> Mapping[str, int]:
        """What the group states now. Raises ProbeLost when it cannot be read."""
        group = self._group()
        if isinstance(group, str):
            raise ProbeLost(group)
        found: dict[str, int] = {}
        for quantity, file in _FILES[group.version].items():
            number = _number(group.folder / file)
            if number is not None and number < _NO_LIMIT_FROM_BYTES:
                found[quantity] = number
        kills = _oom_kills(group.folder / _EVENTS[group.version])
        if kills is not None:
            found["oom_kills"] = kills
        if not found:
            raise ProbeLost(f"The control group's memory cannot be read any more ({group.folder}).")
        return found

    def _group(self) -> _Group | str:
        """The group with memory accounting, or why there is none."""
        folder = self._proc / ("self" if self._pid is None else str(self._pid()))
        try:
            memberships = (folder / "cgroup").read_text().splitlines()
            mounts = (folder / "mountinfo").read_text().splitlines()
        except OSError as error:
            return f"The process's control group cannot be read ({error})."
        paths: dict[int, str] = {}
        for line in memberships:
            number, controllers, path = line.split(":", 2)
            if "memory" in controllers.split(","):
                paths[1] = path
            elif number == "0" and not controllers:
                paths[2] = path
        for version in (1, 2):
            if version in paths and (mounted := _mounted(mounts, version, paths[version])) is not None:
                return _Group(version, mounted)
        return "No control group file system with memory accounting is mounted here."


def _mounted(mounts: list[str], version: int, path: str) -> Path | None:
    """Where the group ``path`` can be seen, given the lines of mountinfo: proc_pid_mountinfo(5)."""
    for line in mounts:
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        root, point = before.split()[3:5]
        if kind != ("cgroup" if version == 1 else "cgroup2"):
            continue
        if version == 1 and "memory" not in options.split(","):
            continue
        try:
            inside = PurePosixPath(path).relative_to(root)
        except ValueError:
            inside = PurePosixPath()  # a container that sees only its own group, mounted as the root
        return Path(point) / inside
    return None


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # absent in this kernel, or "max"
        return None


def _oom_kills(file: Path) -> int | None:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition(" ")
        if name == "oom_kill":
            return int(value)
    return None
