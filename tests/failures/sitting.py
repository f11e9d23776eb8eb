"""What the tests of failures share: one sitting of real trials on the real engine, some of whose engines are broken on
purpose, recorded in a real file and read back from it."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from kvscope.engine.base import Engine
from kvscope.engine.llama_cpp import LlamaCppEngine
from kvscope.engine.registry import EngineChoice
from kvscope.experiment.design import Condition, make_design
from kvscope.experiment.designs import design_kind
from kvscope.experiment.runner import RunOptions, run_design, start_run
from kvscope.model.spec import ModelSpec
from kvscope.record.rows import TrialResult
from kvscope.record.store import create_records, open_records
from kvscope.scenario import SettingValue

SETTINGS: Mapping[str, SettingValue] = {"n_ctx": 256, "n_threads": 1, "n_threads_batch": 1, "cache_ram_mib": 0}
Maker = Callable[[ModelSpec, Mapping[str, SettingValue]], Engine]


def sound(model: ModelSpec, settings: Mapping[str, SettingValue]) -> Engine:
    """The engine as it is."""
    return LlamaCppEngine(model=model, settings=settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class OneAfterAnother(EngineChoice):
    """llama.cpp, whose next engine is made by the next maker."""

    makers: Iterator[Maker]

    def create(self, model: ModelSpec | None, settings: Mapping[str, SettingValue]) -> Engine:
        assert model is not None
        return next(self.makers)(model, settings)


def sit(
    folder: Path,
    model: ModelSpec,
    makers: Sequence[Maker],
    *,
    prompt_tokens: int = 48,
    output_tokens: int = 4,
    requests: int = 1,
    try_anyway: bool = False,
    **settings: SettingValue,
) -> list[TrialResult]:
    """One trial for each maker, in order, as they were recorded."""
    held = Condition(
        settings={**SETTINGS, **settings}, prompt_tokens=prompt_tokens, output_tokens=output_tokens, requests=requests
    )
    kind = design_kind("input_length")
    design = make_design(kind, levels=(prompt_tokens,), held=held, repeats=len(makers), warmups=0)
    choice = OneAfterAnother(name="llama.cpp", makers=iter(makers))
    path = folder / "kvscope.db"
    with create_records(path) as recorder:
        run = start_run(recorder, "test")
        with suppress(KeyboardInterrupt):  # as recorded; what is left is not run
            run_design(recorder, run, design, model, choice, options=RunOptions(try_anyway=try_anyway))
    with open_records(path) as records:
        return [records.result(trial) for trial in records.trials()]


def own_group_folder() -> Path | str:
    """The folder of this process's own memory group in which a group with a limit can be made, or why it cannot."""
    if sys.platform != "linux":
        return "control groups are Linux's"
    from kvscope.engine.oom_kills import membership, memory_group

    folder = memory_group(membership(os.getpid()))
    if folder is None:
        return "no control group with memory accounting is to be seen"
    if not (folder / "memory.limit_in_bytes").exists():
        return "control groups of version 2 let no process stand beside groups within its own"
    if not os.access(folder, os.W_OK):
        return f"{folder} cannot be written by this user"
    return folder


@contextmanager
def limited_group(limit_bytes: int) -> Iterator[Path]:
    """A control group of its own with a limit, within this process's; nothing is in it until it is put there."""
    above = own_group_folder()
    assert isinstance(above, Path)
    folder = above / f"kvscope-test-{os.getpid()}-{os.urandom(4).hex()}"
    folder.mkdir()
    try:
        (folder / "memory.limit_in_bytes").write_text(str(limit_bytes))
        yield folder
    finally:
        folder.rmdir()
