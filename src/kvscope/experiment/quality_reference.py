"""The attempt that others are held against where a divergence is their score: that of the baseline in which most texts
have been scored so far, of several the first. So that its texts are theirs, it has their own length, task and all else
that belongs to the requests. The report compares anew, with all attempts that there are."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kvscope.analysis.fidelity import most_complete, with_fidelity
from kvscope.experiment.design import REQUEST_FACTORS, Design, Level, Trial
from kvscope.experiment.trial_scores import FIDELITY
from kvscope.record.rows import MEASURED_OUTCOMES, TrialResult, WarningRow
from kvscope.record.store import Recorder


@dataclass(slots=True)
class References:
    """Those of one design, looked for in the record when they are first needed."""

    recorder: Recorder
    design: Design
    design_id: str

    def scored(self, trial: Trial, result: TrialResult) -> TrialResult:
        """The result with the divergence of each item as its score, as far as there is a reference; unchanged where it
        is of another task."""
        asked = trial.condition.quality
        if asked is None or asked.task != FIDELITY or not result.scored_tokens:
            return result
        try:
            levels = self._reference_levels(trial)
            reference = self._reference(levels)
            if reference is None and levels == dict(trial.levels):
                reference = result
            return with_fidelity(result, reference)
        except Exception as error:  # what was measured is recorded whatever becomes of this; the report compares anew
            doubt = WarningRow(
                slug="quality-not-compared",
                message=f"Scores were not held against the baseline's: {type(error).__name__}: {error}",
                hint="kvscope report compares them anew from the positions that are in the record.",
            )
            return replace(result, warnings=(*result.warnings, doubt))

    def _reference_levels(self, trial: Trial) -> Mapping[str, Level]:
        return {
            factor.name: trial.levels[factor.name] if factor.name in REQUEST_FACTORS else factor.levels[0]
            for factor in self.design.factors
        }

    def _reference(self, levels: Mapping[str, Level]) -> TrialResult | None:
        """Read anew for each attempt that was scored (one of each level): a later one may be more complete."""
        found = [
            self.recorder.result(row, {"answers", "scored_tokens"})
            for row in self.recorder.trials(self.design_id)
            if row.role == "measured" and row.outcome in MEASURED_OUTCOMES and dict(row.levels) == dict(levels)
        ]
        return most_complete([each for each in found if each.scored_tokens])
