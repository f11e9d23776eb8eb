"""A program that holds exactly what it is told to: the probes' outside truth. Run by the tests as a child process.

Commands, one a line on stdin, each answered by "ok": anon N (touch N MiB of anonymous memory), reserve N (map without
touching), free (give back the last), file PATH (map and read), shared N (touch shared memory), heap N (malloc small
pieces), fork (start a child that does the same), thread (a thread that allocates), name NAME (what it is
called).
"""

import ctypes
import mmap
import subprocess
import sys
import threading
import time
from pathlib import Path

MIB = 1024 * 1024
PAGE = mmap.PAGESIZE
held: list[object] = []


def touch(area: mmap.mmap) -> None:
    for at in range(0, len(area), PAGE):
        area[at] = 1


def in_a_thread() -> None:
    """glibc gives a further thread that allocates a malloc arena of its own."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    for _ in range(2000):
        place = libc.malloc(1000)
        ctypes.memset(place, 1, 1000)
    ready.set()
    time.sleep(3600)


ready = threading.Event()


def obey(command: str, argument: str) -> None:
    match command:
        case "anon":
            held.append(mmap.mmap(-1, int(argument) * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
            touch(held[-1])  # type: ignore[arg-type]
        case "reserve":
            held.append(mmap.mmap(-1, int(argument) * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        case "shared":
            held.append(mmap.mmap(-1, int(argument) * MIB))
            touch(held[-1])  # type: ignore[arg-type]
        case "file":
            with Path(argument).open("rb") as file:
                held.append(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
            sum(held[-1][at] for at in range(0, len(held[-1]), PAGE))  # type: ignore[arg-type,index,misc]
        case "name":
            Path("/proc/self/comm").write_text(argument)
        case "free":
            held.pop().close()  # type: ignore[attr-defined]
        case "thread":
            threading.Thread(target=in_a_thread, daemon=True).start()
            ready.wait()
        case "fork":
            child = subprocess.Popen(
                [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            held.append(child)
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write(argument.replace("=", " ") + "\n")
            child.stdin.flush()
            child.stdout.readline()


for line in sys.stdin:
    command, _, argument = line.strip().partition(" ")
    obey(command, argument)
    sys.stdout.write("ok\n")
    sys.stdout.flush()
