"""Models for the properties: real headers from tests/golden, and published configs as far as sizes go."""

import pytest
from golden_gguf import writer

import kvscope
from kvscope.model.gguf import load_gguf
from kvscope.model.spec import ModelSpec

FILES = ("smollm2-135m-instruct-q4_1", "gemma3-270m-q4_k_m", "tiny-qwen3", "tiny-phi3", "tiny-deci")
CONFIGS = {
    "llama-3.1-8b": {
        "model_type": "llama",
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "torch_dtype": "bfloat16",
    },
    "mistral-7b-v0.1": {
        "model_type": "mistral",
        "num_key_value_heads": 8,
        "sliding_window": 4096,
        "max_position_embeddings": 32768,
        "torch_dtype": "bfloat16",
    },
}


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModelSpec]:
    folder = tmp_path_factory.mktemp("properties")
    files = {name: load_gguf(writer(name).write(folder / f"{name}.gguf")) for name in FILES}
    return files | {name: kvscope.load_model(config) for name, config in CONFIGS.items()}
