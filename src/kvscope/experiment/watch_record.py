"""What a watch sees, kept in a record: a design "watch" whose trials are spans of a minute, each written when it is
over. Stopping it at any moment loses nothing but the span that was not written yet, and Ctrl-C not even that."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

from kvscope.experiment.design import design_hash
from kvscope.experiment.watch import Look
from kvscope.experiment.watch_target import Target
from kvscope.record.rows import DesignRow, PredictionRow, RunRow, SampleRow, TrialResult, TrialRow
from kvscope.record.store import Recorder

SPAN_S = 60.0
_QUESTION = "What does this running engine hold, and what is it doing?"


class WatchRecorder:
    """Collects looks and writes them by spans."""

    def __init__(self, recorder: Recorder, run: RunRow, target: Target) -> None:
        self._recorder = recorder
        self._design = _design(run, target)
        self._run = run
        self._looks: list[Look] = []
        self._spans = 0
        self._row: TrialRow | None = None
        recorder.add_design(self._design)

    def add(self, look: Look) -> None:
        """Keep one look. Raises RecordError where a span that is over cannot be written."""
        if self._looks and look.at_s - self._looks[0].at_s >= SPAN_S:
            self.finish()
        if self._row is None:
            self._row = self._start(look)
        self._looks.append(look)

    def finish(self) -> None:
        """Write what is not written yet."""
        if self._row is None:
            return
        row, looks = self._row, self._looks
        self._row, self._looks = None, []
        marks = tuple(look.mark for look in looks if look.mark is not None)
        self._recorder.finish_trial(
            TrialResult(
                trial=replace(row, outcome="ok", duration_s=looks[-1].at_s - looks[0].at_s),
                marks=marks,
                # The mappings of every look would be most of the file; those of the last tell what it was made of.
                maps=looks[-1].maps,
                reported=looks[-1].kept,
                statistics=tuple(row for look in looks for row in look.statistic_rows()),
                samples=tuple(
                    SampleRow(quantity=name, at_s=mark.at_s, value_bytes=getattr(mark, name), late_s=0.0)
                    for mark in marks
                    for name in ("anon_bytes", "swap_bytes", "file_bytes")
                ),
            )
        )

    def _start(self, look: Look) -> TrialRow:
        row = TrialRow(
            trial_id=design_hash({"design": self._design.design_id, "run": self._run.run_id, "span": self._spans}),
            attempt=1,
            design_id=self._design.design_id,
            run_id=self._run.run_id,
            role="measured",
            levels={"span": self._spans},
            level=self._spans,
            repeat=0,
            block=0,
            position=self._spans,
            started_at=look.at,
            settings={},
        )
        self._spans += 1
        kept = None
        if look.prediction is not None:
            kept = PredictionRow(
                trial_id=row.trial_id, attempt=row.attempt, created_at=look.at, prediction=look.prediction
            )
        self._recorder.start_trial(row, kept)
        return row


def _design(run: RunRow, target: Target) -> DesignRow:
    facts: Mapping[str, object] = {
        "name": "watch",
        "version": 1,
        "engine": target.engine,
        "process": target.name,
        "pid": target.pid,
        "started": None if target.process is None else target.process.started_ticks,
        "url": target.url,
        "run": run.run_id,
    }
    return DesignRow(
        design_id=design_hash(facts),
        name="watch",
        version=1,
        question=_QUESTION,
        factor="span",
        levels=(),
        baseline_level=0,
        held={name: value for name, value in facts.items() if name in ("process", "pid", "url")},
        confounders=("Whatever else the engine was asked to do meanwhile; nothing is held fixed.",),
        is_grid=False,
        repeats=1,
        seed=0,
        model_name=target.name,
        model_source=target.url or f"process {target.pid}",
        model_fingerprint="unknown",
        engine=target.engine or "unknown",
        engine_version="unknown",
        engine_build="unknown",
        settings={},
        machine_id=run.machine_id,
        created_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
    )
