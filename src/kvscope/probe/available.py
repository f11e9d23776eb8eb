"""Which probes work here, and why the others do not: for `kvscope doctor`."""

import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from kvscope.errors import ProbeError, ProbeUnavailable
from kvscope.probe import cgroup
from kvscope.probe.amd import SYS, AmdProbe
from kvscope.probe.apple import FootprintProbe
from kvscope.probe.control_group import ControlGroupProbe
from kvscope.probe.machine_memory import PROC, machine_memory
from kvscope.probe.nvml import NvidiaProbe
from kvscope.probe.proc import ProcessTreeProbe
from kvscope.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeState:
    """``why_not`` is None where it works, otherwise why not, in words for a person; ``detail``: what it reads here, or
    what it cannot tell."""

    name: str
    why_not: str | None = None
    detail: str | None = None


def available_probes(proc: Path = PROC, sys_folder: Path = SYS) -> list[ProbeState]:
    """Every probe of kvscope, those that cannot work here included."""
    tree = ProcessTreeProbe(_this_process, proc=proc)
    no_gpu, gpus = _devices(proc, sys_folder)
    return [
        ProbeState(name="process memory", why_not=tree.unavailable()),
        ProbeState(name="process memory peak (resettable)", why_not=_peak_unavailable(proc)),
        ProbeState(name="process mappings", why_not=_file_unavailable(proc / "self" / "smaps")),
        ProbeState(
            name="proportional set size (information only)", why_not=_file_unavailable(proc / "self" / "smaps_rollup")
        ),
        ProbeState(name="machine memory", why_not=_machine_unavailable(proc)),
        _control_group(proc),
        *gpus,
        _torch(no_gpu),
        ProbeState(name=FootprintProbe.name, why_not=FootprintProbe(_this_process).unavailable()),
        _windows(),
    ]


def _this_process() -> tuple[int, ...]:
    return (os.getpid(),)


def _peak_unavailable(proc: Path) -> str | None:
    """Resetting the peak of this very process is harmless, and the only way to know."""
    try:
        (proc / "self" / "clear_refs").write_text("5\n")
    except OSError as error:
        return (
            f"The kernel does not let the peak counter be reset ({error.strerror}): "
            "peaks are then taken from the samples alone."
        )
    return None


def _file_unavailable(file: Path) -> str | None:
    try:
        with file.open() as opened:
            opened.readline()
    except OSError as error:
        return f"/proc/PID/{file.name} cannot be read ({error.strerror})."
    return None


def _machine_unavailable(proc: Path) -> str | None:
    try:
        machine_memory(proc)
    except ProbeUnavailable as error:
        return error.message
    return None


def _control_group(proc: Path) -> ProbeState:
    name = "control group"
    found = cgroup.group_of(proc)
    if isinstance(found, str):
        return ProbeState(name=name, why_not=found)
    probe = ControlGroupProbe(_this_process, proc=proc)
    probe.use(found)
    try:
        reading = probe.read()
    except ProbeError as error:
        return ProbeState(name=name, why_not=error.message)
    missing = {"cgroup_peak_bytes": "no peak (Linux 5.19 or newer states it)", "cgroup_oom_kills": "no count of kills"}
    said = [f"version {found.version}, {format_bytes(reading['cgroup_bytes'])} held"]
    said += [words for quantity, words in missing.items() if quantity not in reading]
    return ProbeState(name=name, detail=", ".join(said))


def _devices(proc: Path, sys_folder: Path) -> tuple[bool, list[ProbeState]]:
    """Whether there is no GPU that can be read, and what is said of each maker's."""
    states = []
    for probe in (NvidiaProbe(_this_process, proc=proc), AmdProbe(_this_process, proc=proc, sys=sys_folder)):
        why_not = probe.unavailable()
        detail = _said_of(probe) if why_not is None else None
        probe.close()
        states.append(ProbeState(name=probe.name, why_not=why_not, detail=detail))
    return all(state.why_not is not None for state in states), states


def _said_of(probe: NvidiaProbe | AmdProbe) -> str | None:
    try:
        reading, names = probe.read(), ", ".join(probe.device_names())
    except ProbeError:  # it worked a moment ago
        return None
    size = f"{format_bytes(reading['device_used_bytes'])} of {format_bytes(reading['device_total_bytes'])} in use"
    return "; ".join([f"{names}: {size}", *probe.doubts()])


def _torch(no_gpu: bool) -> ProbeState:
    """torch itself is not loaded: that takes seconds."""
    name = "PyTorch allocator (in the worker of transformers)"
    if importlib.util.find_spec("torch") is None:
        return ProbeState(name=name, why_not="torch is not installed. Install it: pip install 'kvscope[transformers]'.")
    if no_gpu:
        return ProbeState(name=name, why_not="There is no GPU here that it could take memory on.")
    return ProbeState(name=name)


def _windows() -> ProbeState:
    name = "process memory (Windows)"
    if sys.platform == "win32":
        return ProbeState(name=name, why_not="Not supported yet by this release: run kvscope and the engine in WSL.")
    return ProbeState(name=name, why_not="This is not Windows.")
