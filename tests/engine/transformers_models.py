"""Tiny models for transformers, made of a config alone: their weights are random."""

import json
from pathlib import Path
from typing import Any

from kvscope.engine.transformers import TransformersEngine

GOLDEN = Path(__file__).parent.parent / "golden" / "transformers"


def folder_of(path: Path, config: dict[str, Any]) -> str:
    """A folder at ``path`` with this config.json."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(path)


def golden_config(name: str, **changed: Any) -> dict[str, Any]:
    """The config of tests/golden/transformers/NAME.json, with room for one token a byte."""
    case = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    return {"model_type": case["model_type"], **case["config"], "vocab_size": 512, **changed}


def llama_config(**changed: Any) -> dict[str, Any]:
    """Two layers of Llama, 4 KV heads × 32 wide."""
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 2048,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 32,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        **changed,
    }


def write_tokenizer(folder: str) -> None:
    """A byte-level tokenizer.json in which "word" is one token, and " word" is one."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("w", "o"), ("wo", "r"), ("wor", "d"), ("\u0120", "word")]
    vocabulary = {text: index for index, text in enumerate([*letters, *("".join(pair) for pair in merges)])}
    built = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    built.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    built.save(str(Path(folder) / "tokenizer.json"))


class Child:
    """A launched child that one engine after another loads its model into: importing torch takes seconds."""

    def __init__(self) -> None:
        self._owner: TransformersEngine | None = None

    def give_to(self, engine: TransformersEngine) -> None:
        """In place of ``engine.launch()``."""
        if self._owner is None or not self._owner.pids():
            self._owner = engine
            engine.launch()
        engine._process, engine._numbers = self._owner._process, self._owner._numbers
        engine._version = self._owner._version

    def stop(self) -> None:
        """End it."""
        if self._owner is not None:
            self._owner.stop()
