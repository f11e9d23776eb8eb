"""Mixture-of-experts families with gated attention, whose layers may differ in query heads: Laguna, Beam and Step.

Facts of the classes in transformers 5.24.0.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kvscope.model.config_reader import ConfigReader
from kvscope.model.families.architecture import Architecture, typed_caches
from kvscope.model.families.dense_decoder import Decoder
from kvscope.model.families.gemma import FOUR_NORMS
from kvscope.model.families.moe import QK_NORMS
from kvscope.model.families.moe_decoder import (
    Experts,
    dense_mlp,
    layers_named_sparse,
    read_experts,
    read_moe_decoder,
    refuse_single_rotary_by_type,
    sparse_mlp,
    with_experts,
)
from kvscope.model.families.windowed_decoder import FULL, SLIDING, last_full, listed_caches, read_window
from kvscope.model.modules import attention, linear, parameter
from kvscope.model.spec import WeightGroup


def laguna(config: ConfigReader) -> Architecture:
    """Layers may differ in query heads; a gate per head (or per element); full attention unless layer_types says so."""
    decoder = read_moe_decoder(config)
    refuse_single_rotary_by_type(decoder, {FULL: 0.5})
    shared = config.number("shared_expert_intermediate_size", smallest=0)
    experts = replace(read_experts(config, "num_experts"), shared_width=shared)
    sparse = layers_named_sparse(decoder, decoder.layers[1:])
    query_heads = config.numbers("num_attention_heads_per_layer", smallest=1)
    if query_heads is None:
        query_heads = (decoder.heads.q_heads,) * decoder.num_layers
    if len(query_heads) != decoder.num_layers:
        raise config.malformed("num_attention_heads_per_layer", f"{len(query_heads)} entries, not one per layer")
    correction = (
        parameter(decoder.path("mlp.gate.e_score_correction_bias"), (experts.count,), layers=sparse) if sparse else []
    )
    model = decoder.model(
        "laguna",
        decoder.outer(),
        *_gated_attention(decoder, query_heads, per_head=_gates_heads(config)),
        decoder.head_norms(*QK_NORMS),
        dense_mlp(decoder, sparse),
        sparse_mlp(decoder, experts, sparse),
        correction,
        decoder.norms(),
        caches=listed_caches(decoder, [FULL] * decoder.num_layers),
    )
    return with_experts(_with_query_heads(model, query_heads), experts, sparse)


def beam(config: ConfigReader) -> Architecture:
    """A gate per element, with a bias per head; every sixth layer is full, and the last; three dense layers first."""
    decoder = read_moe_decoder(config)
    heads, bias = decoder.heads, config.flag("attention_bias")
    experts = read_experts(config, "num_experts")
    sparse = layers_named_sparse(decoder, decoder.layers[3:])
    gates = [
        *linear(
            decoder.path("self_attn.gate_proj"), heads.hidden, heads.q_heads * heads.head_dim, layers=decoder.layers
        ),
        *parameter(decoder.path("self_attn.gate_bias"), (heads.q_heads,), layers=decoder.layers),
    ]
    model = decoder.model(
        "beam",
        decoder.outer(),
        decoder.attention(qkv_bias=bias, out_bias=bias),
        gates,
        decoder.head_norms(*QK_NORMS),
        dense_mlp(decoder, sparse),
        sparse_mlp(decoder, experts, sparse),
        decoder.norms(FOUR_NORMS),
        caches=listed_caches(decoder, [*last_full(decoder, 6)[:-1], FULL]),
    )
    return with_experts(model, experts, sparse)


def _with_query_heads(model: Architecture, query_heads: Sequence[int]) -> Architecture:
    layers = tuple(replace(layer, num_q_heads=query_heads[layer.index]) for layer in model.layers)
    return replace(model, layers=layers)


def _gates_heads(config: ConfigReader) -> bool:
    """Whether there is one gate per head; otherwise one per element."""
    gating = config.lookup("gating")[0]
    if gating not in (True, "per-head", "per-element"):
        raise config.refuse(f"its gating is {gating!r}")
    return bool(gating != "per-element")


def _gated_attention(decoder: Decoder, query_heads: Sequence[int], *, per_head: bool) -> list[list[WeightGroup]]:
    """Attention whose layers differ in query heads, with a gate on what each head gives."""
    heads, prefix, found = decoder.heads, decoder.path("self_attn"), []
    bias = decoder.config.flag("attention_bias")
    for count in sorted(set(query_heads)):
        layers = tuple(index for index in decoder.layers if query_heads[index] == count)
        gates = count if per_head else count * heads.head_dim
        found += [
            attention(prefix, heads.hidden, count, heads.kv_heads, heads.head_dim,
                      qkv_bias=bias, out_bias=bias, layers=layers),
            linear(f"{prefix}.g_proj", heads.hidden, gates, layers=layers),
        ]  # fmt: skip
    return found


# -- Step 3.5 and 3.7 ----------------------------------------------------------------------------------------------


def step3p5(config: ConfigReader) -> Architecture:
    """Laguna with a number of query heads for sliding layers; names as if the text model stood alone."""
    decoder = read_moe_decoder(config)
    types = _step_types(config, decoder.num_layers)
    query_heads = _step_query_heads(decoder, types)
    experts = _step_experts(config)
    sparse = _step_sparse_layers(decoder)
    mlp_bias = config.flag("mlp_bias")
    window = read_window(config) if SLIDING in types else None
    model = decoder.model(
        "step3p5",
        decoder.outer(),
        *_gated_attention(decoder, query_heads, per_head=True),
        decoder.head_norms(*QK_NORMS),
        dense_mlp(decoder, sparse, bias=mlp_bias),
        sparse_mlp(decoder, experts, sparse, shared_bias=mlp_bias),
        decoder.norms(),
        caches=typed_caches(config, types, decoder.heads.full, window),
    )
    return with_experts(_with_query_heads(model, query_heads), experts, sparse)


def _step_experts(config: ConfigReader) -> Experts:
    """num_local_experts alone is overwritten by the class's default of n_routed_experts."""
    if not config.given("n_routed_experts") and not config.given("moe_num_experts"):
        config.refuse_keys("num_local_experts")
    return replace(read_experts(config, "n_routed_experts"), shared_width=config.number("share_expert_dim"))


