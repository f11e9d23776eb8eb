"""What a prediction's page is made of beside the prediction itself: all lengths that were asked for, and what fits."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvscope.predict.prediction import Prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedPrediction:
    """``lengths``: one prediction for each length asked for; ``found``: the same as kvscope.prediction/1, each with its
    ``what_if`` where that was asked. ``fits``: kvscope.fit/1 into the memory that programs could get on this machine,
    None where that is not known or the settings leave nothing to look for."""

    lengths: tuple[Prediction, ...]
    found: tuple[Mapping[str, Any], ...]
    fits: Mapping[str, Any] | None = None

    @property
    def longest(self) -> Prediction:
        return max(self.lengths, key=lambda each: each.scenario.workload.tokens)
