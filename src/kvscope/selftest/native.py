"""The truth server in C, compiled on the spot into memory: no file is left behind, however kvscope ends."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from kvscope.errors import EngineNotFound, EngineStartFailed

SOURCE = Path(__file__).with_name("truth_server.c")
_COMPILERS = ("cc", "gcc", "clang")
_COMPILED_WITHIN_S = 60.0
_FALLBACK = "Without it the server runs in Python, which is less exact."


def compile_server() -> int:
    """A file descriptor of the program, open for reading, to be given to ``os.execve``. Raises EngineNotFound where
    there is no compiler, EngineStartFailed where it fails."""
    if sys.platform != "linux":
        raise EngineNotFound("The server in C is for Linux.", hint=_FALLBACK)
    compiler = next((found for name in _named() if (found := shutil.which(name))), None)
    if compiler is None:
        raise EngineNotFound("There is no C compiler (cc).", hint=f"Install gcc or clang. {_FALLBACK}")
    try:
        return _compiled_by(compiler)
    except (OSError, subprocess.SubprocessError) as error:
        raise EngineStartFailed(f"The server in C was not compiled: {error}", hint=_FALLBACK) from error


def _named() -> tuple[str, ...]:
    """``CC`` names a compiler, as everywhere; one with arguments in it is left to the others."""
    own = os.environ.get("CC", "")
    return (own, *_COMPILERS) if own else _COMPILERS


def _compiled_by(compiler: str) -> int:
    memory = os.memfd_create("truth_server")
    try:
        target = f"/proc/{os.getpid()}/fd/{memory}"
        done = subprocess.run(
            (compiler, "-O2", "-std=gnu11", "-pipe", "-o", target, str(SOURCE)),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_COMPILED_WITHIN_S,
            check=False,
        )
        if done.returncode:
            last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            raise OSError(f"{compiler}: {last}")
        # What is open for writing cannot be executed.
        return os.open(f"/proc/self/fd/{memory}", os.O_RDONLY)
    finally:
        os.close(memory)
