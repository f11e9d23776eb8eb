"""What a GGUF's tensor table says of its layers: their feed-forward, and whether it agrees with the keys.

The file says the same thing twice, in its keys and in its tensors' shapes: where the two differ, neither is believed.
A file that lists no layers' tensors has nothing to be held against.
"""

from collections.abc import Sequence
from math import prod

from kvscope.model.gguf_keys import Keys
from kvscope.model.spec import (
    CacheKind,
    ChunkedAttention,
    DenseFfn,
    FullAttention,
    HybridCache,
    LatentAttention,
    LayerSpec,
    MoeFfn,
    NoCache,
    RecurrentState,
    SharedCache,
    SlidingWindow,
    TensorInfo,
)

Shape = tuple[int, ...]


class LayerTensors:
    """Shapes of the tensors of each layer, by name without "blk.N."."""

    def __init__(self, tensors: Sequence[TensorInfo]) -> None:
        self._layers: dict[int, dict[str, Shape]] = {}
        for tensor in tensors:
            if tensor.layer_index is not None:
                self._layers.setdefault(tensor.layer_index, {})[tensor.name.split(".", 2)[-1]] = tensor.shape

    @property
    def is_listed(self) -> bool:
        return bool(self._layers)

    @property
    def num_layers(self) -> int:
        return max(self._layers, default=-1) + 1

    def shape(self, layer: int, *names: str) -> Shape | None:
        """The shape of the first of these tensors that the layer has."""
        found = self._layers.get(layer, {})
        return next((found[name] for name in names if name in found), None)

    def rows(self, layer: int, *names: str) -> int | None:
        shape = self.shape(layer, *names)
        return shape[1] if shape is not None and len(shape) >= 2 else None


def feed_forward(keys: Keys, tensors: LayerTensors, layer: int, width: int | None) -> DenseFfn | MoeFfn | None:
    """The layer's feed-forward: from its tensors where they are listed, else from the keys. ``width``: of a dense one,
    by the keys; None or 0 where they give none."""
    experts = keys.optional("expert_count") or 0
    if not tensors.is_listed:
        if not experts:
            return DenseFfn(width=width) if width else None
        expert_width = keys.optional("expert_feed_forward_length") or width
        return _experts(keys, experts, expert_width, keys.optional("expert_shared_feed_forward_length") or 0)
    routed = tensors.shape(layer, "ffn_down_exps.weight")
    if routed is not None and experts:
        shared = tensors.shape(layer, "ffn_down_shexp.weight")
        return _experts(keys, experts, routed[0], shared[0] if shared else 0)
    down = tensors.shape(layer, "ffn_down.weight", "channel_mix_value.weight")
    return DenseFfn(width=down[0]) if down else None


def _experts(keys: Keys, count: int, width: int | None, shared: int) -> MoeFfn | None:
    used = keys.optional("expert_used_count")
    if not width or not used:
        return None
    return MoeFfn(num_experts=count, experts_per_token=used, width=width, shared_width=shared)


def check(keys: Keys, layers: Sequence[LayerSpec], tensors: LayerTensors, num_listed: int) -> None:
    """Raises MalformedFile where keys and tensors contradict each other. ``num_listed``: how many layers the file has,
    by its keys (more than ``layers`` where some serve only to draft tokens)."""
    if not tensors.is_listed:
        return
    if tensors.num_layers != num_listed:
        raise keys.malformed("block_count", f"it says {num_listed} layers, the tensors are of {tensors.num_layers}")
    for layer in layers:
        _check_layer(keys, layer.index, layer.cache, layer.num_q_heads, tensors)


def _check_layer(keys: Keys, index: int, cache: CacheKind, q_heads: int, tensors: LayerTensors) -> None:
    match cache:
        case FullAttention() | SlidingWindow() | ChunkedAttention():
            _check_attention(keys, index, cache, q_heads, tensors)
        case LatentAttention():
            _same(keys, index, "attn_kv_a_mqa", "attention.kv_lora_rank", cache.latent_dim + cache.rope_dim, tensors)
            if cache.expanded is not None:
                heads = cache.expanded.num_kv_heads
                rows = heads * (cache.expanded.key_dim - cache.rope_dim + cache.expanded.value_dim)
                _same(keys, index, "attn_kv_b", "attention.key_length", rows, tensors)
        case HybridCache():
            _check_layer(keys, index, cache.attention, q_heads, tensors)
            _check_state(keys, index, cache.recurrent, tensors)
        case RecurrentState():
            _check_state(keys, index, cache, tensors)
            name = "attn_kv_a_mqa.weight" if cache.form == "kda" else "attn_k.weight"
            _absent(keys, index, name, "a recurrent layer", tensors)
        case NoCache():
            _absent(keys, index, "attn_k.weight", "a layer without cache", tensors)
            _absent(keys, index, "ssm_conv1d.weight", "a layer without cache", tensors)
        case SharedCache() | _:
            pass


def _check_attention(
    keys: Keys,
    index: int,
    cache: FullAttention | SlidingWindow | ChunkedAttention,
    q_heads: int,
    tensors: LayerTensors,
) -> None:
    key_rows, value_rows = cache.num_kv_heads * cache.key_dim, cache.num_kv_heads * cache.value_dim
    _same(keys, index, "attn_k", "attention.head_count_kv", key_rows, tensors)
    _same(keys, index, "attn_v", "attention.head_count_kv", value_rows, tensors)
    if tensors.shape(index, "attn_k.weight") is None:
        joined = q_heads * cache.key_dim + key_rows + value_rows
        _same(keys, index, "attn_qkv", "attention.head_count_kv", joined, tensors)
        if tensors.shape(index, "attn_qkv.weight") is None:
            problem = f"by the keys layer {index} has attention, but it has no tensor attn_k or attn_qkv"
            raise keys.malformed("attention.head_count_kv", problem)


def _check_state(keys: Keys, index: int, state: RecurrentState, tensors: LayerTensors) -> None:
    names = {"short_conv": "shortconv.conv", "kda": "ssm_conv1d_q"}
    name = names.get(state.form, "ssm_conv1d")
    found = tensors.shape(index, f"{name}.weight")
    if state.form == "rwkv":
        if tensors.shape(index, "time_mix_key.weight") is None:
            raise keys.malformed("wkv.head_size", f"by the keys layer {index} is recurrent, but it has no time_mix_key")
        return
    if found is None:
        raise keys.malformed("block_count", f"by the keys layer {index} is recurrent, but it has no tensor {name}")
    channels = state.conv_channels // 3 if state.form == "kda" else state.conv_channels
    if found[0] != state.conv_kernel or prod(found) != state.conv_kernel * channels:
        problem = f"by the keys {name} of layer {index} is {state.conv_kernel} × {channels}, its tensor is {found}"
        raise keys.malformed("shortconv.l_cache" if state.form == "short_conv" else "ssm.conv_kernel", problem)


def _same(keys: Keys, index: int, name: str, key: str, expected: int, tensors: LayerTensors) -> None:
    found = tensors.rows(index, f"{name}.weight")
    if found is not None and found != expected:
        problem = f"by the keys {name} of layer {index} has {expected} rows, its tensor has {found}"
        raise keys.malformed(key, problem)


def _absent(keys: Keys, index: int, name: str, what: str, tensors: LayerTensors) -> None:
    if tensors.shape(index, name) is not None:
        key = "attention.head_count_kv"
        raise keys.malformed(key, f"by the keys layer {index} is {what}, but it has the tensor {name}")
