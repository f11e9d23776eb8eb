"""A runner whose fake engine is measured on the processor, for the tests of two runners at once.

    python turn_taker.py RECORD LOG [stubborn]

To LOG it appends a line for each trial: its own name, and when the engine was launched and stopped (the machine's
monotonic clock). With ``stubborn``, the engine is a program that does not end with the runner; its id is said on
stdout, and a line on stdin is waited for.
"""

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kvscope.engine.base import Engine
from kvscope.engine.fake import FakeEngine
from kvscope.engine.inherited import inherited_files
from kvscope.engine.registry import EngineChoice
from kvscope.experiment import executor
from kvscope.experiment.design import Condition, make_design
from kvscope.experiment.designs import design_kind
from kvscope.experiment.device_lock import Device
from kvscope.experiment.runner import Progress, run_design, start_run
from kvscope.model.load import load_model
from kvscope.model.spec import ModelSpec
from kvscope.record.store import create_records
from kvscope.scenario import SettingValue

STUBBORN = (sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)")
CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 4096,
}


class Logged(FakeEngine):
    log: Path
    is_stubborn = False
    launched_s = 0.0

    def launch(self) -> None:
        super().launch()
        self.launched_s = time.monotonic()
        if self.is_stubborn:
            process = subprocess.Popen(STUBBORN, pass_fds=inherited_files())
            print(f"engine {process.pid}", flush=True)  # noqa: T201  # what the test waits for
            sys.stdin.readline()

    def stop(self) -> None:
        if self.memory.running:
            with self.log.open("a") as log:
                log.write(f"{os.getpid()} {self.launched_s} {time.monotonic()}\n")
        super().stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class OfLogged(EngineChoice):
    def create(self, model: ModelSpec | None, settings: Mapping[str, SettingValue]) -> Engine:
        return Logged(settings=settings)


def tell(progress: Progress) -> None:
    if progress.waiting_for is not None:
        print(f"waiting {progress.waiting_for}", flush=True)  # noqa: T201


def main() -> None:
    record, log, *more = sys.argv[1:]
    Logged.log = Path(log)
    Logged.is_stubborn = "stubborn" in more
    executor.devices_used = lambda choice, settings: (Device(name="cpu"),)
    settings: dict[str, SettingValue] = {"load_s": 0.03, "ttft_s": 0.0, "itl_s": 0.0}
    held = Condition(settings=settings, prompt_tokens=64, output_tokens=2)
    design = make_design(design_kind("input_length"), levels=(64, 96), held=held, repeats=3)
    with create_records(record) as recorder:
        run = start_run(recorder, "turns")
        summary = run_design(recorder, run, design, load_model(CONFIG), OfLogged(name="fake"), listener=tell)
    print(f"done {summary.measured} {summary.kept}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
