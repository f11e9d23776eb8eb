"""Inkling: sliding beside full attention, and short convolutions over keys, values and both branches of every layer.

Facts of the classes in transformers 5.24.0. The convolutions' states are float32 whatever the model's format. Inkling 2
mixes earlier blocks of layers in by learned queries; its looped form runs some layers several times, each run with a
cache of its own.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvscope.model.config_reader import MAX_LAYERS, ConfigReader
from kvscope.model.families.architecture import Architecture, read_context
from kvscope.model.families.moe_decoder import Experts, read_experts
from kvscope.model.families.windowed_decoder import listed_types
from kvscope.model.modules import conv1d, embedding, fused_experts, gated_mlp, head, linear, norm, norms, parameter
from kvscope.model.spec import (
    DenseFfn,
    FullAttention,
    HybridCache,
    LayerSpec,
    MoeFfn,
    RecurrentState,
    SlidingWindow,
    WeightGroup,
)

LAYER = "model.layers.{}"
SLIDING, FULL = "hybrid_sliding", "hybrid"
Layers = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Heads:
    """Heads of one kind of layer. ``extent``: how far its table of relative positions reaches."""

    q_heads: int
    kv_heads: int
    head_dim: int
    extent: int

    @property
    def rows(self) -> int:
        return self.kv_heads * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inkling:
    """The common numbers. ``types``: of each layer as it stands in the model, not as it runs."""

    config: ConfigReader
    types: Sequence[str]
    hidden: int
    vocab: int
    kernel: int
    window: int
    relative: int
    full: _Heads
    sliding: _Heads

    @property
    def layers(self) -> Layers:
        return tuple(range(len(self.types)))

    def kinds(self) -> Iterable[tuple[str, _Heads, Layers]]:
        """Each kind of layer there is, with its heads and layers."""
        for name, heads in ((SLIDING, self.sliding), (FULL, self.full)):
            layers = tuple(index for index in self.layers if self.types[index] == name)
            if layers:
                yield name, heads, layers

    def cache(self, index: int) -> HybridCache:
        """Attention's cache, and four convolutions: over keys, values, attention's and the feed-forward's output."""
        slides = self.types[index] == SLIDING
        heads = self.sliding if slides else self.full
        shape = {"num_kv_heads": heads.kv_heads, "key_dim": heads.head_dim, "value_dim": heads.head_dim}
        return HybridCache(
            attention=SlidingWindow(**shape, window_tokens=self.window) if slides else FullAttention(**shape),
            recurrent=RecurrentState(
                form="short_conv",
                conv_channels=2 * heads.rows + 2 * self.hidden,
                conv_kernel=self.kernel,
                conv_dtype="float32",
            ),
        )

    def layer(self, position: int, index: int, ffn: DenseFfn | MoeFfn) -> LayerSpec:
        """The ``position``-th run, which is of layer ``index``."""
        heads = self.sliding if self.types[index] == SLIDING else self.full
        return LayerSpec(index=position, cache=self.cache(index), num_q_heads=heads.q_heads, ffn=ffn)


def _read(config: ConfigReader) -> _Inkling:
    config.refuse_keys("tie_word_embeddings")
    num_layers = config.num_layers()
    local = config.numbers("local_layer_ids")
    slides = set(local) if local is not None else {index for index in range(num_layers) if (index + 1) % 6}
    pattern = [SLIDING if index in slides else FULL for index in range(num_layers)]
    types = listed_types(config, num_layers, pattern)
    for name in types:
        if name not in (SLIDING, FULL):
            raise config.refuse(f"its layer_types name a layer {name!r}")
    window = config.number("sliding_window_size", field="window_tokens")
    return _Inkling(
        config=config,
        types=types,
        hidden=config.number("hidden_size"),
        vocab=config.number("vocab_size"),
        kernel=config.number("conv_kernel_size"),
        window=window,
        relative=config.number("d_rel"),
        full=_Heads(
            q_heads=config.number("num_attention_heads", field="num_q_heads"),
            kv_heads=config.number("num_key_value_heads", field="num_kv_heads"),
            head_dim=config.number("head_dim", field="key_dim"),
            extent=config.number("rel_extent"),
        ),
        sliding=_Heads(
            q_heads=config.number("swa_num_attention_heads"),
            kv_heads=config.number("swa_num_key_value_heads"),
            head_dim=config.number("swa_head_dim"),
            extent=window,
        ),
    )


