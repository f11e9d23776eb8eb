"""Who listens on a port: real sockets of real processes, and the kernel's tables as proc(5) writes them."""

import os
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvscope.engine.listening import (
    ProcessIdentity,
    addresses_of,
    identify,
    is_local,
    is_same_process,
    listens,
    pid_of_port,
    process_name,
)
from kvscope.errors import ProbeUnavailable

LISTENER = """
    import os, socket, sys
    server = socket.create_server((sys.argv[1], 0))
    child = os.fork() if sys.argv[2] == "forks" else None
    if child == 0:
        sys.stdin.read()
        os._exit(0)
    print(server.getsockname()[1], child, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def listener(request: pytest.FixtureRequest) -> Iterator[tuple[subprocess.Popen[str], int, int | None]]:
    """(process, port, its child that shares the socket)."""
    address, forks = request.param
    command = [sys.executable, "-c", textwrap.dedent(LISTENER), address, forks]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port, child = process.stdout.readline().split()
        yield process, int(port), None if child == "None" else int(child)
        assert process.stdin is not None
        process.stdin.close()


@pytest.mark.parametrize("listener", [("127.0.0.1", "alone"), ("0.0.0.0", "alone"), ("", "forks")], indirect=True)
def test_the_process_that_listens_is_found_also_where_its_child_shares_the_socket(
    listener: tuple[subprocess.Popen[str], int, int | None],
) -> None:
    process, port, child = listener
    found = pid_of_port("127.0.0.1", port)
    assert found.pid == process.pid
    assert is_same_process(found)
    assert listens(process.pid, "localhost", port) is True
    assert listens(os.getpid(), "localhost", port) is False
    if child is not None:
        assert listens(child, "localhost", port) is True
        assert identify(child) is not None


def test_of_two_that_listen_on_one_port_the_one_at_the_address_is_taken() -> None:
    """Linux lets a second socket take a port that is taken, at another address."""
    with socket.create_server(("127.0.0.1", 0)) as here:
        port = here.getsockname()[1]
        command = [
            sys.executable,
            "-c",
            "import socket, sys\ns = socket.create_server(('127.0.0.2', int(sys.argv[1])))",
        ]
        command[-1] += "\nprint('', flush=True)\nsys.stdin.read()"
        with subprocess.Popen([*command, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            assert other.stdout is not None
            other.stdout.readline()
            assert pid_of_port("127.0.0.1", port).pid == os.getpid()
            assert pid_of_port("127.0.0.2", port).pid == other.pid
            assert other.stdin is not None
            other.stdin.close()


def test_a_process_that_has_ended_is_no_longer_the_same_even_before_it_is_collected() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        identity = identify(process.pid)
        assert identity is not None
        assert is_same_process(identity)
        assert not is_same_process(ProcessIdentity(identity.pid, identity.started_ticks - 1))
        assert process.stdin is not None
        process.stdin.close()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # ended, and its id still taken
        assert identify(process.pid) is None
        assert not is_same_process(identity)
    finally:
        process.wait()


def test_a_port_that_nobody_listens_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(ProbeUnavailable, match=f"No process that listens on port {port}"):
        pid_of_port("127.0.0.1", port)


def test_another_machine_is_not_looked_for_here() -> None:
    # 192.0.2.0/24 is reserved for documentation (RFC 5737): no machine has such an address.
    assert not is_local("192.0.2.7")
    assert not is_local("no such name")
    assert is_local("localhost")
    assert is_local("::1")
    with pytest.raises(ProbeUnavailable, match="another machine"):
        pid_of_port("192.0.2.7", 8080)


def kernel_tables(folder: Path, *, name: str = "llama-server", readable: bool = True) -> Path:
    """/proc with one process, 700, that listens on [::]:8080, in the form of proc_pid_net(5) and proc_pid_stat(5)."""
    (folder / "net").mkdir()
    header = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    (folder / "net" / "tcp").write_text(
        # 127.0.0.1:8080, but a connection (01), not a listener; 127.0.0.1:8081 listens.
        header
        + "   0: 0100007F:1F90 0100007F:D431 01 00000000:00000000 00:00000000 00000000  1000 0 111 1 0 20 4 30 10 -1\n"
        + "   1: 0100007F:1F91 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000 0 222 1 0 100 0 0 10 0\n"
    )
    (folder / "net" / "tcp6").write_text(
        header
        + "   0: 00000000000000000000000000000000:1F90 00000000000000000000000000000000:0000 0A 00000000:00000000 "
        + "00:00000000 00000000  1000 0 333 1 0 100 0 0 10 0\n"
    )
    process = folder / "700"
    (process / "fd").mkdir(parents=True)
    (process / "fd" / "3").symlink_to("socket:[333]" if readable else "socket:[1]")
    (process / "comm").write_text(f"{name}\n")
    (process / "stat").write_text(f"700 ({name}) (x) S 1 700 700 0 -1 4194304 9 0 0 0 5 6 0 0 20 0 1 0 4321 99 1\n")
    return folder


@pytest.mark.skipif(sys.byteorder != "little", reason="addresses are written in the machine's byte order")
def test_the_kernels_tables(tmp_path: Path) -> None:
    assert pid_of_port("127.0.0.1", 8080, kernel_tables(tmp_path)) == ProcessIdentity(700, 4321)
    assert process_name(700, tmp_path) == "llama-server"


HEADER = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def listeners(folder: Path, **addresses: str) -> Path:
    """/proc with a process for each address that port 8080 is listened on: p700="127.0.0.1" is process 700. They were
    started by process 1, which has ended the sockets."""
    (folder / "net").mkdir()
    lines: dict[str, list[str]] = {"tcp": [], "tcp6": []}
    for name, address in addresses.items():
        pid = int(name.removeprefix("p"))
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        packed = socket.inet_pton(family, address)
        words = [packed[start : start + 4][::-1].hex().upper() for start in range(0, len(packed), 4)]
        row = f" 0: {''.join(words)}:1F90 0:0 0A 0:0 00:0 0 1000 0 {pid} 1 0 100 0 0 10 0\n"
        lines["tcp6" if family == socket.AF_INET6 else "tcp"].append(row)
        (folder / str(pid) / "fd").mkdir(parents=True)
        (folder / str(pid) / "fd" / "3").symlink_to(f"socket:[{pid}]")
        (folder / str(pid) / "comm").write_text("server\n")
        (folder / str(pid) / "stat").write_text(f"{pid} (server) S 1 1 1 0 -1 0 9 0 0 0 5 6 0 0 20 0 1 0 4321 99 1\n")
    for table, rows in lines.items():
        (folder / "net" / table).write_text(HEADER + "".join(rows))
    return folder


@pytest.mark.skipif(sys.byteorder != "little", reason="addresses are written in the machine's byte order")
@pytest.mark.parametrize(
    ("order", "there", "expected"),
    [
        # A name with two addresses is connected to at the first one that anybody listens at.
        (["::1", "127.0.0.1"], {"p700": "127.0.0.1", "p701": "::1"}, 701),
        (["127.0.0.1", "::1"], {"p700": "127.0.0.1", "p701": "::1"}, 700),
        (["::1", "127.0.0.1"], {"p700": "127.0.0.1"}, 700),
        # Linux, net/ipv4/inet_hashtables.c, compute_score: for IPv4 a socket of IPv4 goes before one of IPv6.
        (["127.0.0.1"], {"p700": "::", "p701": "0.0.0.0"}, 701),
        (["::1"], {"p700": "::", "p701": "0.0.0.0"}, 700),
        (["127.0.0.1"], {"p700": "::"}, 700),
        (["127.0.0.1"], {"p700": "::ffff:127.0.0.1", "p701": "0.0.0.0"}, 700),
        (["::1", "127.0.0.1"], {"p700": "0.0.0.0"}, 700),
        (["0.0.0.0"], {"p700": "127.0.0.1"}, 700),
    ],
)
def test_of_several_on_one_port_the_one_that_the_kernel_connects_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: list[str], there: dict[str, str], expected: int
) -> None:
    resolved = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in order]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: resolved)
    assert pid_of_port("localhost", 8080, listeners(tmp_path, **there)).pid == expected


def test_of_two_that_share_a_port_and_nothing_else_none_is_taken() -> None:
    """SO_REUSEPORT: the kernel gives each connection to one of them, by its own choice."""
    share = (
        "s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1); s.bind(('127.0.0.1', int(sys.argv[1]))); s.listen()"
    )
    program = f"import socket, sys; s = socket.socket(); {share}; print('', flush=True); sys.stdin.read()"
    with socket.socket() as here:
        here.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        here.bind(("127.0.0.1", 0))
        here.listen()
        port = here.getsockname()[1]
        pair = [
            subprocess.Popen([sys.executable, "-c", program, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            for _ in range(2)
        ]
        for other in pair:
            assert other.stdout is not None
            other.stdout.readline()
        assert pid_of_port("127.0.0.1", port).pid == os.getpid()  # both descend from it
        here.close()
        with pytest.raises(ProbeUnavailable, match="Several processes listen") as caught:
            pid_of_port("127.0.0.1", port)
        assert all(str(other.pid) in caught.value.message for other in pair)
        assert "--pid" in str(caught.value.hint)
        for other in pair:
            other.communicate()


@pytest.mark.skipif(sys.byteorder != "little", reason="addresses are written in the machine's byte order")
def test_one_of_several_that_is_another_users(tmp_path: Path) -> None:
    proc = listeners(tmp_path, p700="127.0.0.1", p701="127.0.0.1")
    (proc / "701" / "fd" / "3").unlink()
    with pytest.raises(ProbeUnavailable, match=r"700 \(server\) and others that cannot be seen"):
        pid_of_port("127.0.0.1", 8080, proc)


@pytest.mark.skipif(sys.byteorder != "little", reason="addresses are written in the machine's byte order")
def test_a_listener_of_another_user(tmp_path: Path) -> None:
    with pytest.raises(ProbeUnavailable, match="belongs to another user") as caught:
        pid_of_port("127.0.0.1", 8080, kernel_tables(tmp_path, readable=False))
    assert "--pid" in str(caught.value.hint)


@pytest.mark.skipif(sys.byteorder != "little", reason="addresses are written in the machine's byte order")
def test_a_program_that_only_passes_connections_on_is_not_taken_for_the_engine(tmp_path: Path) -> None:
    with pytest.raises(ProbeUnavailable, match="docker-proxy's, which passes it on"):
        pid_of_port("127.0.0.1", 8080, kernel_tables(tmp_path, name="docker-proxy"))


@pytest.mark.parametrize("listener", [("127.0.0.2", "alone")], indirect=True)
def test_the_addresses_of_a_process_are_its_own(listener: tuple[subprocess.Popen[str], int, int | None]) -> None:
    """Another process on the same port of another address is not it, whichever of them listens on all addresses."""
    process, port, _ = listener
    assert addresses_of(process.pid) == (("127.0.0.2", port),)
    with socket.create_server(("127.0.0.1", port)):
        assert addresses_of(process.pid) == (("127.0.0.2", port),)
        assert ("127.0.0.1", port) in addresses_of(os.getpid())


@pytest.mark.parametrize("listener", [("0.0.0.0", "alone")], indirect=True)
def test_an_address_that_another_process_took_for_itself_is_not_its_own(
    listener: tuple[subprocess.Popen[str], int, int | None],
) -> None:
    process, port, _ = listener
    assert addresses_of(process.pid) == (("127.0.0.1", port),)
    table = Path("/proc/net/tcp").read_text()
    theirs = next(line for line in table.splitlines() if f" 00000000:{port:04X} " in line)
    mine = theirs.replace(f" 00000000:{port:04X} ", f" 0100007F:{port:04X} ").split()
    mine[9] = "1"  # the inode of another's socket, which takes what is sent to 127.0.0.1
    assert _addresses_by(table + " ".join(mine) + "\n", process.pid) == ()


def _addresses_by(table: str, pid: int) -> tuple[tuple[str, int], ...]:
    """By a /proc whose table of sockets is this one, and whose processes are the real ones."""
    with tempfile.TemporaryDirectory() as name:
        proc = Path(name)
        (proc / "net").mkdir()
        (proc / "net" / "tcp").write_text(table)
        (proc / str(pid)).symlink_to(f"/proc/{pid}")
        return addresses_of(pid, proc)
