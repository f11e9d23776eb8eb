"""Facts about host and software that make results comparable."""

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path

# Total memory differs by a few MiB between boots of the same machine (what the kernel reserves for itself).
_MEMORY_STEP = 256 * 1024**2


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
    }


def machine_id(facts: Mapping[str, object]) -> str:
    """A hash of the facts whose change makes times or memory incomparable. Kernel and Python versions are kept among
    the facts but not in the hash: an update of either must not cut a study in two."""
    memory = facts["memory_total_bytes"]
    identity = {
        **{name: facts[name] for name in ("cpu", "cpu_flags", "usable_cpus", "architecture", "system", "page_bytes")},
        "memory": round(memory / _MEMORY_STEP) if isinstance(memory, int) else None,
    }
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]


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
