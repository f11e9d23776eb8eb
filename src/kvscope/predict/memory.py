"""predict(): the whole question, on any engine whose rules are known. Engines' own rules are in allocation/."""

import math
from collections.abc import Mapping
from dataclasses import replace

from kvscope.errors import UnknownName, UsageError
from kvscope.model.spec import ModelSpec
from kvscope.predict.prediction import Asked, Prediction, Unknown
from kvscope.scenario import Phase, SettingValue

__all__ = ["Prediction", "predict"]

# Engines whose rules are known. 'logical' is no engine: what the tokens need on any.
READY_ENGINES = ("llama.cpp", "logical", "ollama", "sglang", "transformers", "vllm")
# What a counter of 64 bits holds: more tokens, sequences or bytes there are nowhere.
MOST = 2**63 - 1
# Engines that reserve a pool of cache pages out of what memory they may use.
_POOL_ENGINES = ("vllm", "sglang")
# Engines that run a file as it is stored.
_FILE_ENGINES = ("llama.cpp", "ollama")


def predict(
    model: ModelSpec,
    *,
    engine: str,
    engine_version: str | None = None,
    tokens: int | None = None,
    sequences: int = 1,
    phase: Phase = "decode",
    settings: Mapping[str, SettingValue] | None = None,
    dtype: str | None = None,
    available_bytes: int | None = None,
) -> Prediction:
    """Bytes that ``model`` takes on ``engine`` with ``tokens`` tokens held in each of ``sequences`` sequences.

    ``tokens`` None: as many as one sequence may hold (the context limit of the settings, else the trained context).
    ``settings``: the engine's own names. ``engine`` "logical" is no engine: what the tokens themselves need.
    Raises UnknownName, UsageError (with the engine's own reason where the engine would refuse), ModelError.
    """
    if not isinstance(model, ModelSpec):
        raise UsageError(
            f"The model is a {type(model).__name__}; a model that was read was expected.",
            hint="kvscope.load_model(source) reads a path, a hub id or a config's content.",
        )
    _check_engine(engine)
    if phase not in ("prefill", "decode"):
        raise UnknownName("phase", phase, ("prefill", "decode"))
    _check_count("tokens", tokens, smallest=0)
    _check_count("sequences", sequences, smallest=1)
    _check_count("available_bytes", available_bytes, smallest=0)
    _check_settings(settings or {})
    if available_bytes is not None and engine not in _POOL_ENGINES:
        raise UsageError(
            f"available_bytes sizes a pool of cache pages; {engine} has none.",
            hint="Leave it out. llama.cpp reserves what n_ctx asks for.",
        )
    if dtype is not None and engine in _FILE_ENGINES:
        raise UsageError(
            f"{engine} keeps weights as the file stores them, so dtype cannot be chosen.",
            hint="The cache's formats are the settings cache_type_k and cache_type_v.",
        )
    asked = Asked(
        tokens=tokens,
        num_sequences=sequences,
        phase=phase,
        engine_version=engine_version,
        available_bytes=available_bytes,
    )
    return _with_doubts(_predict(engine, model, asked, settings or {}, dtype))


def _predict(
    engine: str, model: ModelSpec, asked: Asked, settings: Mapping[str, SettingValue], dtype: str | None
) -> Prediction:
    # Imported when asked for: a command waits for one engine's rules, not for those of all.
    match engine:
        case "logical":
            from kvscope.predict.allocation.logical import predict_logical

            return predict_logical(model, asked, settings, dtype)
        case "transformers":
            from kvscope.predict.allocation.transformers import predict_transformers

            return predict_transformers(model, asked, settings, dtype)
        case "ollama":
            from kvscope.predict.allocation.ollama import predict_ollama

            return predict_ollama(model, asked, settings)
        case "sglang":
            from kvscope.predict.allocation.sglang import predict_sglang

            return predict_sglang(model, asked, settings, dtype)
        case "vllm":
            from kvscope.predict.allocation.vllm import predict_vllm

            return predict_vllm(model, asked, settings, dtype)
        case _:
            from kvscope.predict.allocation.llama_cpp import predict_llama_cpp

            return predict_llama_cpp(model, asked, settings)


def _with_doubts(prediction: Prediction) -> Prediction:
    """Layers that a person stated make the answer as certain as the statement, whatever the engine."""
    if prediction.model.source_kind != "stated":
        return prediction
    why = "the layers were stated by hand; kvscope did the arithmetic only"
    return replace(
        prediction,
        status="estimated" if prediction.status == "exact" else prediction.status,
        unknown=(*prediction.unknown, Unknown(what="layers", why=why)),
    )


def _check_engine(engine: str) -> None:
    if engine not in READY_ENGINES:
        raise UnknownName("engine", engine, READY_ENGINES)


def _check_settings(settings: Mapping[str, SettingValue]) -> None:
    """What no engine takes, whatever the setting means: every answer states its settings as JSON."""
    for name, value in settings.items():
        if not isinstance(name, str):
            raise UsageError(f"A setting is called {name!r}; a text was expected.")
        if value is not None and not isinstance(value, str | int | float):
            raise UsageError(f"{name} is {value!r}; a text, a number or a truth value was expected.")
        if isinstance(value, float) and not math.isfinite(value):
            raise UsageError(f"{name} is {value!r}; a finite number was expected.")


def _check_count(name: str, value: int | None, *, smallest: int) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or not smallest <= value <= MOST:
        shown = "a number of too many digits" if isinstance(value, int) and abs(value) > 10**30 else repr(value)
        raise UsageError(f"{name} is {shown}; a whole number from {smallest} up to {MOST} was expected.")
