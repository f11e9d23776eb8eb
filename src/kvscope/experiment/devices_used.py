"""Which devices a trial is measured on, so that no other trial runs on them meanwhile.

A trial on the processor has it alone. Trials of an engine that computes on accelerators have those alone and share the
processor among one another, so that two of them run side by side on two accelerators but never beside one that is
measured on the processor. A server that runs already counts as a device; where it is on this machine, so does the
processor.
"""

import os
import re
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path

from kvscope.engine.registry import EngineChoice
from kvscope.engine.server_address import ServerAddress
from kvscope.experiment.device_lock import Device
from kvscope.scenario import SettingValue

_AMD_VENDOR = "0x1002"


def devices_used(choice: EngineChoice, settings: Mapping[str, SettingValue]) -> tuple[Device, ...]:
    """The devices, in the order in which everybody takes them. The fake engine uses none. Raises UsageError for an
    address that cannot be read."""
    if choice.name == "fake":
        return ()
    if choice.server_url is not None:
        return _of_server(ServerAddress(choice.server_url))
    accelerators = tuple(Device(name=name) for name in _accelerators(choice, settings))
    return (Device(name="cpu", shared=bool(accelerators) and choice.name != "llama.cpp"), *accelerators)


def _of_server(address: ServerAddress) -> tuple[Device, ...]:
    server = Device(name=f"server-{address.host}-{address.port}")
    return (Device(name="cpu"), server) if _is_here(address.host) else (server,)


def _is_here(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _accelerators(choice: EngineChoice, settings: Mapping[str, SettingValue]) -> tuple[str, ...]:
    """Those that an engine which kvscope starts may compute on: all that it can see, unless its settings say none."""
    match choice.name:
        case "llama.cpp":
            uses = str(settings.get("n_gpu_layers", "")) != "0"
        case "transformers":
            uses = not str(settings.get("device", "cpu")).startswith("cpu")
        case _:
            uses = True
    return visible_accelerators() if uses else ()


def visible_accelerators(
    folder: Path = Path("/dev"), drm: Path = Path("/sys/class/drm"), chosen: str | None = None
) -> tuple[str, ...]:
    """Names of this machine's accelerators by the device files of their drivers, the same in every container.
    ``chosen``: as CUDA_VISIBLE_DEVICES (None: as it is set now); numbers in it leave the other NVIDIA GPUs aside."""
    numbers = sorted(int(path.name[6:]) for path in folder.glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name))
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES") if chosen is None else chosen
    if chosen is not None and re.fullmatch(r"\s*\d+\s*(,\s*\d+\s*)*", chosen):
        places = [int(each) for each in chosen.split(",")]
        numbers = sorted({numbers[place] for place in places if place < len(numbers)})
    elif chosen is not None and chosen.strip() in ("", "-1"):
        numbers = []
    return (*(f"nvidia{number}" for number in numbers), *_amd(drm))


def _amd(drm: Path) -> tuple[str, ...]:
    found = []
    for path in sorted(drm.glob("renderD*")):
        try:
            vendor = (path / "device" / "vendor").read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            continue
        if vendor == _AMD_VENDOR:
            found.append(path.name)
    return tuple(found)
