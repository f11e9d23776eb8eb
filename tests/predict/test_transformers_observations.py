"""Every tensor that transformers' cache really held (tests/golden/transformers), against the prediction, with ==.

Each case is asked from three forms of the same config: complete, as save_pretrained writes it, and only what was set.
"""

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from kvscope.model.load import load_model
from kvscope.predict.memory import predict

GOLDEN = Path(__file__).parent.parent / "golden" / "transformers"
FORMS = ("config", "config_saved_by_save_pretrained", "config_kwargs_given")
CASES = sorted(path.stem for path in GOLDEN.glob("*.json"))


@functools.cache
def case_of(name: str) -> dict[str, Any]:
    loaded = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    assert isinstance(loaded, dict)
    return loaded


def config_of(name: str, form: str) -> dict[str, Any] | None:
    case = case_of(name)
    config = case[form]
    return None if config is None else {"model_type": case["model_type"], **config}


def mismatches(name: str, form: str) -> list[str]:
    """What the prediction says otherwise than the library did; empty where all is equal."""
    case, config = case_of(name), config_of(name, form)
    if config is None:
        return []
    model = load_model(config)
    found = []
    expected = case["parameters"]["count"]
    if model.num_parameters != expected:
        found.append(f"parameters {model.num_parameters}, counted {expected}")
    for dtype, key in (("float32", "observations"), ("bfloat16", "observations_bfloat16")):
        for seen in case[key] or ():
            tokens = seen["prompt_tokens"] + seen["decode_tokens"]
            phase = "decode" if seen["decode_tokens"] else "prefill"
            predicted = predict(
                model, engine="transformers", tokens=tokens, sequences=seen["batch"], phase=phase, dtype=dtype
            )
            if predicted.cache_bytes != seen["cache_bytes"]:
                found.append(f"{dtype} {_of(seen)}: cache {predicted.cache_bytes}, held {seen['cache_bytes']}")
            storage = predicted.kv_cache_storage_bytes
            if storage != seen["storage_bytes"]:
                found.append(f"{dtype} {_of(seen)}: storage {storage}, held {seen['storage_bytes']}")
    return found


def _of(seen: dict[str, Any]) -> str:
    return f"({seen['batch']},{seen['prompt_tokens']},{seen['decode_tokens']})"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CASES)
def test_cache_and_parameters_equal_what_the_library_held(name: str, form: str) -> None:
    assert mismatches(name, form) == []
