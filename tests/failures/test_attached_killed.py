"""A server that kvscope did not start, killed for want of memory in a control group: suspected, with the counts."""

import subprocess
import sys

import pytest
from sitting import limited_group, own_group_folder

from kvscope.engine.listening import identify
from kvscope.engine.oom_kills import KillCounts
from kvscope.engine.server_process import ServerProcess
from kvscope.errors import ConnectionLost, EngineDied, MemorySuspected

MIB = 1024**2
needs_group = pytest.mark.skipif(
    isinstance(own_group_folder(), str), reason=f"no control group can be made here: {own_group_folder()}"
)
WAITS = "import sys; print(flush=True); sys.stdin.readline(); x = bytearray(b'x' * 200 * 1024**2); sys.exit(5)"


def waiting() -> "subprocess.Popen[bytes]":
    """A process that takes 200 MiB once it is told to."""
    process = subprocess.Popen((sys.executable, "-c", WAITS), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def watched(process: "subprocess.Popen[bytes]") -> ServerProcess:
    return ServerProcess(identity=identify(process.pid), kills=KillCounts.of(process.pid))


@needs_group
def test_a_kill_in_its_group_is_a_suspicion_with_what_broke() -> None:
    with limited_group(32 * MIB) as folder, waiting() as process:
        (folder / "cgroup.procs").write_text(str(process.pid))
        server = watched(process)
        assert server.death() is None
        process.communicate(b"\n")
        broken = ConnectionLost("The connection broke.", evidence={"pieces_received": 3})
        found = server.death(broken)
    assert process.returncode == -9
    assert type(found) is MemorySuspected
    assert found.outcome == "out_of_memory"
    assert found.evidence["known_by"] == "counters"
    assert found.evidence["counters"]["group.oom_kill"] == [0, 1]
    assert found.evidence["pieces_received"] == 3


@needs_group
def test_one_that_somebody_ended_has_died() -> None:
    with limited_group(64 * MIB) as folder, waiting() as process:
        (folder / "cgroup.procs").write_text(str(process.pid))
        server = watched(process)
        process.kill()
        process.communicate()
        found = server.death()
    assert type(found) is EngineDied
    assert found.evidence["known_by"] == "exit"
    assert found.evidence["counters"]["group.oom_kill"] == [0, 0]
