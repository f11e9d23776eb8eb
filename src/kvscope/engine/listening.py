"""Which process answers at an address of this machine, and whether it is still the same one: from Linux's /proc.

Nothing here touches a process; it is only looked at. A process is known by its id and the moment it was started, so
that another one that was given the same number later is never taken for it.
"""

import re
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from kvscope.errors import ProbeUnavailable

PROC = Path("/proc")

# Programs that only pass a connection on: their memory is not the engine's.
_FORWARDERS = frozenset(
    "caddy docker-proxy envoy haproxy kubectl nginx rootlessport slirp4netns socat ssh sshd systemd traefik".split()
)
_LISTEN = "0A"  # TCP_LISTEN of the kernel's include/net/tcp_states.h, as /proc/net/tcp writes it
_GIVE_PID = "Give the engine's process with --pid, or measure without memory."


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process id, and when its process was started: clock ticks since boot, field 22 of /proc/PID/stat."""

    pid: int
    started_ticks: int


def identify(pid: int, proc: Path = PROC) -> ProcessIdentity | None:
    """The process that has this id now; None where there is none, or it has ended and only waits to be collected."""
    fields = _stat_fields(pid, proc)
    return None if fields is None else ProcessIdentity(pid, int(fields[19]))


def is_same_process(identity: ProcessIdentity, proc: Path = PROC) -> bool:
    """Whether that very process still runs."""
    return identify(identity.pid, proc) == identity


def is_in_line(one: int, other: int, proc: Path = PROC) -> bool:
    """Whether one of the two processes descends from the other, or they are the same."""
    return one in _line(other, proc) or other in _line(one, proc)


def _line(pid: int, proc: Path) -> Iterator[int]:
    """The process, its parent, and so on."""
    while pid > 0:
        yield pid
        fields = _stat_fields(pid, proc)
        pid = 0 if fields is None else int(fields[1])


def family(pid: int, proc: Path = PROC) -> tuple[int, ...]:
    """The process and all that descend from it."""
    return tuple(each for each in _pids(proc) if pid in _line(each, proc))


def parent(pid: int, proc: Path = PROC) -> int | None:
    """The process that started it, or was given it; None where it has gone."""
    fields = _stat_fields(pid, proc)
    return None if fields is None else int(fields[1])


def process_name(pid: int, proc: Path = PROC) -> str:
    """Its name as the kernel keeps it (15 bytes at most); "unknown" where it has gone."""
    try:
        return (proc / str(pid) / "comm").read_text(errors="replace").strip()
    except OSError:
        return "unknown"


def pid_of_port(host: str, port: int, proc: Path = PROC) -> ProcessIdentity:
    """The process of this machine that answers at ``host`` and ``port``; of several that share the socket, the one that
    all others descend from.

    Raises ProbeUnavailable, with the reason, where it is on another machine, cannot be seen from here, or is one of
    several that have nothing to do with each other (SO_REUSEPORT: the kernel gives each connection to one of them).
    """
    if not is_local(host):
        raise ProbeUnavailable(f"{host} is another machine: memory there cannot be read from here.", hint=_MEASURE_HERE)
    inodes = set(_listening_inodes(host, port, proc))
    if not inodes:
        raise ProbeUnavailable(
            f"No process that listens on port {port} can be seen from here (it may run in a container).", hint=_GIVE_PID
        )
    owners = [pid for pid in _pids(proc) if _holds(pid, inodes, proc)]
    roots = [pid for pid in owners if not set(_line(pid, proc)) & set(owners) - {pid}]
    if not roots:
        raise ProbeUnavailable(
            f"The process that listens on port {port} belongs to another user, and may not be looked at.",
            hint=_GIVE_PID,
        )
    seen = {inode for inode in inodes if any(_holds(pid, {inode}, proc) for pid in owners)}
    if len(roots) > 1 or seen < inodes:
        named = ", ".join(f"{pid} ({process_name(pid, proc)})" for pid in sorted(roots))
        others = " and others that cannot be seen from here" if seen < inodes else ""
        raise ProbeUnavailable(
            f"Several processes listen on port {port}, and which of them answers is not known: {named}{others}.",
            hint=_GIVE_PID,
        )
    found = identify(roots[0], proc)
    if found is None:
        raise ProbeUnavailable(f"The process that listens on port {port} ended just now.", hint="Is the server well?")
    if (name := process_name(found.pid, proc)) in _FORWARDERS:
        raise ProbeUnavailable(f"Port {port} is {name}'s, which passes it on to another process.", hint=_GIVE_PID)
    return found


_MEASURE_HERE = "Run kvscope on that machine to measure memory too."


def is_local(host: str) -> bool:
    """Whether the name or address is this machine's own. A name that cannot be resolved is not."""
    return any(_is_own(address) for address in _addresses(host))


def listens(pid: int, host: str, port: int, proc: Path = PROC) -> bool | None:
    """Whether the process itself has the listening socket of that address; None where it may not be looked at."""
    inodes = set(_listening_inodes(host, port, proc))
    try:
        return _any_of(pid, inodes, proc)
    except OSError:
        return None


