"""Families whose every layer is full attention and one dense feed-forward: Llama and its closest relatives.

Which norms and biases each has is that of its class in transformers 5.24.0. Families with windowed layers beside full
ones (qwen2, qwen3, smollm3, …) are in dense_window.py; those further from Llama in dense_other.py and older.py.
"""

from kvscope.model.config_reader import ConfigReader
from kvscope.model.families.architecture import Architecture, refuse_single_rotary
from kvscope.model.families.dense_decoder import LLAMA_NORMS, Decoder, read_decoder
from kvscope.model.modules import linear, norm, parameter


def llama(config: ConfigReader) -> Architecture:
    """Llama 1 to 3 and everything that is one under another name."""
    config.refuse_keys("num_experts", "num_local_experts", "n_routed_experts")
    return _llama_like(config, read_decoder(config))


def _llama_like(config: ConfigReader, decoder: Decoder) -> Architecture:
    bias = config.flag("attention_bias")
    return decoder.model(
        "llama",
        decoder.outer(),
        decoder.attention(qkv_bias=bias, out_bias=bias),
        decoder.gated_mlp(bias=config.flag("mlp_bias")),
        decoder.norms(),
    )


def granite(config: ConfigReader) -> Architecture:
    """Llama with scalars that are no tensors."""
    return _llama_like(config, read_decoder(config, rounds_down=True))


def exaone(config: ConfigReader) -> Architecture:
    """EXAONE 3: Llama's modules, by number and shape."""
    return llama(config)


def iquestcoder(config: ConfigReader) -> Architecture:
    """Llama's modules; the variants that clip or slide are refused."""
    config.refuse_keys("clip_qkv", "use_sliding_window")
    return llama(config)


def internlm3(config: ConfigReader) -> Architecture:
    """Llama; transformers refuses one bias without the other (the remote code's o_proj bias is its own)."""
    if config.flag("attention_bias") != config.flag("mlp_bias"):
        raise config.refuse("its qkv_bias and bias differ")
    return llama(config)


def gemma(config: ConfigReader) -> Architecture:
    """Llama's modules without biases on the feed-forward."""
    config.refuse_keys("use_bidirectional_attention")
    decoder = read_decoder(config, rounds_down=True)
    bias = config.flag("attention_bias")
    return decoder.model(
        "gemma",
        decoder.outer(),
        decoder.attention(qkv_bias=bias, out_bias=bias),
        decoder.gated_mlp(),
        decoder.norms(),
    )


def helium(config: ConfigReader) -> Architecture:
    """Its output projection is square, whatever head_dim says."""
    decoder = read_decoder(config)
    heads = decoder.heads
    if heads.q_heads * heads.head_dim != heads.hidden:
        raise config.refuse("its heads together are not as wide as hidden_size")
    return decoder.model(
        "helium",
        decoder.outer(),
        decoder.attention(qkv_bias=config.flag("attention_bias")),
        decoder.gated_mlp(bias=config.flag("mlp_bias")),
        decoder.norms(),
    )


def ernie4_5(config: ConfigReader) -> Architecture:
    """Llama's modules, with one flag for all biases."""
    decoder = read_decoder(config, rounds_down=True)
    bias = config.flag("use_bias")
    return decoder.model(
        "ernie4_5",
        decoder.outer(),
        decoder.attention(qkv_bias=bias, out_bias=bias),
        decoder.gated_mlp(bias=bias),
        decoder.norms(),
    )


def seed_oss(config: ConfigReader) -> Architecture:
    """Llama's modules, with a flag of its own for the bias of the output matrix."""
    decoder = read_decoder(config, rounds_down=True)
    return decoder.model(
        "seed_oss",
        decoder.outer(),
        decoder.attention(qkv_bias=config.flag("attention_bias"), out_bias=config.flag("attention_out_bias")),
        decoder.gated_mlp(bias=config.flag("mlp_bias")),
        decoder.norms(),
    )


def hunyuan_v1_dense(config: ConfigReader) -> Architecture:
    """Llama's modules, with norms over each query and key head."""
    decoder = read_decoder(config)
    bias = config.flag("attention_bias")
    return decoder.model(
        "hunyuan-dense",
        decoder.outer(),
        decoder.attention(qkv_bias=bias, out_bias=bias),
        decoder.head_norms("self_attn.query_layernorm", "self_attn.key_layernorm"),
        decoder.gated_mlp(),
        decoder.norms(),
    )


def hyperclovax(config: ConfigReader) -> Architecture:
    """Llama with, optionally, a norm after each half of a layer."""
    decoder = read_decoder(config)
    bias = config.flag("attention_bias")
    post = ("post_norm1", "post_norm2") if config.flag("use_post_norm") else ()
    return decoder.model(
        "hyperclovax",
        decoder.outer(),
        decoder.attention(qkv_bias=bias, out_bias=bias),
        decoder.gated_mlp(bias=config.flag("mlp_bias")),
        decoder.norms((*LLAMA_NORMS, *post)),
    )


