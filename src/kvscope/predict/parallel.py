"""One model on several devices: which share of its layers, caches and weights one rank holds.

Tensor parallel (TP) splits heads and matrices, pipeline parallel (PP) splits the layers into stages. Rules of vLLM
0.32.0; SGLang follows the same ones for caches. Nothing here was measured on several devices.

- KV heads divide while there are enough of them; with more ranks than heads each rank keeps one, so copies appear.
- MLA's latent (and an index key) has one head: every rank keeps all of it.
- Recurrent states split by their heads; Mamba 2's groups are copied where they do not divide.
- Layers that do not divide over the stages go to the stages before the last, from the back.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from kvscope.dtypes import Dtype, row_bytes
from kvscope.errors import UsageError
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
    MoeFfn,
    NoCache,
    RecurrentState,
    SharedCache,
    SlidingWindow,
    WeightGroup,
)
from kvscope.predict.growth import round_up

# Rows of the token embeddings and of the output matrix are padded to this (vLLM: VocabParallelEmbedding).
VOCAB_PADDING = 64
# Kept in float32 whatever the model's format.
FLOAT32_NAMES = ("A_log", "e_score_correction_bias")
# Families whose router has one float32 bias for each expert, a buffer that transformers does not count as a parameter.
ROUTER_BIAS = frozenset({"deepseek_v3", "deepseek_v32", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "kimi_k2"})
# Modules whose weights every rank holds whole: routers, the latent's down projections, index projections.
_REPLICATED = frozenset(
    {"gate", "router", "shared_expert_gate", "q_a_proj", "kv_a_proj_with_mqa", "kv_a_proj", "weights_proj", "wk"}
)
_ROW_PARALLEL = frozenset({"o_proj", "out_proj", "down_proj", "dense", "c_proj", "fc2"})
# Recurrent states [heads, ...], which ranks share head by head. A GGUF says the product of heads and width alone.
_STATES_OF_HEADS = frozenset({"mamba2", "gated_delta_net", "kda", "lightning"})
_KEYS_AND_VALUES = frozenset({"k_proj", "v_proj"})


def split_layers(num_layers: int, stages: int) -> tuple[range, ...]:
    """The layers of each pipeline stage. Raises UsageError when there are fewer layers than stages."""
    if stages > num_layers:
        raise UsageError(f"{num_layers} layers cannot be split over {stages} pipeline stages.")
    even, rest = divmod(num_layers, stages)
    sizes = [even] * stages
    for position in range(2, rest + 2):
        sizes[-position] += 1
    starts = [sum(sizes[:stage]) for stage in range(stages)]
    return tuple(range(start, start + size) for start, size in zip(starts, sizes, strict=True))


def check_query_heads(model: ModelSpec, ranks: int) -> None:
    """Engines share queries out evenly, whatever they do with keys and values. Raises UsageError."""
    for layer in model.layers:
        if layer.num_q_heads % ranks:
            raise UsageError(
                f"{layer.num_q_heads} attention heads of layer {layer.index} cannot be split over {ranks} ranks.",
                hint="Choose a tensor parallel size that divides the heads.",
            )


def heads_per_rank(num_kv_heads: int, ranks: int) -> int:
    """KV heads that one of ``ranks`` tensor-parallel ranks keeps. Raises UsageError where they do not divide."""
    larger, smaller = max(num_kv_heads, ranks), min(num_kv_heads, ranks)
    if larger % smaller:
        raise UsageError(
            f"{num_kv_heads} KV heads cannot be split over {ranks} ranks.",
            hint="Choose a tensor parallel size that divides the heads, or that they divide.",
        )
    return max(1, num_kv_heads // ranks)


def rank_cache(cache: CacheKind, ranks: int) -> CacheKind:
    """What one of ``ranks`` tensor-parallel ranks keeps of a layer's cache. Raises UsageError where it cannot split."""
    if ranks == 1:
        return cache
    match cache:
        case FullAttention() | SlidingWindow() | ChunkedAttention() | CrossAttention():
            return replace(cache, num_kv_heads=heads_per_rank(cache.num_kv_heads, ranks))
        case IndexedAttention():
            main = rank_cache(cache.main, ranks)
            assert isinstance(main, FullAttention | SlidingWindow | LatentAttention)
            return replace(cache, main=main)
        case RecurrentState():
            return _rank_state(cache, ranks)
        case HybridCache():
            attention = rank_cache(cache.attention, ranks)
            assert isinstance(attention, FullAttention | SlidingWindow | LatentAttention)
            return replace(cache, attention=attention, recurrent=_rank_state(cache.recurrent, ranks))
        case LatentAttention() | CompressedAttention() | SharedCache() | NoCache() | HiddenStateMemory():
            return cache
        case _:
            assert_never(cache)


def _rank_state(cache: RecurrentState, ranks: int) -> RecurrentState:
    channels = cache.conv_channels
    if cache.form in _STATES_OF_HEADS and any(len(state.shape) < 3 for state in cache.states):
        raise UsageError(
            f"The file does not say how many heads its recurrent states have, so their share of {ranks} ranks is not "
            "known.",
            hint="Give the model's config.json, which says it.",
        )
    if cache.form == "mamba2" and cache.states:
        channels += _copied_group_channels(cache, ranks)
    states = []
    for state in cache.states:
        heads, *rest = state.shape
        states.append(replace(state, shape=(_divide(heads, ranks, "heads of recurrent state"), *rest)))
    return replace(cache, conv_channels=_divide(channels, ranks, "convolution channels"), states=tuple(states))


