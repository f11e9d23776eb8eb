"""What an attempt leaves once it has ended, as one result; and what was to be expected of its memory before."""

import contextlib
from dataclasses import replace

from kvscope.errors import ProbeError
from kvscope.experiment.attempt_rows import AttemptRows
from kvscope.experiment.ending import Ending, Outlook
from kvscope.experiment.request_counts import Expected
from kvscope.experiment.retrieval_answers import cut_noted
from kvscope.probe.cgroup import available_bytes
from kvscope.record.rows import TrialResult, TrialRow


def result_of(row: TrialRow, rows: AttemptRows, ending: Ending, *, duration_s: float) -> TrialResult:
    """Everything that the attempt has left, with its ending."""
    return TrialResult(
        trial=replace(
            row,
            duration_s=duration_s,
            client=rows.client,
            outcome=ending.outcome,
            error_slug=ending.slug,
            error_message=ending.message,
            error_hint=ending.hint,
            traceback=ending.traceback,
            engine_log_tail=ending.engine_log_tail,
            evidence=ending.evidence,
        ),
        requests=tuple(rows.requests),
        tokens=tuple(rows.tokens),
        reads=tuple(rows.reads),
        marks=tuple(rows.marks),
        maps=tuple(rows.maps),
        samples=tuple(rows.samples),
        reported=tuple(rows.reported),
        effective=rows.effective,
        occupants=tuple(rows.occupants),
        statistics=tuple(rows.statistics),
        warnings=tuple(rows.warnings),
        answers=tuple(cut_noted(rows.answers, rows.requests)),
        scored_tokens=tuple(rows.scored_tokens),
    )


def outlook_of(expected: Expected | None) -> Outlook:
    """What is predicted, and what of memory can be had now."""
    available = None
    with contextlib.suppress(ProbeError):
        available = available_bytes()
    return Outlook(
        predicted_bytes=None if expected is None else expected.predicted_bytes,
        available_bytes=available,
        mapped_bytes=0 if expected is None else expected.mapped_bytes,
    )
