"""vLLM: a pool of blocks reserved at start. Rules of vLLM 0.32.0 (V1), measured on its CPU backend and checked against
its own planner functions (tests/golden/vllm/README.md).

Where memory for the pool is given (``available_bytes``, or vLLM's own settings for it), the pool takes all of it in
whole blocks, whatever is asked; else predicted is what the asked tokens would take. Sizes are those of one rank: with
pipeline parallelism, of the stage that holds most cache. Rules change between releases: for Gemma 4 the capacity
changed about tenfold from 0.20 to 0.21, and by 40 % from 0.25 to 0.26 (vllm-project/vllm#43308, #49878).
"""

from collections.abc import Mapping
from typing import Any

from kvscope.dtypes import row_bytes
from kvscope.errors import UsageError
from kvscope.model.spec import (
    CacheKind,
    CrossAttention,
    DenseFfn,
    HybridCache,
    IndexedAttention,
    LatentAttention,
    LayerSpec,
    ModelSpec,
    MoeFfn,
    RecurrentState,
)
from kvscope.predict.allocation.vllm_families import is_checked
from kvscope.predict.allocation.vllm_groups import FULL_KINDS
from kvscope.predict.allocation.vllm_notes import notes_of
from kvscope.predict.allocation.vllm_pool import PoolPlan, plan_pool, stage_pages
from kvscope.predict.allocation.vllm_settings import RELEASE, VERSION, VllmSettings, canonical_settings, read_settings
from kvscope.predict.allocation.vllm_specs import Page, engine_caches, state_tensors
from kvscope.predict.growth import GrowthLaw, constant
from kvscope.predict.kv_cache import kind_name
from kvscope.predict.parallel import check_query_heads, rank_cache, rank_weights
from kvscope.predict.prediction import (
    Asked,
    Buffer,
    CacheTensor,
    Component,
    LayerCache,
    MemoryItem,
    Prediction,
    Status,
    Unknown,
)
from kvscope.predict.weights import needed_weights
from kvscope.scenario import SettingValue

__all__ = ["canonical_settings", "predict_vllm"]

ENGINE = "vllm"
# Families whose loaded parameters were counted on the engine; dense ones hold nothing but the config's tensors.
MEASURED_WEIGHTS = frozenset(
    {"deepseek_v3", "falcon_h1", "gpt_oss", "llama4_text", "mamba", "mamba2", "nemotron_h", "qwen3_next"}
)
_LEFT_OUT: tuple[Component, ...] = ("compute_buffer", "output_buffer", "runtime")


def predict_vllm(
    model: ModelSpec,
    asked: Asked,
    settings: Mapping[str, SettingValue],
    dtype: str | None,
) -> Prediction:
    """``asked.available_bytes``: what one rank may use for its pool. A max_model_len that does not fit there is a note
    with vLLM's own numbers, and ``effective["fits"]`` is False. Raises UsageError with vLLM's reason for what it
    refuses whatever the memory; UnsupportedArchitecture for layers it does not run."""
    if model.source_kind == "gguf":
        raise UsageError(
            f"{VERSION} loads no GGUF files.", hint="Give the model's config.json, or its folder of safetensors."
        )
    parsed = read_settings(settings, model.dtype, dtype, asked.available_bytes)
    check_query_heads(model, parsed.tensor_parallel)
    pool = plan_pool(model, parsed)
    tokens = asked.tokens if asked.tokens is not None else pool.max_model_len
    stage = pool.fullest_stage
    weights, weights_unknown = _weights(model, parsed, pool, stage)
    layers = zip(model.layers, engine_caches(model), strict=True)
    on_stage = [(layer, cache) for layer, cache in layers if layer.index in pool.stages[stage]]
    needed = [_needed_item(page, pool, asked, parsed) for page in stage_pages(pool, stage)]
    unknown = (*_unknown(model, asked, parsed, pool), *weights_unknown)
    missing: set[Component] = {*_LEFT_OUT, *(("weights",) if weights is None else ())}
    if not parsed.host_pool_bytes:
        missing.add("host_cache")
    items = [*([weights] if weights else []), *needed, *_allocated(pool, asked, parsed), *_host_cache(parsed)]
    return Prediction(
        model=model,
        scenario=asked.scenario(ENGINE, asked.engine_version or VERSION, tokens, parsed.as_asked),
        effective=_effective(model, parsed, pool),
        items=tuple(items),
        layers=tuple(_layer_cache(model, *held, parsed, pool, tokens, asked.num_sequences) for held in on_stage),
        buffers=_buffers(pool, parsed),
        status=_status(unknown, missing),
        unknown=(*unknown, _runtime_unknown()),
        missing=frozenset(missing),
        notes=notes_of(model, asked, parsed, pool, tokens),
        pool=pool.pool(),
    )


