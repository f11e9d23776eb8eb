"""A child process whose memory is known."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


class Occupant:
    """A program that takes memory on command; ends with the test."""

    def __init__(self) -> None:
        program = Path(__file__).with_name("occupant.py")
        self.process = subprocess.Popen(
            [sys.executable, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def pids(self) -> tuple[int, ...]:
        return (self.process.pid,)

    def do(self, command: str) -> None:
        """Returns when it is done."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "ok\n"

    def end(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
            self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def occupant() -> Iterator[Occupant]:
    occupant = Occupant()
    occupant.do("nothing")  # answered once Python has started
    yield occupant
    occupant.end()