def addresses_of(pid: int, proc: Path = PROC) -> tuple[tuple[str, int], ...]:
    """Addresses (host, port) of this machine at which the process itself answers; the loopback address where it listens
    on all of them. Left out where another process has that very address and so gets what is sent there. Empty where it
    has none or may not be looked at."""
    found: set[tuple[str, int]] = set()
    for name in ("tcp", "tcp6"):
        for address, port, inode in _all_listeners(proc / "net" / name):
            if not _holds(pid, {inode}, proc):
                continue
            for host in _ways_to(address):
                if listens(pid, host, port, proc):
                    found.add((host, port))
                    break
    return tuple(sorted(found, key=lambda each: (each[1], each[0])))


def _ways_to(address: IPv4Address | IPv6Address) -> tuple[str, ...]:
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if not address.is_unspecified:
        return (str(address),)
    return ("127.0.0.1",) if isinstance(address, IPv4Address) else ("127.0.0.1", "::1")


def _all_listeners(table: Path) -> Iterator[tuple[IPv4Address | IPv6Address, int, str]]:
    """(address, port, inode) of each listening socket, from /proc/net/tcp or tcp6: proc_pid_net(5)."""
    try:
        rows = [line.split() for line in table.read_text().splitlines()[1:]]
    except OSError:
        return
    for fields in rows:
        if fields[3] == _LISTEN:
            address, _, port = fields[1].rpartition(":")
            yield _address(address), int(port, 16), fields[9]


def _addresses(host: str) -> list[IPv4Address | IPv6Address]:
    """In the order in which they are tried by who connects."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys(ip_address(str(entry[4][0]).partition("%")[0]) for entry in found))


def _is_own(address: IPv4Address | IPv6Address) -> bool:
    if address.is_loopback or address.is_unspecified:
        return True
    family = socket.AF_INET if isinstance(address, IPv4Address) else socket.AF_INET6
    try:
        # Only an address of this machine can be bound. Nothing is sent, and the socket is closed at once.
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True


def _listening_inodes(host: str, port: int, proc: Path) -> Iterator[str]:
    """Inodes of the sockets that take connections to that address: of a name's addresses, those of the first that
    anybody listens at."""
    listeners = [entry for name in ("tcp", "tcp6") for entry in _listeners(proc / "net" / name, port)]
    for wanted in _addresses(host):
        if wanted.is_unspecified:  # whoever connects there is taken to this machine itself
            wanted = ip_address("127.0.0.1" if isinstance(wanted, IPv4Address) else "::1")
        ranked = [(_nearness(address, wanted), inode) for address, inode in listeners]
        nearest = min((rank for rank, _ in ranked if rank is not None), default=None)
        if nearest is not None:
            yield from (inode for rank, inode in ranked if rank == nearest)
            return


def _nearness(address: IPv4Address | IPv6Address, wanted: IPv4Address | IPv6Address) -> int | None:
    """Which listener the kernel takes a connection to: 0, the one bound to the address; 1, to all of its family; 2, to
    all of IPv6, which takes IPv4 too where it was not told otherwise. None: it takes none to there."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    if wanted in (address, mapped):
        return 0
    if (mapped or address).is_unspecified:
        is_ipv4 = isinstance(mapped or address, IPv4Address)
        if is_ipv4 == isinstance(wanted, IPv4Address):
            return 1
        return None if is_ipv4 else 2
    return None


def _listeners(table: Path, port: int) -> Iterator[tuple[IPv4Address | IPv6Address, str]]:
    """(address, inode) of each listening socket on the port."""
    return ((address, inode) for address, its_port, inode in _all_listeners(table) if its_port == port)


def _address(hexadecimal: str) -> IPv4Address | IPv6Address:
    """An address as these tables write it: words of 32 bits, each in the machine's own byte order."""
    words = [int(hexadecimal[start : start + 8], 16) for start in range(0, len(hexadecimal), 8)]
    return ip_address(b"".join(word.to_bytes(4, sys.byteorder) for word in words))


def _pids(proc: Path) -> list[int]:
    return [int(folder.name) for folder in proc.iterdir() if folder.name.isdigit()]


def _holds(pid: int, inodes: set[str], proc: Path) -> bool:
    try:
        return _any_of(pid, inodes, proc)
    except OSError:
        return False  # another user's, or gone


def _any_of(pid: int, inodes: set[str], proc: Path) -> bool:
    """Whether one of the process's open files is one of these sockets. Raises OSError where it may not be looked at."""
    for link in (proc / str(pid) / "fd").iterdir():
        try:
            target = link.readlink().name
        except FileNotFoundError:
            continue  # closed meanwhile
        found = re.fullmatch(r"socket:\[(\d+)\]", target)
        if found is not None and found[1] in inodes:
            return True
    return False


def _stat_fields(pid: int, proc: Path) -> list[str] | None:
    """The fields of /proc/PID/stat from the third (state) on: proc_pid_stat(5). None where none runs."""
    try:
        text = (proc / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name before it may hold anything
    return None if not fields or fields[0] in "ZX" else fields
