"""Become another program, one that the kernel ends when kvscope ends, however kvscope ends (SIGKILL included).

Run as a plain file: ``python die_with_parent.py PARENT_PID PROGRAM [ARGUMENT ...]``. What is asked of the kernel here
(PR_SET_PDEATHSIG, prctl(2)) outlives exec, so no process stays in between, and the program itself need not know.
Systems other than Linux have no such thing: there the program only ends when it is stopped, or, for kvscope's own
worker, when its stdin closes.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Exit code 1, with the reason on stderr, when the program cannot be run."""
    parent, *command = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        sys.exit(1)  # it ended before the kernel was asked
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
