"""Kimi delta attention beside latent attention: Kimi Linear and Ling 3 (bailing_hybrid).

Facts of transformers 5.24.0's classes, which tie no weights whatever tie_word_embeddings says.
"""

from collections.abc import Sequence

from kvscope.model.config_reader import ConfigReader, every
from kvscope.model.families.architecture import Architecture
from kvscope.model.families.hybrid_layers import (
    FULL,
    LINEAR,
    build_layers,
    stated_types,
    which,
)
from kvscope.model.families.mla import Mla, Moe, feed_forward, mla_attention, mlp_layer_types, read_mla
from kvscope.model.families.recurrent_mixers import Kda
from kvscope.model.modules import Layers, conv1d, embedding, head, linear, norm, norms, parameter
from kvscope.model.spec import WeightGroup

KIMI_PERIOD = 4  # KimiLinearConfig: layers 4, 8, 12, … are latent where neither list nor layer_types says


def kimi_linear(config: ConfigReader) -> Architecture:
    """Published files keep the delta layers' numbers in linear_attn_config, counting layers from 1."""
    num_layers = config.num_layers()
    if config.given("moe_layer_freq") and config.number("moe_layer_freq") != 1:
        raise config.refuse("its moe_layer_freq is not 1")
    nested = config.nested("linear_attn_config", "")
    mla = read_mla(config)
    kda = Kda(
        hidden=mla.hidden,
        heads=_either(config, nested, "num_heads", "linear_num_heads"),
        dim=_either(config, nested, "head_dim", "linear_head_dim"),
        kernel=_either(config, nested, "short_conv_kernel_size", "linear_conv_kernel_dim"),
    )
    types = stated_types(config, num_layers) or _kimi_types(config, nested, num_layers)
    first_dense = config.number("first_k_dense_replace", smallest=0) if config.given("first_k_dense_replace") else 1
    prefix, delta = "model.layers.{}.self_attn", which(types, LINEAR)
    weights = [
        *_delta(prefix, kda, delta, decay_shape=(1, 1, kda.heads, 1)),
        *(linear(f"{prefix}.forget_gate.f_a_proj", kda.hidden, kda.dim, layers=delta) if delta else ()),
        *(linear(f"{prefix}.forget_gate.f_b_proj", kda.dim, kda.width, layers=delta) if delta else ()),
        *(linear(f"{prefix}.g_a_proj", kda.hidden, kda.dim, layers=delta) if delta else ()),
        *(linear(f"{prefix}.g_b_proj", kda.dim, kda.width, layers=delta) if delta else ()),
    ]
    return _model(config, "kimi_linear", types, mla, kda, weights, first_dense)


def _either(config: ConfigReader, nested: ConfigReader, inside: str, outside: str) -> int:
    return nested.number(inside) if nested.given(inside) else config.number(outside)


def _kimi_types(config: ConfigReader, nested: ConfigReader, num_layers: int) -> tuple[str, ...]:
    full, delta = nested.numbers("full_attn_layers", smallest=1), nested.numbers("kda_layers", smallest=1)
    if full is None or delta is None:
        config.sources["layer_types"] = config.defaults.source
        return tuple(FULL if index and index % KIMI_PERIOD == 0 else LINEAR for index in range(num_layers))
    if sorted((*full, *delta)) != list(range(1, num_layers + 1)):
        raise nested.malformed("full_attn_layers", f"with kda_layers, not every layer from 1 to {num_layers} once")
    config.sources["layer_types"] = nested.sources["full_attn_layers"]
    return tuple(FULL if number in full else LINEAR for number in range(1, num_layers + 1))


