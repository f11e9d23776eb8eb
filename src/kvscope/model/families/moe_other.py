"""Mixture-of-experts families whose modules are their own: Aria, DBRX, JetMoE. Facts of transformers 5.24.0."""

from dataclasses import replace

from kvscope.model.config_reader import ConfigReader
from kvscope.model.families.architecture import (
    Architecture,
    Heads,
    attention_layers,
    library_caches,
    read_context,
)
from kvscope.model.families.dense_decoder import Decoder
from kvscope.model.families.moe_decoder import read_experts, read_moe_decoder, sparse_mlp, with_experts
from kvscope.model.modules import embedding, head, linear, norm, norms, parameter
from kvscope.model.spec import MoeFfn, WeightGroup


def aria_text(config: ConfigReader) -> Architecture:
    """Llama with experts; the expert matrices are [experts, in, out], the shared experts may have biases."""
    decoder = read_moe_decoder(config, rounds_down=False)
    experts = read_experts(
        config,
        "moe_num_experts",
        per_token="moe_topk",
        width="intermediate_size",
        shared_count="moe_num_shared_experts",
    )
    bias = config.flag("attention_bias")
    mlp = sparse_mlp(
        decoder, experts, decoder.layers, router="router", transposed=True, shared_bias=config.flag("mlp_bias")
    )
    model = decoder.model(
        "aria",
        decoder.outer(),
        decoder.attention(qkv_bias=bias, out_bias=bias),
        mlp,
        decoder.norms(),
    )
    return with_experts(model, experts)


def dbrx(config: ConfigReader) -> Architecture:
    """Fused queries, keys and values; experts as three matrices of all experts stacked; head_dim is not read."""
    config.refuse_keys("tie_word_embeddings")
    if not config.given("d_model"):
        config.refuse_keys("hidden_size")  # its experts keep the default width then
    num_layers = config.num_layers("n_layers")
    hidden, q_heads = config.number("d_model", field="hidden_size"), config.number("n_heads", field="num_q_heads")
    if hidden % q_heads or hidden == q_heads:
        raise config.malformed("d_model", f"{q_heads} heads do not divide a width of {hidden}")
    vocab = config.number("vocab_size")
    attn = config.nested("attn_config", "dbrx_attention")
    heads = Heads(
        hidden=hidden, q_heads=q_heads, kv_heads=_dbrx_number(attn, "kv_n_heads", 1), head_dim=hidden // q_heads
    )
    config.sources["num_kv_heads"] = config.sources["kv_n_heads"]
    ffn = config.nested("ffn_config", "dbrx_ffn")
    experts = MoeFfn(
        num_experts=_dbrx_number(ffn, "moe_num_experts", 4),
        experts_per_token=_dbrx_number(ffn, "moe_top_k", 1),
        width=_dbrx_number(ffn, "ffn_hidden_size", 3584),
    )
    return Architecture(
        family="dbrx",
        layers=attention_layers(
            [heads.full] * num_layers, q_heads, experts, library_caches(config, heads.full, num_layers)
        ),
        weights=tuple(_dbrx_weights(heads, experts, vocab, tuple(range(num_layers)))),
        vocab_size=vocab,
        hidden_size=hidden,
        trained_context_tokens=read_context(config, "max_seq_len"),
        is_tied=False,
    )


def _dbrx_number(config: ConfigReader, key: str, default: int) -> int:
    """``default``: that of DbrxAttentionConfig or DbrxFFNConfig, which have no model_type of their own."""
    if config.given(key):
        return config.number(key)
    config.sources[key] = f"class default of the nested config, transformers 5.24.0: {key}"
    return default


def _dbrx_weights(heads: Heads, experts: MoeFfn, vocab: int, layers: tuple[int, ...]) -> list[WeightGroup]:
    block, hidden = "transformer.blocks.{}", heads.hidden
    rows = experts.num_experts * experts.width
    matrices = [
        WeightGroup(name=f"{block}.ffn.experts.mlp.{name}", shape=(rows, hidden), kind="experts", layers=layers)
        for name in ("w1", "v1", "w2")
    ]
    return [
        *embedding("transformer.wte", vocab, hidden),
        *norms([f"{block}.norm_attn_norm.norm_1", f"{block}.norm_attn_norm.norm_2"], hidden, layers=layers),
        *linear(
            f"{block}.norm_attn_norm.attn.Wqkv", hidden, hidden + 2 * heads.kv_heads * heads.head_dim, layers=layers
        ),
        *linear(f"{block}.norm_attn_norm.attn.out_proj", hidden, hidden, layers=layers),
        *linear(f"{block}.ffn.router.layer", hidden, experts.num_experts, layers=layers),
        *matrices,
        *norm("transformer.norm_f", hidden),
        *head("lm_head", hidden, vocab, tied=False),
    ]


def jetmoe(config: ConfigReader) -> Architecture:
    """Experts in attention too: they make the queries, as many for each key head as experts compute."""
    hidden, kv_heads = config.number("hidden_size"), config.number("num_key_value_heads", field="num_kv_heads")
    head_dim = config.number("kv_channels", field="key_dim")
    per_token = config.number("num_experts_per_tok", field="ffn.experts_per_token")
    config.sources["num_q_heads"] = "derived: num_key_value_heads × num_experts_per_tok"
    decoder = Decoder(
        config=config,
        num_layers=config.num_layers(),
        heads=Heads(hidden=hidden, q_heads=kv_heads * per_token, kv_heads=kv_heads, head_dim=head_dim),
        width=config.number("intermediate_size", field="ffn.width"),
        vocab=config.number("vocab_size"),
        tied=config.flag("tie_word_embeddings"),
    )
    experts = MoeFfn(
        num_experts=config.number("num_local_experts", field="ffn.num_experts"),
        experts_per_token=per_token,
        width=decoder.width,
    )
    model = decoder.model(
        "jetmoe",
        decoder.outer(),
        _jetmoe_experts(decoder, "mlp", experts.num_experts, 2 * decoder.width, decoder.width),
        _jetmoe_experts(
            decoder, "self_attention.experts", experts.num_experts, kv_heads * head_dim, kv_heads * head_dim
        ),
        linear(decoder.path("self_attention.kv_proj"), hidden, 2 * kv_heads * head_dim, layers=decoder.layers),
        decoder.norms(),
    )
    return replace(model, layers=tuple(replace(layer, ffn=experts) for layer in model.layers))


def _jetmoe_experts(decoder: Decoder, module: str, count: int, inner: int, outer: int) -> list[WeightGroup]:
    """Matrices into ``inner`` and out of ``outer`` elements for each expert, a router, and one bias for all."""
    hidden, layers, prefix = decoder.heads.hidden, decoder.layers, decoder.path(module)
    matrices = {"input_linear": (count, inner, hidden), "output_linear": (count, hidden, outer)}
    return [
        *parameter(f"{prefix}.bias", (hidden,), layers=layers),
        *(
            WeightGroup(name=f"{prefix}.{name}.weight", shape=shape, kind="experts", layers=layers)
            for name, shape in matrices.items()
        ),
        *linear(f"{prefix}.router.layer", hidden, count, layers=layers),
    ]
