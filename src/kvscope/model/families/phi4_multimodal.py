"""Phi-4-multimodal: Phi-3's text layers, an image tower (SigLIP's form) and an audio tower (a Conformer), which every
checkpoint of the class carries. Modules as in transformers 5.24.0. Only the text part keeps a cache."""

from kvscope.model.config_reader import ConfigReader
from kvscope.model.families.architecture import Architecture
from kvscope.model.families.dense_decoder import read_decoder
from kvscope.model.families.dense_window import uniform_window
from kvscope.model.modules import Layers, conv, embedding, linear, norm, parameter
from kvscope.model.spec import WeightGroup

IMAGE = "model.embed_tokens_extend.image_embed"
AUDIO = "model.embed_tokens_extend.audio_embed"


def phi4_multimodal(config: ConfigReader) -> Architecture:
    """Every layer slides where the config has a sliding_window."""
    decoder = read_decoder(config, rounds_down=True)
    heads, layers = decoder.heads, decoder.layers
    qkv = (heads.q_heads + 2 * heads.kv_heads) * heads.head_dim
    caches, library = uniform_window(config, decoder)
    return decoder.model(
        "phi3",
        decoder.outer(),
        linear(decoder.path("self_attn.qkv_proj"), heads.hidden, qkv, layers=layers),
        linear(decoder.path("self_attn.o_proj"), heads.q_heads * heads.head_dim, heads.hidden, layers=layers),
        decoder.fused_mlp(),
        decoder.norms(),
        _image_tower(config.nested("vision_config", "phi4_multimodal_vision"), heads.hidden),
        _audio_tower(config.nested("audio_config", "phi4_multimodal_audio"), heads.hidden),
        caches=caches,
        library=library,
    )


def _image_tower(config: ConfigReader, text_width: int) -> list[WeightGroup]:
    width, inner = config.number("hidden_size"), config.number("intermediate_size")
    patch, layers = config.number("patch_size"), tuple(range(config.num_layers()))
    side = config.number("image_size") // patch
    tower, part = f"{IMAGE}.img_processor", "vision"
    layer, pool = f"{tower}.encoder.layers.{{}}", f"{tower}.head"
    return [
        *parameter(f"{IMAGE}.global_img_feature_extensor", (1, 1, width), part=part),
        *parameter(f"{IMAGE}.sub_img_feature_extensor", (1, 1, 1, width), part=part),
        *linear(f"{IMAGE}.img_projection_up", width, text_width, bias=True, part=part),
        *linear(f"{IMAGE}.img_projection_down", text_width, text_width, bias=True, part=part),
        *conv(f"{tower}.embeddings.patch_embedding", (width, config.number("num_channels"), patch, patch), part=part),
        *embedding(f"{tower}.embeddings.position_embedding", side**2, width, part=part),
        *_square(f"{layer}.self_attn", ("k_proj", "v_proj", "q_proj", "out_proj"), width, layers, part),
        *norm(f"{layer}.layer_norm1", width, bias=True, layers=layers, part=part),
        *norm(f"{layer}.layer_norm2", width, bias=True, layers=layers, part=part),
        *linear(f"{layer}.mlp.fc1", width, inner, bias=True, layers=layers, part=part),
        *linear(f"{layer}.mlp.fc2", inner, width, bias=True, layers=layers, part=part),
        *norm(f"{tower}.post_layernorm", width, bias=True, part=part),
        *parameter(f"{pool}.probe", (1, 1, width), part=part),
        *parameter(f"{pool}.attention.in_proj_weight", (3 * width, width), part=part),
        *parameter(f"{pool}.attention.in_proj_bias", (3 * width,), part=part),
        *linear(f"{pool}.attention.out_proj", width, width, bias=True, part=part),
        *norm(f"{pool}.layernorm", width, bias=True, part=part),
        *linear(f"{pool}.mlp.fc1", width, inner, bias=True, part=part),
        *linear(f"{pool}.mlp.fc2", inner, width, bias=True, part=part),
    ]


