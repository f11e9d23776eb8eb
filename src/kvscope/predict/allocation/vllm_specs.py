"""vLLM's page of each layer: what one block of the pool holds for it. Rules of vLLM 0.32.0 (V1).

A layer that attends keeps ``block_tokens`` tokens in a page; a recurrent layer keeps one state in a page. In a model
with both, the attention block is raised, in steps of the kernel's block, until its page holds a state, and states are
padded to that page.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, assert_never

from kvscope.dtypes import row_bytes
from kvscope.errors import UnsupportedArchitecture, UsageError
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
    ModelSpec,
    NoCache,
    RecurrentState,
    SharedCache,
    SlidingWindow,
    StateTensor,
)
from kvscope.predict.allocation.vllm_families import check_family
from kvscope.predict.allocation.vllm_settings import CACHE_DTYPES, VERSION, VllmSettings
from kvscope.predict.growth import round_up
from kvscope.predict.parallel import rank_cache

PageKind = Literal[
    "full_attention", "sliding_window", "chunked_local_attention", "mla_attention", "sliding_window_mla", "mamba",
    "cross_attention",
]  # fmt: skip
# Bytes of one token's latent in the packed formats of DeepSeek's sparse kernels.
_PACKED_LATENT = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}
_PER_TOKEN_HEAD = frozenset({"int8_per_token_head", "fp8_per_token_head", "int4_per_token_head"})
# Two float32 scales for each token and head (one for MLA's latent, whose second is unused).
_SCALES_BYTES = 8
CPU_MLA_BLOCK = 16
MLA_HYBRID_BLOCK = 128
# Families whose own rule for a state format left "auto" on a GPU is the config's, not the model's format.
_OWN_STATE_DTYPE = ("nemotron_h", "qwen3_5")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One layer's page. ``row_bytes``: one token of it (attention); ``state_bytes``: the whole state (recurrent).
    ``padded_bytes``: the page is as large as this. ``key``: what must be equal for layers to share a group.
    ``index``: this is an index cache beside the layer's own."""

    layer: int
    kind: PageKind
    block_tokens: int
    key: tuple[object, ...]
    row_bytes: int = 0
    state_bytes: int = 0
    window_tokens: int | None = None
    checkpoint_blocks: int = 0
    padded_bytes: int | None = None
    index: bool = False

    @property
    def content_bytes(self) -> int:
        return self.state_bytes if self.kind == "mamba" else self.row_bytes * self.block_tokens

    @property
    def page_bytes(self) -> int:
        return self.content_bytes if self.padded_bytes is None else self.padded_bytes

    @property
    def identity(self) -> tuple[object, ...]:
        """Equal for layers with the same vLLM spec."""
        return (self.kind, self.block_tokens, self.key, self.window_tokens, self.padded_bytes, self.index)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the settings became for this model. ``block_tokens``: of attention; ``state_block_tokens``: of recurrent
    layers; ``mamba_mode``: align or none."""

    pages: tuple[Page, ...]
    block_tokens: int
    prefix_caching: bool
    mamba_mode: str
    is_mla: bool
    is_hybrid: bool


def plan_pages(model: ModelSpec, settings: VllmSettings, max_model_len: int) -> Plan:
    """Pages of every layer on one tensor-parallel rank, in vLLM's own order.

    Raises UnsupportedArchitecture for layers vLLM does not run, UsageError for what it would refuse.
    """
    caches = [rank_cache(cache, settings.tensor_parallel) for cache in engine_caches(model)]
    parts = [(index, part) for index, cache in enumerate(caches) for part in _parts(model, cache)]
    states = [part for _, part in parts if isinstance(part, RecurrentState)]
    attention = [part for _, part in parts if not isinstance(part, RecurrentState)]
    is_mla = any(isinstance(_main(part), LatentAttention) for part in attention)
    is_hybrid = bool(states and attention)
    prefix_caching = _prefix_caching(settings, is_mla=is_mla, is_attention_free=bool(states and not attention))
    mode = "align" if prefix_caching and states else "none"
    block = _block_tokens(settings, is_mla)
    padded = None
    if is_hybrid:
        block, padded = _align(model, settings, block, attention, states[0])
    state_block = max_model_len if mode == "none" else block
    pages: list[Page] = []
    for index, part in parts:
        if isinstance(part, RecurrentState):
            pages.append(_state_page(model, settings, index, part, state_block, padded))
        else:
            pages += _attention_pages(settings, index, part, block)
    return Plan(
        pages=tuple(pages),
        block_tokens=block,
        prefix_caching=prefix_caching,
        mamba_mode=mode,
        is_mla=is_mla,
        is_hybrid=is_hybrid,
    )


def engine_caches(model: ModelSpec) -> tuple[CacheKind, ...]:
    """Each layer's cache as vLLM sees it: a sliding_window in the config counts for every layer, even of a model whose
    own code ignores it, unless the config tells layers apart (then transformers' cache is not all windows)."""
    layers = [layer for layer in model.layers if not isinstance(layer.cache, NoCache)]
    ignored = [layer.transformers_cache for layer in layers if isinstance(layer.cache, FullAttention)]
    if layers and len(ignored) == len(layers) and all(isinstance(cache, SlidingWindow) for cache in ignored):
        return tuple(
            layer.transformers_cache if isinstance(layer.transformers_cache, SlidingWindow) else layer.cache
            for layer in model.layers
        )
    return tuple(layer.cache for layer in model.layers)


def _main(cache: CacheKind) -> CacheKind:
    return cache.main if isinstance(cache, IndexedAttention) else cache


def _parts(model: ModelSpec, cache: CacheKind) -> tuple[CacheKind, ...]:
    """The caches of one layer that have pages of their own: a hybrid layer has two, attention first."""
    check_family(model, cache)
    match cache:
        case FullAttention() | SlidingWindow() | ChunkedAttention() | LatentAttention() | IndexedAttention():
            return (cache,)
        case CrossAttention() | RecurrentState():
            return (cache,)
        case HybridCache():
            check_family(model, cache.recurrent)
            return (cache.attention, cache.recurrent)
        case SharedCache() | NoCache():
            return ()
        case CompressedAttention() | HiddenStateMemory():
            raise UnsupportedArchitecture(
                f"{model.architecture}: how {VERSION} pages its {type(cache).__name__} layers is not known.",
                hint="Engine 'logical' says what the tokens need.",
            )
        case _:
            assert_never(cache)


def _prefix_caching(settings: VllmSettings, *, is_mla: bool, is_attention_free: bool) -> bool:
    """On by default, but for models without attention; forced off for MLA on a CPU."""
    if is_mla and settings.backend.device == "cpu":
        return False
    return not is_attention_free if settings.prefix_caching is None else settings.prefix_caching


def _block_tokens(settings: VllmSettings, is_mla: bool) -> int:
    if is_mla and settings.backend.device == "cpu":
        return CPU_MLA_BLOCK  # whatever was asked: the CPU kernel has no other
    return settings.block_size or settings.backend.block_tokens


def _align(
    model: ModelSpec, settings: VllmSettings, block: int, attention: Sequence[CacheKind], state: RecurrentState
) -> tuple[int, int]:
    """The attention block raised until its page holds a recurrent state, and that page's bytes.

    Every attention layer is taken to have the first one's row, as vLLM takes them from the config as a whole.
    """
    first = _main(attention[0])
    row = _attention_row(settings, first)
    if isinstance(first, LatentAttention) and settings.cache_dtype in _PACKED_LATENT:
        row = first.latent_dim + first.rope_dim  # the packed size is not known to this step of vLLM
    step = max(settings.backend.kernel_tokens, block)
    if isinstance(first, LatentAttention):
        step = max(step, MLA_HYBRID_BLOCK)
    state_bytes = _state_bytes(model, settings, state)
    raised = round_up(-(-state_bytes // row), step)
    block = max(block, round_up(raised, settings.backend.kernel_tokens))
    return block, block * row


def _attention_pages(settings: VllmSettings, index: int, cache: CacheKind, block: int) -> list[Page]:
    if isinstance(cache, IndexedAttention):
        row = cache.index_row_bytes
        row = row_bytes(settings.dtype, cache.index_dim) if row is None else row
        own = _attention_pages(settings, index, cache.main, block)
        key = ("index", row)
        return [*own, Page(layer=index, kind="mla_attention", block_tokens=block, key=key, row_bytes=row, index=True)]
    kind, window = _attention_kind(cache)
    tokens = block
    if kind == "sliding_window":
        # A window's block is the largest multiple of the kernel's that is no larger than the others'.
        kernel = settings.backend.kernel_tokens
        tokens = max(kernel, block // kernel * kernel)
    return [
        Page(
            layer=index,
            kind=kind,
            block_tokens=tokens,
            key=_heads_key(cache),
            row_bytes=_attention_row(settings, cache),
            window_tokens=window,
        )
    ]


def _attention_kind(cache: CacheKind) -> tuple[PageKind, int | None]:
    """vLLM's word for this kind of layer, and its window or chunk."""
    match cache:
        case FullAttention():
            return "full_attention", None
        case SlidingWindow():
            return "sliding_window", cache.window_tokens
        case ChunkedAttention():
            return "chunked_local_attention", cache.chunk_tokens
        case LatentAttention():
            return "mla_attention" if cache.window_tokens is None else "sliding_window_mla", cache.window_tokens
        case CrossAttention():
            return "cross_attention", None
        case _:
            raise AssertionError("only attention has such pages")


def _heads_key(cache: CacheKind) -> tuple[object, ...]:
    if isinstance(cache, LatentAttention):
        return (cache.latent_dim + cache.rope_dim,)
    assert isinstance(cache, FullAttention | SlidingWindow | ChunkedAttention | CrossAttention)
    return (cache.num_kv_heads, cache.key_dim, cache.value_dim)


def _attention_row(settings: VllmSettings, cache: CacheKind) -> int:
    """Bytes of one token in one attention layer, with the scales its format stores beside it."""
    size = CACHE_DTYPES[settings.cache_dtype] or row_bytes(settings.dtype, 1)
    if isinstance(cache, LatentAttention):
        return _latent_row(settings, cache.latent_dim + cache.rope_dim, size)
    assert isinstance(cache, FullAttention | SlidingWindow | ChunkedAttention | CrossAttention)
    if settings.cache_dtype in _PACKED_LATENT:
        raise UsageError(f"{settings.cache_dtype} is a format of MLA's latent; this model has heads.")
    if settings.cache_dtype in _PER_TOKEN_HEAD:
        packed = 2 if settings.cache_dtype.startswith("int4") else 1
        return cache.num_kv_heads * (cache.key_dim // packed + cache.value_dim // packed + _SCALES_BYTES)
    if settings.cache_dtype.startswith("nvfp4"):
        if cache.key_dim != cache.value_dim:
            raise UsageError("vLLM refuses nvfp4 caches whose keys and values differ in width.")
        return 2 * cache.num_kv_heads * (cache.key_dim // 2 + cache.key_dim // 16)
    return cache.num_kv_heads * (cache.key_dim + cache.value_dim) * size


def _latent_row(settings: VllmSettings, width: int, size: int) -> int:
    packed = _PACKED_LATENT.get(settings.cache_dtype)
    if packed is not None:
        return packed
    if settings.cache_dtype in _PER_TOKEN_HEAD:
        return (width // 2 if settings.cache_dtype.startswith("int4") else width) + _SCALES_BYTES
    if settings.cache_dtype.startswith("nvfp4"):
        raise UsageError(f"How vLLM keeps MLA's latent in {settings.cache_dtype} is not known.")
    return width * size


def _state_page(
    model: ModelSpec, settings: VllmSettings, index: int, cache: RecurrentState, block: int, padded: int | None
) -> Page:
    tensors = state_tensors(model, settings, cache)
    return Page(
        layer=index,
        kind="mamba",
        block_tokens=block,
        key=tuple((tensor.shape, tensor.dtype) for tensor in tensors),
        state_bytes=_state_bytes(model, settings, cache),
        # Mamba 2 kernels can leave a state inside a prefill, which takes one more block.
        checkpoint_blocks=int(cache.form == "mamba2"),
        padded_bytes=padded,
    )


def _state_bytes(model: ModelSpec, settings: VllmSettings, cache: RecurrentState) -> int:
    return sum(row_bytes(str(t.dtype), t.num_elements) for t in state_tensors(model, settings, cache))


def state_tensors(model: ModelSpec, settings: VllmSettings, cache: RecurrentState) -> tuple[StateTensor, ...]:
    """One sequence's state in one layer: the convolution's last kernel - 1 columns (and one more for each speculative
    token) in mamba_cache_dtype, the rest in mamba_ssm_cache_dtype."""
    tensors = []
    if cache.conv_channels:
        extra = 0 if cache.form == "mamba" else settings.speculative_tokens
        shape = (cache.conv_kernel - 1 + extra, cache.conv_channels)
        tensors.append(StateTensor(name="conv_state", shape=shape, dtype=settings.conv_dtype))
    for state in cache.states:
        tensors.append(replace(state, dtype=_state_dtype(model, settings, cache, state)))
    return tuple(tensors)


def _state_dtype(model: ModelSpec, settings: VllmSettings, cache: RecurrentState, state: StateTensor) -> str:
    if cache.form == "lightning":
        return settings.conv_dtype  # this form has no format of its own
    if settings.state_dtype != "auto":
        return settings.state_dtype
    if settings.backend.state_dtype is not None:
        return settings.backend.state_dtype
    if cache.form == "kda" or model.architecture.startswith("nemotron_h"):
        return state.dtype or "float32"
    if model.architecture.startswith(_OWN_STATE_DTYPE):
        return state.dtype or settings.conv_dtype
    return settings.conv_dtype
