"""What a watch sees, kept in a record: a design "watch" whose trials are spans of a minute. Every look is written at
once, but for the mappings of the last, which are written when its span is over: a watch that is killed, or whose disk
is full, loses no more than that."""

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
        self._spans = 0
        self._row: TrialRow | None = None
        self._first_s = 0.0
        self._last: Look | None = None
        recorder.add_design(self._design)

    def add(self, look: Look) -> None:
        """Keep one look. Raises RecordError where it cannot be written."""
        if self._row is not None and look.at_s - self._first_s >= SPAN_S:
            self.finish()
        if self._row is None:
            self._row, self._first_s = self._start(look), look.at_s
        self._last = look
        row = replace(self._row, outcome="ok", duration_s=look.at_s - self._first_s)
        mark = look.mark
        self._row = row
        self._recorder.finish_trial(
            TrialResult(
                trial=row,
                marks=() if mark is None else (mark,),
                statistics=look.statistic_rows(),
                samples=()
                if mark is None
                else tuple(
                    SampleRow(quantity=name, at_s=mark.at_s, value_bytes=getattr(mark, name), late_s=0.0)
                    for name in ("anon_bytes", "swap_bytes", "file_bytes")
                ),
            )
        )

    def finish(self) -> None:
        """End the span: write of what its last look's memory was made of. The mappings of every look would be most of
        the file."""
        row, last = self._row, self._last
        self._row, self._last = None, None
        if row is not None and last is not None:
            self._recorder.finish_trial(TrialResult(trial=row, maps=last.maps, reported=last.kept))

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
            kept = PredictionRow(created_at=look.at, prediction=look.prediction)
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