def _weights(
    model: ModelSpec, settings: VllmSettings, pool: PoolPlan, stage: int
) -> tuple[MemoryItem | None, tuple[Unknown, ...]]:
    device = settings.backend.device
    if _spreads_experts(model, settings):
        why = f"{VERSION} spreads experts over data-parallel ranks too; what one rank then holds is not known here"
        return None, (Unknown(what="weights", why=why),)
    if model.quantisation is not None or not (model.weights or model.tensors):
        items, unknown = needed_weights(model, settings.dtype.name)
        if not items or settings.world_size > 1:
            return None, unknown or (
                Unknown(what="weights", why="how quantised weights split over ranks is not known"),
            )
        text = f"{items[0].because}; {VERSION} may store it otherwise"
        law = items[0].needed
        found = MemoryItem(
            component="weights", needed=law, allocated=law, because=text, device=device, status="estimated"
        )
        return found, ()
    ranks = rank_weights(model, settings.dtype, settings.tensor_parallel, settings.pipeline_parallel)
    if ranks is None:
        return None, (Unknown(what="weights", why="the model's tensors are not known"),)
    law = constant(ranks[stage].num_bytes)
    is_exact = settings.world_size == 1 and not model.tensors and _has_known_weights(model)
    text = f"{ranks[stage].because}, before a backend rearranges them; {VERSION}"
    status: Status = "exact" if is_exact else "estimated"
    item = MemoryItem(component="weights", needed=law, allocated=law, because=text, device=device, status=status)
    return item, ()


def _spreads_experts(model: ModelSpec, settings: VllmSettings) -> bool:
    return settings.data_parallel > 1 and any(isinstance(layer.ffn, MoeFfn) for layer in model.layers)


def _has_known_weights(model: ModelSpec) -> bool:
    """Whether vLLM's tensors of this family are the config's, with nothing of its own beside: measured, or dense."""
    is_dense = all(isinstance(layer.ffn, DenseFfn | None) for layer in model.layers)
    has_states = any(isinstance(layer.cache, RecurrentState | HybridCache) for layer in model.layers)
    return model.architecture in MEASURED_WEIGHTS or (is_dense and not has_states)


def _needed_item(page: Page, pool: PoolPlan, asked: Asked, settings: VllmSettings) -> MemoryItem:
    """What the tokens of one layer need; it lies in the pool, which is counted once, as its own item."""
    component: Component = "index_cache" if page.index else "kv_cache"
    if page.kind == "mamba":
        component, law = "recurrent_state", constant(page.state_bytes)
        text = f"one state of {page.state_bytes} B per sequence"
    elif page.kind == "cross_attention":
        law = constant(page.row_bytes * pool.demand.encoder_tokens)
        text = f"{page.row_bytes} B × {pool.demand.encoder_tokens} encoder tokens, the most of one batch"
    else:
        law = GrowthLaw(bytes_per_token=page.row_bytes, cap_tokens=page.window_tokens)
        window = "" if page.window_tokens is None else f" within {page.window_tokens}"
        text = f"{page.row_bytes} B per token{window}"
    because = f"{text}; allocated inside the pool, in pages of {page.page_bytes} B; {VERSION}"
    return MemoryItem(
        component=component,
        layer_index=page.layer,
        needed=law.times(asked.num_sequences),
        allocated=constant(0),
        because=because,
        device=settings.backend.device,
    )


