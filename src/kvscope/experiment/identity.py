"""Who measures and what, as it is recorded: the sitting, and the design with the identity of its rows."""

import uuid
from datetime import UTC, datetime

from kvscope import __version__
from kvscope.experiment.design import Design, design_hash
from kvscope.experiment.machine import machine_facts, machine_id
from kvscope.experiment.subject import Subject
from kvscope.hiding import hide_secrets
from kvscope.record.rows import DesignRow, RunRow
from kvscope.record.store import Recorder


def start_run(recorder: Recorder, command: str) -> RunRow:
    """Record that a sitting begins on this machine."""
    run = new_run(command)
    recorder.add_run(run)
    return run


def new_run(command: str) -> RunRow:
    """A sitting on this machine, not recorded."""
    facts = machine_facts()
    return RunRow(
        run_id=uuid.uuid4().hex[:12],
        started_at=utc_now(),
        kvscope_version=__version__,
        command=hide_secrets(command),
        machine_id=machine_id(facts),
        machine=facts,
    )


def design_row(design: Design, subject: Subject, run: RunRow) -> DesignRow:
    """The design as it is recorded; its identity covers everything that makes rows comparable."""
    choice = subject.choice
    held = {name: value for name, value in design.held.to_dict().items() if name != design.factor.name}
    asked = {**design.definition(), "model": subject.fingerprint, "engine": choice.name}
    facts = {
        **asked,
        "engine_version": subject.version,
        "engine_build": subject.build,
        "engine_command": hide_secrets(choice.command),  # with another key it is the same question
        "machine_id": run.machine_id,
        # A server's address does not make its rows another thing; what it was started with does.
        **subject.served_facts,
    }
    return DesignRow(
        design_id=design_hash(facts),
        name=design.kind.name,
        version=design.kind.version,
        question=design.kind.question,
        factor=" × ".join(factor.name for factor in design.factors),
        levels=design.factor.levels if not design.is_grid else tuple(dict(point) for point in design.points()),
        baseline_level=design.baseline_level if not design.is_grid else dict(design.points()[0]),
        held=held,
        confounders=design.kind.confounders,
        is_grid=design.is_grid,
        repeats=design.repeats,
        seed=design.seed,
        model_name=subject.model_name,
        model_source=subject.model_source,
        model_fingerprint=subject.fingerprint,
        engine=choice.name,
        engine_version=subject.version,
        engine_build=subject.build,
        settings={**subject.stated_settings, **design.held.settings},
        machine_id=run.machine_id,
        created_at=utc_now(),
        study_id=design_hash(asked),
        holds=design.kind.holds,
        definition={**design.definition(), **_started_with(subject)},
    )


def _started_with(subject: Subject) -> dict[str, object]:
    """What the identity of a design covers and no other column says: kept beside what was asked, so that a comparison
    can name it."""
    facts = {
        "engine_command": hide_secrets(subject.choice.command),
        "served_path": subject.served_facts.get("served_path"),
    }
    return {name: value for name, value in facts.items() if value is not None}


def utc_now() -> str:
    """This moment, as records write it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
