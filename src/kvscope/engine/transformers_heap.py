"""The worker's part that reads its own memory: what the C library's allocator holds, and torch's allocator on a GPU.

Read by ``transformers_worker.py`` from the file beside it, in the child process; imports nothing of kvscope. Only
reads: nothing is given back to the system that the library itself would not give back.
"""

import ctypes
import os
import re
import sys
import threading
from functools import cache
from typing import Any

# struct mallinfo2 of glibc 2.33 or newer (malloc.h): ten size_t in this order.
_FIELDS = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")


class _Mallinfo2(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in _FIELDS]


@cache
def _reader() -> Any:
    """mallinfo2, or None where this C library has none."""
    try:
        read = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError):
        return None
    read.restype = _Mallinfo2
    return read


def heap() -> dict[str, int]:
    """Bytes of the C library's allocator, all its arenas together; empty where it does not say (not glibc, or older).

    ``heap_in_use_bytes``: handed out from its arenas; ``heap_free_bytes``: given back to it and kept there;
    ``heap_mmapped_bytes``: larger blocks that have a mapping of their own, which goes back to the system when freed.
    """
    read = _reader()
    if read is None:
        return {}
    info = read()
    return {
        "heap_in_use_bytes": info.uordblks,
        "heap_free_bytes": info.fordblks,
        "heap_mmapped_bytes": info.hblkhd,
    }


class HeapPeak:
    """Watches the C library's allocator while a request is answered: what was in use, and what was free and kept, at
    the look at which it held most of both together. A look takes about a microsecond, a thread's waking for it ten."""

    EVERY_S = 0.002

    def __init__(self) -> None:
        self._most: dict[str, int] = {}
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "HeapPeak":
        self._most = {}
        self._over.clear()
        self._look()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._look()

    def _watch(self) -> None:
        while not self._over.wait(self.EVERY_S):
            self._look()

    def _look(self) -> None:
        now = heap()
        if not now:
            return
        used = now["heap_in_use_bytes"] + now["heap_mmapped_bytes"]
        if used + now["heap_free_bytes"] >= sum(self._most.values()):
            self._most = {"heap_peak_bytes": used, "heap_peak_free_bytes": now["heap_free_bytes"]}

    def figures(self) -> dict[str, int]:
        """Of the last request; empty before one, or where the allocator does not say."""
        return dict(self._most)


def python_arenas() -> dict[str, int]:
    """``python_arena_bytes``: what Python's own allocator has taken for small objects, in mappings that the C library
    does not know of. Empty where this Python does not say.

    CPython writes its figures to the standard error alone, so that is a pipe for that moment."""
    write = getattr(sys, "_debugmallocstats", None)
    if write is None:
        return {}
    reader, writer = os.pipe()
    os.set_blocking(writer, False)  # what does not fit is not needed
    log = os.dup(2)
    try:
        os.dup2(writer, 2)
        write()
    finally:
        os.dup2(log, 2)
        for descriptor in (log, writer):
            os.close(descriptor)
    with os.fdopen(reader, "rb") as file:
        found = re.search(rb"(\d+) arenas \* (\d+) bytes/arena", file.read())
    return {} if found is None else {"python_arena_bytes": int(found[1]) * int(found[2])}


def device(torch: Any, name: str) -> dict[str, int]:
    """torch's allocator on the GPU called ``name``; empty on a CPU, whose allocator keeps no figures."""
    if not name.startswith("cuda"):
        return {}
    return {
        "allocated_bytes": torch.cuda.memory_allocated(name),
        "allocated_peak_bytes": torch.cuda.max_memory_allocated(name),
        "reserved_bytes": torch.cuda.memory_reserved(name),
        "reserved_peak_bytes": torch.cuda.max_memory_reserved(name),
    }


def reset_device_peak(torch: Any, name: str) -> None:
    """Begin a new peak of torch's allocator here; nothing on a CPU."""
    if name.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(name)
