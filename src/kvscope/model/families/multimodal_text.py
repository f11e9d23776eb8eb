"""Text models that exist only inside a multimodal one, named as if they stood alone. Most are a known family under
another name; facts of the classes in transformers 5.24.0."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from kvscope.model.config_reader import ConfigReader
from kvscope.model.families.architecture import Architecture, attention_layers, refuse_single_rotary
from kvscope.model.families.dense import ernie4_5, granite, hunyuan_v1_dense
from kvscope.model.families.dense_decoder import LLAMA_NORMS, Decoder, read_decoder
from kvscope.model.families.dense_window import qwen2
from kvscope.model.families.gemma import FOUR_NORMS
from kvscope.model.families.latent_indexed import hy_v4
from kvscope.model.families.moe import QK_NORMS
from kvscope.model.families.moe_decoder import (
    Experts,
    dense_mlp,
    layers_from,
    layers_named_sparse,
    layers_stepped,
    read_experts,
    read_moe_decoder,
    sparse_mlp,
    with_experts,
)
from kvscope.model.families.windowed_decoder import FULL, SLIDING, listed_caches
from kvscope.model.modules import attention, embedding, gated_mlp, head, linear, norm, norms, parameter
from kvscope.model.spec import CacheKind, CrossAttention, DenseFfn, NoCache, WeightGroup

Reader = Callable[[ConfigReader], Architecture]


# -- Qwen --------------------------------------------------------------------------------------------------------------


def qwen2_vl_text(config: ConfigReader) -> Architecture:
    """Qwen2 whose heads are always hidden_size / heads wide."""
    kept = {key: value for key, value in config.config.items() if key != "head_dim"}
    alone = ConfigReader(kept, config.model_type, where=config.where, prefix=config.prefix, sources=config.sources)
    return qwen2(alone)


def qwen3_vl_text(config: ConfigReader) -> Architecture:
    """Qwen3 without a window."""
    decoder = read_decoder(config)
    bias = config.flag("attention_bias")
    return decoder.model(
        "qwen3",
        decoder.outer(),
        decoder.attention(qkv_bias=bias, out_bias=bias),
        decoder.head_norms(*QK_NORMS),
        decoder.gated_mlp(),
        decoder.norms(),
    )


def qwen3_moe_text(config: ConfigReader) -> Architecture:
    """Qwen3-MoE; its attention has no window, but transformers' cache goes by a sliding_window in the config."""
    decoder = read_moe_decoder(config)
    experts = read_experts(config, "num_experts")
    sparse, bias = layers_stepped(decoder), config.flag("attention_bias")
    model = decoder.model(
        "qwen3_moe",
        decoder.outer(),
        decoder.attention(qkv_bias=bias, out_bias=bias),
        decoder.head_norms(*QK_NORMS),
        dense_mlp(decoder, sparse),
        sparse_mlp(decoder, experts, sparse),
        decoder.norms(),
    )
    return with_experts(model, experts, sparse)


# -- GLM ---------------------------------------------------------------------------------------------------------------


def glm4v_text(config: ConfigReader) -> Architecture:
    """GLM-4 whose heads are always hidden_size / heads wide, with biases on queries, keys and values."""
    return _glm4(config, read_decoder(config, head_dim_key=False), bias=True)


def glm_ocr_text(config: ConfigReader) -> Architecture:
    """GLM-4 without biases."""
    return _glm4(config, read_decoder(config), bias=False)


def _glm4(config: ConfigReader, decoder: Decoder, *, bias: bool) -> Architecture:
    refuse_single_rotary(config, decoder.heads.head_dim, 1.0)
    return decoder.model(
        "glm4",
        decoder.outer(),
        decoder.attention(qkv_bias=bias),
        decoder.fused_mlp(),
        decoder.norms((*LLAMA_NORMS, "post_self_attn_layernorm", "post_mlp_layernorm")),
    )


def glm4v_moe_text(config: ConfigReader) -> Architecture:
    """GLM-4.5's layers without norms per head."""
    decoder = read_moe_decoder(config)
    refuse_single_rotary(config, decoder.heads.head_dim, 0.5)
    experts = read_experts(config, "n_routed_experts", shared_count="n_shared_experts")
    sparse = layers_from(decoder)
    model = decoder.model(
        "glm4_moe",
        decoder.outer(),
        decoder.attention(qkv_bias=config.flag("attention_bias")),
        dense_mlp(decoder, sparse),
        sparse_mlp(decoder, experts, sparse),
        decoder.norms(),
    )
    return with_experts(model, experts, sparse)


# -- others ------------------------------------------------------------------------------------------------------------


def paddleocr_vl_text(config: ConfigReader) -> Architecture:
    """ERNIE 4.5; layers would slide where layer_types said so, which no published model does."""
    if SLIDING in (config.words("layer_types") or ()):
        raise config.refuse("its layer_types name sliding layers")
    return ernie4_5(config)


def muse_glimmer_text(config: ConfigReader) -> Architecture:
    """Gated attention; counted from the last, every fourth layer is full. Norms without a weight before all layers,
    after them, and over queries and keys."""
    decoder = read_decoder(config)
    heads, last, bias = decoder.heads, decoder.num_layers - 1, config.flag("attention_bias")
    pattern = [SLIDING if (last - index) % 4 else FULL for index in decoder.layers]
    return decoder.model(
        "muse_glimmer",
        decoder.outer(),
        decoder.attention(qkv_bias=bias, out_bias=bias),
        linear(
            decoder.path("self_attn.gate_proj"), heads.hidden, heads.q_heads * heads.head_dim, layers=decoder.layers
        ),
        decoder.gated_mlp(),
        decoder.norms(FOUR_NORMS),
        caches=listed_caches(decoder, pattern),
    )


