"""A process that holds the lock of a device until its stdin says otherwise, for the tests of locks.

python lock_holder.py DEVICE [shared] [stuck]      says "waiting: WHY" and "holding"; then takes a command a line.
"stuck": it never comes back from saying for whom it waits, as where nobody reads its pipe. Commands:
child      start a program that inherits the lock and does not end with this process; says its id
bare       the same, but it closes the lock and keeps only this kvscope's mark in its environment
release    give the lock back, and end
"""

import os
import subprocess
import sys
import time

from kvscope.engine.guard import VARIABLE, marked_processes
from kvscope.engine.inherited import inherited_files
from kvscope.engine.tied import next_mark
from kvscope.experiment.device_lock import Busy, Device, hold_devices

# It ignores its parent's death: nothing ties it to kvscope.
STUBBORN = (sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)")


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def start(*, inherits: bool) -> int:
    files = inherited_files() if inherits else ()
    mark = next_mark()
    environment = {**os.environ, VARIABLE: mark}
    process = subprocess.Popen(
        STUBBORN, pass_fds=files, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    while process.pid not in marked_processes(mark):  # the kernel shows it a moment after it has begun
        time.sleep(0.01)
    return process.pid


def main() -> None:
    device = Device(name=sys.argv[1], shared="shared" in sys.argv[2:])

    def tell(busy: Busy) -> None:
        say(f"waiting: {busy}")
        while "stuck" in sys.argv[2:]:
            time.sleep(600)

    with hold_devices([device], on_wait=tell):
        say("holding")
        for line in sys.stdin:
            match line.strip():
                case "child":
                    say(str(start(inherits=True)))
                case "bare":
                    say(str(start(inherits=False)))
                case _:
                    break
    say("released")


if __name__ == "__main__":
    main()
