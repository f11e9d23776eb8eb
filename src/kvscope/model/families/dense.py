"""Families whose every layer is full attention and one dense feed-forward."""

from kvscope.model.config_reader import ConfigReader
from kvscope.model.families.architecture import Architecture, attention_layers, library_caches, read_heads
from kvscope.model.modules import attention, embedding, gated_mlp, head, norm, norms
from kvscope.model.spec import DenseFfn


def llama(config: ConfigReader) -> Architecture:
    """Llama 1 to 3 and everything that is one under another name."""
    num_layers = config.num_layers()
    heads = read_heads(config)
    width = config.number("intermediate_size", field="ffn.width")
    vocab = config.number("vocab_size")
    tied = config.flag("tie_word_embeddings")
    bias, mlp_bias = config.flag("attention_bias"), config.flag("mlp_bias")
    every = tuple(range(num_layers))
    layer = "model.layers.{}"
    weights = [
        *embedding("model.embed_tokens", vocab, heads.hidden),
        *attention(f"{layer}.self_attn", heads.hidden, heads.q_heads, heads.kv_heads, heads.head_dim,
                   qkv_bias=bias, out_bias=bias, layers=every),
        *gated_mlp(f"{layer}.mlp", heads.hidden, width, bias=mlp_bias, layers=every),
        *norms([f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm"], heads.hidden, layers=every),
        *norm("model.norm", heads.hidden),
        *head("lm_head", heads.hidden, vocab, tied=tied),
    ]  # fmt: skip
    return Architecture(
        family="llama",
        layers=attention_layers(
            [heads.full] * num_layers,
            heads.q_heads,
            DenseFfn(width=width),
            library_caches(config, heads.full, num_layers),
        ),
        weights=tuple(weights),
        vocab_size=vocab,
        hidden_size=heads.hidden,
        trained_context_tokens=config.optional("max_position_embeddings", field="trained_context_tokens"),
        is_tied=tied,
    )
