"""What a prediction is: items of bytes, each with its reason. Every total is a sum of items; nothing else is added."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, assert_never

from kvscope.model.spec import (
    CacheKind,
    ChunkedAttention,
    CompressedAttention,
    CrossAttention,
    FullAttention,
    HiddenStateMemory,
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
from kvscope.predict.growth import GrowthLaw, slope_sum
from kvscope.scenario import EngineSettings, Phase, Scenario, SettingValue, Workload

SCHEMA = "kvscope.prediction/1"

Component = Literal[
    "weights", "kv_cache", "recurrent_state", "index_cache", "compute_buffer", "output_buffer", "runtime", "host_cache"
]
Status = Literal["exact", "estimated", "partial"]
CACHE_COMPONENTS: tuple[Component, ...] = ("kv_cache", "recurrent_state", "index_cache")
WINDOW_FULL = "sliding window full"
# Numbers of a cache's buffer; None where a buffer is none of a cache.
_BUFFER_DETAILS = ("cells", "streams", "layers", "k_bytes", "v_bytes")
# What an engine makes of the settings; None where it has no such thing. Engines add their own.
_EFFECTIVE = ("context_tokens", "context_per_sequence_tokens", "batch_tokens", "microbatch_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The caller's question before an engine's rules complete it. ``tokens`` None: as many as a sequence may hold.
    ``available_bytes``: memory for an engine's pool of pages; None: not said."""

    tokens: int | None
    num_sequences: int = 1
    phase: Phase = "decode"
    engine_version: str | None = None
    available_bytes: int | None = None

    def scenario(self, engine: str, version: str, tokens: int, settings: Mapping[str, SettingValue]) -> Scenario:
        return Scenario(
            workload=Workload(tokens=tokens, num_sequences=self.num_sequences, phase=self.phase),
            settings=EngineSettings(engine=engine, engine_version=version, values=settings),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryItem:
    """One row of bytes. ``needed``: what the tokens require. ``allocated``: what the engine reserves. ``because``: the
    formula with its numbers and the rule's engine version. ``backing``: "anonymous" memory, or "file" for pages of a
    mapped file, which the operating system may drop and read again."""

    component: Component
    needed: GrowthLaw
    allocated: GrowthLaw
    because: str
    layer_index: int | None = None
    device: str = "cpu"
    backing: Literal["anonymous", "file"] = "anonymous"
    status: Status = "exact"


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheTensor:
    """One tensor that holds a layer's cache; ``shape`` as [sequences or streams, heads, tokens or cells, width].
    ``storage_bytes``: what the memory behind it keeps alive, where that is more (a view of a bigger tensor)."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    num_bytes: int
    component: Component = "kv_cache"
    storage_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCache:
    """``kind`` is the name of the layer's kind of cache: full_attention, sliding_window, latent_attention, ..."""

    index: int
    kind: str
    tensors: tuple[CacheTensor, ...]

    @property
    def cache_bytes(self) -> int:
        return sum(tensor.num_bytes for tensor in self.tensors)


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """One buffer that the engine allocates and reports. ``num_bytes`` is None where its size is not known. ``details``
    are the numbers special to its kind (cells, streams, layers, k_bytes, v_bytes)."""

    name: str
    kind: str
    num_bytes: int | None
    device: str = "cpu"
    backing: Literal["anonymous", "file"] = "anonymous"
    details: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolGroup:
    """Layers that take pages together. ``page_bytes``: one block of one layer."""

    kind: str
    layers: tuple[int, ...]
    page_bytes: int
    blocks_per_sequence: int
    block_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The pages an engine reserves at start, and how much conversation fits in them. ``max_concurrency``: sequences of
    the context limit that fit at once. Counts are None where the memory for the pool was not given."""

    num_blocks: int | None
    block_tokens: int
    bytes_per_block: int
    groups: tuple[PoolGroup, ...]
    capacity_tokens: int | None
    max_concurrency: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """What is not known or not certain, and why."""

    what: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Knee:
    """A length at which growth changes its slope."""

    tokens: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Bytes at ``scenario.workload.tokens`` tokens per sequence. ``missing`` names the components whose bytes are not
    known: their totals are None, never 0. ``notes`` are plain sentences for a person, such as: these tokens do not fit.
    """

    model: ModelSpec
    scenario: Scenario
    effective: Mapping[str, Any]
    items: tuple[MemoryItem, ...]
    layers: tuple[LayerCache, ...]
    buffers: tuple[Buffer, ...]
    status: Status
    unknown: tuple[Unknown, ...] = ()
    missing: frozenset[Component] = frozenset()
    notes: tuple[str, ...] = ()
    pool: Pool | None = None

    def component_bytes(self, component: Component) -> int | None:
        """Allocated bytes of one component: the sum of its items; None where they are not known."""
        if component in self.missing:
            return None
        return sum(item.allocated.bytes_at(self._tokens) for item in self.items if item.component == component)

    @property
    def _tokens(self) -> int:
        return self.scenario.workload.tokens

    @property
    def cache_bytes(self) -> int | None:
        """KV cache, recurrent state and index cache together."""
        return _sum_known(self.component_bytes(c) for c in CACHE_COMPONENTS)

    @property
    def kv_cache_storage_bytes(self) -> int | None:
        """What the memory behind the tensors of ``cache_bytes`` keeps alive: more where one is a view of a bigger."""
        cache = self.cache_bytes
        if cache is None:
            return None
        tensors = [tensor for layer in self.layers for tensor in layer.tensors]
        return cache + sum(t.storage_bytes - t.num_bytes for t in tensors if t.storage_bytes is not None)

    @property
    def total_bytes(self) -> int:
        """Sum of all items: what is known. ``missing`` and ``unknown`` say what it leaves out."""
        return sum(item.allocated.bytes_at(self._tokens) for item in self.items)

    def total_bytes_on(self, device: str) -> int:
        """As ``total_bytes``, of one device."""
        return sum(item.allocated.bytes_at(self._tokens) for item in self.items if item.device == device)

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one more token of one sequence needs, at the length asked. What comes in whole steps of several
        tokens is spread over them."""
        return self.slope_at(self._tokens)

    def slope_at(self, tokens: int) -> int:
        """As ``bytes_per_token``, at another length."""
        return slope_sum([item.needed for item in self.items], tokens) // self.scenario.workload.num_sequences

    @property
    def bytes_per_sequence(self) -> int:
        """Bytes of cache that a sequence needs whatever its length: recurrent state, and what it keeps of another
        input (an image, encoder text)."""
        fixed = sum(item.needed.fixed_bytes for item in self.items if item.component in CACHE_COMPONENTS)
        return fixed // self.scenario.workload.num_sequences

    def needed_at(self, tokens: int) -> int:
        """Bytes of cache, of all sequences, that ``tokens`` tokens in each need."""
        return sum(item.needed.bytes_at(tokens) for item in self.items if item.component in CACHE_COMPONENTS)

    @property
    def limit_tokens(self) -> int | None:
        """The most tokens that one sequence may hold with these settings; None where the engine sets no limit."""
        limit = self.effective.get("slot_limit_tokens") or self.effective.get("context_per_sequence_tokens")
        return limit if isinstance(limit, int) else None

    @property
    def knees(self) -> tuple[Knee, ...]:
        """Lengths at which layers stop growing, up to the context limit. Pages and steps are no knees: spread over
        their tokens, their slope stays the same."""
        reasons: dict[int, list[str]] = {}
        for item in self.items:
            law = item.needed
            if law.cap_tokens is not None and (law.bytes_per_token or law.bytes_per_token_pair):
                found = reasons.setdefault(law.cap_tokens, [])
                why = self._cap_reason(item.layer_index, law.cap_tokens)
                if why not in found:
                    found.append(why)
        limit = self.limit_tokens
        caps = sorted(cap for cap in reasons if limit is None or cap <= limit)
        return tuple(Knee(tokens=cap, why=" and ".join(reasons[cap])) for cap in caps)

    def _cap_reason(self, layer_index: int | None, cap: int) -> str:
        """Why layers stop growing at ``cap`` tokens. Items of several layers at once name none of them."""
        chosen = [layer for layer in self.model.layers if layer_index is None or layer.index == layer_index]
        found = [reason for layer in chosen for cache in _caches_of(layer) for reason in _stops(cache)]
        exact = [why for tokens, why in found if tokens == cap]
        # An engine may keep one token less than the window.
        near = [why for tokens, why in found if tokens == cap + 1]
        return (exact or near or ["these layers keep no more tokens"])[0]

    def to_dict(self) -> dict[str, Any]:
        """The JSON of contract kvscope.prediction/1. Bytes are whole numbers; what is not known is None."""
        workload = self.scenario.workload
        return {
            "schema": SCHEMA,
            "model": _model_dict(self.model),
            "scenario": {
                "engine": self.scenario.settings.engine,
                "engine_version": self.scenario.settings.engine_version,
                "tokens": workload.tokens,
                "sequences": workload.num_sequences,
                "phase": workload.phase,
                "settings": dict(self.scenario.settings.values),
            },
            "effective": {**dict.fromkeys(_EFFECTIVE), **self.effective},
            "status": self.status,
            "unknown": [{"what": entry.what, "why": entry.why} for entry in self.unknown],
            "notes": list(self.notes),
            "totals": self._totals(),
            "growth": {
                "bytes_per_token": self.bytes_per_token,
                "bytes_per_sequence": self.bytes_per_sequence,
                "knees": [{"tokens": knee.tokens, "why": knee.why} for knee in self.knees],
            },
            "layers": [_layer_dict(layer) for layer in self.layers],
            "buffers": [_buffer_dict(buffer) for buffer in self.buffers],
            "pool": None if self.pool is None else _pool_dict(self.pool),
            "items": [_item_dict(item, workload.tokens) for item in self.items],
        }

    def _totals(self) -> dict[str, int | None]:
        kv_cache = self.component_bytes("kv_cache")
        return {
            "weights_bytes": self.component_bytes("weights"),
            "kv_cache_bytes": kv_cache,
            "kv_cache_storage_bytes": self.kv_cache_storage_bytes,
            "recurrent_state_bytes": self.component_bytes("recurrent_state"),
            "index_cache_bytes": self.component_bytes("index_cache"),
            "cache_bytes": self.cache_bytes,
            "compute_buffer_bytes": self.component_bytes("compute_buffer"),
            "output_buffer_bytes": self.component_bytes("output_buffer"),
            "runtime_bytes": self.component_bytes("runtime"),
            "host_cache_bytes": self.component_bytes("host_cache"),
            "total_bytes": self.total_bytes,
        }


def _caches_of(layer: LayerSpec) -> tuple[CacheKind, ...]:
    own = layer.transformers_cache
    if own is None:
        return (layer.cache,)
    return (layer.cache, *own) if isinstance(own, tuple) else (layer.cache, own)


def _stops(cache: CacheKind) -> list[tuple[int, str]]:
    """(tokens, why) for each length at which a layer of this kind stops growing."""
    match cache:
        case SlidingWindow() | CompressedAttention():
            return [(cache.window_tokens, WINDOW_FULL)]
        case ChunkedAttention():
            return [(cache.chunk_tokens, "attention chunk full")]
        case LatentAttention():
            return [] if cache.window_tokens is None else [(cache.window_tokens, WINDOW_FULL)]
        case HiddenStateMemory():
            return [] if cache.memory_tokens is None else [(cache.memory_tokens, "memory of past hidden states full")]
        case IndexedAttention():
            return _stops(cache.main)
        case HybridCache():
            return _stops(cache.attention)
        case FullAttention() | RecurrentState() | CrossAttention() | SharedCache() | NoCache():
            return []
        case _:
            assert_never(cache)


def _sum_known(values: Any) -> int | None:
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def _model_dict(model: ModelSpec) -> dict[str, Any]:
    return {
        "name": model.name,
        "architecture": model.architecture,
        "fingerprint": model.fingerprint,
        "num_layers": len(model.layers),
        "parameters": model.num_parameters,
        "trained_context_tokens": model.trained_context_tokens,
        "sources": dict(model.sources),
    }


def _layer_dict(layer: LayerCache) -> dict[str, Any]:
    tensors = [{"name": t.name, "shape": list(t.shape), "dtype": t.dtype, "bytes": t.num_bytes} for t in layer.tensors]
    return {"index": layer.index, "kind": layer.kind, "cache_bytes": layer.cache_bytes, "tensors": tensors}


def _pool_dict(pool: Pool) -> dict[str, Any]:
    return {
        "num_blocks": pool.num_blocks,
        "block_tokens": pool.block_tokens,
        "bytes_per_block": pool.bytes_per_block,
        "groups": [
            {
                "kind": group.kind,
                "layers": list(group.layers),
                "page_bytes": group.page_bytes,
                "blocks_per_sequence": group.blocks_per_sequence,
                "block_tokens": pool.block_tokens if group.block_tokens is None else group.block_tokens,
            }
            for group in pool.groups
        ],
        "capacity_tokens": pool.capacity_tokens,
        "max_concurrency": pool.max_concurrency,
    }


def _buffer_dict(buffer: Buffer) -> dict[str, Any]:
    head = {"name": buffer.name, "kind": buffer.kind, **dict.fromkeys(_BUFFER_DETAILS)}
    tail = {"bytes": buffer.num_bytes, "device": buffer.device, "backing": buffer.backing}
    return {**head, **buffer.details, **tail}


def _item_dict(item: MemoryItem, tokens: int) -> dict[str, Any]:
    return {
        "component": item.component,
        "layer_index": item.layer_index,
        "device": item.device,
        "backing": item.backing,
        "needed_bytes": item.needed.bytes_at(tokens),
        "allocated_bytes": item.allocated.bytes_at(tokens),
        "status": item.status,
        "because": item.because,
    }
