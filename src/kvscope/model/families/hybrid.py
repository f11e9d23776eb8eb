"""Mamba beside attention: Jamba, Bamba, Falcon-H1, Granite 4 (hybrid) and Nemotron-H.

Facts of transformers 5.24.0's classes. Their ``head_dim`` is no declared field but wins where it is given.
"""

from collections.abc import Sequence

from kvscope.model.config_reader import MAX_LAYERS, ConfigReader
from kvscope.model.families.architecture import Architecture, read_heads
from kvscope.model.families.hybrid_layers import (
    FULL,
    HYBRID,
    LINEAR,
    Ffn,
    attention_weights,
    build_layers,
    only_derived,
    stated_types,
    trained_context,
    which,
)
from kvscope.model.families.recurrent_mixers import (
    Mamba,
    Mamba2,
    check_mamba2,
    mamba2_mixer,
    mamba_mixer,
    stated_dtype,
    time_step_rank,
)
from kvscope.model.modules import embedding, fused_experts, gated_mlp, head, linear, norm, norms, parameter
from kvscope.model.spec import CacheKind, DenseFfn, HybridCache, MoeFfn, NoCache, WeightGroup


def jamba(config: ConfigReader) -> Architecture:
    """One attention layer in every attn_layer_period, Mamba 1 elsewhere; experts in one of expert_layer_period."""
    num_layers = config.num_layers()
    heads = read_heads(config)
    periodic = _periodic(config, num_layers, "attn_layer", FULL, LINEAR)
    types = only_derived(config, periodic, "attn_layer_period and attn_layer_offset")
    mixer = Mamba(
        hidden=heads.hidden,
        inner=config.number("mamba_expand") * heads.hidden,
        state=config.number("mamba_d_state"),
        kernel=config.number("mamba_d_conv"),
        rank=time_step_rank(config, "mamba_dt_rank", heads.hidden),
        conv_bias=config.flag("mamba_conv_bias"),
        proj_bias=config.flag("mamba_proj_bias"),
    )
    layer = "model.layers.{}"
    mamba_layers = which(types, LINEAR)
    ffn_weights, ffns = _jamba_ffn(config, f"{layer}.feed_forward", heads.hidden, num_layers)
    weights = [
        *mamba_mixer(f"{layer}.mamba", mixer, layers=mamba_layers),
        *attention_weights(f"{layer}.self_attn", heads, layers=which(types, FULL)),
        *ffn_weights,
    ]
    if mamba_layers:
        weights += norm(f"{layer}.mamba.dt_layernorm", mixer.rank, layers=mamba_layers)
        weights += norms([f"{layer}.mamba.{n}_layernorm" for n in "bc"], mixer.state, layers=mamba_layers)
    caches: dict[str, CacheKind] = {LINEAR: mixer.cache, FULL: heads.full}
    names = ("input_layernorm", "pre_ff_layernorm")
    return _model(config, "jamba", types, caches, heads.q_heads, ffns, weights, names)


def _periodic(config: ConfigReader, num_layers: int, key: str, chosen: str, other: str) -> list[str]:
    period, offset = config.number(f"{key}_period"), config.number(f"{key}_offset", smallest=0)
    if offset >= period:
        raise config.malformed(f"{key}_offset", f"an offset below {key}_period, which is {period}, was expected")
    return [chosen if index % period == offset else other for index in range(num_layers)]


def _jamba_ffn(config: ConfigReader, prefix: str, hidden: int, num_layers: int) -> tuple[list[WeightGroup], list[Ffn]]:
    width = config.number("intermediate_size", field="ffn.width")
    num_experts = config.number("num_experts")
    kinds = _periodic(config, num_layers, "expert_layer", "moe", "mlp")
    if num_experts == 1:
        kinds = ["mlp"] * num_layers
    weights: list[WeightGroup] = []
    if dense := which(kinds, "mlp"):
        weights += gated_mlp(prefix, hidden, width, layers=dense)
    if sparse := which(kinds, "moe"):
        weights += parameter(f"{prefix}.router.weight", (num_experts, hidden), layers=sparse)
        weights += fused_experts(f"{prefix}.experts", num_experts, hidden, width, layers=sparse)
    moe = MoeFfn(num_experts=num_experts, experts_per_token=config.number("num_experts_per_tok"), width=width)
    return weights, [moe if kind == "moe" else DenseFfn(width=width) for kind in kinds]


