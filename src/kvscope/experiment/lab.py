"""The main job: four questions about one model on one engine, small enough for a laptop and three minutes."""

import time
from collections.abc import Callable
from dataclasses import replace

from kvscope.engine.registry import EngineChoice
from kvscope.experiment.design import Design, make_design
from kvscope.experiment.designs import design_kind
from kvscope.experiment.runner import DesignSummary, Listener, RunOptions, run_design
from kvscope.model.spec import ModelSpec
from kvscope.record.rows import RunRow
from kvscope.record.store import Recorder
from kvscope.scenario import SettingValue

LAB_MINUTES = 3.0
LAB_CONTEXT_TOKENS = 4096


def lab_designs(model: ModelSpec | None, engine: str, *, is_attached: bool = False) -> tuple[Design, ...]:
    """The lab's designs, the most telling first: a time limit cuts from the end. ``is_attached``: of a server that runs
    already and keeps its settings. ``model`` None: whatever such a server has."""
    limit = (None if model is None else model.trained_context_tokens) or LAB_CONTEXT_TOKENS
    designs = [
        _design("context_limit", _up_to(limit, (512, 2048, 8192)), repeats=3),
        _design("input_length", _up_to(limit // 2, (128, 512, 1024, 2048)), repeats=3),
        # By now everything is warm: what these two would warm up again costs time and tells nothing.
        _design("release", (8192, 0), repeats=1, warmups=0),
        _design("output_length", _up_to(limit // 2, (16, 64, 256)), repeats=3, warmups=0),
    ]
    if engine != "llama.cpp" or is_attached:
        return tuple(design for design in designs if design.kind.name in ("input_length", "output_length"))
    return tuple(_for_llama_cpp(design, limit) for design in designs)


def _design(name: str, levels: tuple[int, ...], *, repeats: int, warmups: int = 1) -> Design:
    return make_design(design_kind(name), levels=levels, repeats=repeats, warmups=warmups)


def _up_to(limit: int, levels: tuple[int, ...]) -> tuple[int, ...]:
    kept = tuple(level for level in levels if level <= limit)
    return kept or (limit,)


def _for_llama_cpp(design: Design, limit: int) -> Design:
    settings: dict[str, SettingValue] = dict(design.held.settings)
    if design.factor.name != "n_ctx":
        settings["n_ctx"] = min(limit, LAB_CONTEXT_TOKENS)
    if design.factor.name != "cache_ram_mib":
        # Copies of old prompts are the release design's question; here they would be a second thing that varies.
        settings["cache_ram_mib"] = 0
    return replace(design, held=replace(design.held, settings=settings))


def run_lab(
    recorder: Recorder,
    run: RunRow,
    designs: tuple[Design, ...],
    model: ModelSpec | None,
    choice: EngineChoice,
    *,
    max_seconds: float,
    keep_text: bool = False,
    listener: Listener | None = None,
    now: Callable[[], float] = time.monotonic,
) -> list[DesignSummary]:
    """Run the designs block by block, all of them once before any of them again: where time runs out, every question
    has an answer, with fewer repeats. One summary for each design and block. Raises as ``run_design``."""
    deadline_s = now() + max_seconds
    summaries: list[DesignSummary] = []
    for block in range(1, max(design.repeats for design in designs) + 1):
        for design in designs:
            if block <= design.repeats:
                left_s = max(0.0, deadline_s - now())
                options = RunOptions(max_seconds=left_s, max_blocks=block, keep_text=keep_text)
                summaries.append(run_design(recorder, run, design, model, choice, options=options, listener=listener))
    return summaries