def _architecture(
    model: _Inkling, family: str, layers: Sequence[LayerSpec], weights: Sequence[WeightGroup]
) -> Architecture:
    return Architecture(
        family=family,
        layers=tuple(layers),
        weights=tuple(weights),
        vocab_size=model.vocab,
        hidden_size=model.hidden,
        trained_context_tokens=read_context(model.config),
        is_tied=False,
    )


def inkling_text(config: ConfigReader) -> Architecture:
    """The first Inkling: dense layers may stand beside those with experts, which have shared ones too."""
    model = _read(config)
    sparse = _sparse_layers(model)
    dense_width, experts = _inkling_widths(config)
    ffns: list[DenseFfn | MoeFfn] = [
        experts.ffn if index in sparse else DenseFfn(width=dense_width) for index in model.layers
    ]
    norm_names = ("input_layernorm", "post_attention_layernorm")
    weights = [
        *_embeddings(model),
        *_inkling_attention(model),
        *_inkling_dense(model, dense_width, tuple(index for index in model.layers if index not in sparse)),
        *_inkling_experts(model, experts, sparse),
        *norms([f"{LAYER}.{name}" for name in norm_names], model.hidden, layers=model.layers),
        *_convolutions(model, ("attn_sconv", "mlp_sconv")),
        *norm("model.norm", model.hidden),
        *head("lm_head", model.hidden, model.vocab, tied=False),
    ]
    layers = [model.layer(index, index, ffns[index]) for index in model.layers]
    return _architecture(model, "inkling", layers, weights)


def _sparse_layers(model: _Inkling) -> Layers:
    config, types = model.config, model.config.words("mlp_layer_types")
    if types is None:
        return model.layers[config.optional("dense_mlp_idx") or 0 :]
    if len(types) != len(model.layers) or set(types) - {"dense", "sparse"}:
        raise config.malformed("mlp_layer_types", "one of dense or sparse for each layer was expected")
    return tuple(index for index in model.layers if types[index] == "sparse")


def _inkling_widths(config: ConfigReader) -> tuple[int, Experts]:
    """Published files call the experts' width intermediate_size where they give dense_intermediate_size too."""
    experts = read_experts(
        config,
        "n_routed_experts",
        width="intermediate_size" if config.given("dense_intermediate_size") else "moe_intermediate_size",
        shared_count="n_shared_experts",
    )
    if config.given("dense_intermediate_size"):
        return config.number("dense_intermediate_size"), experts
    return config.number("intermediate_size"), experts


def _inkling_attention(model: _Inkling) -> list[WeightGroup]:
    found: list[WeightGroup] = []
    attn = f"{LAYER}.self_attn"
    for _, heads, layers in model.kinds():
        wide = heads.q_heads * heads.head_dim
        found += [
            *linear(f"{attn}.q_proj", model.hidden, wide, layers=layers),
            *linear(f"{attn}.k_proj", model.hidden, heads.rows, layers=layers),
            *linear(f"{attn}.v_proj", model.hidden, heads.rows, layers=layers),
            *linear(f"{attn}.r_proj", model.hidden, heads.q_heads * model.relative, layers=layers),
            *linear(f"{attn}.o_proj", wide, model.hidden, layers=layers),
            *conv1d(f"{attn}.k_sconv.conv1d", heads.rows, model.kernel, layers=layers),
            *conv1d(f"{attn}.v_sconv.conv1d", heads.rows, model.kernel, layers=layers),
            *norms([f"{attn}.q_norm", f"{attn}.k_norm"], heads.head_dim, layers=layers),
            *parameter(f"{attn}.rel_logits_proj.proj", (model.relative, heads.extent), layers=layers),
        ]
    return found


