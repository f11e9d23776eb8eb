"""All accelerators of this machine together, whoever made them: one reading, one list of occupants."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from kvscope.probe.amd import AmdProbe
from kvscope.probe.base import DeviceOccupant, DeviceProbe
from kvscope.probe.nvml import NvidiaProbe

# Made by NVIDIA's kernel driver when it is loaded.
NVIDIA_CONTROL = Path("/dev/nvidiactl")


class DevicesProbe:
    """Reads every probe of ``probes``. A quantity is the sum of theirs, and absent where one of them does not know it:
    what is held on two GPUs is not known when it is known of one."""

    name = "devices"

    def __init__(self, probes: Sequence[DeviceProbe]) -> None:
        self.probes = tuple(probes)

    def read(self) -> Mapping[str, int]:
        """Bytes now. Raises what the first of them that fails raises."""
        readings = [probe.read() for probe in self.probes]
        known = set.intersection(*(set(reading) for reading in readings))
        return {quantity: sum(reading[quantity] for reading in readings) for quantity in sorted(known)}

    def occupants(self, exclude: Collection[int]) -> tuple[DeviceOccupant, ...]:
        """The other programs that hold memory on any of them. Raises as ``read``."""
        return tuple(each for probe in self.probes for each in probe.occupants(exclude))

    def doubts(self) -> tuple[str, ...]:
        """What could not be told so far, in words for a person."""
        return tuple(doubt for probe in self.probes for doubt in probe.doubts())

    def close(self) -> None:
        """Let go of the drivers."""
        for probe in self.probes:
            probe.close()


def devices_here(
    pids: Callable[[], tuple[int, ...]], *, nvidia_control: Path = NVIDIA_CONTROL
) -> tuple[DevicesProbe | None, str | None]:
    """A probe of the accelerators that can be read here, None where there are none; and in words what is here and
    cannot be read, None where that is nothing."""
    nvidia, amd = NvidiaProbe(pids), AmdProbe(pids)
    why_not = nvidia.unavailable()
    probes: list[DeviceProbe] = [] if why_not is not None else [nvidia]
    if amd.unavailable() is None:
        probes.append(amd)
    unseen = why_not if nvidia_control.exists() else None
    return (DevicesProbe(probes) if probes else None), unseen
