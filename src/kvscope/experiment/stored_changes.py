"""The single changes of a trial's settings and the bytes that each should save, kept with the trial's prediction: a
report is made of the record alone, which does not hold the model."""

from typing import Any

from kvscope.engine.registry import EngineChoice, Served
from kvscope.errors import KvscopeError
from kvscope.experiment.design import Condition
from kvscope.model.spec import ModelSpec
from kvscope.predict.prediction import Prediction
from kvscope.predict.question import Question
from kvscope.predict.what_if import Change, candidates, try_change

# Another program is no setting of this one.
_NO_SETTING = "engine"


def stored_changes(
    model: ModelSpec,
    choice: EngineChoice,
    condition: Condition,
    prediction: Prediction,
    *,
    served: Served | None = None,
    version: str = "unknown",
) -> list[dict[str, Any]]:
    """Each change that the engine's rules know and do not refuse: its settings by the engine's own names, its
    ``axis``, what it does at worst (``harm``), ``saved_bytes`` (None where a part is known on one side only), and
    whether the prediction before or after it is an estimate. Empty where the engine has no rules of its own."""
    if choice.rules != choice.name:
        return []
    given = choice.own_settings(condition.settings, model) if served is None else served.for_prediction or {}
    workload = prediction.scenario.workload
    try:
        question = Question(
            model=model,
            engine=choice.rules,
            engine_version=version if version != "unknown" else None,
            tokens=workload.tokens,
            sequences=workload.num_sequences,
            settings={**given, **condition.settings},
        )
        tried = [
            try_change(question, candidate, prediction)
            for candidate in candidates(question)
            if candidate.axis != _NO_SETTING
        ]
    except KvscopeError:  # what cannot be asked again, as a size of memory that only the server knows
        return []
    return [_kept(change, prediction) for change in tried if change is not None and change.refused is None]


def _kept(change: Change, prediction: Prediction) -> dict[str, Any]:
    after = change.answer
    return {
        "axis": change.candidate.axis,
        "change": dict(change.candidate.change),
        "harm": change.candidate.harm,
        "saved_bytes": None if change.unknown else change.saved_bytes,
        "is_estimate": after is None or (prediction.status, after.status) != ("exact", "exact"),
    }
