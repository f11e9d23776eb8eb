"""Bytes of the parameters of models that the real library loaded in a 16-bit format, against the prediction, with ==.

transformers 5.24.0 keeps some parameters as float32 (routers, states' decay rates), and more of them in float16. The
numbers are sums over the parameters of from_pretrained(dtype=...) of each case's model; those for float16 are listed
where they are others than those for bfloat16.
"""

import json
from pathlib import Path

import pytest
from test_transformers_observations import config_of

from kvscope.model.hf_config import model_from_config
from kvscope.model.load import load_model
from kvscope.predict.weights import needed_weights

GOLDEN = Path(__file__).parent.parent / "golden"
BFLOAT16 = json.loads((GOLDEN / "transformers_bfloat16_weights.json").read_text(encoding="utf-8"))
FLOAT16 = json.loads((GOLDEN / "transformers_float16_weights.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", sorted(BFLOAT16))
def test_bytes_of_loaded_parameters(name: str) -> None:
    config = config_of(name, "config_kwargs_given") or config_of(name, "config")
    assert config is not None
    model = load_model(config)
    for dtype, expected in (("bfloat16", BFLOAT16[name]), ("float16", FLOAT16.get(name, BFLOAT16[name]))):
        (weights,), unknown = needed_weights(model, dtype)
        assert (weights.needed.bytes_at(0), unknown) == (expected, ())


def test_in_float32_every_parameter_takes_four_bytes() -> None:
    config = config_of("glm4_moe", "config")
    assert config is not None
    (weights,), _ = needed_weights(load_model(config), "float32")
    assert weights.needed.bytes_at(0) == 4 * 264256


def test_a_kept_format_is_said() -> None:
    """The router [experts, hidden] of each of the layers after the first: 5 × 4 × 64 parameters of glm4_moe's case."""
    config = config_of("glm4_moe", "config")
    assert config is not None
    model = model_from_config(config, source="x", where="config.json", name="x")
    kept = {group.name: group.num_elements for group in model.weights if group.dtype == "float32"}
    assert kept == {"model.layers.{}.mlp.gate.weight": 5 * 4 * 64}
