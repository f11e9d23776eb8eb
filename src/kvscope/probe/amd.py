"""Memory on AMD GPUs, from what the kernel's amdgpu driver writes into /sys and /proc. No library is needed.

Whole device: /sys/class/drm/cardN/device/mem_info_vram_total and mem_info_vram_used (kernel documentation,
gpu/amdgpu/driver-misc.rst). Per process: the drm-* lines of /proc/PID/fdinfo (gpu/drm-usage-stats.rst): drm-driver,
drm-pdev, drm-client-id and drm-memory-vram, in later kernels drm-resident-vram; and /sys/class/kfd/kfd/proc/PID/vram_*,
where the compute driver (ROCm) counts. Both count the same memory; the larger of the two is taken, because either can
leave out what came the other way. Unified memory of an APU (GTT) is the machine's own and is not counted here.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kvscope.errors import ProbeUnavailable
from kvscope.probe.base import DeviceOccupant
from kvscope.probe.cgroup import number_in
from kvscope.probe.machine_memory import PROC, process_name
from kvscope.units import KIB, MIB

SYS = Path("/sys")
_AMD = "0x1002"  # PCI vendor id
_UNITS = {"": 1, "KiB": KIB, "MiB": MIB}  # of fdinfo, as drm-usage-stats.rst allows


@dataclass(frozen=True, slots=True, kw_only=True)
class _Card:
    name: str
    folder: Path
    address: str  # on the PCI bus, as fdinfo's drm-pdev


class AmdProbe:
    """Reads what the processes that ``pids`` names hold on all AMD GPUs (their descendants have to be named too), and
    what the GPUs hold altogether.

    ``read()`` gives device_used_bytes and device_total_bytes, and device_bytes of the processes; the last is absent
    where a process's open files may not be looked at, and ``doubts()`` says so.
    """

    name = "AMD GPU memory (amdgpu)"

    def __init__(self, pids: Callable[[], tuple[int, ...]], *, proc: Path = PROC, sys: Path = SYS) -> None:
        self._pids = pids
        self._proc = proc
        self._sys = sys
        self._found: tuple[_Card, ...] | None = None
        self._doubts: dict[str, None] = {}

    def unavailable(self) -> str | None:
        """None where an AMD GPU's memory can be read, otherwise why not."""
        try:
            self.read()
        except ProbeUnavailable as error:
            return error.message
        return None

    def device_names(self) -> tuple[str, ...]:
        """The devices that are read. Raises as ``read``."""
        return tuple(card.name for card in self._cards())

    def read(self) -> Mapping[str, int]:
        """Bytes now. Raises ProbeUnavailable where no AMD GPU states its memory."""
        cards = self._cards()
        reading = {
            "device_used_bytes": sum(self._number(card, "mem_info_vram_used") for card in cards),
            "device_total_bytes": sum(self._number(card, "mem_info_vram_total") for card in cards),
        }
        held = 0
        for pid in self._pids():
            shares = self._held_by(pid)
            if shares is None:
                self._doubts.setdefault(f"What process {pid} holds on AMD GPUs may not be read (another user's).")
                return reading
            held += sum(shares.values())
        return {**reading, "device_bytes": held}

    def occupants(self, exclude: Collection[int]) -> tuple[DeviceOccupant, ...]:
        """The other programs that hold memory on a GPU, the desktop's included, as far as this user may see them."""
        names = {card.address: card.name for card in self._cards()}
        found = []
        for folder in self._proc.iterdir():
            if not folder.name.isdigit() or int(folder.name) in exclude:
                continue
            pid = int(folder.name)
            for address, held in (self._held_by(pid) or {}).items():
                if held:
                    name = process_name(pid, self._proc) or f"process {pid}"
                    device = names.get(address, "AMD GPU")
                    found.append(DeviceOccupant(device=device, pid=pid, name=name, held_bytes=held))
        return tuple(sorted(found, key=lambda each: (each.device, each.pid)))

    def doubts(self) -> tuple[str, ...]:
        """What could not be told so far, in words for a person."""
        return tuple(self._doubts)

    def close(self) -> None:
        """Nothing is kept open."""

    def _cards(self) -> tuple[_Card, ...]:
        if self._found is None:
            self._found = tuple(self._look_for_cards())
        if not self._found:
            raise ProbeUnavailable("There is no AMD GPU with the kernel's amdgpu driver here.")
        return self._found

    def _look_for_cards(self) -> Iterator[_Card]:
        for folder in sorted((self._sys / "class" / "drm").glob("card[0-9]*")):
            device = folder / "device"
            if "-" in folder.name or number_in(device / "mem_info_vram_total") is None:
                continue  # an output of a card (card0-HDMI-A-1), or another maker's
            if _text(device / "vendor") == _AMD:
                yield _Card(name=f"AMD GPU {folder.name}", folder=device, address=device.resolve().name)

    def _number(self, card: _Card, file: str) -> int:
        number = number_in(card.folder / file)
        if number is None:
            raise ProbeUnavailable(f"{card.folder / file} cannot be read.")
        return number

    def _held_by(self, pid: int) -> dict[str, int] | None:
        """PCI address → bytes ("" for what the compute driver counts more); None where it may not be looked at."""
        clients: dict[tuple[str, str], int] = {}
        try:
            for file in (self._proc / str(pid) / "fdinfo").iterdir():
                client = _client(_text(file))
                if client is not None:  # the same client through several files is one
                    clients[client[:2]] = max(client[2], clients.get(client[:2], 0))
        except PermissionError:
            return None
        except OSError:
            return {}  # it has ended
        shares: dict[str, int] = {}
        for (address, _), held in clients.items():
            shares[address] = shares.get(address, 0) + held
        more = self._compute_bytes(pid) - sum(shares.values())
        return {**shares, "": more} if more > 0 else shares

    def _compute_bytes(self, pid: int) -> int:
        folder = self._sys / "class" / "kfd" / "kfd" / "proc" / str(pid)
        return sum(number_in(file) or 0 for file in folder.glob("vram_*"))


def _client(text: str) -> tuple[str, str, int] | None:
    """(PCI address, client, bytes in VRAM) of an open file's fdinfo; None where it is none of amdgpu's."""
    fields = {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}
    if fields.get("drm-driver") != "amdgpu":
        return None
    stated = fields.get("drm-resident-vram") or fields.get("drm-memory-vram")
    if stated is None:
        return None
    number, _, unit = stated.partition(" ")
    if not number.isdigit() or unit.strip() not in _UNITS:
        raise ProbeUnavailable(f"The kernel states the memory of an AMD GPU as {stated!r}, which is not understood.")
    return fields.get("drm-pdev", ""), fields.get("drm-client-id", ""), int(number) * _UNITS[unit.strip()]


def _text(file: Path) -> str:
    """The file's text; empty where it has gone."""
    try:
        return file.read_text(errors="replace").strip()
    except (FileNotFoundError, ProcessLookupError, IsADirectoryError):
        return ""
