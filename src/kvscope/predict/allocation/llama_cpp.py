"""llama.cpp on a CPU: what its server reserves at load. Rules of xllamacpp 2026.10.11549 (llama.cpp b11549), measured
byte for byte with an allocation recorder (tests/golden/llamacpp/README.md).

The cache is paid in full at load, whatever the conversation holds: its cells are fixed by the context size.
"""

from collections.abc import Mapping
from typing import Any

from kvscope.model.context_plausibility import DOUBTFUL_CONTEXT
from kvscope.model.spec import ModelSpec
from kvscope.predict.allocation.llama_cpp_cache import (
    CELL_MULTIPLE,
    Cells,
    cache_buffers,
    layer_caches,
    layer_items,
    plan_cells,
    slot_limit,
)
from kvscope.predict.allocation.llama_cpp_layers import check_cache_types, check_layers
from kvscope.predict.allocation.llama_cpp_offload import offloaded, split_offload
from kvscope.predict.allocation.llama_cpp_recurrent import state_buffers, state_item
from kvscope.predict.allocation.llama_cpp_settings import VERSION, LlamaCppSettings, read_settings
from kvscope.predict.buffers import FLOAT_BYTES, compute_buffer, output_buffer
from kvscope.predict.growth import constant
from kvscope.predict.prediction import Asked, Buffer, Component, MemoryItem, Prediction, Status, Unknown
from kvscope.predict.weights import cpu_weight_buffers, untried_types
from kvscope.scenario import SettingValue

ENGINE = "llama.cpp"
BUILD = "11549"


def predict_llama_cpp(model: ModelSpec, asked: Asked, settings: Mapping[str, SettingValue]) -> Prediction:
    """Raises UsageError with llama.cpp's own reason where it would refuse; UnsupportedArchitecture for layers it would
    cache in a way that is not known here."""
    offload, plain = split_offload(settings)
    found = _predict_on_cpu(model, asked, plain)
    if offload is None:
        return found
    parsed = read_settings(plain, asked.num_sequences)
    is_mapped = parsed.load_mode == "mmap"
    return offloaded(model, found, offload, is_mapped=is_mapped, repack=not parsed.no_extra_bufts)


def _predict_on_cpu(model: ModelSpec, asked: Asked, settings: Mapping[str, SettingValue]) -> Prediction:
    parsed = read_settings(settings, asked.num_sequences)
    check_layers(model)
    check_cache_types(model, parsed)
    cells = plan_cells(model, parsed)
    limit = slot_limit(model, parsed, cells)
    tokens = asked.tokens if asked.tokens is not None else limit
    layers = layer_caches(model, parsed, cells)
    caches = layer_items(model, layers, parsed, cells, tokens, asked.num_sequences)
    weights, weight_buffers, weights_unknown = _weights(model, parsed)
    outputs, output_unknown = _output(model, parsed)
    compute, compute_unknown = _compute(model, parsed, cells)
    unknown = [*weights_unknown, *output_unknown, *compute_unknown, _version_unknown(asked), _runtime_unknown(model)]
    missing: set[Component] = {"runtime"}
    if not weights:
        missing.add("weights")
    if not compute:
        missing.add("compute_buffer")
    states = [item for layer in model.layers if (item := state_item(layer, parsed, asked.num_sequences)) is not None]
    items = [*weights, *caches, *states, outputs, *compute, _host_cache(parsed)]
    return Prediction(
        model=model,
        scenario=asked.scenario(ENGINE, asked.engine_version or VERSION, tokens, parsed.as_asked),
        effective=_effective(parsed, cells, limit),
        items=tuple(items),
        layers=layers,
        buffers=(
            *weight_buffers,
            *cache_buffers(model, layers, cells),
            *state_buffers(model, parsed),
            *_small_buffers(outputs, compute),
        ),
        status=_status(asked, missing),
        unknown=tuple(entry for entry in unknown if entry is not None),
        missing=frozenset(missing),
        notes=_notes(model, asked, parsed, cells, tokens, limit),
    )


