"""Facts about host and software that make results comparable."""

import hashlib
import json
import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path

from kvscope.errors import KvscopeError
from kvscope.probe.cgroup import cpu_limit, memory_limit_bytes
from kvscope.probe.devices import NVIDIA_CONTROL
from kvscope.probe.nvml import NvidiaProbe

# Total memory differs by a few MiB between boots of the same machine (what the kernel reserves for itself).
_MEMORY_STEP = 256 * 1024**2
# Facts that most machines have none of.
_WHERE_THERE_ARE = ("accelerators", "memory_limit_bytes", "cpu_limit")
_AMD = "0x1002"
_CHOICES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


def machine_facts() -> dict[str, object]:
    """What this machine is. A fact that cannot be read is None."""
    return {
        "cpu": _cpu_field("model name"),
        "cpu_flags": [flag for flag in ("avx", "avx2", "avx512f", "amx_int8", "asimd", "sve") if flag in _cpu_flags()],
        "usable_cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_total_bytes": _meminfo("MemTotal"),
        "swap_total_bytes": _meminfo("SwapTotal"),
        "architecture": platform.machine(),
        "system": platform.system(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "page_bytes": os.sysconf("SC_PAGE_SIZE"),
        "accelerators": accelerators(),
        "accelerators_chosen": _chosen(),
        "accelerator_driver": _nvidia_driver(),
        "memory_limit_bytes": memory_limit_bytes(),
        "cpu_limit": cpu_limit(),
    }


def machine_id(facts: Mapping[str, object]) -> str:
    """A hash of the facts whose change makes times or memory incomparable. Versions of kernel, Python and driver are
    kept among the facts but not in the hash: an update of any of them must not cut a study in two."""
    memory = facts["memory_total_bytes"]
    identity = {
        **{name: facts[name] for name in ("cpu", "cpu_flags", "usable_cpus", "architecture", "system", "page_bytes")},
        "memory": round(memory / _MEMORY_STEP) if isinstance(memory, int) else None,
        # Where there is none of them a machine keeps the id that it had before they were looked at.
        **{name: facts[name] for name in _WHERE_THERE_ARE if facts.get(name)},
    }
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]


def accelerators(control: Path = NVIDIA_CONTROL, drm: Path = Path("/sys/class/drm")) -> list[str]:
    """The GPUs that this process may use, parts of a divided one each for itself. NVIDIA's driver is asked only where
    it is loaded."""
    found: list[str] = []
    if control.exists():
        probe = NvidiaProbe(lambda: ())
        try:
            found += [re.sub(r" #\d+", "", name) for name in probe.device_names()]  # as the kernel's own list has them
        except KvscopeError:
            found += [line.partition(":")[2].strip() for file in _gpu_files() for line in _lines(file)[:1]]
        finally:
            probe.close()
    for device in sorted(drm.glob("card[0-9]*/device")):
        names = [" ".join(_lines(str(device / file))[:1]) for file in ("vendor", "device")]
        if names[0] == _AMD and (device / "mem_info_vram_total").exists():
            found.append(f"AMD GPU {names[1]}")
    return sorted(found)


def _gpu_files() -> list[str]:
    return sorted(str(path) for path in Path("/proc/driver/nvidia/gpus").glob("*/information"))


def _chosen() -> str | None:
    """Which GPUs the environment leaves to programs. No part of the machine's id: on a machine of equal ones it does
    not matter which."""
    named = {name: os.environ.get(name) for name in _CHOICES}
    return " ".join(f"{name}={value}" for name, value in named.items() if value is not None) or None


def _nvidia_driver() -> str | None:
    found = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", " ".join(_lines("/proc/driver/nvidia/version")[:1]))
    return found[1] if found else None


def _cpu_field(name: str) -> str | None:
    for line in _lines("/proc/cpuinfo"):
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return platform.processor() or None


def _cpu_flags() -> set[str]:
    return set((_cpu_field("flags") or _cpu_field("Features") or "").split())


def _meminfo(name: str) -> int | None:
    for line in _lines("/proc/meminfo"):
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) * 1024
    return None


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