def _without_predictors(config: ConfigReader, key: str, num_layers: int) -> Sequence[str] | None:
    """A list with an entry per layer; published ones go on with layers that predict several tokens, not loaded here."""
    listed = config.words(key)
    extra = config.optional("num_nextn_predict_layers") or 0
    if listed is not None and len(listed) not in (num_layers, num_layers + extra):
        raise config.malformed(key, f"{len(listed)} entries for {num_layers} layers")
    return None if listed is None else listed[:num_layers]


def _step_types(config: ConfigReader, num_layers: int) -> Sequence[str]:
    return _without_predictors(config, "layer_types", num_layers) or [FULL] * num_layers


def _step_sparse_layers(decoder: Decoder) -> tuple[int, ...]:
    """mlp_layer_types, or in published files moe_layers_enum ("3,4,5"); without either all but the first three."""
    config = decoder.config
    types = _without_predictors(config, "mlp_layer_types", decoder.num_layers)
    if types is not None:
        if set(types) - {"dense", "sparse"}:
            raise config.refuse("its mlp_layer_types name other layers than dense and sparse")
        return tuple(index for index in decoder.layers if types[index] == "sparse")
    stated = config.config.get("moe_layers_enum")
    if stated is None:
        return decoder.layers[3:]
    listed = stated.split(",") if isinstance(stated, str) else stated
    if not isinstance(listed, list) or not all(str(entry).strip().isdecimal() for entry in listed):
        raise config.malformed("moe_layers_enum", "layer numbers with commas between them were expected")
    chosen = {int(entry) for entry in listed}
    return tuple(index for index in decoder.layers if index in chosen)


def _step_query_heads(decoder: Decoder, types: Sequence[str]) -> list[int]:
    """Sliding layers have num_sliding_attention_heads, which saved files repeat in per_layer_config."""
    config, usual = decoder.config, decoder.heads.q_heads
    other = config.config.get("attention_other_setting") or {}
    if not isinstance(other, Mapping):
        raise config.malformed("attention_other_setting", "a JSON object was expected")
    count = config.optional("num_sliding_attention_heads", smallest=1) or other.get("num_attention_heads") or usual
    for key, own in (("num_attention_groups", decoder.heads.kv_heads), ("head_dim", decoder.heads.head_dim)):
        if other.get(key, own) != own:
            raise config.refuse(f"its attention_other_setting has another {key}")
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise config.malformed("attention_other_setting", "a number of heads was expected")
    found = [count if name == SLIDING else usual for name in types]
    if "per_layer_config" in config.config:
        found = [usual] * decoder.num_layers
        for index, fields in config.per_layer_config(decoder.num_layers).items():
            if set(fields) != {"num_attention_heads"} or not isinstance(fields["num_attention_heads"], int):
                raise config.refuse("its per_layer_config changes more than num_attention_heads")
            found[index] = fields["num_attention_heads"]
    return found