def _weights(model: ModelSpec, settings: LlamaCppSettings) -> tuple[list[MemoryItem], list[Buffer], list[Unknown]]:
    if model.source_kind != "gguf" or not model.tensors:
        why = "only a GGUF lists the tensors llama.cpp loads: give it for the weights; total_bytes leaves them out"
        return [], [], [Unknown(what="weights", why=why)]
    planned = cpu_weight_buffers(model, is_mapped=settings.load_mode == "mmap", repack=not settings.no_extra_bufts)
    doubtful = [] if settings.no_extra_bufts else untried_types(model)
    items = [
        MemoryItem(
            component="weights",
            needed=constant(buffer.needed_bytes),
            allocated=constant(buffer.num_bytes),
            backing=buffer.backing,
            status="estimated" if doubtful else "exact",
            because=f"{buffer.name}: {buffer.because}; {VERSION}, x86-64 with AVX2",
        )
        for buffer in planned
    ]
    buffers = [
        Buffer(
            name="weights",
            kind=buffer.name,
            num_bytes=buffer.num_bytes,
            backing=buffer.backing,
            details={"tensors": buffer.num_tensors},
        )
        for buffer in planned
    ]
    if not doubtful:
        return items, buffers, []
    why = (
        f"whether {ENGINE} makes a second, rearranged copy of {', '.join(doubtful)} matrices on this CPU was not tried"
    )
    return items, buffers, [Unknown(what="weights", why=why)]


def _output(model: ModelSpec, settings: LlamaCppSettings) -> tuple[MemoryItem, list[Unknown]]:
    num_bytes, because = output_buffer(model, settings.n_parallel, embedding=settings.embedding)
    is_file = model.source_kind == "gguf"
    item = MemoryItem(
        component="output_buffer",
        needed=constant(num_bytes),
        allocated=constant(num_bytes),
        status="exact" if is_file else "estimated",
        because=f"{because}; {VERSION}",
    )
    if is_file:
        return item, []
    why = "the vocabulary of the converted file may differ from config.json's (padding rows are dropped)"
    return item, [Unknown(what="output_buffer", why=why)]


def _compute(model: ModelSpec, settings: LlamaCppSettings, cells: Cells) -> tuple[list[MemoryItem], list[Unknown]]:
    """The compute buffer as its terms: one microbatch in the smallest context, and what the context (and logits for
    every position) add to that."""
    found = compute_buffer(model, settings, cells)
    if found is None:
        why = f"the graph of {model.family} was not measured with such layers; total_bytes leaves it out"
        if settings.flash_attn == "off":
            heads = max(layer.num_q_heads for layer in model.layers)
            rate = heads * cells.microbatch * FLOAT_BYTES
            why += (
                f". Without flash attention its attention scores alone are {heads} heads × {cells.microbatch} tokens × "
                f"{FLOAT_BYTES} B = {rate} B for each of {cells.per_stream} cells, {rate * cells.per_stream} B"
            )
        return [], [Unknown(what="compute_buffer", why=why)]
    scores = "" if settings.flash_attn == "on" else ", and without flash attention its scores"
    grows = f"of that, {cells.per_stream} cells instead of {CELL_MULTIPLE} add {found.context_bytes} B: masks{scores}"
    logits = f"of that, logits for every position of a microbatch add {found.logits_bytes} B (embedding mode)"
    added = [(found.context_bytes, grows), (found.logits_bytes, logits)]
    base = found.num_bytes - sum(size for size, _ in added)
    rest = f"; of which {base} B whatever the context" if base != found.num_bytes else ""
    terms = [(base, found.because + rest), *[term for term in added if term[0]]]
    items = [
        MemoryItem(
            component="compute_buffer",
            needed=constant(num_bytes),
            allocated=constant(num_bytes),
            status="exact" if found.doubt is None else "estimated",
            because=f"{because}; reserved at load, touched by the first full microbatch; {VERSION}",
        )
        for num_bytes, because in terms
    ]
    return items, [] if found.doubt is None else [Unknown(what="compute_buffer", why=f"estimated: {found.doubt}")]


