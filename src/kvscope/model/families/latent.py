"""Families of multi-head latent attention: DeepSeek V2 and V3 and what is built like them."""

from collections.abc import Sequence
from dataclasses import replace

from kvscope.model.config_reader import MAX_LAYERS, ConfigReader
from kvscope.model.families.architecture import Architecture, attention_layers
from kvscope.model.families.mla import (
    Mla,
    Moe,
    feed_forward,
    latent_library_caches,
    mla_attention,
    mlp_layer_types,
    read_mla,
    read_moe,
)
from kvscope.model.modules import embedding, gated_mlp, head, linear, norm, norms
from kvscope.model.spec import CacheKind, DenseFfn, MoeFfn, WeightGroup


def deepseek_v2(config: ConfigReader) -> Architecture:
    """The first first_k_dense_replace layers are dense."""
    return _mixture(config, "deepseek2", leading_dense(config), mlp_bias=config.flag("mlp_bias", default=False))


def deepseek_v3(config: ConfigReader) -> Architecture:
    """DeepSeek V3, and under other names Kimi K2 and Sarvam: as V2, without biases in the experts. Modules
    for multi-token prediction are not loaded by the library and not counted."""
    return _mixture(config, "deepseek2", leading_dense(config))


def mistral4(config: ConfigReader) -> Architecture:
    """As DeepSeek V3."""
    return _mixture(config, "mistral4", leading_dense(config), router_dtype=None)


def glm4_moe_lite(config: ConfigReader) -> Architecture:
    """As DeepSeek V3; mlp_layer_types says which layers are dense, by default the first."""
    return _mixture(config, "glm4_moe_lite", mlp_layer_types(config, [i > 0 for i in range(config.num_layers())]))


def axk1(config: ConfigReader) -> Architecture:
    """As DeepSeek V3, with a norm after each mixture of experts."""
    sparse = mlp_layer_types(config, spaced_sparse(config))
    layers = tuple(index for index, is_sparse in enumerate(sparse) if is_sparse)
    extra = norm("model.layers.{}.mlp.post_mlp_layernorm", config.number("hidden_size"), layers=layers)
    found = _mixture(config, "axk1", sparse)
    assert found.weights is not None
    return replace(found, weights=(*found.weights, *(extra if layers else ())))


def youtu(config: ConfigReader) -> Architecture:
    """Latent attention and a dense feed-forward in every layer."""
    return _dense(config, "youtu", read_mla(config), mlp_bias=False)