def _copied_group_channels(cache: RecurrentState, ranks: int) -> int:
    """Channels added because every rank needs the groups its heads read: as many groups as ranks."""
    heads, head_dim, state_size = cache.states[0].shape
    groups = (cache.conv_channels - heads * head_dim) // (2 * state_size)
    return 0 if groups % ranks == 0 else 2 * (ranks - groups) * state_size


def _divide(value: int, ranks: int, what: str) -> int:
    if value % ranks:
        raise UsageError(f"{value} {what} cannot be split over {ranks} ranks.")
    return value // ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWeights:
    """Weights of one rank of one pipeline stage."""

    layers: range
    num_bytes: int
    because: str


def rank_weights(model: ModelSpec, dtype: Dtype, ranks: int, stages: int) -> tuple[RankWeights, ...] | None:
    """Weights that each stage's ranks hold, unquantised, in ``dtype``; None where the model's tensors are not known.

    Exact for one rank; for several by the rules above, where what does not divide is rounded up.
    """
    groups = _groups(model)
    if not groups:
        return None
    found = []
    for stage, layers in enumerate(split_layers(len(model.layers), stages)):
        held = [_stage_tensors(group, layers, stage, stages, bool(model.is_tied)) for group in groups]
        total = sum(
            count * _rank_bytes(group, model.layers, dtype, ranks)
            for group, count in zip(groups, held, strict=True)
            if count
        )
        total += sum(_router_bias_bytes(model, model.layers[layer]) for layer in layers)
        share = f", one of {ranks} ranks" if ranks > 1 else ""
        because = f"tensors of layers {layers.start} to {layers.stop - 1} in {dtype.name}{share} = {total} B"
        found.append(RankWeights(layers=layers, num_bytes=total, because=because))
    return tuple(found)


def _router_bias_bytes(model: ModelSpec, layer: LayerSpec) -> int:
    if model.architecture not in ROUTER_BIAS or not isinstance(layer.ffn, MoeFfn) or model.tensors:
        return 0
    return 4 * layer.ffn.num_experts


def _groups(model: ModelSpec) -> tuple[WeightGroup, ...]:
    if model.weights:
        return model.weights
    return tuple(
        WeightGroup(
            name=tensor.name,
            shape=tensor.shape,
            kind="embedding" if _is_vocabulary(tensor.name) else "other",
            layers=() if tensor.layer_index is None else (tensor.layer_index,),
        )
        for tensor in model.tensors
    )


def _is_vocabulary(name: str) -> bool:
    return name.removesuffix(".weight").rsplit(".", 1)[-1] in ("embed_tokens", "lm_head", "wte", "embed_in")


def _stage_tensors(group: WeightGroup, layers: range, stage: int, stages: int, is_tied: bool) -> int:
    """How many of the group's equal tensors this stage holds. Outside the layers: embeddings on the first stage, the
    output matrix and last norm on the last; a tied matrix on both."""
    if group.layers:
        return sum(layer in layers for layer in group.layers)
    is_first, is_last = stage == 0, stage == stages - 1
    if group.kind == "embedding" and "lm_head" not in group.name:
        return int(is_first or (is_last and is_tied))
    if group.kind in ("head", "norm") or "lm_head" in group.name:
        return int(is_last)
    return int(is_first)


def _rank_bytes(group: WeightGroup, layers: Sequence[LayerSpec], dtype: Dtype, ranks: int) -> int:
    """Bytes of one of the group's tensors on one rank."""
    size = 4 if group.name.endswith(FLOAT32_NAMES) else row_bytes(dtype, 1)
    elements = _product(group.shape)
    # Only the text model's own vocabulary is padded: learned positions and vision tables are embeddings too.
    if group.part == "text" and _is_vocabulary(group.name):
        rows, *rest = group.shape
        return round_up(rows, VOCAB_PADDING) // ranks * _product(rest) * size
    if ranks == 1 or _is_replicated(group):
        return elements * size
    module = _module(group.name)
    if module in _KEYS_AND_VALUES and group.layers:
        heads = _kv_heads(layers[group.layers[0]].cache)
        if heads is not None and elements % heads == 0:
            return elements // heads * heads_per_rank(heads, ranks) * size
    return -(-elements // ranks) * size


def _is_replicated(group: WeightGroup) -> bool:
    module = _module(group.name)
    if group.kind == "norm" or module in _REPLICATED or group.name.endswith("e_score_correction_bias"):
        return True
    return module in _ROW_PARALLEL and group.name.endswith(".bias")


def _module(name: str) -> str:
    parts = name.split(".")
    return parts[-2] if len(parts) > 1 and parts[-1] in ("weight", "bias") else parts[-1]


def _kv_heads(cache: CacheKind) -> int | None:
    match cache:
        case FullAttention() | SlidingWindow() | ChunkedAttention() | CrossAttention():
            return cache.num_kv_heads
        case HybridCache():
            return _kv_heads(cache.attention)
        case IndexedAttention():
            return _kv_heads(cache.main)
        case _:
            return None


def _product(shape: Iterable[int]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total