def _host_cache(settings: LlamaCppSettings) -> MemoryItem:
    if settings.cache_ram_mib == 0:
        because = "cache_ram_mib = 0: no copies of old prompts are kept"
    else:
        limit = "without limit" if settings.cache_ram_mib < 0 else f"up to {settings.cache_ram_mib} MiB"
        because = (
            f"0 at load; afterwards the server keeps copies of old prompts' caches in memory, {limit} "
            "(cache_ram_mib; 0 turns it off): growth from one conversation to the next is this, not a leak"
        )
    return MemoryItem(
        component="host_cache", needed=constant(0), allocated=constant(0), because=f"{because}; {VERSION}"
    )


def _small_buffers(output: MemoryItem, compute: list[MemoryItem]) -> tuple[Buffer, Buffer]:
    compute_bytes = sum(item.allocated.fixed_bytes for item in compute) if compute else None
    return (
        Buffer(name="output_buffer", kind="CPU", num_bytes=output.allocated.fixed_bytes),
        Buffer(name="compute_buffer", kind="CPU", num_bytes=compute_bytes),
    )


def _effective(settings: LlamaCppSettings, cells: Cells, limit: int) -> dict[str, Any]:
    return {
        "context_tokens": cells.context,
        "context_per_sequence_tokens": cells.per_stream,
        "batch_tokens": cells.batch,
        "microbatch_tokens": cells.microbatch,
        "slots": settings.n_parallel,
        "slot_limit_tokens": limit,
        "streams": cells.streams,
        "kv_unified": settings.kv_unified,
        "cache_type_k": settings.cache_type_k.name,
        "cache_type_v": settings.cache_type_v.name,
        "flash_attn": settings.flash_attn,
        "load_mode": settings.load_mode,
        "cache_ram_mib": settings.cache_ram_mib,
    }


def _status(asked: Asked, missing: set[Component]) -> Status:
    if _version_unknown(asked) is not None:
        return "estimated"
    return "exact" if missing == {"runtime"} else "partial"


def _version_unknown(asked: Asked) -> Unknown | None:
    version = asked.engine_version
    if version is None or BUILD in version:
        return None
    return Unknown(
        what="engine_version",
        why=f"the rules were measured on {VERSION}; that {version} follows them was not checked",
    )


def _runtime_unknown(model: ModelSpec) -> Unknown:
    return Unknown(
        what="runtime",
        why="the process itself (program, tokenizer tables, HTTP server, allocator) cannot be read from the model's "
        "file; total_bytes leaves it out. Measured, it is tens of MiB and grows with the vocabulary "
        f"({model.vocab_size} entries here)",
    )


def _notes(
    model: ModelSpec, asked: Asked, settings: LlamaCppSettings, cells: Cells, tokens: int, limit: int
) -> tuple[str, ...]:
    notes = []
    if asked.tokens is None:
        notes.append(f"Tokens not given: counted with {tokens}, the most one sequence may hold.")
    if tokens > limit:
        notes.append(
            f"{tokens} tokens do not fit: a sequence may hold {limit} here. What the tokens need is more than what is "
            "reserved; llama.cpp would refuse such a prompt."
        )
    elif settings.kv_unified and tokens * asked.num_sequences > cells.per_stream:
        notes.append(
            f"{asked.num_sequences} sequences of {tokens} tokens share {cells.per_stream} cells and do not all fit."
        )
    if settings.fit_params:
        notes.append(
            "fit_params lets llama.cpp choose a smaller context to fit memory; predicted is what was asked for."
        )
    trained = model.trained_context_tokens
    if trained is not None and cells.per_stream > trained:
        notes.append(
            f"The context per sequence, {cells.per_stream}, is beyond the trained {trained}: llama.cpp reserves it all "
            f"but caps a sequence at {trained}."
        )
    # A doubtful trained context matters where it is what is reserved.
    is_named = trained is not None and cells.per_stream < trained
    doubts = [text for text in model.warnings if not (is_named and text.startswith(DOUBTFUL_CONTEXT))]
    return (*notes, *doubts)