def _inkling_dense(model: _Inkling, width: int, layers: Layers) -> list[WeightGroup]:
    if not layers:
        return []
    return [
        *parameter(f"{LAYER}.mlp.global_scale", (1,), layers=layers),
        *gated_mlp(f"{LAYER}.mlp", model.hidden, width, layers=layers),
    ]


def _inkling_experts(model: _Inkling, experts: Experts, layers: Layers) -> list[WeightGroup]:
    """The router scores shared experts too."""
    if not layers:
        return []
    shared = experts.shared_width // experts.width
    mlp, hidden = f"{LAYER}.mlp", model.hidden
    shapes = {
        "gate_proj": (shared, experts.width, hidden),
        "up_proj": (shared, experts.width, hidden),
        "down_proj": (shared, hidden, experts.width),
    }
    return [
        *parameter(f"{mlp}.gate.weight", (experts.count + shared, hidden), layers=layers),
        *parameter(f"{mlp}.gate.global_scale", (1,), layers=layers),
        *fused_experts(f"{mlp}.experts", experts.count, hidden, experts.width, layers=layers),
        *(
            WeightGroup(name=f"{mlp}.shared_experts.{name}", shape=shape, kind="experts", layers=layers)
            for name, shape in shapes.items()
        ),
    ]


def _embeddings(model: _Inkling) -> list[WeightGroup]:
    return [
        *embedding("model.embed_tokens", model.vocab, model.hidden),
        *norm("model.embed_tokens.embed_norm", model.hidden),
    ]


def _convolutions(model: _Inkling, names: Sequence[str]) -> list[WeightGroup]:
    """Short convolutions as wide as the model, in every layer."""
    return [
        group
        for name in names
        for group in conv1d(f"{LAYER}.{name}.conv1d", model.hidden, model.kernel, layers=model.layers)
    ]


# -- Inkling 2 -----------------------------------------------------------------------------------------------------


def inkling2_text(config: ConfigReader) -> Architecture:
    """Experts in every layer."""
    model, experts = _read_inkling2(config)
    layers = [model.layer(index, index, experts.ffn) for index in model.layers]
    return _architecture(model, "inkling2", layers, _inkling2_weights(model, experts))


def inkling2_loop_text(config: ConfigReader) -> Architecture:
    """Layers from loop_layer_index_start to loop_layer_index_end run loop_num_passes times. Layers here are runs."""
    model, experts = _read_inkling2(config)
    first, last, passes, rank = _loop(config)
    if not 0 < first <= last <= len(model.layers):
        raise config.refuse(f"it loops over layers {first} to {last} of {len(model.layers)}")
    if len(model.layers) + passes * (last - first) > MAX_LAYERS:
        raise config.malformed("loop_num_passes", f"at most {MAX_LAYERS} layers in all passes were expected")
    order = [*range(first), *list(range(first, last)) * passes, *range(last, len(model.layers))]
    config.sources["num_layers"] = "derived: num_hidden_layers, the looped ones once for each of loop_num_passes"
    weights = [*_inkling2_weights(model, experts), *_message_weights(model, tuple(range(first, last)), rank)]
    layers = [model.layer(position, index, experts.ffn) for position, index in enumerate(order)]
    return _architecture(model, "inkling2", layers, weights)


def _loop(config: ConfigReader) -> tuple[int, int, int, int]:
    """First looped layer, the one after the last, passes, and the rank of the gates between passes."""
    names = {
        "loop_layer_index_start": "core_start",
        "loop_layer_index_end": "core_end",
        "loop_num_passes": "num_passes",
        "loop_gate_rank": "gate_rank",
    }
    nested = config.nested("loop_config")
    first, last, passes, rank = (
        nested.number(short) if nested.given(short) else config.number(name) for name, short in names.items()
    )
    return first, last, passes, rank


def _read_inkling2(config: ConfigReader) -> tuple[_Inkling, Experts]:
    return _read(config), read_experts(config, "n_routed_experts")