def _square(
    prefix: str, names: tuple[str, ...], width: int, layers: Layers, part: str, outputs: int | None = None
) -> list[WeightGroup]:
    """Linear layers as wide outside as inside, each with a bias."""
    return [
        group
        for name in names
        for group in linear(f"{prefix}.{name}", width, outputs or width, bias=True, layers=layers, part=part)
    ]


def _audio_tower(config: ConfigReader, text_width: int) -> list[WeightGroup]:
    width, part = config.number("hidden_size"), "audio"
    heads, distance = config.number("num_attention_heads"), config.number("bias_max_distance")
    buckets = distance if config.flag("bias_symmetric") else 2 * distance
    projected = width * config.number("downsample_rate")
    weights = _subsampling(config, width)
    weights += embedding(f"{AUDIO}.encoder.relative_attention_bias_layer.bias_values", buckets, heads, part=part)
    weights += _conformer_layers(config, width, heads)
    for name in ("speech", "vision_speech"):
        weights += linear(f"{AUDIO}.up_proj_for_{name}", projected, text_width, bias=True, part=part)
        weights += linear(f"{AUDIO}.down_proj_for_{name}", text_width, text_width, bias=True, part=part)
    return weights


def _subsampling(config: ConfigReader, width: int) -> list[WeightGroup]:
    """One convolution, then pairs of a depthwise and a pointwise one, each pair halving time and frequency again."""
    channels, frequencies = config.number("nemo_conv_channels"), config.number("input_size")
    halvings = config.number("time_reduction").bit_length() - 1
    place, part = f"{AUDIO}.encoder.embed", "audio"
    weights = conv(f"{place}.conv.0", (channels, 1, 3, 3), part=part)
    for step in range(1, halvings):
        weights += conv(f"{place}.conv.{3 * step - 1}", (channels, 1, 3, 3), part=part)
        weights += conv(f"{place}.conv.{3 * step}", (channels, channels, 1, 1), part=part)
    for _ in range(halvings):
        frequencies = (frequencies - 1) // 2 + 1
    return [*weights, *linear(f"{place}.out", channels * frequencies, width, bias=True, part=part)]


def _conformer_layers(config: ConfigReader, width: int, heads: int) -> list[WeightGroup]:
    layers, part = tuple(range(config.num_layers("num_blocks"))), "audio"
    inner, between = config.number("intermediate_size"), config.number("ext_pw_out_channel")
    depthwise = width * config.number("depthwise_multiplier")
    separable, kernel = config.number("depthwise_separable_out_channel"), config.number("kernel_size")
    layer = f"{AUDIO}.encoder.encoders.{{}}"
    weights: list[WeightGroup] = []
    for name in ("feed_forward_in", "feed_forward_out"):
        weights += norm(f"{layer}.{name}.layer_norm", width, bias=True, layers=layers, part=part)
        weights += linear(f"{layer}.{name}.gate_up_proj", width, 2 * inner, bias=True, layers=layers, part=part)
        weights += linear(f"{layer}.{name}.down_proj", inner, width, bias=True, layers=layers, part=part)
    attended = width // heads * heads
    weights += _square(f"{layer}.self_attn", ("q_proj", "k_proj", "v_proj"), width, layers, part, outputs=attended)
    weights += linear(f"{layer}.self_attn.o_proj", attended, width, bias=True, layers=layers, part=part)
    weights += conv(f"{layer}.conv.glu.ext_pw_conv_1d", (2 * between, width, 1), layers=layers, part=part)
    for name in ("b1", "b2"):
        weights += parameter(f"{layer}.conv.glu.{name}", (1, between, 1), layers=layers, part=part)
    weights += conv(f"{layer}.conv.dw_sep_conv_1d.dw_conv", (depthwise, 1, kernel), layers=layers, part=part)
    weights += conv(f"{layer}.conv.dw_sep_conv_1d.pw_conv", (separable, depthwise, 1), layers=layers, part=part)
    weights += conv(f"{layer}.conv.ext_pw_conv_1d", (between, width, 1), layers=layers, part=part)
    for name in ("conv.layer_norm", "layer_norm_att", "layer_norm"):
        weights += norm(f"{layer}.{name}", width, bias=True, layers=layers, part=part)
    return weights