def bamba(config: ConfigReader) -> Architecture:
    """Mamba 2 except in attn_layer_indices."""
    num_layers = config.num_layers()
    heads = read_heads(config)
    indices = config.numbers("attn_layer_indices") or ()
    chosen = [FULL if index in indices else LINEAR for index in range(num_layers)]
    types = only_derived(config, chosen, "attn_layer_indices")
    mixer = read_mamba2(config, heads.hidden, config.number("mamba_expand") * heads.hidden)
    width = config.number("intermediate_size", field="ffn.width")
    every = tuple(range(num_layers))
    layer = "model.layers.{}"
    weights = [
        *mamba2_mixer(f"{layer}.mamba", mixer, layers=which(types, LINEAR)),
        *attention_weights(f"{layer}.self_attn", heads, bias=config.flag("attention_bias"), layers=which(types, FULL)),
        *gated_mlp(f"{layer}.feed_forward", heads.hidden, width, bias=config.flag("mlp_bias"), layers=every),
    ]
    caches: dict[str, CacheKind] = {LINEAR: mixer.cache, FULL: heads.full}
    names = ("input_layernorm", "pre_ff_layernorm")
    return _model(config, "bamba", types, caches, heads.q_heads, DenseFfn(width=width), weights, names)


def read_mamba2(
    config: ConfigReader, hidden: int, inner: int, *, out_bias: bool | None = None, has_norm: bool = True
) -> Mamba2:
    """mamba_n_heads, mamba_d_head ("auto": inner / heads), mamba_n_groups, mamba_d_state, mamba_d_conv."""
    heads = config.number("mamba_n_heads")
    head_dim = inner // heads
    if config.lookup("mamba_d_head")[0] != "auto":
        head_dim = config.number("mamba_d_head")
    bias = config.flag("mamba_proj_bias")
    mixer = Mamba2(
        hidden=hidden,
        inner=inner,
        heads=heads,
        head_dim=head_dim,
        groups=config.number("mamba_n_groups"),
        state=config.number("mamba_d_state"),
        kernel=config.number("mamba_d_conv"),
        conv_bias=config.flag("mamba_conv_bias"),
        in_bias=bias,
        out_bias=bias if out_bias is None else out_bias,
        has_norm=has_norm,
    )
    return check_mamba2(config, mixer, "mamba_n_heads")


def falcon_h1(config: ConfigReader) -> Architecture:
    """Attention and Mamba 2 side by side in every layer."""
    num_layers = config.num_layers()
    heads = read_heads(config)
    types = only_derived(config, (HYBRID,) * num_layers, "every falcon_h1 model")
    expanded = config.number("mamba_expand") * heads.hidden
    mixer = read_mamba2(
        config,
        heads.hidden,
        config.number_or("mamba_d_ssm", expanded, "mamba_expand × hidden_size"),
        out_bias=config.flag("projectors_bias"),
        has_norm=config.flag("mamba_rms_norm"),
    )
    width = config.number("intermediate_size", field="ffn.width")
    every = tuple(range(num_layers))
    layer = "model.layers.{}"
    weights = [
        *mamba2_mixer(f"{layer}.mamba", mixer, layers=every),
        *attention_weights(f"{layer}.self_attn", heads, bias=config.flag("attention_bias"), layers=every),
        *gated_mlp(f"{layer}.feed_forward", heads.hidden, width, bias=config.flag("mlp_bias"), layers=every),
    ]
    caches: dict[str, CacheKind] = {HYBRID: HybridCache(attention=heads.full, recurrent=mixer.cache)}
    names = ("input_layernorm", "pre_ff_layernorm")
    return _model(config, "falcon_h1", types, caches, heads.q_heads, DenseFfn(width=width), weights, names)