def arcee(config: ConfigReader) -> Architecture:
    """Llama's modules, with a feed-forward of two matrices."""
    decoder = read_decoder(config)
    bias = config.flag("attention_bias")
    return decoder.model(
        "arcee",
        decoder.outer(),
        decoder.attention(qkv_bias=bias, out_bias=bias),
        decoder.plain_mlp(bias=config.flag("mlp_bias")),
        decoder.norms(),
    )


def apertus(config: ConfigReader) -> Architecture:
    """The xIELU activation has two trained numbers in every layer. Version 1.5's output matrix may be cut short."""
    decoder = read_decoder(config, rounds_down=True)
    bias = config.flag("attention_bias")
    rows = config.optional("output_vocab_size", smallest=1)
    if rows is not None and decoder.tied and rows != decoder.vocab:
        raise config.refuse("its output matrix is both tied and of another size")
    activation = [] if config.word("hidden_act") != "xielu" else [
        *parameter(decoder.path("mlp.act_fn.alpha_p"), (1,), layers=decoder.layers),
        *parameter(decoder.path("mlp.act_fn.alpha_n"), (1,), layers=decoder.layers),
    ]  # fmt: skip
    return decoder.model(
        "apertus",
        decoder.outer(head_rows=rows),
        decoder.attention(qkv_bias=bias, out_bias=bias),
        decoder.head_norms("self_attn.q_norm", "self_attn.k_norm"),
        decoder.plain_mlp(),
        activation,
        decoder.norms(("attention_layernorm", "feedforward_layernorm")),
    )


def bitnet(config: ConfigReader) -> Architecture:
    """Norms before the second matrix of each half. (The ternary weights are a quantisation of these.)"""
    decoder = read_decoder(config)
    bias = config.flag("attention_bias")
    return decoder.model(
        "bitnet",
        decoder.outer(),
        decoder.attention(qkv_bias=bias, out_bias=bias),
        decoder.gated_mlp(),
        norm(decoder.path("mlp.ffn_sub_norm"), decoder.width, layers=decoder.layers),
        decoder.norms((*LLAMA_NORMS, "self_attn.attn_sub_norm")),
    )


def diffllama(config: ConfigReader) -> Architecture:
    """Attention as the difference of two; its cache is that of one."""
    decoder = read_decoder(config, rounds_down=True)
    bias = config.flag("attention_bias")
    names = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")
    lambdas = [
        group
        for name in names
        for group in parameter(decoder.path(f"self_attn.{name}"), (decoder.heads.head_dim,), layers=decoder.layers)
    ]
    return decoder.model(
        "diffllama",
        decoder.outer(),
        decoder.attention(qkv_bias=bias, out_bias=bias),
        lambdas,
        decoder.gated_mlp(),
        decoder.norms(),
    )


def glm(config: ConfigReader) -> Architecture:
    """A fused feed-forward, and a rotary embedding over part of a head."""
    decoder = read_decoder(config, rounds_down=True)
    refuse_single_rotary(config, decoder.heads.head_dim, 0.5)
    return decoder.model(
        "glm4",
        decoder.outer(),
        decoder.attention(qkv_bias=config.flag("attention_bias")),
        decoder.fused_mlp(),
        decoder.norms(),
    )


def glm4(config: ConfigReader) -> Architecture:
    """GLM with a norm after each half of a layer too."""
    decoder = read_decoder(config, rounds_down=True)
    refuse_single_rotary(config, decoder.heads.head_dim, 0.5)
    return decoder.model(
        "glm4",
        decoder.outer(),
        decoder.attention(qkv_bias=config.flag("attention_bias")),
        decoder.fused_mlp(),
        decoder.norms((*LLAMA_NORMS, "post_self_attn_layernorm", "post_mlp_layernorm")),
    )


def jais2(config: ConfigReader) -> Architecture:
    """Layer norms with biases, and a feed-forward of two matrices."""
    decoder = read_decoder(config)
    bias = config.flag("attention_bias")
    return decoder.model(
        "jais2",
        decoder.outer(norm_bias=True),
        decoder.attention(qkv_bias=bias, out_bias=bias),
        decoder.plain_mlp(bias=config.flag("mlp_bias")),
        decoder.norms(bias=True),
    )


def nanochat(config: ConfigReader) -> Architecture:
    """No norm has a weight."""
    decoder = read_decoder(config, rounds_down=True)
    bias = config.flag("attention_bias")
    return decoder.model(
        "nanochat",
        decoder.outer(final_norm=None),
        decoder.attention(qkv_bias=bias, out_bias=bias),
        decoder.plain_mlp("fc1", "fc2"),
    )


def nemotron(config: ConfigReader) -> Architecture:
    """Layer norms with biases, a feed-forward of two matrices, and a rotary embedding over part of a head."""
    decoder = read_decoder(config, rounds_down=True)
    refuse_single_rotary(config, decoder.heads.head_dim, 0.5)
    bias = config.flag("attention_bias")
    return decoder.model(
        "nemotron",
        decoder.outer(norm_bias=True),
        decoder.attention(qkv_bias=bias, out_bias=bias),
        decoder.plain_mlp(bias=config.flag("mlp_bias")),
        decoder.norms(bias=True),
    )


