"""How many files this process may have open: every connection of a load is one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# What it has open besides: its record, pipes to engines, libraries.
_OTHERS = 128


def most_open_files() -> int | None:
    """The limit in force; None where there is none that is known."""
    try:
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    except (ImportError, OSError, ValueError):
        return None
    return None if soft == resource.RLIM_INFINITY else soft


@contextmanager
def room_for(connections: int) -> Iterator[None]:
    """Inside, so many connections more may be open, as far as the system lets a process raise its own limit. Where it
    does not, whoever connects fails, and says why."""
    before = _raised(connections + _OTHERS)
    try:
        yield
    finally:
        if before is not None:
            _set(before)


def _raised(number: int) -> tuple[int, int] | None:
    """The limits as they were, where they had to be raised."""
    soft = most_open_files()
    if soft is None or os.name != "posix":
        return None
    import resource

    wanted = number + _num_open()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    return (soft, hard) if wanted > soft and _set((wanted, hard)) else None


def _num_open() -> int:
    try:
        return sum(1 for _ in Path("/proc/self/fd").iterdir())
    except OSError:
        return _OTHERS


def _set(limits: tuple[int, int]) -> bool:
    import resource

    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    except (OSError, ValueError):
        return False
    return True
