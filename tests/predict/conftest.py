"""Models for the predictions, built from tests/golden/llamacpp (golden_gguf.py lies beside the tests of the reader)."""

from collections.abc import Callable

import pytest
from golden_gguf import writer

from kvscope.model.gguf import load_gguf
from kvscope.model.spec import ModelSpec


@pytest.fixture(scope="session")
def golden_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ModelSpec]:
    """Loads a golden model through the real reader, once."""
    loaded: dict[str, ModelSpec] = {}

    def load(name: str) -> ModelSpec:
        if name not in loaded:
            loaded[name] = load_gguf(writer(name).write(tmp_path_factory.mktemp("golden") / f"{name}.gguf"))
        return loaded[name]

    return load


@pytest.fixture(scope="session")
def smollm2(golden_model: Callable[[str], ModelSpec]) -> ModelSpec:
    return golden_model("smollm2-135m-instruct-q4_1")


@pytest.fixture(scope="session")
def gemma3(golden_model: Callable[[str], ModelSpec]) -> ModelSpec:
    return golden_model("gemma3-270m-q4_k_m")
