"""SGLang: a pool of token places reserved at start. Rules read in its published source (sgl-project/sglang, commit
001ccef, model_runner_kv_cache_mixin.py, 0.5 series of early 2026); nothing was measured, so every pool is estimated.

- Bytes of one place = the rows of every attending layer, added up (MLA: one latent; DeepSeek's index key with a scale).
- Places = memory // those bytes, in whole pages, at most max_total_tokens.
- Windows have places of their own only in the families listed here: swa_full_tokens_ratio times as many as the others.
  Elsewhere layers with a window keep everything.
- Recurrent states take mamba_full_memory_ratio of what attention takes, in slots of one sequence; a sequence uses three
  or more of them while prefixes are cached.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kvscope.dtypes import row_bytes
from kvscope.errors import UnsupportedArchitecture, UsageError
from kvscope.model.spec import (
    CacheKind,
    ChunkedAttention,
    FullAttention,
    HybridCache,
    IndexedAttention,
    LatentAttention,
    LayerSpec,
    ModelSpec,
    NoCache,
    RecurrentState,
    SharedCache,
    SlidingWindow,
)
from kvscope.predict.allocation.sglang_pool import (
    Need,
    Places,
    Sizes,
    holds,
    needed_memory,
    plan_places,
    slots_limit,
)
from kvscope.predict.allocation.sglang_settings import VERSION, SglangSettings, canonical_settings, read_settings
from kvscope.predict.growth import GrowthLaw, constant
from kvscope.predict.kv_cache import kind_name
from kvscope.predict.parallel import check_query_heads, rank_cache, split_layers
from kvscope.predict.prediction import (
    Asked,
    CacheTensor,
    Component,
    LayerCache,
    MemoryItem,
    Pool,
    PoolGroup,
    Prediction,
    Unknown,
)
from kvscope.predict.weights import needed_weights
from kvscope.scenario import SettingValue

__all__ = ["canonical_settings", "most_states", "needed_pools", "predict_sglang"]

ENGINE = "sglang"
# Families whose windows (or chunks) have a pool of their own.
WINDOW_POOLS = ("llama4", "gpt_oss", "mimo_v2", "step3p5", "gemma4")
_STATE_FORMS = frozenset({"mamba2", "gated_delta_net", "kda", "lightning", "short_conv"})
_CONV_BYTES = 2  # convolutions are bfloat16 whatever the model's format
_LEFT_OUT: tuple[Component, ...] = ("compute_buffer", "output_buffer", "runtime", "host_cache")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One layer's share on one rank. ``row_bytes``: of one token; ``state_bytes``: of one sequence."""

    layer: int
    cache: CacheKind
    row_bytes: int
    state_bytes: int
    window_tokens: int | None


def predict_sglang(
    model: ModelSpec, asked: Asked, settings: Mapping[str, SettingValue], dtype: str | None
) -> Prediction:
    """Raises UnsupportedArchitecture for layers whose pool is not known, UsageError and UnknownName for settings."""
    parsed = read_settings(settings, model.dtype, dtype)
    check_query_heads(model, parsed.tensor_parallel)
    on_stage, rows = _fullest_stage(model, parsed)
    limit = parsed.context_length or model.trained_context_tokens
    tokens = asked.tokens if asked.tokens is not None else limit
    if tokens is None:
        raise UsageError("The model's files do not state a trained context.", hint="Set context_length or tokens.")
    sizes = _sizes(model, rows, parsed)
    places = plan_places(sizes, parsed, asked.available_bytes)
    weights, weights_unknown = needed_weights(model, parsed.dtype.name)
    if parsed.ranks > 1:
        weights, weights_unknown = (), (Unknown(what="weights", why="weights of one of several ranks are not known"),)
    pool = _pool(rows, parsed, places, limit)
    missing = frozenset((*_LEFT_OUT, *(("weights",) if not weights else ())))
    return Prediction(
        model=model,
        scenario=asked.scenario(ENGINE, asked.engine_version or VERSION, tokens, parsed.as_asked),
        effective={
            "context_tokens": limit,
            "context_per_sequence_tokens": limit,
            "cache_dtype": parsed.cache_dtype.name,
            "page_tokens": parsed.page_size,
            "ranks": parsed.ranks,
            "window_pool_tokens": None if places is None else places.window_tokens,
            "state_slots": None if places is None else places.state_slots,
        },
        items=(*weights, *(_needed(row, asked) for row in rows), *_allocated(sizes, parsed, places, asked, tokens)),
        layers=tuple(_layer_cache(layer, rows, tokens, asked.num_sequences, parsed) for layer in on_stage),
        buffers=(),
        status="estimated",
        unknown=(*_unknown(asked.engine_version), *weights_unknown),
        missing=missing,
        notes=(
            *_slot_notes(asked, places),
            *_place_notes(asked, places, sizes, parsed, tokens),
            *_notes(model, asked, parsed, tokens),
        ),
        pool=pool,
    )


