"""kvscope: why does an LLM need more memory, and answer more slowly, as the conversation gets longer?

It predicts every byte from the model's own files, measures the same question on the real engine, and reconciles the
two. Public names are loaded when first used, so that importing kvscope stays cheap.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Bound now, not when first used: the package kvscope.predict has the same name, and whichever is bound last wins.
from kvscope.predict.memory import Prediction, predict

if TYPE_CHECKING:
    from kvscope.analysis.explain import explain
    from kvscope.experiment.measure import measure
    from kvscope.model.load import load_model
    from kvscope.model.spec import ModelSpec
    from kvscope.predict.solve import fit
    from kvscope.record.store import open_records
    from kvscope.report.page import write_report

_HOME = {
    "load_model": "kvscope.model.load",
    "ModelSpec": "kvscope.model.spec",
    "fit": "kvscope.predict.solve",
    "explain": "kvscope.analysis.explain",
    "measure": "kvscope.experiment.measure",
    "open_records": "kvscope.record.store",
    "write_report": "kvscope.report.page",
}

__all__ = [
    "ModelSpec",
    "Prediction",
    "explain",
    "fit",
    "load_model",
    "measure",
    "open_records",
    "predict",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'kvscope' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
