"""Ollama: it starts llama-server with a context of its own making, so llama.cpp's rules decide the bytes.

Sources, all read and none measured (no Ollama ran against these rules, so every answer is an estimate):
- the context that llama-server gets is num_ctx × the number of parallel requests, and the default num_ctx goes by the
  memory of the GPU since 0.15.5 (ollama/ollama docs/context-length.mdx; pull request 14120); before that it was 4,096,
  and 2,048 before 0.6.7 (api/types.go, envconfig/config.go of 0.5 to 0.15);
- before it starts the server, Ollama decides where the model goes by an estimate of its own: file size + 2 × layers ×
  the smallest number of KV heads × (embedding / heads) × context × 2 B (llm/llama_server.go, discussed in pull requests
  17201 and 17615). That number is in ``effective`` as ollama_estimate_bytes: it explains placements, not memory.
- before 0.30 there was no llama-server in it (pull request 16031; 0.24 still has runner/): a runner inside Ollama
  allocated by rules of its own.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from kvscope.errors import UsageError
from kvscope.model.spec import ChunkedAttention, FullAttention, ModelSpec, SlidingWindow
from kvscope.predict.allocation.llama_cpp import predict_llama_cpp
from kvscope.predict.allocation.llama_cpp_offload import canonical_settings as llama_cpp_settings
from kvscope.predict.allocation.setting_values import SettingTable, as_given
from kvscope.predict.prediction import Asked, Prediction, Unknown
from kvscope.scenario import SettingValue
from kvscope.units import parse_bytes

VERSION = "Ollama with llama-server (2026)"
GIB = 1024**3
# (GPU memory from which, default num_ctx): docs/context-length.mdx of Ollama, since 0.15.5.
CONTEXT_TIERS = ((48 * GIB, 262_144), (24 * GIB, 32_768), (0, 4096))
FIRST_LLAMA_SERVER = (0, 30)
FIRST_TIERS = (0, 15, 5)
FIRST_4096 = (0, 6, 7)

# Ollama's name (options of a request, or the server's environment variable without OLLAMA_) → llama.cpp's.
_SAME_AS = {
    "num_batch": "n_batch",
    "kv_cache_type": "cache_type_k",
    "flash_attention": "flash_attn",
    "use_mmap": "mmap",
    "num_thread": "n_threads",
    "num_predict": "n_predict",
    "num_gpu": "n_gpu_layers",
    "seed": "seed",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
}
_OWN = ("num_ctx", "num_parallel", "gpu_memory")
SETTING_NAMES = (*_OWN, *_SAME_AS)
# llama.cpp's own readers take the values.
_TABLE = SettingTable(
    kind="Ollama setting",
    readers=dict.fromkeys(SETTING_NAMES, as_given),
    aliases={"context_length": "num_ctx", "n_ctx": "num_ctx"},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OllamaSettings:
    """``num_ctx`` None: Ollama's default. ``rest``: the other settings by Ollama's names."""

    num_ctx: int | None
    num_parallel: int
    gpu_memory_bytes: int | None
    rest: Mapping[str, SettingValue]


def canonical_settings(settings: Mapping[str, SettingValue]) -> dict[str, SettingValue]:
    """Settings by Ollama's own names: OLLAMA_NUM_PARALLEL becomes num_parallel, OLLAMA_CONTEXT_LENGTH num_ctx."""
    return _TABLE.canonical(settings, lambda name, value: (name.removeprefix("ollama_"), value))


def predict_ollama(model: ModelSpec, asked: Asked, settings: Mapping[str, SettingValue]) -> Prediction:
    """llama.cpp's prediction for the settings that Ollama would start it with; always an estimate.

    Raises UsageError, UnknownName, UnsupportedArchitecture.
    """
    given = canonical_settings(settings)
    stored = {name: value for name, value in _stored_settings(model).items() if name not in given}
    read = _read({**stored, **given}, asked.num_sequences)
    num_ctx, why_ctx = _num_ctx(read, asked.engine_version, model)
    server = {_SAME_AS[name]: value for name, value in read.rest.items()}
    if "cache_type_k" in server:
        server["cache_type_v"] = server["cache_type_k"]
    server.update(n_ctx=num_ctx * read.num_parallel, n_parallel=read.num_parallel)
    predicted = predict_llama_cpp(model, replace(asked, engine_version=None), llama_cpp_settings(server))
    estimate = own_estimate_bytes(model, num_ctx * read.num_parallel)
    return replace(
        predicted,
        scenario=asked.scenario("ollama", asked.engine_version or VERSION, predicted.scenario.workload.tokens, given),
        effective={
            **predicted.effective,
            "num_ctx": num_ctx,
            "num_parallel": read.num_parallel,
            "ollama_estimate_bytes": estimate,
        },
        items=tuple(replace(item, status="estimated") for item in predicted.items),
        status="estimated" if predicted.status == "exact" else predicted.status,
        unknown=(*predicted.unknown, *_doubts(asked.engine_version)),
        notes=(
            f"num_ctx is {num_ctx}: {why_ctx}. llama-server gets {num_ctx} × {read.num_parallel} parallel requests = "
            f"{num_ctx * read.num_parallel} tokens.",
            f"A prompt longer than {num_ctx} tokens is cut without an error: {num_ctx // 2 + 2} tokens remain of it in "
            "releases that shift the context.",
            *(f"{name} is {value!r} in Ollama's store, with the model." for name, value in stored.items()),
            *predicted.notes,
        ),
    )


