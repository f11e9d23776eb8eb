"""Which probes work here, and why the others do not: for `kvscope doctor`."""

import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
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

CONTROL_GROUP = "control group"
TORCH = "PyTorch allocator (in the worker of transformers)"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeState:
    """``why_not`` is None where it works, otherwise why not, in words for a person; ``detail``: what it reads here, or
    what it cannot tell."""

    name: str
    why_not: str | None = None
    detail: str | None = None


def available_probes(proc: Path = PROC, sys_folder: Path = SYS) -> list[ProbeState]:
    """Every probe of kvscope, those that cannot work here included. Whatever one of them fails by is its reason, and
    the others are still looked at."""
    tree = ProcessTreeProbe(_this_process, proc=proc)
    nvidia, amd = NvidiaProbe(_this_process, proc=proc), AmdProbe(_this_process, proc=proc, sys=sys_folder)
    gpus = [_looked_at(probe.name, partial(_device, probe)) for probe in (nvidia, amd)]
    no_gpu = all(state.why_not is not None for state in gpus)
    reasons: dict[str, Callable[[], str | None]] = {
        "process memory": tree.unavailable,
        "process memory peak (resettable)": partial(_peak_unavailable, proc),
        "process mappings": partial(_file_unavailable, proc / "self" / "smaps"),
        "proportional set size (information only)": partial(_file_unavailable, proc / "self" / "smaps_rollup"),
        "machine memory": partial(_machine_unavailable, proc),
    }
    return [
        *(_looked_at(name, partial(_by_reason, name, why_not)) for name, why_not in reasons.items()),
        _looked_at(CONTROL_GROUP, partial(_control_group, proc)),
        *gpus,
        _looked_at(TORCH, partial(_torch, no_gpu)),
        _looked_at(
            FootprintProbe.name, partial(_by_reason, FootprintProbe.name, FootprintProbe(_this_process).unavailable)
        ),
        _windows(),
    ]


def _looked_at(name: str, look: Callable[[], ProbeState]) -> ProbeState:
    try:
        return look()
    except (Exception, SystemExit) as error:  # a fault of ours, or of a driver's library
        return ProbeState(name=name, why_not=f"Looking at it failed ({type(error).__name__}: {str(error)[:300]}).")


def _by_reason(name: str, why_not: Callable[[], str | None]) -> ProbeState:
    return ProbeState(name=name, why_not=why_not())


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
    name = CONTROL_GROUP
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


def _device(probe: NvidiaProbe | AmdProbe) -> ProbeState:
    """What is said of one maker's GPUs."""
    try:
        why_not = probe.unavailable()
        return ProbeState(name=probe.name, why_not=why_not, detail=_said_of(probe) if why_not is None else None)
    finally:
        probe.close()


def _said_of(probe: NvidiaProbe | AmdProbe) -> str | None:
    try:
        reading, names = probe.read(), ", ".join(probe.device_names())
    except ProbeError:  # it worked a moment ago
        return None
    size = f"{format_bytes(reading['device_used_bytes'])} of {format_bytes(reading['device_total_bytes'])} in use"
    return "; ".join([f"{names}: {size}", *probe.doubts()])


def _torch(no_gpu: bool) -> ProbeState:
    """torch itself is not loaded: that takes seconds."""
    name = TORCH
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
