"""Made-up records whose times to the first token are given, to be held against one another."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvscope.record.rows import DesignRow, RunRow, TokenRow, TrialResult, WarningRow
from kvscope.record.store import Recorder, create_records
from record.rows_for_tests import design_row, request_row, trial_row

BASE = {"n_ctx": 512}
Times = Mapping[Any, Sequence[float]]


def design(**changes: Any) -> DesignRow:
    return design_row(**{"levels": (128, 512), "settings": BASE, **changes})


def record(path: Path, *designs: tuple[DesignRow, RunRow, Times]) -> Path:
    with create_records(path) as recorder:
        for row, run, times in designs:
            add(recorder, row, run, times)
    return path


def add(
    recorder: Recorder, design: DesignRow, run: RunRow, times: Times, *, failed: Sequence[Any] = (), **changes: Any
) -> None:
    """One trial per level and block whose first token comes after that time; levels in ``failed`` fail once more.
    ``changes``: of every trial's row, and ``warnings``: their slugs."""
    if run not in recorder.runs():
        recorder.add_run(run)
    recorder.add_design(design)
    for level, values in times.items():
        for block, ttft_s in enumerate(values):
            add_trial(recorder, design, run, level=level, block=block, ttft_s=ttft_s, **changes)
        if level in failed:
            add_trial(recorder, design, run, level=level, block=9, outcome="engine_died", error_slug="engine-died")


def add_trial(
    recorder: Recorder,
    design: DesignRow,
    run: RunRow,
    *,
    level: Any,
    block: int,
    ttft_s: float | None = None,
    outcome: str | None = "ok",
    warnings: Sequence[str] = (),
    error_slug: str | None = None,
    **changes: Any,
) -> None:
    """One attempt. ``ttft_s`` None: it measured nothing. ``outcome`` None: it has not ended."""
    level = dict(level) if isinstance(level, tuple) else level  # of a grid: ((factor, level), ...)
    values: dict[str, Any] = {
        "trial_id": f"{level}/{block}", "design_id": design.design_id, "run_id": run.run_id, "level": level,
        "levels": level if isinstance(level, dict) else {design.factor: level}, "repeat": block, "block": block,
        "settings": dict(design.settings),
    }  # fmt: skip
    row = trial_row(**{**values, **changes})
    recorder.start_trial(row, None)
    if outcome is None:
        return
    token = TokenRow(request_index=0, index=0, at_s=ttft_s or 0.0, text="a", kind="content")
    recorder.finish_trial(
        TrialResult(
            trial=replace(row, outcome=outcome, error_slug=error_slug),
            requests=() if ttft_s is None else (request_row(index=0),),
            tokens=() if ttft_s is None else (token,),
            warnings=tuple(WarningRow(slug=slug, message="", hint="") for slug in warnings),
        )
    )
