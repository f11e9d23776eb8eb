"""From a model and llama.cpp's settings to the graph of one microbatch."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from kvscope.model.spec import (
    DenseFfn,
    HybridCache,
    LatentAttention,
    LayerSpec,
    ModelSpec,
    MoeFfn,
    RecurrentState,
    SharedCache,
)
from kvscope.predict.allocation.llama_cpp_families import graph_family
from kvscope.predict.allocation.llama_cpp_layers import held_by
from kvscope.predict.graphs.allocator import Peak, buffer_peak
from kvscope.predict.graphs.attention import Run
from kvscope.predict.graphs.decoder import UNTURNED_EVERY, Decoder, Layer
from kvscope.predict.graphs.gemma3n import SPARSE_LAYERS
from kvscope.predict.graphs.tensor import Graph
from kvscope.predict.graphs.traits import Traits, traits_of

LayerShapes = tuple[tuple[str, tuple[int, ...]], ...]
# Of repeated layers at least so many periods and layers are looked at; others are left out so many periods at a time.
KEPT_PERIODS, KEPT_LAYERS, STEP = 2, 5, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All that the graph of one microbatch is made of. ``layers``: each with the shapes of its weights by their names
    within the layer; ``shapes``: of the model's other weights."""

    traits: Traits
    hidden: int
    vocab: int
    num_layers: int
    layers: tuple[tuple[Layer, LayerShapes], ...]
    shapes: LayerShapes
    run: Run

    def shortened(self) -> "Plan":
        """Without most repetitions of equal layers: where the layers repeat in periods, an even number of periods is
        left out, so that every layer keeps its neighbours and the allocator its rhythm of two places for a row."""
        if any(layer.recurrent == "rwkv" for layer, _ in self.layers):
            return self  # its gaps go on changing for many layers
        kinds = [(replace(layer, index=self._place(layer.index)), shapes) for layer, shapes in self.layers]
        start, period = _repetition(kinds)
        rest = len(kinds) - start
        dropped = 0
        if period:
            kept = max(KEPT_PERIODS * period, KEPT_LAYERS)
            dropped = max(0, (rest - kept) // (STEP * period)) * STEP * period
        return replace(self, layers=(*self.layers[:start], *self.layers[start + dropped :]))

    def _place(self, index: int) -> int:
        """As far as a layer's graph depends on its number; the first often makes what later ones read."""
        if index == 0:
            return -1
        if self.traits.rope == "three_of_four":
            return index % UNTURNED_EVERY
        return int(index < SPARSE_LAYERS) if self.is_gemma3n else 0

    @property
    def is_gemma3n(self) -> bool:
        return any(name == "altup_proj.weight" for name, _ in self.shapes)

    def graph(self) -> Graph:
        """Raises KeyError for a weight that the graph needs and the file does not have."""
        shapes = dict(self.shapes)
        for layer, own in self.layers:
            prefix = f"blk.{layer.index}."
            shapes.update((prefix + name, shape) for name, shape in own)
        layers = [layer for layer, _ in self.layers]
        return Decoder(shapes, layers, self.run, self.traits, self.hidden, self.vocab, self.num_layers).build()


def _repetition(kinds: Sequence[object]) -> tuple[int, int]:
    """(first layer, period) from which the kinds repeat to the end: the pair with fewest layers before and in one
    period; (0, 0) where they do not repeat twice."""
    count = len(kinds)
    best = (0, 0)
    cost = count
    for period in range(1, count // 2 + 1):
        start = count - period
        while start > 0 and kinds[start - 1] == kinds[start - 1 + period]:
            start -= 1
        if start + 2 * period < min(cost, count):
            best, cost = (start, period), start + 2 * period
    return best


@lru_cache(maxsize=256)
def peak_of(plan: Plan) -> Peak:
    """The buffer that the plan's graph takes."""
    graph = plan.graph()
    return buffer_peak(graph.order, graph.leaves)


def plan_of(model: ModelSpec, run: Run) -> Plan | None:
    """None where no weights are known, or layers hold what llama.cpp's graphs do not."""
    if model.tensors:
        shapes = _by_layer(model)
    else:
        stated = [_stated_shapes(model, layer) for layer in model.layers]
        if any(entry is None for entry in stated):
            return None
        shapes = {layer.index: entry for layer, entry in zip(model.layers, stated, strict=True) if entry is not None}
        shapes[None] = (("output_norm.weight", (model.hidden_size,)),)
    traits = traits_of(graph_family(model).name, model.graph_keys)
    layers = tuple((_layer(model, layer), shapes.get(layer.index, ())) for layer in model.layers)
    return Plan(
        traits=traits,
        hidden=model.hidden_size,
        vocab=model.vocab_size,
        num_layers=len(model.layers),
        layers=layers,
        shapes=shapes.get(None, ()),
        run=run,
    )


def _by_layer(model: ModelSpec) -> dict[int | None, LayerShapes]:
    found: dict[int | None, list[tuple[str, tuple[int, ...]]]] = {}
    for tensor in model.tensors:
        index = tensor.layer_index
        name = tensor.name if index is None else tensor.name.split(".", 2)[-1]
        found.setdefault(index, []).append((name, tensor.shape))
    return {index: tuple(entries) for index, entries in found.items()}


def _layer(model: ModelSpec, layer: LayerSpec) -> Layer:
    cache = layer.cache
    owner = model.layers[cache.layer_index].cache if isinstance(cache, SharedCache) else cache
    held = held_by(model, owner)
    state = cache.recurrent if isinstance(cache, HybridCache) else cache
    recurrent = state if isinstance(state, RecurrentState) else None
    return Layer(
        index=layer.index,
        q_heads=0 if held is None else layer.num_q_heads,
        kv_heads=0 if held is None else held.heads,
        key_dim=0 if held is None else held.key_dim,
        value_dim=0 if held is None else held.value_dim,
        is_windowed=held is not None and held.is_windowed,
        is_latent=held is not None and held.value_dim == 0,
        is_shared=isinstance(cache, SharedCache),
        experts_used=layer.ffn.experts_per_token if isinstance(layer.ffn, MoeFfn) else 0,
        recurrent="" if recurrent is None else recurrent.form,
        state_elements=0 if recurrent is None else max((part.num_elements for part in recurrent.states), default=0),
    )


def _stated_shapes(model: ModelSpec, layer: LayerSpec) -> LayerShapes | None:
    """The weights of a layer of a model without tensors, as the plainest file would have them."""
    cache, hidden = layer.cache, model.hidden_size
    held = held_by(model, cache)
    if held is None or held.value_dim == 0 or layer.ffn is None or isinstance(cache, LatentAttention | HybridCache):
        return None
    q_width, kv_width = layer.num_q_heads * held.key_dim, held.heads * held.key_dim
    found: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (hidden,),
        "attn_q.weight": (hidden, q_width),
        "attn_k.weight": (hidden, kv_width),
        "attn_v.weight": (hidden, held.heads * held.value_dim),
        "attn_output.weight": (layer.num_q_heads * held.value_dim, hidden),
        "ffn_norm.weight": (hidden,),
    }
    if graph_family(model).name in ("gemma2", "gemma3"):
        found |= {"post_attention_norm.weight": (hidden,), "post_ffw_norm.weight": (hidden,)}
    if graph_family(model).name in ("qwen3", "qwen3moe", "gemma3"):
        found |= {"attn_q_norm.weight": (held.key_dim,), "attn_k_norm.weight": (held.key_dim,)}
    return tuple((found | _stated_feed_forward(layer.ffn, hidden)).items())


def _stated_feed_forward(ffn: DenseFfn | MoeFfn, hidden: int) -> dict[str, tuple[int, ...]]:
    if isinstance(ffn, DenseFfn):
        return _projections("", hidden, ffn.width, ())
    found = _projections("_exps", hidden, ffn.width, (ffn.num_experts,))
    found["ffn_gate_inp.weight"] = (hidden, ffn.num_experts)
    return found | (_projections("_shexp", hidden, ffn.shared_width, ()) if ffn.shared_width else {})


def _projections(suffix: str, hidden: int, width: int, experts: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    return {
        f"ffn_gate{suffix}.weight": (hidden, width, *experts),
        f"ffn_up{suffix}.weight": (hidden, width, *experts),
        f"ffn_down{suffix}.weight": (width, hidden, *experts),
    }