def cosmos3_edge_text(config: ConfigReader) -> Architecture:
    """Llama with a feed-forward of two matrices."""
    decoder = read_decoder(config)
    bias = config.flag("attention_bias")
    return decoder.model(
        "cosmos3_edge",
        decoder.outer(),
        decoder.attention(qkv_bias=bias, out_bias=bias),
        decoder.plain_mlp("fc1", "fc2", bias=config.flag("mlp_bias")),
        decoder.norms(),
    )


def ernie4_5_vl_moe_text(config: ConfigReader) -> Architecture:
    """Experts for text and, of another width, for images; the shared ones are as wide as the text's."""
    decoder = read_moe_decoder(config)
    widths = config.numbers("moe_intermediate_size", smallest=1) or (1536, 512)
    if len(widths) != 2:
        raise config.malformed("moe_intermediate_size", "two numbers were expected, for text and for images")
    number, shared = config.number("moe_num_experts"), config.number("moe_num_shared_experts", smallest=0)
    for_text = Experts(count=number, per_token=config.number("moe_k"), width=widths[0], shared_width=shared * widths[0])
    sparse, bias = layers_named_sparse(decoder, decoder.layers[1:]), config.flag("use_bias")
    weights: list[WeightGroup] = []
    for name, width in (("text_moe", widths[0]), ("vision_moe", widths[1])) if sparse else ():
        experts = Experts(count=number, per_token=for_text.per_token, width=width)
        weights += sparse_mlp(decoder, experts, sparse, module=f"mlp.{name}")
        statics = decoder.path(f"mlp.{name}.gate.moe_statics.e_score_correction_bias")
        weights += parameter(statics, (1, number), layers=sparse)
    if shared and sparse:
        weights += gated_mlp(
            decoder.path("mlp.shared_experts"), decoder.heads.hidden, for_text.shared_width, bias=bias, layers=sparse
        )
    model = decoder.model(
        "ernie4_5_vl_moe",
        decoder.outer(),
        decoder.attention(qkv_bias=bias, out_bias=bias),
        dense_mlp(decoder, sparse, bias=bias),
        weights,
        decoder.norms(),
    )
    return with_experts(model, for_text, sparse)


MLLAMA_EXTRA_ROWS = 8  # embeddings of special tokens, which the output matrix does not have


def mllama_text(config: ConfigReader, image_tokens: int | None) -> Architecture:
    """Llama whose cross_attention_layers see the image's ``image_tokens`` instead of the text. transformers keeps
    nothing for those while there is no image."""
    decoder = read_decoder(config, head_dim_key=False)
    heads, layers = decoder.heads, decoder.layers
    stated = config.numbers("cross_attention_layers")
    cross = tuple(index for index in layers if index in ((3, 8, 13, 18, 23, 28, 33, 38) if stated is None else stated))
    seen = CrossAttention(
        num_kv_heads=heads.kv_heads, key_dim=heads.head_dim, value_dim=heads.head_dim, source_tokens=image_tokens
    )
    caches: list[CacheKind] = [seen if index in cross else heads.full for index in layers]
    weights = [
        *embedding("model.embed_tokens", decoder.vocab + MLLAMA_EXTRA_ROWS, heads.hidden),
        *_mllama_attention(decoder, tuple(index for index in layers if index not in cross), "self_attn"),
        *_mllama_attention(decoder, cross, "cross_attn"),
        *_mllama_gates(decoder, cross),
        *gated_mlp(decoder.path("mlp"), heads.hidden, decoder.width, layers=layers),
        *decoder.norms(),
        *norm("model.norm", heads.hidden),
        *head("lm_head", heads.hidden, decoder.vocab, tied=False),
    ]
    model = decoder.model("mllama", weights, caches=caches)
    kept: list[CacheKind | None] = [NoCache() if index in cross else None for index in layers]
    return replace(model, layers=attention_layers(caches, heads.q_heads, DenseFfn(width=decoder.width), kept))


def _mllama_attention(decoder: Decoder, layers: tuple[int, ...], module: str) -> list[WeightGroup]:
    heads = decoder.heads
    if not layers:
        return []
    return attention(decoder.path(module), heads.hidden, heads.q_heads, heads.kv_heads, heads.head_dim, layers=layers)


def _mllama_gates(decoder: Decoder, cross: tuple[int, ...]) -> list[WeightGroup]:
    if not cross:
        return []
    return [
        *norms([decoder.path(f"cross_attn.{name}_norm") for name in "qk"], decoder.heads.head_dim, layers=cross),
        *parameter(decoder.path("cross_attn_attn_gate"), (1,), layers=cross),
        *parameter(decoder.path("cross_attn_mlp_gate"), (1,), layers=cross),
    ]


TEXT_READERS: Mapping[str, Reader] = {
    "qwen2_vl_text": qwen2_vl_text,
    "qwen2_5_vl_text": qwen2_vl_text,
    "qwen2_5_omni_text": qwen2,
    "qwen3_vl_text": qwen3_vl_text,
    "qwen3_vl_moe_text": qwen3_moe_text,
    "qwen3_omni_moe_text": qwen3_moe_text,
    "glm4v_text": glm4v_text,
    "glm4v_moe_text": glm4v_moe_text,
    "glm_ocr_text": glm_ocr_text,
    "granite_docling_text": granite,
    "granite4_vision_text": granite,
    "hy_v4_vl_text": hy_v4,
    "hunyuan_vl_text": hunyuan_v1_dense,
    "paddleocr_vl_text": paddleocr_vl_text,
    "muse_glimmer_text": muse_glimmer_text,
    "cosmos3_edge_text": cosmos3_edge_text,
    "ernie4_5_vl_moe_text": ernie4_5_vl_moe_text,
}