def granitemoehybrid(config: ConfigReader) -> Architecture:
    """Granite 4: Mamba 2 and attention by layer_types; in every layer a shared MLP, and experts if there are any."""
    num_layers = config.num_layers()
    heads = read_heads(config)
    types = stated_types(config, num_layers) or (LINEAR,) * num_layers
    mixer = read_mamba2(config, heads.hidden, config.number("mamba_expand") * heads.hidden)
    every = tuple(range(num_layers))
    layer = "model.layers.{}"
    shared = config.number("shared_intermediate_size", smallest=0)
    num_experts = config.number("num_local_experts", smallest=0)
    weights = [
        *mamba2_mixer(f"{layer}.mamba", mixer, layers=which(types, LINEAR)),
        *attention_weights(f"{layer}.self_attn", heads, bias=config.flag("attention_bias"), layers=which(types, FULL)),
        *linear(f"{layer}.shared_mlp.input_linear", heads.hidden, 2 * shared, layers=every),
        *linear(f"{layer}.shared_mlp.output_linear", shared, heads.hidden, layers=every),
    ]
    ffn: Ffn = DenseFfn(width=shared)
    config.sources["ffn.width"] = config.sources["shared_intermediate_size"]
    width = config.number("intermediate_size")
    if num_experts:
        config.sources["ffn.width"] = config.sources["intermediate_size"]
        per_token = config.number("num_experts_per_tok")
        ffn = MoeFfn(num_experts=num_experts, experts_per_token=per_token, width=width, shared_width=shared)
        block = f"{layer}.block_sparse_moe"
        weights += parameter(f"{block}.router.weight", (num_experts, heads.hidden), layers=every)
        weights += fused_experts(f"{block}.experts", num_experts, heads.hidden, width, layers=every)
    caches: dict[str, CacheKind] = {LINEAR: mixer.cache, FULL: heads.full}
    names = ("input_layernorm", "post_attention_layernorm")
    return _model(config, "granitemoehybrid", types, caches, heads.q_heads, ffn, weights, names, "model.norm")


def _model(
    config: ConfigReader,
    family: str,
    types: Sequence[str],
    caches: dict[str, CacheKind],
    q_heads: int,
    ffns: Ffn | Sequence[Ffn],
    layer_weights: list[WeightGroup],
    layer_norms: tuple[str, ...],
    last_norm: str = "model.final_layernorm",
) -> Architecture:
    """Embedding, the layers with their norms, a last norm and the head."""
    hidden, vocab = config.number("hidden_size"), config.number("vocab_size")
    tied = config.flag("tie_word_embeddings")
    every = tuple(range(len(types)))
    weights = [
        *embedding("model.embed_tokens", vocab, hidden),
        *layer_weights,
        *norms([f"model.layers.{{}}.{name}" for name in layer_norms], hidden, layers=every),
        *norm(last_norm, hidden),
        *head("lm_head", hidden, vocab, tied=tied),
    ]
    return Architecture(
        family=family,
        layers=build_layers(config, types, caches, q_heads, ffns),
        weights=tuple(weights),
        vocab_size=vocab,
        hidden_size=hidden,
        trained_context_tokens=trained_context(config),
        is_tied=tied,
    )


PATTERN = {"M": LINEAR, "E": "moe", "*": FULL, "-": "mlp"}  # NemotronHConfig's hybrid_override_pattern


def nemotron_h(config: ConfigReader) -> Architecture:
    """Nemotron-H: a layer is a Mamba 2 mixer, attention, an MLP or experts, and only the first two keep anything."""
    types = _nemotron_types(config)
    heads = read_heads(config)
    if config.given("attention_head_dim") and config.number("attention_head_dim") != heads.head_dim:
        # Files older than the library's own class call it so; the library itself does not read it.
        raise config.refuse(f"its attention_head_dim is not the head_dim of {heads.head_dim}")
    mixer = _nemotron_mamba(config, heads.hidden)
    ffn_weights, ffn_of = _nemotron_ffn(config, types, heads.hidden)
    layer = "model.layers.{}"
    vocab = config.number("vocab_size")
    weights = [
        *embedding("model.embeddings", vocab, heads.hidden),
        *norm(f"{layer}.norm", heads.hidden, layers=tuple(range(len(types)))),
        *mamba2_mixer(f"{layer}.mixer", mixer, layers=which(types, LINEAR)),
        *attention_weights(f"{layer}.mixer", heads, layers=which(types, FULL)),  # attention_bias is ignored
        *ffn_weights,
        *norm("model.norm_f", heads.hidden),
        *head("lm_head", heads.hidden, vocab, tied=False),  # the class ties nothing
    ]
    caches: dict[str, CacheKind] = {LINEAR: mixer.cache, FULL: heads.full, "moe": NoCache(), "mlp": NoCache()}
    return Architecture(
        family="nemotron_h",
        layers=build_layers(config, types, caches, heads.q_heads, [ffn_of.get(name) for name in types]),
        weights=tuple(weights),
        vocab_size=vocab,
        hidden_size=heads.hidden,
        trained_context_tokens=trained_context(config),
        is_tied=False,
    )