def _stored_settings(model: ModelSpec) -> dict[str, SettingValue]:
    """The model's own parameters as Ollama keeps them, of those that are settings here; a request's win over them."""
    return {
        name: value
        for name, value in model.stored_settings.items()
        if name in SETTING_NAMES and isinstance(value, str | int | float)
    }


def own_estimate_bytes(model: ModelSpec, context_tokens: int) -> int | None:
    """What Ollama itself reckons before it starts the server (see above); None where the weights are not known.

    The tensors stand for the file, whose header adds a little.
    """
    heads = [
        layer.cache.num_kv_heads if isinstance(layer.cache, FullAttention | SlidingWindow | ChunkedAttention) else 0
        for layer in model.layers
    ]
    q_heads = max((layer.num_q_heads for layer in model.layers), default=0)
    if model.source_kind != "gguf" or not model.tensors or not q_heads:
        return None
    weights = sum(tensor.num_bytes for tensor in model.tensors)
    return weights + 2 * len(heads) * max(1, min(heads)) * (model.hidden_size // q_heads) * context_tokens * 2


def _read(canonical: Mapping[str, SettingValue], num_sequences: int) -> OllamaSettings:
    num_ctx = canonical.get("num_ctx")
    parallel = canonical.get("num_parallel", num_sequences)
    memory = canonical.get("gpu_memory")
    sizes = llama_cpp_settings({**({} if num_ctx is None else {"n_ctx": num_ctx}), "n_parallel": parallel})
    context, slots = sizes.get("n_ctx"), sizes["n_parallel"]
    assert isinstance(context, int | None)
    assert isinstance(slots, int)
    if slots < num_sequences:
        raise UsageError(
            f"{num_sequences} sequences at once need num_parallel {num_sequences}, but it is {slots}.",
            hint="Set OLLAMA_NUM_PARALLEL; Ollama would make the others wait.",
        )
    return OllamaSettings(
        num_ctx=context,
        num_parallel=slots,
        gpu_memory_bytes=parse_bytes(str(memory)) if memory is not None else None,
        rest={name: value for name, value in canonical.items() if name not in _OWN},
    )


def _num_ctx(read: OllamaSettings, version: str | None, model: ModelSpec) -> tuple[int, str]:
    trained = model.trained_context_tokens
    if read.num_ctx:
        capped = read.num_ctx if trained is None else min(read.num_ctx, trained)
        return capped, "as set" if capped == read.num_ctx else f"set to {read.num_ctx}, cut to the trained context"
    parsed = _version(version)
    if parsed is not None and parsed < FIRST_4096:
        chosen, why = 2048, "the default of releases before 0.6.7"
    elif parsed is not None and parsed < FIRST_TIERS:
        chosen, why = 4096, "the default of releases before 0.15.5"
    else:
        memory = read.gpu_memory_bytes or 0
        chosen = next(tokens for least, tokens in CONTEXT_TIERS if memory >= least)
        why = "the default for this much GPU memory" if memory else "the default below 24 GiB of GPU memory"
        why += "" if memory else " (set gpu_memory to say how much there is)"
    return (chosen, why) if trained is None or chosen <= trained else (trained, f"{why}, cut to the trained context")


def _version(version: str | None) -> tuple[int, ...] | None:
    numbers = re.search(r"\d+(?:\.\d+)+", version or "")
    return tuple(int(part) for part in numbers[0].split(".")[:3]) if numbers else None


def _doubts(version: str | None) -> tuple[Unknown, ...]:
    parsed = _version(version)
    why = "the rules are read from Ollama's documents and source, and were not held against a running Ollama"
    if parsed is not None and parsed < FIRST_LLAMA_SERVER:
        why = (
            f"Ollama {version} ran models in a runner of its own, not in llama-server: its cache and its buffers may "
            "differ from what is predicted here"
        )
    batch = "num_batch not set: Ollama chooses 512 to 2,048 by the memory there is, which changes the compute buffer"
    return (Unknown(what="engine", why=why), Unknown(what="compute_buffer", why=batch))
