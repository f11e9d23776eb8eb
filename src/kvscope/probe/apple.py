"""Memory of a process on a Mac, from libproc. Never run on a Mac by us: tested against a stand-in library only.

proc_pid_rusage (libproc.h, sys/resource.h: struct rusage_info_v4) gives ri_phys_footprint, what Activity Monitor shows
as "Memory": the process's own pages, compressed and swapped out ones included, and what it shares with the GPU, because
Apple's GPUs work in the same memory. So there is no device memory beside it. ri_lifetime_max_phys_footprint is the most
that it was since the process started; it cannot be set back. ri_resident_size holds mapped files too.
"""

import ctypes
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from kvscope.errors import ProbeLost, ProbeUnavailable

LIBPROC = Path("/usr/lib/libproc.dylib")  # in the dyld cache: it can be loaded although no such file is there
_RUSAGE_INFO_V4 = 4
_UUID_BYTES = 16
# The 64-bit fields after the uuid, in the order of struct rusage_info_v4.
_FIELDS = (
    "user_time system_time pkg_idle_wkups interrupt_wkups pageins wired_size resident_size phys_footprint "
    "proc_start_abstime proc_exit_abstime child_user_time child_system_time child_pkg_idle_wkups "
    "child_interrupt_wkups child_pageins child_elapsed_abstime diskio_bytesread diskio_byteswritten "
    "cpu_time_qos_default cpu_time_qos_maintenance cpu_time_qos_background cpu_time_qos_utility cpu_time_qos_legacy "
    "cpu_time_qos_user_initiated cpu_time_qos_user_interactive billed_system_time serviced_system_time logical_writes "
    "lifetime_max_phys_footprint instructions cycles billed_energy serviced_energy interval_max_phys_footprint "
    "runnable_time"
).split()
_MOST_CHILDREN = 4096
_NO_SUCH_PROCESS, _NOT_PERMITTED = 3, 1


class _RusageInfo(ctypes.Structure):
    _fields_ = (("uuid", ctypes.c_uint8 * _UUID_BYTES), *((name, ctypes.c_uint64) for name in _FIELDS))


class FootprintProbe:
    """Reads the processes that ``pids`` names, and their descendants.

    ``read()`` gives footprint_bytes, resident_bytes and footprint_peak_bytes, summed over the tree; the sum of peaks is
    an upper bound. ``library``: where libproc is.
    """

    name = "process footprint (macOS)"

    def __init__(self, pids: Callable[[], tuple[int, ...]], *, library: Path = LIBPROC) -> None:
        self._pids = pids
        self._library = library
        self._libproc: ctypes.CDLL | None = None

    def unavailable(self) -> str | None:
        """None where libproc can be loaded, otherwise why not."""
        if sys.platform != "darwin" and self._library == LIBPROC:
            return "This is not a Mac."
        try:
            self._loaded()
        except ProbeUnavailable as error:
            return error.message
        return None

    def read(self) -> Mapping[str, int]:
        """Bytes now. Raises ProbeLost when no process of the tree is left, ProbeUnavailable where one may not be read
        or libproc is not here."""
        found = [usage for pid in self.tree() if (usage := self._usage(pid)) is not None]
        if not found:
            named = ", ".join(map(str, self._pids())) or "none"
            raise ProbeLost(f"The process to be watched has gone (process id: {named}).")
        return {
            "footprint_bytes": sum(usage.phys_footprint for usage in found),
            "resident_bytes": sum(usage.resident_size for usage in found),
            "footprint_peak_bytes": sum(usage.lifetime_max_phys_footprint for usage in found),
        }

    def tree(self) -> tuple[int, ...]:
        """The processes named and their descendants, parents first."""
        found: list[int] = []
        waiting = list(self._pids())
        while waiting:
            pid = waiting.pop(0)
            if pid not in found:
                found.append(pid)
                waiting += self._children(pid)
        return tuple(found)

    def _usage(self, pid: int) -> _RusageInfo | None:
        """None where the process has gone."""
        usage = _RusageInfo()
        ctypes.set_errno(0)
        if self._loaded().proc_pid_rusage(pid, _RUSAGE_INFO_V4, ctypes.byref(usage)) == 0:
            return usage
        if ctypes.get_errno() == _NOT_PERMITTED:
            raise ProbeUnavailable(
                f"Process {pid} may not be read.", hint="It belongs to another user. Run kvscope as its owner."
            )
        if ctypes.get_errno() == _NO_SUCH_PROCESS:
            return None
        raise ProbeUnavailable(f"The memory of process {pid} cannot be read (error {ctypes.get_errno()}).")

    def _children(self, pid: int) -> list[int]:
        buffer = (ctypes.c_int * _MOST_CHILDREN)()
        count = self._loaded().proc_listchildpids(pid, buffer, ctypes.sizeof(buffer))
        return list(buffer[: max(count, 0)])

    def _loaded(self) -> ctypes.CDLL:
        if self._libproc is None:
            try:
                self._libproc = ctypes.CDLL(str(self._library), use_errno=True)
            except OSError as error:
                raise ProbeUnavailable(f"libproc cannot be loaded ({error}).") from error
        return self._libproc
