"""The process of a server that runs already: whose memory is watched, and why it cannot be where it cannot.

It is looked at and never touched. Which one: the one that was named, else the one that listens at the server's address.
"""

from dataclasses import dataclass

from kvscope.engine.listening import (
    ProcessIdentity,
    identify,
    is_in_line,
    is_same_process,
    pid_of_port,
    process_name,
)
from kvscope.errors import EngineDied, ProbeUnavailable, UsageError

Warned = tuple[str, str, str]

# Process ids that were named, and the process that had each when it was first looked at: a run can outlast it, and the
# number is then given to another.
_named: dict[int, ProcessIdentity] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerProcess:
    """``identity`` is None where there is none to watch, and ``warnings`` then say why."""

    identity: ProcessIdentity | None
    warnings: tuple[Warned, ...] = ()

    def pids(self) -> tuple[int, ...]:
        """Its process id while that very process runs."""
        return (self.identity.pid,) if self.identity is not None and is_same_process(self.identity) else ()

    def death(self) -> EngineDied | None:
        """An error to raise where it has gone; None where it runs, or is not known."""
        if self.identity is None or is_same_process(self.identity):
            return None
        return EngineDied(
            f"The server's process {self.identity.pid} has ended. kvscope did not start it and did not end it.",
            hint="Look at the server's own log, start it again, and run the same command to go on.",
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
            return ServerProcess(identity=pid_of_port(host, port))
        except ProbeUnavailable as error:
            unwatched = ("memory-not-seen", f"Memory of the server was not read. {error.message}", error.hint or "")
            return ServerProcess(identity=None, warnings=(unwatched,))
    named = ServerProcess(identity=check_named(pid))
    if (death := named.death()) is not None:
        raise death
    return ServerProcess(identity=named.identity, warnings=_doubts(pid, host, port))


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