def olmo(config: ConfigReader) -> Architecture:
    """No norm has a weight."""
    decoder = read_decoder(config, rounds_down=True)
    bias = config.flag("attention_bias")
    return decoder.model(
        "olmo",
        decoder.outer(final_norm=None),
        decoder.attention(qkv_bias=bias, out_bias=bias),
        decoder.gated_mlp(),
    )


def olmo2(config: ConfigReader) -> Architecture:
    """Norms after each half, and over all queries and all keys together."""
    decoder = read_decoder(config, rounds_down=True)
    heads, bias = decoder.heads, config.flag("attention_bias")
    return decoder.model(
        "olmo2",
        decoder.outer(),
        decoder.attention(qkv_bias=bias, out_bias=bias),
        norm(decoder.path("self_attn.q_norm"), heads.q_heads * heads.head_dim, layers=decoder.layers),
        norm(decoder.path("self_attn.k_norm"), heads.kv_heads * heads.head_dim, layers=decoder.layers),
        decoder.gated_mlp(),
        decoder.norms(("post_attention_layernorm", "post_feedforward_layernorm")),
    )


def cohere(config: ConfigReader) -> Architecture:
    """Both halves of a layer share one norm."""
    decoder = read_decoder(config, rounds_down=True)
    heads, bias = decoder.heads, config.flag("attention_bias")
    query_key = []
    if config.flag("use_qk_norm"):
        for name, count in (("q_norm", heads.q_heads), ("k_norm", heads.kv_heads)):
            path = decoder.path(f"self_attn.{name}.weight")
            query_key += parameter(path, (count, heads.head_dim), layers=decoder.layers)
    return decoder.model(
        "command-r",
        decoder.outer(),
        decoder.attention(qkv_bias=bias, out_bias=bias),
        query_key,
        decoder.gated_mlp(),
        decoder.norms(("input_layernorm",)),
    )


def phi(config: ConfigReader) -> Architecture:
    """Phi 1 to 2: both halves share one norm, every matrix has a bias."""
    decoder = read_decoder(config)
    refuse_single_rotary(config, decoder.heads.head_dim, 0.5)
    if config.flag("qk_layernorm") and decoder.heads.head_dim != decoder.heads.hidden // decoder.heads.q_heads:
        raise config.refuse("its norms over heads are not of its head_dim")
    names = ("self_attn.q_layernorm", "self_attn.k_layernorm")
    return decoder.model(
        "phi2",
        decoder.outer(final_norm="final_layernorm", norm_bias=True, head_bias=True),
        decoder.attention(qkv_bias=True, out_bias=True, out="dense"),
        decoder.head_norms(*names, bias=True) if config.flag("qk_layernorm") else [],
        decoder.plain_mlp("fc1", "fc2", bias=True),
        decoder.norms(("input_layernorm",), bias=True),
    )


def stablelm(config: ConfigReader) -> Architecture:
    """Layer norms; with qk_layernorm one of its own for each head."""
    decoder = read_decoder(config, head_dim_key=False)
    refuse_single_rotary(config, decoder.heads.head_dim, 0.25)
    heads = decoder.heads
    query_key = []
    if config.flag("qk_layernorm"):
        for name, count in (("q_layernorm", heads.q_heads), ("k_layernorm", heads.kv_heads)):
            for head in range(count):
                path = decoder.path(f"self_attn.{name}.norms.{head}")
                query_key += norm(path, heads.head_dim, layers=decoder.layers)
    return decoder.model(
        "stablelm",
        decoder.outer(norm_bias=True),
        decoder.attention(qkv_bias=config.flag("use_qkv_bias")),
        query_key,
        decoder.gated_mlp(),
        decoder.norms(LLAMA_NORMS[:1] if config.flag("use_parallel_residual") else LLAMA_NORMS, bias=True),
    )


def persimmon(config: ConfigReader) -> Architecture:
    """Queries, keys and values are one matrix; head_dim and num_key_value_heads are no keys of this class."""
    decoder = read_decoder(config, head_dim_key=False, kv_heads_key=False)
    refuse_single_rotary(config, decoder.heads.head_dim, 0.5)
    hidden, layers = decoder.heads.hidden, decoder.layers
    names = ("self_attn.q_layernorm", "self_attn.k_layernorm")
    return decoder.model(
        "persimmon",
        decoder.outer(final_norm="final_layernorm", norm_bias=True),
        linear(decoder.path("self_attn.query_key_value"), hidden, 3 * hidden, bias=True, layers=layers),
        linear(decoder.path("self_attn.dense"), hidden, hidden, bias=True, layers=layers),
        decoder.head_norms(*names, bias=True) if config.flag("qk_layernorm") else [],
        decoder.plain_mlp("dense_h_to_4h", "dense_4h_to_h", bias=True),
        decoder.norms(bias=True),
    )


READERS = {"apertus1p5_text": apertus}
