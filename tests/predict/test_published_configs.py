"""Published config.json files, and the bytes of their caches derived by hand (tests/golden/models/*/expected.toml)."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from kvscope.model.load import load_model
from kvscope.predict.memory import predict

MODELS = Path(__file__).parent.parent / "golden" / "models"


def _expected(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


NAMES = sorted(path.parent.name for path in MODELS.glob("*/expected.toml") if "kv_bytes_at_32768" in _expected(path))


@pytest.mark.parametrize("name", NAMES)
def test_the_cache_of_a_published_model(name: str) -> None:
    expected = _expected(MODELS / name / "expected.toml")
    model = load_model(MODELS / name / "config.json")
    predicted = predict(model, engine="logical", tokens=32768, dtype="bfloat16")
    assert predicted.component_bytes("kv_cache") == expected["kv_bytes_at_32768"]
    assert predicted.component_bytes("recurrent_state") == expected["state_bytes"]
    assert predicted.component_bytes("index_cache") == expected.get("index_bytes_at_32768", 0)
    if "transformers_state_bytes" in expected:
        library = predict(model, engine="transformers", tokens=32768, dtype="bfloat16")
        assert library.component_bytes("recurrent_state") == expected["transformers_state_bytes"]