def _allocated(pool: PoolPlan, asked: Asked, settings: VllmSettings) -> list[MemoryItem]:
    """The pool, where its memory is given; else the blocks that the asked sequences may take, group by group."""
    device = settings.backend.device
    if not pool.groups:
        return []
    if pool.num_blocks is not None:
        total = pool.num_blocks * pool.bytes_per_block
        because = f"{pool.num_blocks} blocks × {pool.bytes_per_block} B, reserved at start; {VERSION}"
        law = constant(total)
        return [MemoryItem(component="kv_cache", needed=constant(0), allocated=law, because=because, device=device)]
    items = []
    sequences = "1 sequence" if asked.num_sequences == 1 else f"{asked.num_sequences} sequences"
    for group in pool.groups:
        tokens = asked.tokens if asked.tokens is not None else pool.max_model_len
        law = _group_law(group.first, pool, tokens)
        blocks = law.bytes_at(tokens) // pool.bytes_per_block
        component: Component = "recurrent_state" if group.first.kind == "mamba" else "kv_cache"
        because = (
            f"{group.first.kind}: at most {blocks} blocks of {group.first.block_tokens} tokens × "
            f"{pool.bytes_per_block} B × {sequences}; {VERSION}"
        )
        items.append(
            MemoryItem(
                component=component,
                needed=constant(0),
                allocated=law.times(asked.num_sequences),
                because=because,
                device=device,
            )
        )
    return items


