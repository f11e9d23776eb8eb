"""Which probes work here, and why the others do not: for `kvscope doctor`."""

from pathlib import Path

from kvscope.errors import ProbeUnavailable
from kvscope.probe import cgroup
from kvscope.probe.machine_memory import PROC, machine_memory
from kvscope.probe.proc import ProcessTreeProbe

# Planned, not written: said so rather than left out.
_NOT_YET = ("NVIDIA GPU memory (NVML)", "PyTorch CUDA allocator", "Apple GPU memory", "Windows process memory")


def available_probes(proc: Path = PROC) -> list[tuple[str, str | None]]:
    """Name of each probe, with None when it works here, otherwise why not, in words for a person."""
    tree = ProcessTreeProbe(lambda: (), proc=proc)
    found = [
        ("process memory", tree.unavailable()),
        ("process memory peak (resettable)", _peak_unavailable(proc)),
        ("process mappings", _mappings_unavailable(proc)),
        ("machine memory", _machine_unavailable(proc)),
        ("control group", cgroup.unavailable(proc)),
    ]
    return found + [(name, "Not supported yet by this release.") for name in _NOT_YET]


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


def _mappings_unavailable(proc: Path) -> str | None:
    try:
        with (proc / "self" / "smaps").open() as file:
            file.readline()
    except OSError as error:
        return f"/proc/PID/smaps cannot be read ({error.strerror})."
    return None


def _machine_unavailable(proc: Path) -> str | None:
    try:
        machine_memory(proc)
    except ProbeUnavailable as error:
        return error.message
    return None
