"""Audio towers of multimodal models: Whisper's form (Qwen) and a Conformer (Gemma 4). Tensors as in transformers
5.24.0, names relative to the tower. Towers keep no cache between tokens."""

from kvscope.model.config_reader import ConfigReader
from kvscope.model.families.vision import QKVO, Groups, all_norms, count, linears
from kvscope.model.modules import conv, embedding, linear, norm, parameter


def _whisper_layers(config: ConfigReader, *, key_bias: bool, last: str = "ln_post") -> Groups:
    """``last``: the name of the norm after them. Voxtral's class calls the same fields otherwise."""
    newer = "hidden_size" in config.defaults.values
    width = config.number("hidden_size" if newer else "d_model")
    inner = config.number("intermediate_size" if newer else "encoder_ffn_dim")
    layers, layer = count(config, "num_hidden_layers" if newer else "encoder_layers"), "layers.{}"
    biased = tuple(name for name in QKVO if key_bias or name != "k_proj")
    bare = tuple(name for name in QKVO if name not in biased)
    return [
        *linears(f"{layer}.self_attn.", biased, width, width, bias=True, layers=layers),
        *linears(f"{layer}.self_attn.", bare, width, width, bias=False, layers=layers),
        *all_norms([f"{layer}.self_attn_layer_norm", f"{layer}.final_layer_norm"], width, bias=True, layers=layers),
        *linear(f"{layer}.fc1", width, inner, bias=True, layers=layers),
        *linear(f"{layer}.fc2", inner, width, bias=True, layers=layers),
        *norm(last, width, bias=True),
    ]


def whisper_encoder(config: ConfigReader) -> Groups:
    """Two convolutions over time, embedded positions."""
    width = config.number("hidden_size" if "hidden_size" in config.defaults.values else "d_model")
    return [
        *conv("conv1", (width, config.number("num_mel_bins"), 3)),
        *conv("conv2", (width, width, 3)),
        *embedding("embed_positions", config.number("max_source_positions"), width),
        *_whisper_layers(config, key_bias=False, last="layer_norm"),
    ]


def qwen2_5_omni_audio(config: ConfigReader) -> Groups:
    """Whisper's encoder with sinusoids for positions, and two embeddings for begin and end."""
    width, outputs = config.number("d_model"), config.number("output_dim")
    return [
        *conv("conv1", (width, config.number("num_mel_bins"), 3)),
        *conv("conv2", (width, width, 3)),
        *embedding("audio_bos_eos_token", 2, outputs),
        *_whisper_layers(config, key_bias=False),
        *linear("proj", width, outputs, bias=True),
    ]


def qwen3_omni_audio(config: ConfigReader) -> Groups:
    """Three convolutions over time and frequency, each halving both."""
    width, channels = config.number("d_model"), config.number("downsample_hidden_size")
    frequencies = config.number("num_mel_bins")
    for _ in range(3):
        frequencies = (frequencies + 1) // 2
    return [
        *conv("conv2d1", (channels, 1, 3, 3)),
        *conv("conv2d2", (channels, channels, 3, 3)),
        *conv("conv2d3", (channels, channels, 3, 3)),
        *linear("conv_out", channels * frequencies, width),
        *_whisper_layers(config, key_bias=True),
        *linear("proj1", width, width, bias=True),
        *linear("proj2", width, config.number("output_dim"), bias=True),
    ]


def gemma4_audio(config: ConfigReader) -> Groups:
    """A Conformer: halved feed-forwards around attention and a short convolution."""
    width, layers, layer = config.number("hidden_size"), count(config), "layers.{}"
    first, second = _channels(config)
    if width % config.number("num_attention_heads"):
        raise config.refuse("the heads of its audio tower do not divide its width")
    weights = [
        *conv("subsample_conv_projection.layer0.conv", (first, 1, 3, 3), bias=False),
        *norm("subsample_conv_projection.layer0.norm", first),
        *conv("subsample_conv_projection.layer1.conv", (second, first, 3, 3), bias=False),
        *norm("subsample_conv_projection.layer1.norm", second),
        *linear("subsample_conv_projection.input_proj_linear", first // 4 * second, width),
    ]
    for name in ("feed_forward1", "feed_forward2"):
        weights += linear(f"{layer}.{name}.ffw_layer_1.linear", width, 4 * width, layers=layers)
        weights += linear(f"{layer}.{name}.ffw_layer_2.linear", 4 * width, width, layers=layers)
        weights += all_norms(
            [f"{layer}.{name}.{place}_layer_norm" for place in ("pre", "post")], width, bias=False, layers=layers
        )
    for name in ("q_proj", "k_proj", "v_proj", "post"):
        weights += linear(f"{layer}.self_attn.{name}.linear", width, width, layers=layers)
    return [
        *weights,
        *linear(f"{layer}.self_attn.relative_k_proj", width, width, layers=layers),
        *parameter(f"{layer}.self_attn.per_dim_scale", (width // config.number("num_attention_heads"),), layers=layers),
        *linear(f"{layer}.lconv1d.linear_start.linear", width, 2 * width, layers=layers),
        *linear(f"{layer}.lconv1d.linear_end.linear", width, width, layers=layers),
        *conv(
            f"{layer}.lconv1d.depthwise_conv1d",
            (width, 1, config.number("conv_kernel_size")),
            bias=False,
            layers=layers,
        ),
        *all_norms(
            [f"{layer}.lconv1d.{name}_norm" for name in ("pre_layer", "conv")], width, bias=False, layers=layers
        ),
        *all_norms(
            [f"{layer}.norm_{name}" for name in ("pre_attn", "post_attn", "out")], width, bias=False, layers=layers
        ),
        *linear("output_proj", width, config.number("output_proj_dims"), bias=True),
    ]


def _channels(config: ConfigReader) -> tuple[int, int]:
    found = config.numbers("subsampling_conv_channels", smallest=1) or ()
    if len(found) != 2:
        raise config.malformed("subsampling_conv_channels", "two numbers were expected")
    return found[0], found[1]
