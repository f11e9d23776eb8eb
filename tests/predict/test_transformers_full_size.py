"""Config classes' own full-size defaults, built by transformers 5.24.0 on its meta device in bfloat16: parameters, and
the cache straight after a prefill (tests/golden/transformers_full_size.json)."""

import json
from pathlib import Path

import pytest

from kvscope.model.load import load_model
from kvscope.predict.memory import predict

MEASURED = json.loads((Path(__file__).parent.parent / "golden" / "transformers_full_size.json").read_text("utf-8"))


@pytest.mark.parametrize("form", ["complete", "bare"])
@pytest.mark.parametrize("name", MEASURED)
def test_full_size_defaults(name: str, form: str) -> None:
    """``bare``: a config.json that names its model_type and nothing else stands for the same defaults."""
    measured = MEASURED[name]
    config = measured["config"] if form == "complete" else {"model_type": measured["model_type"]}
    model = load_model({"model_type": measured["model_type"], **config})
    assert model.num_parameters == measured["parameters"]
    for seen in measured["observations"]:
        predicted = predict(
            model,
            engine="transformers",
            tokens=seen["prompt_tokens"] + seen["decode_tokens"],
            sequences=seen["batch"],
            phase="decode" if seen["decode_tokens"] else "prefill",
            dtype="bfloat16",
        )
        assert predicted.cache_bytes == seen["cache_bytes"]
        assert predicted.kv_cache_storage_bytes == seen["storage_bytes"]
