"""How a study is run: what is repeated, what is left out, and for how long it may go on."""

from collections.abc import Callable
from dataclasses import dataclass

from kvscope.record.rows import MEASURED_OUTCOMES, TrialRow


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """``max_seconds``: start no trial that would be expected to end later than this. ``max_blocks``: run only the first
    blocks now, each of which holds every level once, and leave the others for a later call. ``retry_failed``: run
    failed trials anew, as another attempt. ``max_wait_s``: how long to wait for a device that somebody else measures
    (None: until it is free, or ``max_seconds`` are over). ``keep_text``: record a person's own texts and all answers
    word for word (see ``kept_text``)."""

    fail_fast: bool = False
    retry_failed: bool = False
    try_anyway: bool = False
    max_seconds: float | None = None
    max_blocks: int | None = None
    max_wait_s: float | None = None
    keep_text: bool = False

    def is_finished(self, last: TrialRow | None, is_refused: Callable[[], bool]) -> bool:
        """Whether a trial need not be run, by its last attempt: it was, or it was refused and still would be."""
        if last is None or last.outcome in (None, "interrupted"):
            return False
        if last.outcome in MEASURED_OUTCOMES:
            return True
        if last.outcome != "refused":
            return not self.retry_failed
        return not self.try_anyway and is_refused()
