"""The machine's own memory, from /proc."""

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


def process_name(pid: int, proc: Path = PROC) -> str | None:
    """A process's name as the kernel keeps it (its first 15 characters); None where it cannot be read."""
    try:
        return (proc / str(pid) / "comm").read_text(errors="replace").strip() or None
    except OSError:
        return None
