"""How long a thread was ready to run and had no processor, as the kernel counts it (Linux).

A ticker samples; this misses nothing: every wait between two readings is in their difference.
"""

import os

# Nanoseconds run, nanoseconds ready and waiting, turns (Linux: Documentation/scheduler/sched-stats.rst).
_SCHEDULE = "/proc/thread-self/schedstat"


class ProcessorWait:
    """Of the thread that made it, whoever reads. Reading takes a microsecond. To be closed."""

    def __init__(self) -> None:
        try:
            self._fd = os.open(_SCHEDULE, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._fd = -1

    def read(self) -> float | None:
        """Seconds since the thread began; None where it is not known."""
        try:
            return int(os.pread(self._fd, 96, 0).split()[1]) / 1e9 if self._fd >= 0 else None
        except (OSError, ValueError, IndexError):
            return None

    def close(self) -> None:
        """Safe to call twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
