"""Multimodal models around newer text families, and those that hear: Qianfan, Video-LLaMA, LFM 3, MiniMax M3,
Qwen4-Exp, Step 3.7, Cosmos, ERNIE 4.5 VL, Qwen2-Audio, Voxtral. Only the text part keeps a cache. Tensors as in
transformers 5.24.0, and which of the tie_word_embeddings flags counts."""

from collections.abc import Mapping
from dataclasses import replace

from kvscope.model.config_reader import ConfigReader
from kvscope.model.families.architecture import Architecture
from kvscope.model.families.multimodal import text_or_whole
from kvscope.model.families.multimodal_audio import whisper_encoder
from kvscope.model.families.multimodal_llava import (
    CLIP_LARGE,
    LANGUAGE_PROJECTOR,
    VISION,
    intern_projector,
    llava_projector,
    two_matrices,
)
from kvscope.model.families.multimodal_parts import read_text, read_tied, section, text_section, wrapped
from kvscope.model.families.vision import (
    internvl_vision,
    patch_conv,
    placed,
    plain_encoder,
    siglip2_body,
    tower,
)
from kvscope.model.families.vision_grid import ernie_vision, minimax_vision
from kvscope.model.families.vision_own import hy_v4_vision, lfm3_vision, sam_neck, sam_vision, step3_vision
from kvscope.model.modules import conv, linear, norm, parameter


def qianfan_ocr(config: ConfigReader) -> Architecture:
    """InternVL's parts around Qwen3."""
    text = text_section(config, "qwen3")
    model = read_text(text, tied=read_tied(config, text))
    vision = section(config, "vision_config", "qianfan_ocr_vision", fixed=True)
    seen = placed("model.vision_tower", internvl_vision(vision, "layers.{}"))
    return wrapped(model, seen, intern_projector(config, vision, model))


def video_llama_3(config: ConfigReader) -> Architecture:
    """SigLIP with rotary positions instead of embedded ones."""
    text = text_section(config, "qwen2")
    model = read_text(text, tied=read_tied(config, text, either=True))
    vision = section(config, "vision_config", "video_llama_3_vision", fixed=True)
    width, hidden = vision.number("hidden_size"), model.hidden_size
    seen = [
        *patch_conv(vision, "embeddings.patch_embedding", width, bias=True),
        *plain_encoder(vision),
        *norm("post_layernorm", width, bias=True),
    ]
    joint = [
        *linear("model.projector.readout.0", width, hidden, bias=True, part=VISION),
        *linear("model.projector.readout.2", hidden, hidden, bias=True, part=VISION),
    ]
    return wrapped(model, placed("model.vision_model", seen), joint)


def video_llava(config: ConfigReader) -> Architecture:
    """LLaVA with a second tower for videos."""
    text = text_section(config, "llama")
    model = read_text(text, tied=read_tied(config, text))
    vision = section(config, "vision_config", "clip_vision_model", missing={**CLIP_LARGE, "image_size": 224})
    seen = tower(vision)
    if seen is None:
        return replace(model, weights=None)
    towers = [*placed("model.video_tower", seen), *placed("model.image_tower", seen)]
    return wrapped(model, towers, llava_projector(config, vision, model))


def lfm3_vl(config: ConfigReader) -> Architecture:
    text = text_section(config, "lfm3")
    model = read_text(text, tied=read_tied(config, text))
    vision = section(config, "vision_config", "lfm3_vl_vision", fixed=True)
    width = vision.number("hidden_size")
    merged, inner = width * vision.number("spatial_merge_size") ** 2, config.number("projector_hidden_size")
    bias = config.flag("projector_bias")
    joint = [
        *norm(f"{LANGUAGE_PROJECTOR}.layer_norm", width, bias=True, part=VISION),
        *two_matrices(LANGUAGE_PROJECTOR, merged, inner, model.hidden_size, bias=bias),
    ]
    return wrapped(model, placed("model.vision_tower", lfm3_vision(vision)), joint)


def minimax_m3_vl(config: ConfigReader) -> Architecture:
    """Patches are projected first, and merged after."""
    text = text_section(config, "minimax_m3_vl_text", fixed=True)
    model = read_text(text, tied=read_tied(config, text, either=True))
    vision = section(config, "vision_config", "minimax_m3_vl_vision", fixed=True)
    inner, hidden, prefix = config.number("projector_hidden_size"), model.hidden_size, LANGUAGE_PROJECTOR
    merged = hidden * vision.number("spatial_merge_size") ** 2
    joint = [
        *two_matrices(prefix, vision.number("hidden_size"), inner, hidden, bias=True),
        *linear(f"{prefix}.merge_linear_1", merged, inner, bias=True, part=VISION),
        *linear(f"{prefix}.merge_linear_2", inner, hidden, bias=True, part=VISION),
    ]
    return wrapped(model, placed("model.vision_tower", minimax_vision(vision)), joint)


def qwen4_exp(config: ConfigReader) -> Architecture:
    return text_or_whole(config, "qwen4_exp", "Qwen4ExpForCausalLM")


def step3p7(config: ConfigReader) -> Architecture:
    """Its class reads any text_config and any vision_config as its own."""
    own = config.config.get("text_config")
    if isinstance(own, Mapping):
        own = {key: value for key, value in own.items() if key != "model_type"}
    outer = {**config.config, "text_config": own}
    holder = ConfigReader(outer, config.model_type, where=config.where, sources=config.sources)
    text = text_section(holder, "step3p5", fixed=True)
    model = read_text(text, tied=read_tied(config, text))
    vision = section(config, "vision_config", "step3p5_vision", fixed=True)
    width = vision.number("width") if vision.given("width") else vision.number("hidden_size")
    joint = linear(LANGUAGE_PROJECTOR, 4 * width, model.hidden_size, bias=config.flag("projector_bias"), part=VISION)
    return wrapped(model, placed("model.vision_model", step3_vision(vision)), joint)


