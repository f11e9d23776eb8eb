"""The question: what is asked of the model, on which engine, with which settings. Asked of both sides,
the prediction and the measurement."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

SettingValue = str | int | float | bool | None

Phase = Literal["prefill", "decode"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is held in the cache. ``tokens`` counts, per sequence, the prompt and every output token fed back."""

    tokens: int
    num_sequences: int = 1
    phase: Phase = "decode"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """``values`` holds settings by their canonical name, which is the engine's own (``n_ctx``, ``cache_type_k``)."""

    engine: str
    engine_version: str | None = None
    values: Mapping[str, SettingValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """The same question, asked of a prediction and of a measurement."""

    workload: Workload
    settings: EngineSettings