def _nemotron_types(config: ConfigReader) -> tuple[str, ...]:
    """layers_block_type, else hybrid_override_pattern, else the class's four layers; num_hidden_layers is ignored."""
    config.optional("num_hidden_layers", smallest=1)
    for key in ("layers_block_type", "layer_types"):
        stated = config.words(key)
        if stated is not None:
            return stated_types(config, len(stated), key) or ()
    pattern = config.word("hybrid_override_pattern")
    if pattern is None:
        config.sources["layer_types"] = "derived: NemotronHConfig's four layers where no pattern is given"
        return (LINEAR, "moe", FULL, "mlp")
    if not 0 < len(pattern) <= MAX_LAYERS or not set(pattern) <= set(PATTERN):
        raise config.malformed("hybrid_override_pattern", f"a text of {' '.join(PATTERN)} was expected")
    config.sources["layer_types"] = config.sources["hybrid_override_pattern"]
    return tuple(PATTERN[letter] for letter in pattern)


def _nemotron_mamba(config: ConfigReader, hidden: int) -> Mamba2:
    heads, head_dim = config.number("mamba_num_heads"), config.number("mamba_head_dim")
    bias = config.flag("use_bias")
    # Old names win over the present ones in NemotronHConfig.
    conv_bias = "mamba_conv_bias" if config.given("mamba_conv_bias") else "use_conv_bias"
    return Mamba2(
        hidden=hidden,
        inner=heads * head_dim,
        heads=heads,
        head_dim=head_dim,
        groups=config.number("mamba_n_groups" if config.given("mamba_n_groups") else "n_groups"),
        state=config.number("ssm_state_size"),
        kernel=config.number("mamba_d_conv" if config.given("mamba_d_conv") else "conv_kernel"),
        conv_bias=config.flag(conv_bias),
        in_bias=bias,
        out_bias=bias,
        state_dtype=stated_dtype(config, "mamba_ssm_cache_dtype"),
    )


def _nemotron_ffn(config: ConfigReader, types: Sequence[str], hidden: int) -> tuple[list[WeightGroup], dict[str, Ffn]]:
    """Two matrices without a gate, in MLPs and experts alike; moe_latent_size: experts work in a narrower width."""
    prefix, bias = "model.layers.{}.mixer", config.flag("mlp_bias")
    weights: list[WeightGroup] = []
    kinds: dict[str, Ffn] = {}
    if layers := which(types, "mlp"):
        width = config.number("intermediate_size", field="ffn.width")
        weights += linear(f"{prefix}.up_proj", hidden, width, bias=bias, layers=layers)
        weights += linear(f"{prefix}.down_proj", width, hidden, bias=bias, layers=layers)
        kinds["mlp"] = DenseFfn(width=width)
    if layers := which(types, "moe"):
        num_experts, width = config.number("n_routed_experts"), config.number("moe_intermediate_size")
        shared = config.number("moe_shared_expert_intermediate_size")
        latent = config.optional("moe_latent_size", smallest=1)
        weights += parameter(f"{prefix}.gate.weight", (num_experts, hidden), layers=layers)
        weights += fused_experts(f"{prefix}.experts", num_experts, latent or hidden, width, gated=False, layers=layers)
        weights += linear(f"{prefix}.shared_experts.up_proj", hidden, shared, bias=bias, layers=layers)
        weights += linear(f"{prefix}.shared_experts.down_proj", shared, hidden, bias=bias, layers=layers)
        if latent is not None:
            weights += linear(f"{prefix}.fc1_latent_proj", hidden, latent, bias=bias, layers=layers)
            weights += linear(f"{prefix}.fc2_latent_proj", latent, hidden, bias=bias, layers=layers)
        per_token = config.number("num_experts_per_tok")
        kinds["moe"] = MoeFfn(num_experts=num_experts, experts_per_token=per_token, width=width, shared_width=shared)
    return weights, kinds
