"""What a probe must do: readings of memory, each with its time, and the reason when there is none."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """``quantity`` ends in its unit (anon_bytes). ``late_s``: how long after its due moment it was taken."""

    probe: str
    quantity: str
    at_s: float
    value_bytes: int
    late_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryMapping:
    """One mapping of a process, or ``count`` small ones of the same kind summed. ``kind``: heap (brk), arena (a malloc
    arena of a thread), stack, anonymous, file. ``name`` is the file's path or empty. ``size_bytes`` is address space,
    ``resident_bytes`` what of it is in memory, ``anonymous_bytes`` the resident part that no file backs."""

    kind: str
    name: str
    size_bytes: int
    resident_bytes: int
    anonymous_bytes: int
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOccupant:
    """A program that holds memory on a device. ``held_bytes`` is None where the driver does not tell."""

    device: str
    pid: int
    name: str
    held_bytes: int | None


class Probe(Protocol):
    """A source of readings."""

    name: str

    def unavailable(self) -> str | None:
        """None when it works here, otherwise why not, in words for a person."""
        ...

    def read(self) -> Mapping[str, int]:
        """Quantity → value now. Raises ProbeLost when what is watched has gone."""
        ...


class MemoryProbe(Probe, Protocol):
    """A probe of a program's own memory: it also has a peak that can be set back, and a list of mappings."""

    def reset_peak(self) -> str | None:
        """Start a new peak at the memory held now. None when done, otherwise why it could not be."""
        ...

    def maps(self) -> tuple[MemoryMapping, ...]:
        """The mappings now. Raises ProbeLost or ProbeUnavailable."""
        ...


class DeviceProbe(Probe, Protocol):
    """A probe of accelerators. ``read`` gives device_used_bytes and device_total_bytes of all of them, and device_bytes
    of the watched processes where that is known."""

    def device_names(self) -> tuple[str, ...]:
        """The devices that are read."""
        ...

    def occupants(self, exclude: Collection[int]) -> tuple[DeviceOccupant, ...]:
        """The other programs that hold memory there."""
        ...

    def doubts(self) -> tuple[str, ...]:
        """What could not be told so far, in words for a person."""
        ...

    def close(self) -> None: ...
