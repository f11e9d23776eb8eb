"""A study of which nothing was run: a prediction alone, to be read like any other."""

from collections.abc import Mapping

from kvscope.analysis.asked_prediction import AskedPrediction
from kvscope.analysis.study import Analysis, Study
from kvscope.record.rows import Json


def predicted_analysis(
    prediction: Mapping[str, Json], *, model_source: str, asked: AskedPrediction | None = None
) -> Analysis:
    """One study that holds only this prediction (kvscope.prediction/1). ``model_source``: where the model is.
    ``asked``: all lengths that were asked for, and what fits."""
    model = prediction.get("model") or {}
    scenario = prediction.get("scenario") or {}
    study = Study(
        model_name=str(model.get("name") or model_source),
        model_source=model_source,
        model_fingerprint=str(model.get("fingerprint") or ""),
        engine=str(scenario.get("engine") or ""),
        engine_version=str(scenario.get("engine_version") or ""),
        engine_build="",
        machine_id="",
        machine={},
        runs=(),
        designs=(),
        prediction=prediction,
        main=None,
        by_context=(),
        context=None,
        inputs=None,
        timeline=None,
        ttft=None,
        tpot=None,
        completion=None,
        tpot_output=None,
        limits=(),
        releases=(),
        limit=None,
        failures=(),
        checks=(),
        asked=asked,
    )
    return Analysis(studies=(study,))
