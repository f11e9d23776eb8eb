"""The process of a server that runs already: whose memory is watched, and why it cannot be where it cannot.

It is looked at and never touched. Which one: the one that was named, else the one that listens at the server's address.
"""

import contextlib
import re
from dataclasses import dataclass, replace
from pathlib import Path

from kvscope.engine.listening import (
    PROC,
    ProcessIdentity,
    family,
    identify,
    is_in_line,
    is_same_process,
    parent,
    pid_of_port,
    process_name,
)
from kvscope.engine.oom_kills import KillCounts
from kvscope.errors import EngineDied, EngineError, MemorySuspected, ProbeUnavailable, UsageError

Warned = tuple[str, str, str]

_GPU_FILES = ("/dev/nvidia", "/dev/dri/", "/dev/kfd")
# A model's file among a process's mappings: a GGUF, or one that Ollama or a hub's cache calls by its digest.
_MODEL_FILE = re.compile(r"\.gguf$|\.safetensors$|/(?:sha256-)?[0-9a-f]{64}$", re.MULTILINE)
# The launcher of Text Generation Inference starts the router, which answers, and the shards, which hold the model. This
# is its name and the router's, as far as the kernel keeps it.
_TGI = "text-generation"

_START_AGAIN = "Look at the server's own log, start it again, and run the same command with --retry-failed."

# Process ids that were named, and the process that had each when it was first looked at: a run can outlast it, and the
# number is then given to another.
_named: dict[int, ProcessIdentity] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerProcess:
    """``identity`` is None where there is none to watch, and ``warnings`` then say why."""

    identity: ProcessIdentity | None
    warnings: tuple[Warned, ...] = ()
    kills: KillCounts | None = None

    def pids(self) -> tuple[int, ...]:
        """Its process id while that very process runs."""
        return (self.identity.pid,) if self.identity is not None and is_same_process(self.identity) else ()

    def death(self, broken: EngineError | None = None) -> EngineError | None:
        """An error to raise where it has gone, with the evidence of ``broken`` (a connection that broke); None where it
        runs, or is not known. How it ended is not to be seen: it is not kvscope's child."""
        if self.identity is None or is_same_process(self.identity):
            return None
        ended = f"The server's process {self.identity.pid} has ended. kvscope did not start it and did not end it."
        counters = {} if self.kills is None else self.kills.until_now()
        evidence = {
            **(broken.evidence if broken is not None else {}),
            "counters": {name: list(both) for name, both in counters.items()},
        }
        before, after = counters.get("group.oom_kill") or counters.get("machine.oom_kill") or (0, 0)
        if after <= before:
            return EngineDied(ended, hint=_START_AGAIN, evidence={**evidence, "known_by": "exit"})
        where = "in the server's control group" if "group.oom_kill" in counters else "on this machine"
        return MemorySuspected(
            f"{ended} The kernel counted {after - before} out-of-memory kill(s) {where} since it was first looked at. "
            "Whether the server was the one is not known.",
            hint=f"The kernel's log (dmesg) names whom it killed. {_START_AGAIN}",
            evidence={**evidence, "known_by": "counters"},
        )


def check_named(pid: int) -> ProcessIdentity:
    """The process with this id. Raises UsageError where there is none to be seen."""
    found = identify(pid) if pid > 0 else None
    if found is None:
        raise UsageError(
            f"There is no process {pid} here that this user may look at.",
            hint="Find it with `ps -e`, or leave --pid out: the process that listens there is then looked for.",
        )
    return _named.setdefault(pid, found)


def find_process(pid: int | None, host: str, port: int) -> ServerProcess:
    """The process to watch. Raises UsageError for a named one that is not there, EngineDied for one that has gone since
    it was first looked at."""
    if pid is None:
        try:
            return _counted(pid_of_port(host, port))
        except ProbeUnavailable as error:
            unwatched = ("memory-not-seen", f"Memory of the server was not read. {error.message}", error.hint or "")
            return ServerProcess(identity=None, warnings=(unwatched,))
    named = _counted(check_named(pid))
    if (death := named.death()) is not None:
        raise death
    return replace(named, warnings=_doubts(pid, host, port))


def _counted(identity: ProcessIdentity) -> ServerProcess:
    return ServerProcess(identity=identity, kills=KillCounts.of(identity.pid))


def with_its_shards(process: ServerProcess, proc: Path = PROC) -> ServerProcess:
    """Of a Text Generation Inference whose router was found by its address: the launcher, which all descend from; or
    the router with a warning, where it was started by something else."""
    if process.identity is None:
        return process
    launcher = parent(process.identity.pid, proc)
    found = None
    if launcher is not None and process_name(launcher, proc) == _TGI:
        found = identify(launcher, proc)
    if found is not None:
        return replace(process, identity=found)
    message = (
        f"Process {process.identity.pid} ({process_name(process.identity.pid, proc)}) answers there. In Text "
        "Generation Inference that is the router; the model is held by processes beside it, which were not watched."
    )
    warned = ("process-too-small", message, "Give the process that started them all with --pid.")
    return replace(process, warnings=(*process.warnings, warned))


def too_small(process: ServerProcess, model_bytes: int, proc: Path = PROC) -> tuple[Warned, ...]:
    """A warning where the process with all that descend from it holds less than the model that the server states, has
    no model's file mapped, and no GPU open where it could be: it only passes on what another process answers."""
    if process.identity is None or not is_same_process(process.identity, proc):
        return ()
    pids = family(process.identity.pid, proc)
    held = sum(_held_bytes(proc / str(pid)) for pid in pids)
    if held >= model_bytes or any(_may_hold_elsewhere(proc / str(pid)) for pid in pids):
        return ()
    pid = process.identity.pid
    message = (
        f"Process {pid} ({process_name(pid, proc)}) holds {held:,} bytes, less than the {model_bytes:,} of the model "
        "that the server states: its memory is hardly the engine's."
    )
    hint = "Does it pass requests on to another process? Give the engine's own with --pid."
    return (("process-too-small", message, hint),)


def _held_bytes(folder: Path) -> int:
    """Its resident and swapped memory: proc_pid_status(5)."""
    try:
        said = (folder / "status").read_text(errors="replace")
    except OSError:
        return 0
    return sum(int(kib) * 1024 for kib in re.findall(r"^Vm(?:RSS|Swap):\s+(\d+) kB$", said, re.MULTILINE))


def _may_hold_elsewhere(folder: Path) -> bool:
    try:
        if _MODEL_FILE.search((folder / "maps").read_text(errors="replace")) is not None:
            return True
        links = list((folder / "fd").iterdir())
    except OSError:
        return True  # not to be seen
    for link in links:
        with contextlib.suppress(OSError):  # closed meanwhile
            if str(link.readlink()).startswith(_GPU_FILES):
                return True
    return False


def _doubts(pid: int, host: str, port: int) -> tuple[Warned, ...]:
    try:
        listener = pid_of_port(host, port).pid
    except ProbeUnavailable:
        return ()  # who listens is not to be seen, which is why one was named
    if is_in_line(pid, listener):
        return ()
    message = (
        f"Process {pid} ({process_name(pid)}) does not listen on port {port}: "
        f"process {listener} ({process_name(listener)}) does."
    )
    return (("not-the-listener", message, f"If that one is the server, leave --pid out or give --pid {listener}."),)