def needed_pools(
    model: ModelSpec,
    settings: Mapping[str, SettingValue],
    dtype: str | None,
    *,
    tokens: int,
    sequences: int,
    available_bytes: int,
) -> Need:
    """The least memory for the pools in which ``sequences`` of ``tokens`` fit, where there are ``available_bytes``.
    Raises as ``predict_sglang``."""
    parsed = read_settings(settings, model.dtype, dtype)
    _, rows = _fullest_stage(model, parsed)
    return needed_memory(_sizes(model, rows, parsed), parsed, tokens, sequences, available_bytes)


def most_states(model: ModelSpec, settings: Mapping[str, SettingValue], dtype: str | None) -> int | None:
    """Sequences that a setting leaves states for, however much memory there is; None where no setting does."""
    parsed = read_settings(settings, model.dtype, dtype)
    _, rows = _fullest_stage(model, parsed)
    return slots_limit(parsed) if any(row.state_bytes for row in rows) else None


def _fullest_stage(model: ModelSpec, settings: SglangSettings) -> tuple[list[LayerSpec], list[_Row]]:
    """Layers and rows of the pipeline stage with most bytes a token."""
    stages = []
    for stage in split_layers(len(model.layers), settings.pipeline_parallel):
        layers = [layer for layer in model.layers if layer.index in stage]
        caches = [(layer.index, rank_cache(layer.cache, settings.tensor_parallel)) for layer in layers]
        stages.append((layers, [row for index, cache in caches for row in _rows(model, index, cache, settings)]))
    return max(stages, key=lambda stage: sum(row.row_bytes + row.state_bytes for row in stage[1]))


