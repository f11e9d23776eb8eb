"""What mixture-of-experts decoders share: which layers have experts, and the tensors of router, routed and shared
experts. Every expert is held in memory, however few compute."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kvscope.model.config_reader import ConfigReader
from kvscope.model.families.architecture import Architecture, read_heads
from kvscope.model.families.dense_decoder import Decoder
from kvscope.model.modules import fused_experts, gated_mlp, linear, parameter
from kvscope.model.spec import DenseFfn, MoeFfn, WeightGroup

Layers = tuple[int, ...]


def read_moe_decoder(
    config: ConfigReader, *, width_key: str = "intermediate_size", rounds_down: bool = True
) -> Decoder:
    """The usual keys. ``width_key``: the width of the dense feed-forwards, or of the experts where there are no others.
    ``rounds_down``: the class takes heads that do not divide hidden_size (Glm4MoeConfig's own defaults do not)."""
    return Decoder(
        config=config,
        num_layers=config.num_layers(),
        heads=read_heads(config, rounds_down=rounds_down),
        width=config.number(width_key, field="ffn.width"),
        vocab=config.number("vocab_size"),
        tied=config.flag("tie_word_embeddings"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The experts of one layer: ``count`` routed ones of ``width``, of which ``per_token`` compute, and shared ones of
    ``shared_width`` together (0: none) in the module ``shared``."""

    count: int
    per_token: int
    width: int
    shared_width: int = 0
    shared: str = "shared_experts"

    @property
    def ffn(self) -> MoeFfn:
        return MoeFfn(
            num_experts=self.count,
            experts_per_token=self.per_token,
            width=self.width,
            shared_width=self.shared_width,
        )


def read_experts(
    config: ConfigReader,
    count: str,
    *,
    per_token: str = "num_experts_per_tok",
    width: str = "moe_intermediate_size",
    shared_count: str | None = None,
    shared: str = "shared_experts",
) -> Experts:
    """Experts from the keys named. ``shared_count``: key of how many shared experts there are, each as wide as one
    routed expert."""
    expert_width = config.number(width, field="ffn.width")
    number = config.number(shared_count, smallest=0) if shared_count else 0
    return Experts(
        count=config.number(count, "num_experts", "num_local_experts", field="ffn.num_experts"),
        per_token=config.number(per_token, field="ffn.experts_per_token"),
        width=expert_width,
        shared_width=number * expert_width,
        shared=shared,
    )


# -- which layers have experts -----------------------------------------------------------------------------------------


def layers_from(decoder: Decoder, key: str = "first_k_dense_replace") -> Layers:
    """All but the first ``key`` layers."""
    return decoder.layers[decoder.config.number(key, smallest=0) :]


def layers_named_sparse(decoder: Decoder, otherwise: Sequence[int]) -> Layers:
    """The layers that mlp_layer_types calls "sparse"; ``otherwise``: those of the class where it is not given."""
    config = decoder.config
    types = config.words("mlp_layer_types")
    if types is None:
        return tuple(otherwise)
    if len(types) != decoder.num_layers:
        raise config.malformed("mlp_layer_types", f"{len(types)} entries for {decoder.num_layers} layers")
    for name in types:
        if name not in ("dense", "sparse"):
            raise config.refuse(f"its mlp_layer_types name a layer {name!r}")
    return tuple(index for index, name in enumerate(types) if name == "sparse")


def layers_stepped(decoder: Decoder, dense: Sequence[int] = ()) -> Layers:
    """Qwen's rule: every decoder_sparse_step-th layer, save those in mlp_only_layers (``dense`` where not given)."""
    step = decoder.config.number("decoder_sparse_step")
    stated = decoder.config.numbers("mlp_only_layers")
    kept_dense = set(dense if stated is None else stated)
    return tuple(index for index in decoder.layers if (index + 1) % step == 0 and index not in kept_dense)


def refuse_single_rotary_by_type(decoder: Decoder, defaults: Mapping[str, float]) -> None:
    """As refuse_single_rotary, where rope_parameters differ by kind of layer. ``defaults``: without any."""
    stated = decoder.config.config.get("rope_parameters")
    for name, default in defaults.items():
        if stated is None:
            factor: object = default
        else:
            rope = stated.get(name) if isinstance(stated, Mapping) else None
            factor = rope.get("partial_rotary_factor", 1.0) if isinstance(rope, Mapping) else 1.0
        if not isinstance(factor, int | float) or not 0 <= factor <= 1:
            raise decoder.config.malformed("rope_parameters", "a partial_rotary_factor from 0 to 1 was expected")
        if int(decoder.heads.head_dim * factor) == 1:
            raise decoder.config.refuse("its rotary embedding covers one element of a head")


# -- tensors -----------------------------------------------------------------------------------------------------------


def expert_tensors(
    prefix: str, experts: Experts, hidden: int, layers: Layers, *, transposed: bool = False, biased: bool = False
) -> list[WeightGroup]:
    """All routed experts of a layer as two tensors. ``transposed``: [experts, in, out], not [experts, out, in]."""
    count, width = experts.count, experts.width
    if transposed:
        shapes = {"gate_up_proj": (count, hidden, 2 * width), "down_proj": (count, width, hidden)}
        found = [
            WeightGroup(name=f"{prefix}.{name}", shape=shape, kind="experts", layers=layers)
            for name, shape in shapes.items()
        ]
    else:
        found = fused_experts(prefix, count, hidden, width, layers=layers)
    if biased:
        for name, outputs in (("gate_up_proj_bias", 2 * width), ("down_proj_bias", hidden)):
            found.append(WeightGroup(name=f"{prefix}.{name}", shape=(count, outputs), kind="other", layers=layers))
    return found


def sparse_mlp(
    decoder: Decoder,
    experts: Experts,
    layers: Layers,
    *,
    module: str = "mlp",
    router: str = "gate",
    router_bias: bool = False,
    is_router_linear: bool = False,
    shared_bias: bool = False,
    transposed: bool = False,
    biased: bool = False,
) -> list[WeightGroup]:
    """Router, routed experts and shared experts of these layers. ``is_router_linear``: the router is a linear layer,
    which quantisers replace; most classes of transformers 5.24.0 hold its matrix themselves."""
    if not layers:
        return []
    hidden, prefix = decoder.heads.hidden, decoder.path(module)
    path = f"{prefix}.{router}"
    if is_router_linear:
        found = linear(path, hidden, experts.count, bias=router_bias, layers=layers)
    else:
        found = parameter(f"{path}.weight", (experts.count, hidden), layers=layers)
        found += parameter(f"{path}.bias", (experts.count,), layers=layers) if router_bias else []
    found += expert_tensors(f"{prefix}.experts", experts, hidden, layers, transposed=transposed, biased=biased)
    if experts.shared_width:
        found += gated_mlp(f"{prefix}.{experts.shared}", hidden, experts.shared_width, bias=shared_bias, layers=layers)
    return found


def dense_mlp(
    decoder: Decoder, sparse: Layers, *, width: int | None = None, bias: bool = False, module: str = "mlp"
) -> list[WeightGroup]:
    """The feed-forward of the layers that have no experts."""
    layers = tuple(index for index in decoder.layers if index not in sparse)
    if not layers:
        return []
    return gated_mlp(decoder.path(module), decoder.heads.hidden, width or decoder.width, bias=bias, layers=layers)


def with_experts(
    model: Architecture, experts: Experts, sparse: Layers | None = None, dense_width: int | None = None
) -> Architecture:
    """The model with experts in these layers (None: all), and dense feed-forwards of ``dense_width`` in the others."""
    layers = []
    for layer in model.layers:
        if sparse is None or layer.index in sparse:
            layers.append(replace(layer, ffn=experts.ffn))
        else:
            layers.append(layer if dense_width is None else replace(layer, ffn=DenseFfn(width=dense_width)))
    return replace(model, layers=tuple(layers))
