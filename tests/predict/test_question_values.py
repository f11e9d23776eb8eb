"""What no engine takes: settings that JSON cannot state, or that are no settings at all."""

import math
from typing import Any

import pytest

from kvscope.errors import UsageError
from kvscope.model.load import load_model
from kvscope.predict.memory import READY_ENGINES, predict


@pytest.mark.parametrize("engine", READY_ENGINES)
@pytest.mark.parametrize(
    "settings", [{"seed": math.nan}, {"seed": math.inf}, {"n_ctx": [1]}, {"revision": {}}, {7: 1}, {"seed": 1j}]
)
def test_a_setting_that_is_no_plain_finite_value_is_refused(engine: str, settings: Any) -> None:
    model = load_model({"model_type": "llama", "torch_dtype": "bfloat16"})
    with pytest.raises(UsageError, match="expected"):
        predict(model, engine=engine, tokens=1, settings=settings)
