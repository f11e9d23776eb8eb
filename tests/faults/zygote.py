"""Runs small studies on the fake engine in forked copies of itself, and kills them where it is told: a process with
everything imported, so that a kill costs a fork and not a start of Python.

    python zygote.py     one JSON object a line on stdin: {"folder": ..., "kill": [kind, number]}; answers on stdout

Kinds of kills, each the kernel's own, after which no code of the process runs any more:
  line      SIGKILL before the number-th line of kvscope's runner, trial or record
  record    the same, counting lines of the record alone
  steps     SIGKILL within SQLite, after so many hundreds of its virtual machine's steps
  size      by the kernel at the first write that would make any file larger than so many bytes (SIGXFSZ)
  time      SIGKILL by the parent, so many microseconds after the study began
  interrupt Ctrl-C by the parent, so many microseconds after the study began, and again a moment later
  none      not at all
"""

import json
import math
import os
import resource
import signal
import sqlite3
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import kvscope.experiment.trial_memory as trial_memory
from kvscope.engine.base import Engine
from kvscope.engine.fake import FakeEngine, VirtualClock
from kvscope.engine.registry import EngineChoice
from kvscope.experiment.design import Condition, Design, make_design
from kvscope.experiment.designs import design_kind
from kvscope.experiment.neighbours import Neighbours
from kvscope.experiment.runner import run_design, start_run
from kvscope.model.load import load_model
from kvscope.model.spec import ModelSpec
from kvscope.record.store import create_records
from kvscope.scenario import SettingValue

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-5,
}
LEVELS = (100, 150)
TICK = 1024  # of the clock, a second
STOPPED = 130


class ExactClock(VirtualClock):
    """A clock whose times are whole ticks, of which sums and differences are exact: a trial takes the same time to the
    last bit, whenever it runs."""

    def sleep(self, seconds: float) -> None:
        self._now_s += math.ceil(seconds * TICK) / TICK


@dataclass(frozen=True, slots=True, kw_only=True)
class OnClock(EngineChoice):
    clock: VirtualClock

    def create(self, model: ModelSpec | None, settings: Mapping[str, SettingValue]) -> Engine:
        return FakeEngine(settings=settings, clock=self.clock)


class NoSampler:
    """Samples are taken by the real clock, in a thread: the one thing that is not the same in two runs."""

    streams = ()

    def __init__(self, *_: object, **__: object) -> None:
        return

    def start(self) -> None:
        return

    def stop(self) -> tuple[()]:
        return ()


def the_design() -> Design:
    held = Condition(settings={"n_ctx": 512}, prompt_tokens=LEVELS[0], output_tokens=4)
    return make_design(design_kind("input_length"), levels=LEVELS, repeats=2, held=held)


def study(folder: Path, model: ModelSpec) -> None:
    clock = ExactClock()
    with create_records(folder / "r.db") as recorder:
        run = start_run(recorder, "zygote")
        run_design(
            recorder, run, the_design(), model, OnClock(name="fake", clock=clock), now=clock.now, sleep=clock.sleep
        )


# --- where it is killed -----------------------------------------------------------------------------------------------


class StepCounter:
    """Counts hundreds of steps of SQLite's virtual machine, of every connection that is made from now on."""

    def __init__(self, kill_at: int) -> None:
        self.kill_at = kill_at
        self.count = 0
        real = sqlite3.connect

        def connect(*arguments: Any, **keywords: Any) -> sqlite3.Connection:
            connection = real(*arguments, **keywords)
            connection.set_progress_handler(self.look, 100)
            return connection

        sqlite3.connect = connect  # type: ignore[assignment]  # in this copy of the process alone

    def look(self) -> int:
        self.count += 1
        if self.count == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return 0


class LineCounter:
    """Counts the lines that are run of files whose path holds one of ``parts``; at ``kill_at``, SIGKILL."""

    def __init__(self, parts: tuple[str, ...], kill_at: int) -> None:
        self.parts = parts
        self.kill_at = kill_at
        self.count = 0

    def of_call(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        return self.of_line if any(part in frame.f_code.co_filename for part in self.parts) else None

    def of_line(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
        if event == "line":
            self.count += 1
            if self.count == self.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
        return self.of_line


RECORD = ("/kvscope/record/",)
ALL = (*RECORD, "/kvscope/experiment/")


def arm(kind: str, number: int) -> LineCounter | StepCounter | None:
    if kind in ("line", "record"):
        counter = LineCounter(ALL if kind == "line" else RECORD, number)
        sys.settrace(counter.of_call)
        return counter
    if kind == "size":
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (number, number))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    return StepCounter(number) if kind == "steps" else None


def run_copy(folder: Path, model: ModelSpec, kind: str, number: int) -> dict[str, Any]:
    """Fork, run, and say how it ended."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        in_copy(folder, model, arm(kind, number), writing)
    os.close(writing)
    if kind in ("time", "interrupt"):
        time.sleep(number / 1e6)
        os.kill(pid, signal.SIGKILL if kind == "time" else signal.SIGINT)
    if kind == "interrupt":
        time.sleep(number % 1000 / 1e6)
        os.kill(pid, signal.SIGINT)
    with os.fdopen(reading) as said:
        text = said.read()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return {"signal": max(0, -code), "code": code, **json.loads(text or "{}")}


def in_copy(folder: Path, model: ModelSpec, counter: LineCounter | StepCounter | None, writing: int) -> NoReturn:
    """The study, and the end of the copy."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        study(folder, model)
        sys.settrace(None)
        os.write(writing, json.dumps({"count": counter.count if counter else 0}).encode())
        code = 0
    except KeyboardInterrupt:
        code = STOPPED
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def main() -> None:
    trial_memory.Sampler = NoSampler  # type: ignore[misc, assignment]
    Neighbours.look = lambda *_: None  # type: ignore[method-assign]  # what else runs here is not this study's
    model = load_model(CONFIG)
    for line in sys.stdin:
        asked = json.loads(line)
        folder = Path(asked["folder"])
        folder.mkdir(exist_ok=True)
        kind, number = asked["kill"]
        sys.stdout.write(json.dumps(run_copy(folder, model, kind, number)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