def bailing_hybrid(config: ConfigReader) -> Architecture:
    """The last layer of every layer_group_size is latent. Saved files hold head_dim as the latent layers' rotary width
    and the delta layers' own as linear_head_dim."""
    num_layers = config.num_layers()
    mla = read_mla(config)
    kda = Kda(
        hidden=mla.hidden,
        heads=config.number_or("linear_num_heads", mla.q_heads, "num_attention_heads"),
        dim=config.number("linear_head_dim" if config.given("linear_head_dim") else "head_dim"),
        kernel=config.number(
            "linear_conv_kernel_dim" if config.given("linear_conv_kernel_dim") else "short_conv_kernel_size"
        ),
    )
    types = stated_types(config, num_layers)
    if types is None:
        types = tuple(every(config.number("layer_group_size"), num_layers, inside=LINEAR, last=FULL))
        config.sources["layer_types"] = "derived: layer_group_size"
    prefix, delta, latent = "model.layers.{}.self_attn", which(types, LINEAR), which(types, FULL)
    weights = _delta(prefix, kda, delta, decay_shape=(kda.heads,))
    if delta:
        weights += linear(f"{prefix}.forget_gate.f_proj", kda.hidden, kda.width, layers=delta)
        weights += linear(f"{prefix}.g_proj", kda.hidden, kda.width, layers=delta)
    if latent:
        weights += linear(f"{prefix}.g_proj", mla.hidden, mla.q_heads, layers=latent)
    first_dense = config.number("first_k_dense_replace", smallest=0)
    return _model(config, "bailing_hybrid", types, mla, kda, weights, first_dense)


def _delta(prefix: str, kda: Kda, layers: Layers, *, decay_shape: tuple[int, ...]) -> list[WeightGroup]:
    """What both families' delta layers hold; their gates differ, and how A_log is shaped."""
    if not layers:
        return []
    return [
        *(
            group
            for name in ("q_proj", "k_proj", "v_proj")
            for group in linear(f"{prefix}.{name}", kda.hidden, kda.width, layers=layers)
        ),
        *conv1d(f"{prefix}.conv1d", 3 * kda.width, kda.kernel, layers=layers),
        *parameter(f"{prefix}.forget_gate.A_log", decay_shape, layers=layers),
        *parameter(f"{prefix}.forget_gate.dt_bias", (kda.width,), layers=layers),
        *linear(f"{prefix}.b_proj", kda.hidden, kda.heads, layers=layers),
        *norm(f"{prefix}.o_norm", kda.dim, layers=layers),
        *linear(f"{prefix}.o_proj", kda.width, kda.hidden, layers=layers),
    ]


def _model(
    config: ConfigReader,
    family: str,
    types: Sequence[str],
    mla: Mla,
    kda: Kda,
    weights: list[WeightGroup],
    first_dense: int,
) -> Architecture:
    num_layers, vocab = len(types), config.number("vocab_size")
    layer = "model.layers.{}"
    if latent := which(types, FULL):
        bias = config.flag("attention_bias")
        weights = [*weights, *mla_attention(f"{layer}.self_attn", mla, bias=bias, layers=latent)]
    width = config.number("moe_intermediate_size")
    moe = Moe(
        num_experts=config.number("num_local_experts", "num_experts"),
        per_token=config.number("num_experts_per_tok", "num_experts_per_token"),
        width=width,
        shared_width=width * config.number("n_shared_experts", "num_shared_experts", smallest=0),
    )
    sparse = mlp_layer_types(config, [index >= first_dense for index in range(num_layers)])
    dense_width = config.number("intermediate_size", field="ffn.width")
    ffn_weights, ffns = feed_forward(f"{layer}.mlp", mla.hidden, dense_width, moe, sparse)
    names = [f"{layer}.{name}_layernorm" for name in ("input", "post_attention")]
    return Architecture(
        family=family,
        layers=build_layers(config, types, {LINEAR: kda.cache, FULL: mla.cache}, mla.q_heads, ffns),
        weights=(
            *embedding("model.embed_tokens", vocab, mla.hidden),
            *weights,
            *ffn_weights,
            *norms(names, mla.hidden, layers=tuple(range(num_layers))),
            *norm("model.norm", mla.hidden),
            *head("lm_head", mla.hidden, vocab, tied=False),
        ),
        vocab_size=vocab,
        hidden_size=mla.hidden,
        trained_context_tokens=config.optional(
            "max_position_embeddings", "model_max_length", field="trained_context_tokens"
        ),
        is_tied=False,
    )