def cosmos3_edge(config: ConfigReader) -> Architecture:
    """The output matrix is never tied, whatever the flags say."""
    text = text_section(config, "cosmos3_edge_text", fixed=True)
    model = read_text(text, tied=False)
    vision = section(config, "vision_config", "cosmos3_edge_vision", fixed=True)
    width, inner, prefix = vision.number("hidden_size"), config.number("projector_hidden_size"), "model.projector"
    merged = width * vision.number("spatial_merge_size") ** 2
    joint = [
        *norm(f"{prefix}.norm", width, bias=True, part=VISION),
        *linear(f"{prefix}.linear_fc1", merged, inner, bias=True, part=VISION),
        *linear(f"{prefix}.linear_fc2", inner, model.hidden_size, bias=True, part=VISION),
    ]
    return wrapped(model, placed("model.visual", siglip2_body(vision)), joint)


def deepseek_vl_hybrid(config: ConfigReader) -> Architecture:
    """SigLIP for the whole image, SAM for its details."""
    text = text_section(config, "llama")
    model = read_text(text, tied=read_tied(config, text))
    vision = section(config, "vision_config", "siglip_vision_model")
    detail = section(config, "high_res_vision_config", "sam_vision_model")
    seen = tower(vision)
    if seen is None or detail.model_type != "sam_vision_model":
        return replace(model, weights=None)
    channels, hidden, joint = detail.number("output_channels"), model.hidden_size, "aligner"
    parts = [
        *parameter("high_res_vision_alpha", (1,)),
        *placed("high_res_vision_model.vision_encoder", sam_vision(detail)),
        *sam_neck(detail, "high_res_vision_neck"),
        *conv("high_res_vision_proj.conv1", (2 * channels, channels, 3, 3), bias=False),
        *conv("high_res_vision_proj.conv2", (4 * channels, 2 * channels, 3, 3), bias=False),
        *placed("vision_model", seen),
        *linear(f"{joint}.vision_proj", vision.number("hidden_size"), hidden // 2, bias=True),
        *linear(f"{joint}.high_res_vision_proj", 4 * channels, hidden // 2, bias=True),
        *linear(f"{joint}.proj", hidden, hidden, bias=True),
    ]
    return wrapped(model, placed("model", parts))


def ernie4_5_vl_moe(config: ConfigReader) -> Architecture:
    """Experts of their own for text and for images, and shared ones for both."""
    text = text_section(config, "ernie4_5_vl_moe_text", fixed=True)
    model = read_text(text, tied=read_tied(config, text))
    vision = section(config, "vision_config", "ernie4_5_vl_moe_vision", fixed=True)
    merged = vision.number("hidden_size") * vision.number("spatial_merge_size") ** 2
    joint = []
    for name, inputs in (("spatial", merged), ("temporal", merged * vision.number("temporal_merge_size"))):
        joint += linear(f"{name}_linear.fc1", inputs, merged, bias=True)
        joint += linear(f"{name}_linear.fc2", merged, merged, bias=True)
        joint += norm(f"{name}_linear.ln", merged, bias=True)
    joint += linear("mlp", merged, model.hidden_size, bias=True)
    joint += norm("after_norm", model.hidden_size)
    seen = placed("model.vision_tower", ernie_vision(vision))
    return wrapped(model, seen, placed("model.resampler_model", joint))


def hy_v4_vl(config: ConfigReader) -> Architecture:
    text = text_section(config, "hy_v4_vl_text", fixed=True)
    model = read_text(text, tied=read_tied(config, text))
    vision = section(config, "vision_config", "hy_v4_vl_vision", fixed=True)
    return wrapped(model, placed("model.vision_tower", hy_v4_vision(vision)))


# -- models that hear --------------------------------------------------------------------------------------------------


def qwen2_audio(config: ConfigReader) -> Architecture:
    """Whisper's encoder and one matrix; the output matrix is never tied."""
    model = read_text(text_section(config, "qwen2"), tied=False)
    audio = section(config, "audio_config", "qwen2_audio_encoder")
    if audio.model_type != "qwen2_audio_encoder":
        return replace(model, weights=None)
    joint = linear(f"{LANGUAGE_PROJECTOR}.linear", audio.number("d_model"), model.hidden_size, bias=True, part="audio")
    return wrapped(model, placed("model.audio_tower", whisper_encoder(audio), "audio"), joint)


VOXTRAL_TEXT = {
    "vocab_size": 131072,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 30,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "head_dim": 128,
}


def voxtral(config: ConfigReader) -> Architecture:
    """What text_config leaves out is as VOXTRAL_TEXT says; the output matrix is never tied."""
    stated = section(config, "text_config", "llama")
    text = ConfigReader(
        {**VOXTRAL_TEXT, **stated.config},
        stated.model_type,
        where=stated.where,
        prefix=stated.prefix,
        sources=config.sources,
    )
    model = read_text(text, tied=False)
    audio = section(config, "audio_config", "voxtral_encoder")
    if audio.model_type != "voxtral_encoder":
        return replace(model, weights=None)
    hidden, prefix = model.hidden_size, LANGUAGE_PROJECTOR
    joint = [
        *linear(f"{prefix}.linear_1", audio.number("intermediate_size"), hidden, part="audio"),
        *linear(f"{prefix}.linear_2", hidden, hidden, part="audio"),
    ]
    return wrapped(model, placed("model.audio_tower", whisper_encoder(audio), "audio"), joint)
