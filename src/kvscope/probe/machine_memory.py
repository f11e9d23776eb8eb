"""The machine's own memory, and who else holds it, from /proc."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from kvscope.errors import ProbeUnavailable
from kvscope.units import KIB

PROC = Path("/proc")


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineMemory:
    """/proc/meminfo in bytes. ``available_bytes`` is the kernel's estimate of what programs can still get without
    swapping; None on kernels before 3.14, which do not state it."""

    total_bytes: int
    free_bytes: int
    available_bytes: int | None
    cached_bytes: int
    swap_total_bytes: int
    swap_free_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupant:
    """Another program and its resident memory, files it maps included."""

    pid: int
    name: str
    resident_bytes: int


def machine_memory(proc: Path = PROC) -> MachineMemory:
    """Memory of this machine now. Raises ProbeUnavailable where /proc/meminfo cannot be read."""
    fields: dict[str, int] = {}
    try:
        lines = (proc / "meminfo").read_text().splitlines()
    except OSError as error:
        raise ProbeUnavailable(
            f"The machine's memory cannot be read ({error}).", hint="kvscope reads Linux's /proc/meminfo."
        ) from error
    for line in lines:
        name, _, value = line.partition(":")
        number, *unit = value.split() or ["0"]
        fields[name] = int(number) * (KIB if unit == ["kB"] else 1)
    return MachineMemory(
        total_bytes=fields["MemTotal"],
        free_bytes=fields["MemFree"],
        available_bytes=fields.get("MemAvailable"),
        cached_bytes=fields["Cached"],
        swap_total_bytes=fields["SwapTotal"],
        swap_free_bytes=fields["SwapFree"],
    )


def other_occupants(exclude: Collection[int] = (), top: int = 5, proc: Path = PROC) -> tuple[Occupant, ...]:
    """The ``top`` programs that hold most resident memory, largest first, without the processes in ``exclude``.

    Only what this user may see: a process that hides its status is left out.
    """
    found = [occupant for occupant in _occupants(proc) if occupant.pid not in exclude]
    return tuple(sorted(found, key=lambda occupant: (-occupant.resident_bytes, occupant.pid))[:top])


def _occupants(proc: Path) -> Iterator[Occupant]:
    for folder in proc.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            text = (folder / "status").read_text(errors="replace")
        except OSError:
            continue  # it ended meanwhile, or is hidden from this user
        fields = dict(line.partition(":\t")[::2] for line in text.splitlines())
        resident = fields.get("VmRSS", "").split()
        if resident:  # kernel threads have none
            yield Occupant(pid=int(folder.name), name=fields["Name"], resident_bytes=int(resident[0]) * KIB)