def _group_law(page: Page, pool: PoolPlan, tokens: int) -> GrowthLaw:
    """Bytes of the blocks that one sequence may hold in a group, at every length."""
    one, size = pool.bytes_per_block, page.block_tokens
    if page.kind in ("mamba", "cross_attention") or one % size or pool.demand.context_parallel > 1:
        return constant(one * pool.demand.blocks(page, tokens))
    # Without the hybrid manager a layer with a window is kept like one of full attention.
    is_capped = page.window_tokens is not None and page.kind not in FULL_KINDS
    cap = pool.demand.window_cap(page) if is_capped else None
    extra = one if page.kind in ("sliding_window", "sliding_window_mla") else 0
    return GrowthLaw(fixed_bytes=extra, bytes_per_token=one // size, cap_tokens=cap, step_tokens=size)


def _host_cache(settings: VllmSettings) -> list[MemoryItem]:
    if not settings.host_pool_bytes:
        return []
    because = "kv_offloading_size: copies of reusable blocks in host memory; an active request must fit the pool"
    law = constant(settings.host_pool_bytes)
    return [MemoryItem(component="host_cache", needed=constant(0), allocated=law, because=because, device="cpu")]


def _layer_cache(
    model: ModelSpec,
    layer: LayerSpec,
    own: CacheKind,
    settings: VllmSettings,
    pool: PoolPlan,
    tokens: int,
    sequences: int,
) -> LayerCache:
    """What one layer needs, as tensors; keys and values lie in one page."""
    tensors: list[CacheTensor] = []
    cache = rank_cache(own, settings.tensor_parallel)
    for page in pool.plan.pages:
        if page.layer != layer.index:
            continue
        if page.kind == "mamba":
            tensors += _state_tensors(model, settings, cache, sequences)
            continue
        held = tokens if page.window_tokens is None else min(tokens, page.window_tokens)
        if page.kind == "cross_attention":
            held = pool.demand.encoder_tokens
        heads, width = _shape(page)
        name, component = ("index_keys", "index_cache") if page.index else ("keys_and_values", "kv_cache")
        tensors.append(
            CacheTensor(
                name="latent" if page.kind.endswith(("mla", "mla_attention")) and not page.index else name,
                shape=(sequences, heads, held, width),
                dtype=settings.dtype.name if settings.cache_dtype == "auto" else settings.cache_dtype,
                num_bytes=page.row_bytes * held * sequences,
                component="index_cache" if component == "index_cache" else "kv_cache",
            )
        )
    return LayerCache(index=layer.index, kind=kind_name(own), tensors=tuple(tensors))


def _shape(page: Page) -> tuple[int, int]:
    """Heads and width of one token: key and value together."""
    if page.index:
        return 1, page.row_bytes
    numbers = [value for value in page.key if isinstance(value, int)]
    return (1, numbers[0]) if len(numbers) == 1 else (numbers[0], sum(numbers[1:]))


def _state_tensors(model: ModelSpec, settings: VllmSettings, cache: CacheKind, sequences: int) -> list[CacheTensor]:
    recurrent = cache.recurrent if isinstance(cache, HybridCache) else cache
    assert isinstance(recurrent, RecurrentState)
    return [
        CacheTensor(
            name=tensor.name,
            shape=(sequences, *tensor.shape),
            dtype=str(tensor.dtype),
            num_bytes=row_bytes(str(tensor.dtype), tensor.num_elements) * sequences,
            component="recurrent_state",
        )
        for tensor in state_tensors(model, settings, recurrent)
    ]


def _buffers(pool: PoolPlan, settings: VllmSettings) -> tuple[Buffer, ...]:
    if pool.num_blocks is None or not pool.groups:
        return ()
    return (
        Buffer(
            name="kv_cache",
            kind="pool",
            num_bytes=pool.num_blocks * pool.bytes_per_block,
            device=settings.backend.device,
            details={"blocks": pool.num_blocks, "groups": len(pool.groups)},
        ),
    )


def _effective(model: ModelSpec, settings: VllmSettings, pool: PoolPlan) -> dict[str, Any]:
    weights = rank_weights(model, settings.dtype, settings.tensor_parallel, settings.pipeline_parallel)
    if model.quantisation is not None or _spreads_experts(model, settings):
        weights = None
    return {
        "context_tokens": pool.max_model_len,
        "context_per_sequence_tokens": pool.max_model_len,
        "batch_tokens": pool.batched_tokens,
        "in_flight_tokens": pool.demand.in_flight_tokens,
        "device": settings.backend.device,
        "dtype": settings.dtype.name,
        "cache_dtype": settings.dtype.name if settings.cache_dtype == "auto" else settings.cache_dtype,
        "block_tokens": pool.block_tokens if pool.groups else None,
        "prefix_caching": pool.plan.prefix_caching,
        "mamba_cache_mode": pool.plan.mamba_mode,
        "sequence_blocks": pool.sequence_blocks,
        "sequence_bytes": pool.needed_bytes,
        "fits": pool.fits,
        "estimated_max_model_len": pool.estimated_length,
        "ranks": settings.world_size,
        "stages": [
            {
                "layers": [layers.start, layers.stop - 1],
                "bytes_per_block": pool.stage_block_bytes[stage],
                "weights_bytes": None if weights is None else weights[stage].num_bytes,
            }
            for stage, layers in enumerate(pool.stages)
        ],
    }


def _status(unknown: tuple[Unknown, ...], missing: set[Component]) -> Status:
    if any(entry.what != "weights" for entry in unknown):
        return "estimated"
    return "partial" if "weights" in missing else "exact"


def _unknown(model: ModelSpec, asked: Asked, settings: VllmSettings, pool: PoolPlan) -> tuple[Unknown, ...]:
    """What keeps these numbers from being measured truth."""
    found = []
    version = asked.engine_version
    if version is not None and RELEASE not in version:
        why = f"the rules are those of {VERSION}; that {version} follows them was not checked, and they have changed"
        found.append(Unknown(what="engine_version", why=why))
    if settings.backend.device == "cuda":
        why = "the rules are vLLM's planner's; the attention backend and block size a GPU chooses were not measured"
        found.append(Unknown(what="device", why=why))
    if settings.world_size > 1 or settings.context_parallel > 1:
        found.append(Unknown(what="parallel", why="several ranks follow vLLM's rules but were not measured"))
    if settings.speculative_tokens:
        found.append(Unknown(what="draft", why="the draft model's own layers are not in the pool's groups"))
    if model.source_kind in ("config", "safetensors") and not is_checked(model):
        why = (
            f"what {VERSION} makes of {model.architecture}'s layers was not checked; they are taken as the config says"
        )
        found.append(Unknown(what="architecture", why=why))
    caches = [layer.cache for layer in model.layers]
    if any(isinstance(cache, IndexedAttention | CrossAttention) for cache in caches):
        found.append(Unknown(what="kv_cache", why="index caches and cross attention follow vLLM's rules, not measured"))
    if any(isinstance(cache, LatentAttention) and cache.window_tokens is not None for cache in caches):
        found.append(Unknown(what="kv_cache", why="windows of a latent follow vLLM's rules, not measured"))
    return tuple(found)


def _runtime_unknown() -> Unknown:
    why = (
        "activations, graphs and the process are measured by vLLM at start (it profiles one full batch); total_bytes "
        "leaves them out. available_bytes is what remains for the pool after them"
    )
    return Unknown(what="runtime", why=why)
