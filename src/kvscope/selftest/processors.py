"""Which processors the server and the client run on, and how long the client had to wait for one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_SIBLINGS = "/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"
# Nanoseconds run, nanoseconds ready and waiting, turns (Linux: Documentation/scheduler/sched-stats.rst).
_SCHEDULE = Path("/proc/thread-self/schedstat")


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """``server``: its processor, ``client``: those of the client. Both None: they share, and ``why_not`` says why."""

    server: int | None
    client: tuple[int, ...] | None
    why_not: str | None = None


def apart() -> Apart:
    """The last processor that may be used is the server's; the others, without its other half, are the client's."""
    try:
        allowed = sorted(os.sched_getaffinity(0))
    except (AttributeError, OSError) as error:
        return Apart(server=None, client=None, why_not=f"this system does not let a program choose ({error})")
    if len(allowed) < 2:
        return Apart(server=None, client=None, why_not="only one processor may be used here")
    server = allowed[-1]
    others = [core for core in allowed if core != server]
    whole = [core for core in others if core not in _halves(server)]
    return Apart(server=server, client=tuple(whole or others))


def _halves(core: int) -> set[int]:
    """The processors that are one core with it; only itself where the system does not say."""
    try:
        text = Path(_SIBLINGS.format(core=core)).read_text()
        found = set()
        for part in text.strip().split(","):
            first, _, last = part.partition("-")
            found |= set(range(int(first), int(last or first) + 1))
    except (OSError, ValueError):
        return {core}
    return found


@contextmanager
def kept_on(cores: tuple[int, ...] | None) -> Iterator[str | None]:
    """This thread, and those it starts, on these processors until the block ends; why not, where that is refused."""
    if cores is None:
        yield None
        return
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, cores)
    except OSError as error:
        yield f"the client cannot be kept on processors of its own ({error.strerror})"
        return
    try:
        yield None
    finally:
        os.sched_setaffinity(0, before)


def waited_s() -> float | None:
    """How long this thread has been ready to run without a processor, since it began; None where it is not known."""
    try:
        return int(_SCHEDULE.read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None
