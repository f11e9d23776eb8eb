"""Memory on NVIDIA GPUs, as the driver counts it, through NVML (the library behind nvidia-smi).

Functions: NVML API reference, "Device Queries" (nvmlDeviceGetMemoryInfo, nvmlDeviceGetComputeRunningProcesses and its
neighbours for graphics and MPS). Limits that follow from there: a process's share is "not available" under Windows'
WDDM and in WSL; its process ids are those of the machine, so inside a container with process ids of its own a process
may not be found in the list; there is no counter of a peak.
"""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from kvscope.errors import MissingDependency, ProbeError, ProbeLost, ProbeUnavailable
from kvscope.probe.base import DeviceOccupant
from kvscope.probe.machine_memory import PROC, process_name

# Of the process-id namespace that a machine starts with: PROC_PID_INIT_INO in the kernel's include/linux/proc_ns.h.
_MACHINES_OWN_PIDS = "pid:[4026531836]"
_KINDS = ("Compute", "Graphics", "MPSCompute")
_WHY = {
    "LibraryNotFound": "NVIDIA's driver library (libnvidia-ml.so.1) is not here: no NVIDIA driver, or a container that "
    "was started without it (docker run --gpus all).",
    "DriverNotLoaded": "NVIDIA's kernel driver is not loaded, or no NVIDIA GPU is in this machine.",
    "NoPermission": "This user may not talk to NVIDIA's driver; /dev/nvidia* belong to others.",
    "LibRmVersionMismatch": "NVIDIA's driver library and kernel driver are of different versions: the driver was "
    "updated, restart the machine.",
    "GpuIsLost": "A GPU has fallen off the bus; restart the machine.",
}