def minicpm3(config: ConfigReader) -> Architecture:
    """As youtu; v_head_dim defaults to hidden_size / num_attention_heads."""
    hidden, q_heads = config.number("hidden_size"), config.number("num_attention_heads")
    return _dense(config, "minicpm3", read_mla(config, value_dim=hidden // q_heads), mlp_bias=config.flag("mlp_bias"))


def longcat_flash(config: ConfigReader) -> Architecture:
    """Each of num_layers blocks has two attentions (two layers of cache), two dense feed-forwards, and one mixture of
    experts beside them. zero_expert_num experts compute nothing, yet have rows in the router and in gate_up_proj."""
    blocks = _longcat_blocks(config)
    mla = read_mla(config)
    if config.optional("qk_head_dim", smallest=1) not in (None, mla.query):
        raise config.refuse("its qk_head_dim is not qk_nope_head_dim + qk_rope_head_dim")
    width = config.number("ffn_hidden_size", field="ffn.width")
    experts = Moe(
        num_experts=config.number("n_routed_experts", field="ffn.num_experts"),
        per_token=config.number("moe_topk", field="ffn.experts_per_token"),
        width=config.number("expert_ffn_hidden_size"),
        shared_width=0,
    )
    weights = _longcat_weights(config, mla, width, experts, tuple(range(blocks)))
    kinds: list[DenseFfn | MoeFfn] = [experts.ffn, DenseFfn(width=width)] * blocks
    caches = [mla.cache] * (2 * blocks)
    return assemble(config, "longcat", weights, caches, kinds, mla, latent_library_caches(config, caches))


def _longcat_blocks(config: ConfigReader) -> int:
    """num_layers; a num_hidden_layers in the file is the number of attentions, and wins in the library."""
    if not config.given("num_hidden_layers"):
        return config.num_layers("num_layers")
    attentions = config.number("num_hidden_layers", field="num_layers", smallest=2, limit=MAX_LAYERS)
    if attentions % 2 or (config.given("num_layers") and config.number("num_layers") != attentions // 2):
        raise config.refuse("num_hidden_layers is not twice num_layers")
    return attentions // 2


def _longcat_weights(
    config: ConfigReader, mla: Mla, width: int, experts: Moe, blocks: tuple[int, ...]
) -> list[WeightGroup]:
    layer, hidden = "model.layers.{}", mla.hidden
    rows = experts.num_experts + (config.optional("zero_expert_num") or 0)
    bias = config.flag("attention_bias")
    weights = [
        *linear(f"{layer}.mlp.router.classifier", hidden, rows, layers=blocks,
                bias=config.flag("router_bias", default=False)),
        WeightGroup(name=f"{layer}.mlp.experts.gate_up_proj", shape=(rows, 2 * experts.width, hidden), kind="experts",
                    layers=blocks),
        WeightGroup(name=f"{layer}.mlp.experts.down_proj", shape=(experts.num_experts, hidden, experts.width),
                    kind="experts", layers=blocks),
    ]  # fmt: skip
    for half in (0, 1):
        weights += [
            *mla_attention(f"{layer}.self_attn.{half}", mla, bias=bias, layers=blocks),
            *gated_mlp(f"{layer}.mlps.{half}", hidden, width, layers=blocks),
            *norms([f"{layer}.{name}_layernorm.{half}" for name in ("input", "post_attention")], hidden, layers=blocks),
        ]
    return weights


def leading_dense(config: ConfigReader) -> list[bool]:
    """Which layers are mixtures of experts: all but the first first_k_dense_replace."""
    dense = config.number("first_k_dense_replace", smallest=0)
    return [index >= dense for index in range(config.num_layers())]


def spaced_sparse(config: ConfigReader) -> list[bool]:
    """After first_k_dense_replace (1) dense layers, every moe_layer_freq-th (1) is a mixture of experts."""
    dense = config.optional("first_k_dense_replace")
    spacing = config.optional("moe_layer_freq", smallest=1)
    return [
        index >= (1 if dense is None else dense) and index % (spacing or 1) == 0 for index in range(config.num_layers())
    ]


def layer_norms(mla: Mla, num_layers: int, prefix: str = "model") -> list[WeightGroup]:
    """The two norms of every layer."""
    names = [f"{prefix}.layers.{{}}.{name}_layernorm" for name in ("input", "post_attention")]
    return norms(names, mla.hidden, layers=tuple(range(num_layers)))


def assemble(
    config: ConfigReader,
    family: str,
    weights: Sequence[WeightGroup],
    caches: Sequence[CacheKind],
    ffn: Sequence[DenseFfn | MoeFfn],
    mla: Mla,
    library: Sequence[CacheKind | None] | None = None,
    *,
    prefix: str = "model",
    ties: bool = True,
) -> Architecture:
    """The model around its layers' ``weights``: embeddings, last norm, head. ``ties`` False: the class never ties."""
    vocab = config.number("vocab_size")
    tied = ties and config.flag("tie_word_embeddings", default=False)
    around = [
        *embedding(f"{prefix}.embed_tokens", vocab, mla.hidden),
        *norm(f"{prefix}.norm", mla.hidden),
        *head("lm_head", mla.hidden, vocab, tied=tied),
    ]
    fields = ("latent_dim", "rope_dim", "index_dim")
    return Architecture(
        family=family,
        layers=attention_layers(caches, mla.q_heads, ffn, library),
        weights=(*weights, *around),
        vocab_size=vocab,
        hidden_size=mla.hidden,
        trained_context_tokens=config.optional("max_position_embeddings", field="trained_context_tokens"),
        is_tied=tied,
        layer_sources={field: config.sources[field] for field in fields if field in config.sources},
    )


def _mixture(
    config: ConfigReader,
    family: str,
    sparse: Sequence[bool],
    *,
    mlp_bias: bool = False,
    router_dtype: str | None = "float32",
) -> Architecture:
    mla = read_mla(config)
    layers = tuple(range(len(sparse)))
    width = config.number("intermediate_size", field="ffn.width")
    experts = replace(read_moe(config), router_dtype=router_dtype)
    ffn_weights, ffn = feed_forward("model.layers.{}.mlp", mla.hidden, width, experts, sparse, bias=mlp_bias)
    bias = config.flag("attention_bias", default=False)
    weights = [
        *mla_attention("model.layers.{}.self_attn", mla, bias=bias, layers=layers),
        *ffn_weights,
        *layer_norms(mla, len(layers)),
    ]
    caches = [mla.cache] * len(layers)
    return assemble(config, family, weights, caches, ffn, mla, latent_library_caches(config, caches))


def _dense(config: ConfigReader, family: str, mla: Mla, *, mlp_bias: bool) -> Architecture:
    layers = tuple(range(config.num_layers()))
    width = config.number("intermediate_size", field="ffn.width")
    weights = [
        *mla_attention("model.layers.{}.self_attn", mla, bias=config.flag("attention_bias"), layers=layers),
        *gated_mlp("model.layers.{}.mlp", mla.hidden, width, bias=mlp_bias, layers=layers),
        *layer_norms(mla, len(layers)),
    ]
    caches = [mla.cache] * len(layers)
    ffn = [DenseFfn(width=width)] * len(layers)
    return assemble(config, family, weights, caches, ffn, mla, latent_library_caches(config, caches))


READERS = {"kimi_k2": deepseek_v3, "sarvam_mla": deepseek_v3}
