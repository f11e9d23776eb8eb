"""A question to predict() that can be asked again with something changed."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kvscope.model.spec import ModelSpec
from kvscope.predict.growth import round_up
from kvscope.predict.memory import predict
from kvscope.predict.prediction import Prediction
from kvscope.scenario import Phase, SettingValue

# What a change may name beside an engine's settings: the arguments of predict() that a person chooses.
ARGUMENTS = frozenset({"engine", "tokens", "sequences", "dtype"})
# llama.cpp makes room in blocks of this many tokens for each sequence; Ollama runs llama.cpp.
LLAMA_CPP_BLOCK = 256
LLAMA_CPP_ENGINES = frozenset({"llama.cpp", "ollama"})
# Engines whose settings have several spellings → the module that knows them; imported when asked for.
_CANONICAL: Mapping[str, str] = {
    "llama.cpp": "kvscope.predict.allocation.llama_cpp_offload",
    "ollama": "kvscope.predict.allocation.ollama",
    "sglang": "kvscope.predict.allocation.sglang_settings",
    "transformers": "kvscope.predict.allocation.transformers_settings",
    "vllm": "kvscope.predict.allocation.vllm_settings",
}


def canonical_settings(engine: str, settings: Mapping[str, SettingValue]) -> Mapping[str, SettingValue]:
    """``settings`` by the engine's own names. Raises UnknownName for one that the engine does not have."""
    if engine not in _CANONICAL:
        return settings
    made: Mapping[str, SettingValue] = importlib.import_module(_CANONICAL[engine]).canonical_settings(settings)
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The arguments of ``predict``. Settings are kept by the engine's own names, so that a change replaces what was
    given in another spelling."""

    model: ModelSpec
    engine: str
    engine_version: str | None = None
    tokens: int | None = None
    sequences: int = 1
    phase: Phase = "decode"
    settings: Mapping[str, SettingValue] = field(default_factory=dict)
    dtype: str | None = None
    available_bytes: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", canonical_settings(self.engine, self.settings))

    def ask(self) -> Prediction:
        """The answer. Raises as ``predict``."""
        return predict(
            self.model,
            engine=self.engine,
            engine_version=self.engine_version,
            tokens=self.tokens,
            sequences=self.sequences,
            phase=self.phase,
            settings=self.settings,
            dtype=self.dtype,
            available_bytes=self.available_bytes,
        )

    def changed(self, change: Mapping[str, SettingValue]) -> "Question":
        """The same question with other settings or arguments. Another engine is asked with its own defaults (it has
        none of the first one's settings), its newest version, and room for the same tokens."""
        arguments: dict[str, Any] = {name: value for name, value in change.items() if name in ARGUMENTS}
        settings = {name: value for name, value in change.items() if name not in ARGUMENTS}
        if arguments.get("engine", self.engine) != self.engine:
            other = replace(self, **arguments, settings=settings, engine_version=None, dtype=None)
            return other if other.tokens is None else other.holding(other.tokens, other.sequences)
        return replace(self, **arguments, settings={**self.settings, **settings})

    def holding(self, tokens: int, sequences: int) -> "Question":
        """The same question on an engine set up to hold ``tokens`` in each of ``sequences`` sequences, and no more than
        its blocks make of it."""
        cells = round_up(max(tokens, 1), LLAMA_CPP_BLOCK)
        rooms: Mapping[str, dict[str, SettingValue]] = {
            # Whether each slot has its own part of the context or all share it, this is what they need together.
            "llama.cpp": {"n_ctx": cells * sequences, "n_parallel": sequences},
            "ollama": {"num_ctx": cells, "num_parallel": sequences},
            "sglang": {"context_length": max(tokens, 1)},
            "vllm": {"max_model_len": max(tokens, 1)},
        }
        room = rooms.get(self.engine, {})
        if str(self.settings.get("cache_implementation", "")).endswith("static"):
            room = {"max_cache_len": max(tokens, 1)}
        return replace(self, tokens=tokens, sequences=sequences, settings={**self.settings, **room})
