"""Which devices a trial is measured on, so that no other trial runs on them meanwhile.

A trial on the processor has it alone. Trials of an engine that computes on accelerators have those alone and share the
processor among one another, so that two of them run side by side on two accelerators but never beside one that is
measured on the processor. A server that runs already counts as a device; where it is on this machine, so does the
processor.
"""

import os
import re
import socket
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address
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
    """On this machine, one name for all its addresses. Elsewhere, the name that was written and the addresses that it
    stands for: who writes it differently still meets one of them."""
    host = address.host.rstrip(".")
    addresses = _addresses(host, address.port)
    if host == "localhost" or any(map(_is_here, addresses)):
        return (Device(name="cpu"), Device(name=f"server-localhost-{address.port}"))
    names = {host, *(str(_address(each)) for each in addresses)}
    return tuple(Device(name=f"server-{name}-{address.port}") for name in sorted(names))


# (address, (flow, scope)) as a socket takes them; the latter two are of IPv6 alone.
_SocketAddress = tuple[str, tuple[int, ...]]


def _addresses(host: str, port: int) -> list[_SocketAddress]:
    """What the name stands for; none where that cannot be found out, and then its server cannot be reached either."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return [(str(each[4][0]), tuple(map(int, each[4][2:]))) for each in found]


def _address(found: _SocketAddress) -> IPv4Address | IPv6Address:
    address = ip_address(found[0])
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


def _is_here(found: _SocketAddress) -> bool:
    """Whether it is an address of this machine: one that a socket of one's own can have (nothing is sent)."""
    address = _address(found)
    if address.is_loopback or address.is_unspecified:
        return True
    family, rest = (socket.AF_INET, ()) if isinstance(address, IPv4Address) else (socket.AF_INET6, found[1])
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as own:
            own.bind((str(address), 0, *rest))
    except OSError:
        return False
    return True


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