def _rows(model: ModelSpec, index: int, cache: CacheKind, settings: SglangSettings) -> list[_Row]:
    size = row_bytes(settings.cache_dtype, 1)
    match cache:
        case FullAttention() if not cache.prefix_tokens and cache.window_after_prompt is None:
            return [_attention(index, cache, cache.num_kv_heads * (cache.key_dim + cache.value_dim) * size, None)]
        case SlidingWindow():
            row = cache.num_kv_heads * (cache.key_dim + cache.value_dim) * size
            return [_attention(index, cache, row, cache.window_tokens)]
        case ChunkedAttention():
            row = cache.num_kv_heads * (cache.key_dim + cache.value_dim) * size
            return [_attention(index, cache, row, cache.chunk_tokens)]
        case LatentAttention() if cache.window_tokens is None:
            return [_attention(index, cache, (cache.latent_dim + cache.rope_dim) * size, None)]
        case IndexedAttention() if isinstance(cache.main, LatentAttention):
            row = (cache.main.latent_dim + cache.main.rope_dim) * size
            # An 8-bit index key with one float32 scale for every 128 elements.
            return [_attention(index, cache, row + cache.index_dim + cache.index_dim // 128 * 4, None)]
        case RecurrentState() if cache.form in _STATE_FORMS:
            state = _state_bytes(cache, settings)
            return [_Row(layer=index, cache=cache, row_bytes=0, state_bytes=state, window_tokens=None)]
        case HybridCache():
            own = (cache.attention, cache.recurrent)
            return [row for part in own for row in _rows(model, index, part, settings)]
        case SharedCache() | NoCache():
            return []
        case _:
            raise UnsupportedArchitecture(
                f"{model.architecture}: how SGLang pools {kind_name(cache)} layers is not known.",
                hint="Engine 'logical' says what the tokens need.",
            )


def _attention(index: int, cache: CacheKind, row: int, window: int | None) -> _Row:
    return _Row(layer=index, cache=cache, row_bytes=row, state_bytes=0, window_tokens=window)


def _state_bytes(cache: RecurrentState, settings: SglangSettings) -> int:
    conv = cache.conv_channels * max(cache.conv_kernel - 1, 0) * _CONV_BYTES
    return conv + sum(row_bytes(settings.state_dtype, state.num_elements) for state in cache.states)


def _has_window_pool(model: ModelSpec, settings: SglangSettings) -> bool:
    return model.architecture.startswith(WINDOW_POOLS) and not settings.disable_hybrid_swa_memory


def _sizes(model: ModelSpec, rows: list[_Row], settings: SglangSettings) -> Sizes:
    windows = [row.window_tokens for row in rows if row.window_tokens is not None]
    return Sizes(
        full=sum(row.row_bytes for row in rows if row.window_tokens is None),
        windows=sum(row.row_bytes for row in rows if row.window_tokens is not None),
        state=sum(row.state_bytes for row in rows),
        window_tokens=max(windows) if windows and _has_window_pool(model, settings) else None,
    )


def _pool(rows: list[_Row], settings: SglangSettings, places: Places | None, limit: int | None) -> Pool | None:
    attention = [row for row in rows if row.row_bytes]
    if not attention:
        return None
    groups: dict[tuple[str, int], list[int]] = {}
    for row in attention:
        groups.setdefault((kind_name(row.cache), row.row_bytes), []).append(row.layer)
    pages = 0 if limit is None else -(-limit // settings.page_size)
    tokens = None if places is None else places.tokens
    return Pool(
        num_blocks=None if tokens is None else tokens // settings.page_size,
        block_tokens=settings.page_size,
        bytes_per_block=sum(row.row_bytes for row in attention) * settings.page_size,
        groups=tuple(
            PoolGroup(kind=kind, layers=tuple(layers), page_bytes=row * settings.page_size, blocks_per_sequence=pages)
            for (kind, row), layers in groups.items()
        ),
        capacity_tokens=tokens,
        max_concurrency=None if tokens is None or not limit else tokens / limit,
    )


def _needed(row: _Row, asked: Asked) -> MemoryItem:
    component: Component = "kv_cache"
    law, text = GrowthLaw(bytes_per_token=row.row_bytes, cap_tokens=row.window_tokens), f"{row.row_bytes} B per token"
    if row.state_bytes:
        component, law, text = "recurrent_state", constant(row.state_bytes), f"a state of {row.state_bytes} B"
    elif isinstance(row.cache, IndexedAttention):
        text = f"{text}, index key included"
    return MemoryItem(
        component=component,
        layer_index=row.layer,
        needed=law.times(asked.num_sequences),
        allocated=constant(0),
        because=f"{text}; allocated inside the pool; {VERSION}",
        device="cuda",
    )


def _allocated(
    sizes: Sizes, settings: SglangSettings, places: Places | None, asked: Asked, tokens: int
) -> list[MemoryItem]:
    """The pools, one page longer than their places (its first page is never used); without memory given, the pages of
    the asked tokens."""
    page, full, windows = settings.page_size, sizes.full, sizes.windows
    slots = None if places is None else places.state_slots
    slots = asked.num_sequences if slots is None else slots
    if places is None:
        law = GrowthLaw(bytes_per_token=sizes.cell, step_tokens=page).times(asked.num_sequences)
        text = f"{sizes.cell} B × {tokens} tokens × {asked.num_sequences} sequences in pages of {page}"
    else:
        window_tokens = places.tokens if sizes.window_tokens is None else places.window_tokens
        law = constant((places.tokens + page) * full + (window_tokens + page) * windows)
        text = f"{places.tokens} places × {full} B and {window_tokens} × {windows} B of windows, reserved at start"
    items = [_pool_item("kv_cache", law, text)] if sizes.cell else []
    if sizes.state:
        text = f"{slots} slots × {sizes.state} B of state"
        items.append(_pool_item("recurrent_state", constant(slots * sizes.state), text))
    return items


def _pool_item(component: Component, law: GrowthLaw, text: str) -> MemoryItem:
    return MemoryItem(
        component=component,
        needed=constant(0),
        allocated=law,
        because=f"{text}; {VERSION}",
        device="cuda",
        status="estimated",
    )


def _layer_cache(
    layer: LayerSpec, rows: list[_Row], tokens: int, sequences: int, settings: SglangSettings
) -> LayerCache:
    tensors = tuple(_tensor(row, tokens, sequences, settings) for row in rows if row.layer == layer.index)
    return LayerCache(index=layer.index, kind=kind_name(layer.cache), tensors=tensors)


def _tensor(row: _Row, tokens: int, sequences: int, settings: SglangSettings) -> CacheTensor:
    held = tokens if row.window_tokens is None else min(tokens, row.window_tokens)
    is_state = bool(row.state_bytes)
    return CacheTensor(
        name="state" if is_state else "keys_and_values",
        shape=(sequences,) if is_state else (sequences, held),
        dtype=settings.state_dtype if is_state else settings.cache_dtype.name,
        num_bytes=sequences * (row.state_bytes if is_state else row.row_bytes * held),
        component="recurrent_state" if is_state else "kv_cache",
    )


def _unknown(version: str | None) -> tuple[Unknown, ...]:
    why = f"the rules are those of {VERSION}; that {version} follows them was not checked"
    other = () if version is None or version == VERSION else (Unknown(what="engine_version", why=why),)
    return (
        *other,
        Unknown(what="kv_cache", why=f"the pool follows {VERSION}, read in its source and not measured"),
        Unknown(
            what="runtime",
            why="mem_fraction_static covers weights and pools; graphs, activations and the process come on top. "
            "available_bytes is what remains for the pools after the weights",
        ),
    )


def _slot_notes(asked: Asked, places: Places | None) -> tuple[str, ...]:
    """What a person should know of the states of a recurrent model."""
    if places is None:
        return ()
    if places.state_slots is None:
        return (
            "How many states SGLang reserves depends on the memory it gets (available_bytes): counted with one for "
            "each sequence asked.",
        )
    if 0 < places.state_slots < asked.num_sequences:
        return (f"{asked.num_sequences} sequences do not all fit: there are {places.state_slots} states.",)
    return ()


def _place_notes(
    asked: Asked, places: Places | None, sizes: Sizes, settings: SglangSettings, tokens: int
) -> tuple[str, ...]:
    """Whether the asked tokens fit into the places."""
    if places is None or holds(places, sizes, settings, tokens, asked.num_sequences):
        return ()
    windows = "" if sizes.window_tokens is None else f" and {places.window_tokens} places of windows"
    return (
        f"{asked.num_sequences} sequences of {tokens} tokens do not fit the {places.tokens} places{windows}; a host "
        "cache does not help, since an active request must be on the device.",
    )


def _notes(model: ModelSpec, asked: Asked, settings: SglangSettings, tokens: int) -> tuple[str, ...]:
    notes = []
    if asked.tokens is None:
        notes.append(f"Tokens not given: counted with {tokens}, the context length.")
    has_windows = any(isinstance(layer.cache, SlidingWindow | ChunkedAttention) for layer in model.layers)
    if has_windows and not _has_window_pool(model, settings):
        notes.append("Layers with a window keep every token: this family has no pool for windows in SGLang.")
    if settings.ranks > 1:
        notes.append(f"Bytes are one rank's of {settings.ranks}.")
    return (*notes, *model.warnings)