def _inkling2_weights(model: _Inkling, experts: Experts) -> list[WeightGroup]:
    hidden, layers, mlp = model.hidden, model.layers, f"{LAYER}.mlp"
    return [
        *_embeddings(model),
        *_inkling2_attention(model),
        *parameter(f"{mlp}.gate.weight", (experts.count, hidden), layers=layers),
        *fused_experts(f"{mlp}.experts", experts.count, hidden, experts.width, layers=layers),
        *norm(f"{LAYER}.post_attention_layernorm", hidden, layers=layers),
        *_convolutions(model, ("post_attention_convolution", "post_mlp_convolution")),
        *parameter(f"{LAYER}.mlp_input.query", (hidden,), layers=layers),
        *norm("model.norm", hidden),
        *parameter("model.final_input.query", (hidden,)),
        *head("lm_head", hidden, model.config.number("unpadded_vocab_size"), tied=False),
    ]


def _inkling2_attention(model: _Inkling) -> list[WeightGroup]:
    found: list[WeightGroup] = []
    hidden, attn = model.hidden, f"{LAYER}.self_attn"
    for name, heads, layers in model.kinds():
        wide, bias = heads.q_heads * heads.head_dim, f"{attn}.relative_position_bias"
        found += [
            *linear(f"{attn}.q_proj.linear", hidden, wide, layers=layers),
            *parameter(f"{attn}.q_proj.norm.scale", (heads.q_heads, heads.head_dim), layers=layers),
            *linear(f"{attn}.k_proj.linear", hidden, heads.rows, layers=layers),
            *linear(f"{attn}.v_proj.linear", hidden, heads.rows, layers=layers),
            *linear(f"{attn}.o_proj.gate_proj", hidden, wide, layers=layers),
            *linear(f"{attn}.o_proj.linear", wide, hidden, layers=layers),
            *linear(f"{attn}.sink_proj", hidden, heads.q_heads, layers=layers),
            *parameter(f"{bias}.proj", (model.relative, heads.extent), layers=layers),
            *linear(f"{bias}.linear", hidden, heads.q_heads * model.relative, layers=layers),
            *parameter(f"{bias}.norm.scale", (heads.q_heads, model.relative), layers=layers),
            *_inkling2_inputs(model, name, heads, layers),
        ]
    return found


def _inkling2_inputs(model: _Inkling, name: str, heads: _Heads, layers: Layers) -> list[WeightGroup]:
    """What comes before attention: one norm and fixed convolutions in sliding layers; in full ones a norm and a query
    each for queries, keys and values, and convolutions whose taps follow the token. The first layer has no query."""
    hidden, attn, later = model.hidden, f"{LAYER}.self_attn", tuple(index for index in layers if index)
    shape = (hidden,) if name == SLIDING else (3, hidden)
    found = parameter(f"{LAYER}.attention_input.query", shape, layers=later) if later else []
    if name == SLIDING:
        found += norm(f"{LAYER}.input_layernorm", hidden, layers=layers)
    else:
        found += norms([f"{LAYER}.{part}_input_layernorm" for part in "qkv"], hidden, layers=layers)
    for part in ("k_proj", "v_proj"):
        conv = f"{attn}.{part}.sconv"
        if name == SLIDING:
            found += conv1d(f"{conv}.conv1d", heads.rows, model.kernel, layers=layers)
        else:
            found += parameter(f"{conv}.static_weight", (model.kernel, heads.rows), layers=layers)
            found += linear(f"{conv}.weight_proj", hidden, heads.kv_heads * model.kernel, layers=layers)
    return found


def _message_weights(model: _Inkling, looped: Layers, rank: int) -> list[WeightGroup]:
    """Four gates in every looped layer, and a query for each of them."""
    found = parameter("model.message_input.query", (len(looped), 4, model.hidden))
    if looped:
        for part in ("q", "k", "v", "mlp"):
            gate = f"{LAYER}.{part}_message_gate"
            found += linear(f"{gate}.down_proj", 2 * model.hidden, rank, layers=looped)
            found += linear(f"{gate}.forget_gate_proj", rank, model.hidden, layers=looped)
            found += linear(f"{gate}.message_gate_proj", rank, model.hidden, layers=looped)
    return found
