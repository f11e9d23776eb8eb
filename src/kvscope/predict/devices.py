"""A small catalogue of devices: how much memory each has, how fast it is read, and who says so.

Two figures that are easily mixed up are kept apart. What a vendor prints as "80 GB" are binary units: the chips hold a
power of two. The driver reports somewhat less where it keeps a part for itself (error correction, firmware); where its
figure is known it is used, because that is what an engine sees. ``memory_is_nominal`` says which of the two it is.
"""

from dataclasses import dataclass

from kvscope.errors import UnknownName
from kvscope.units import GIB, MIB

SMI = "memory as published nvidia-smi listings show it"
ROCM_SMI = "memory as published rocm-smi listings show it"
UNIFIED = "memory shared with the system, which by default lends its GPU only a part of it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """``memory_bytes``: what the driver reports, or the nominal size (``memory_is_nominal``), of which less is usable.
    ``bandwidth_bytes_per_s``: the vendor's peak. ``source``: the vendor's document, and where the memory is from."""

    name: str
    memory_bytes: int
    bandwidth_bytes_per_s: int
    source: str
    memory_is_nominal: bool = False


def _reported(name: str, mib: int, gb_per_s: int, document: str) -> Device:
    return Device(
        name=name,
        memory_bytes=mib * MIB,
        bandwidth_bytes_per_s=gb_per_s * 10**9,
        source=f"{document}; {SMI}: {mib} MiB",
    )


def _nominal(name: str, gib: int, gb_per_s: int, document: str, note: str = "memory is nominal") -> Device:
    return Device(
        name=name,
        memory_bytes=gib * GIB,
        bandwidth_bytes_per_s=gb_per_s * 10**9,
        source=f"{document}; {note}",
        memory_is_nominal=True,
    )


_DEVICES = (
    _reported("RTX 3060 12GB", 12288, 360, "NVIDIA GeForce RTX 3060 specifications"),
    _reported("RTX 3090", 24576, 936, "NVIDIA GeForce RTX 3090 specifications"),
    _nominal("RTX 4060 Ti 16GB", 16, 288, "NVIDIA GeForce RTX 4060 Ti specifications"),
    _reported("RTX 4070", 12282, 504, "NVIDIA GeForce RTX 4070 specifications"),
    _reported("RTX 4080", 16376, 716, "NVIDIA GeForce RTX 4080 specifications"),
    _reported("RTX 4090", 24564, 1008, "NVIDIA GeForce RTX 4090 specifications"),
    _reported("RTX 5070", 12227, 672, "NVIDIA GeForce RTX 5070 specifications"),
    _reported("RTX 5080", 16303, 960, "NVIDIA GeForce RTX 5080 specifications"),
    _reported("RTX 5090", 32607, 1792, "NVIDIA GeForce RTX 5090 specifications"),
    _reported("RTX A6000", 49140, 768, "NVIDIA RTX A6000 data sheet"),
    _reported("RTX PRO 6000", 97887, 1792, "NVIDIA RTX PRO 6000 Blackwell data sheet"),
    _reported("T4", 15360, 320, "NVIDIA T4 data sheet"),
    _reported("A10", 23028, 600, "NVIDIA A10 data sheet"),
    _reported("A40", 46068, 696, "NVIDIA A40 data sheet"),
    _reported("L4", 23034, 300, "NVIDIA L4 data sheet"),
    _reported("L40S", 46068, 864, "NVIDIA L40S data sheet"),
    _reported("A100 40GB", 40960, 1555, "NVIDIA A100 data sheet"),
    _reported("A100 80GB", 81920, 2039, "NVIDIA A100 data sheet (SXM)"),
    _reported("H100 80GB", 81559, 3350, "NVIDIA H100 data sheet (SXM)"),
    _reported("H200", 143771, 4800, "NVIDIA H200 data sheet"),
    _reported("B200", 183359, 8000, "NVIDIA DGX B200 data sheet (8 GPUs, 64 TB/s)"),
    Device(
        name="MI300X",
        memory_bytes=206_141_652_992,
        bandwidth_bytes_per_s=5300 * 10**9,
        source=f"AMD Instinct MI300X data sheet; {ROCM_SMI}: 206141652992 B",
    ),
    _nominal("MI325X", 256, 6000, "AMD Instinct MI325X data sheet"),
    _nominal("RX 7900 XTX", 24, 960, "AMD Radeon RX 7900 XTX specifications"),
    _nominal("M2 Ultra 192GB", 192, 800, "Apple Mac Studio (2023) specifications", UNIFIED),
    _nominal("M3 Max 128GB", 128, 400, "Apple MacBook Pro (M3 Max) specifications", UNIFIED),
    _nominal("M4 Pro 48GB", 48, 273, "Apple Mac mini (2024) specifications", UNIFIED),
    _nominal("M4 Max 128GB", 128, 546, "Apple MacBook Pro (M4 Max) specifications", UNIFIED),
    _nominal("M3 Ultra 512GB", 512, 819, "Apple Mac Studio (2025) specifications", UNIFIED),
)

DEVICES = {device.name: device for device in _DEVICES}
_MAKERS = ("nvidia", "geforce", "amd", "instinct", "radeon", "tesla", "apple")


def device_named(name: str) -> Device:
    """The device of this name, whatever its spelling: ``RTX 4090``, ``rtx4090``, ``NVIDIA GeForce RTX 4090``; without
    its size where that leaves one ("H100"). Raises UnknownName, with the nearest names."""
    asked = _plain(name)
    exact = [device for device in _DEVICES if _plain(device.name) == asked]
    found = exact or [device for device in _DEVICES if asked and _plain(_without_size(device.name)) == asked]
    if len(found) == 1:
        return found[0]
    raise UnknownName("device", name.upper(), DEVICES)


def _plain(name: str) -> str:
    words = name.lower().replace("-", " ").replace("_", " ").split()
    return "".join(word for word in words if word not in _MAKERS)


def _without_size(name: str) -> str:
    return " ".join(word for word in name.split() if not word.endswith("GB"))