class NvidiaProbe:
    """Reads what the processes that ``pids`` names hold on all NVIDIA GPUs (their descendants have to be named too),
    and what the GPUs hold altogether. On a GPU that is divided (MIG), each instance counts as a device.

    ``read()`` gives device_used_bytes and device_total_bytes of all devices, and device_bytes of the processes; the
    last is absent where the driver does not tell, and ``doubts()`` says why.
    """

    name = "NVIDIA GPU memory (NVML)"

    def __init__(self, pids: Callable[[], tuple[int, ...]], *, proc: Path = PROC) -> None:
        self._pids = pids
        self._proc = proc
        self._nvml: Any = None
        self._devices: list[tuple[str, Any]] = []  # name, handle
        self._doubts: dict[str, None] = {}

    def unavailable(self) -> str | None:
        """None where NVML answers and there is a GPU, otherwise why not."""
        try:
            self._open()
            self.read()
        except MissingDependency as error:
            return f"{error.message} {error.hint}"
        except ProbeError as error:
            return error.message
        return None

    def device_names(self) -> tuple[str, ...]:
        """The devices that are read. Raises as ``read``."""
        self._open()
        return tuple(name for name, _ in self._devices)

    def read(self) -> Mapping[str, int]:
        """Bytes now. Raises ProbeUnavailable where NVML cannot be used, ProbeLost where it stopped answering, and
        MissingDependency."""
        self._open()
        used = total = held = 0
        known = True
        mine = set(self._pids())
        for name, handle in self._devices:
            memory = self._call("nvmlDeviceGetMemoryInfo", handle)
            used, total = used + int(memory.used), total + int(memory.total)
            share = self._share(name, handle, mine)
            known, held = known and share is not None, held + (share or 0)
        reading = {"device_used_bytes": used, "device_total_bytes": total}
        return {**reading, "device_bytes": held} if known else reading

    def occupants(self, exclude: Collection[int]) -> tuple[DeviceOccupant, ...]:
        """The other programs that hold memory on a GPU, the desktop's included. ``held_bytes`` is None where the driver
        does not tell. Raises as ``read``."""
        self._open()
        return tuple(
            DeviceOccupant(device=name, pid=pid, name=self._name_of(pid), held_bytes=held)
            for name, handle in self._devices
            for pid, held in sorted((self._processes(handle) or {}).items())
            if pid not in exclude
        )

    def doubts(self) -> tuple[str, ...]:
        """What could not be told so far, in words for a person."""
        return tuple(self._doubts)

    def close(self) -> None:
        """Let go of NVML. Reading again opens it again."""
        if self._nvml is not None:
            nvml, self._nvml, self._devices = self._nvml, None, []
            try:
                nvml.nvmlShutdown()
            except nvml.NVMLError:
                return

    def _open(self) -> None:
        if self._nvml is not None:
            return
        try:
            import pynvml
        except ImportError as error:
            raise MissingDependency("Reading NVIDIA GPU memory", "nvidia", "nvidia-ml-py") from error
        try:
            pynvml.nvmlInit()
            self._nvml = pynvml
            self._devices = [
                device for index in range(pynvml.nvmlDeviceGetCount()) for device in self._devices_of(index)
            ]
        except pynvml.NVMLError as error:
            self.close()
            raise ProbeUnavailable(self._why(error)) from error
        if not self._devices:
            self.close()
            raise ProbeUnavailable("NVML lists no GPU that this process may use.")

    def _devices_of(self, index: int) -> list[tuple[str, Any]]:
        """One GPU, or its MIG instances."""
        nvml = self._nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        name = f"{nvml.nvmlDeviceGetName(handle)} #{index}"
        try:
            is_divided = nvml.nvmlDeviceGetMigMode(handle)[0] == 1
        except nvml.NVMLError:  # a GPU that cannot be divided
            is_divided = False
        if not is_divided:
            return [(name, handle)]
        found = []
        for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            try:
                found.append((f"{name} MIG {number}", nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)))
            except nvml.NVMLError_NotFound:
                continue
        self._doubt(f"{name} is divided (MIG): {len(found)} instances are read, each as a device.")
        return found

    def _share(self, name: str, handle: Any, mine: set[int]) -> int | None:
        """What the watched processes hold on one device; None where the driver does not tell."""
        processes = self._processes(handle)
        if processes is None:
            self._doubt(f"The driver does not list the processes on {name}.")
            return None
        shares = [held for pid, held in processes.items() if pid in mine]
        if None in shares:
            self._doubt(f"The driver does not say what each process holds on {name} (as under WSL and WDDM).")
            return None
        if not shares and processes and not self._pids_are_the_machines():
            self._doubt(
                f"None of the processes on {name} is the engine's by its process id: in a container they are numbered "
                "otherwise (docker run --pid=host)."
            )
            return None
        if not shares and not processes and not self._pids_are_the_machines():
            self._doubt(f"The driver lists no process on {name} to this container (docker run --pid=host).")
            return None
        return sum(held for held in shares if held is not None)

    def _processes(self, handle: Any) -> dict[int, int | None] | None:
        """Process id → bytes; None where no list is to be had. A process that both computes and draws stands in both
        lists, with the same number."""
        nvml = self._nvml
        found: dict[int, int | None] = {}
        listed = False
        for kind in _KINDS:
            for version in ("_v3", "_v2"):  # older drivers do not know v3
                try:
                    processes = getattr(nvml, f"nvmlDeviceGet{kind}RunningProcesses{version}")(handle)
                except nvml.NVMLError_FunctionNotFound:
                    continue
                except (nvml.NVMLError_NotSupported, nvml.NVMLError_NoPermission, nvml.NVMLError_InvalidArgument):
                    break
                except nvml.NVMLError as error:
                    raise ProbeLost(self._why(error)) from error
                listed = True
                for process in processes:
                    held = process.usedGpuMemory
                    before = found.get(process.pid)
                    found[process.pid] = before if held is None else max(held, before or 0)
                break
        return found if listed else None

    def _pids_are_the_machines(self) -> bool:
        try:
            return str((self._proc / "self" / "ns" / "pid").readlink()) == _MACHINES_OWN_PIDS
        except OSError:
            return False

    def _name_of(self, pid: int) -> str:
        try:
            return Path(str(self._nvml.nvmlSystemGetProcessName(pid))).name or f"process {pid}"
        except self._nvml.NVMLError:
            return process_name(pid, self._proc) or f"process {pid}"

    def _call(self, function: str, *arguments: Any) -> Any:
        try:
            return getattr(self._nvml, function)(*arguments)
        except self._nvml.NVMLError as error:
            raise ProbeLost(self._why(error)) from error

    def _why(self, error: Exception) -> str:
        kind = type(error).__name__.removeprefix("NVMLError_")
        return _WHY.get(kind, f"NVIDIA's driver says: {error}.")

    def _doubt(self, text: str) -> None:
        self._doubts.setdefault(text)
