"""Multimodal models of the LLaVA form: a tower made by its own type, a projector of two matrices, a text model made by
its own type. Only the text part keeps a cache. Tensors as in transformers 5.24.0, and which of the tie_word_embeddings
flags counts."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from kvscope.model.config_reader import ConfigReader
from kvscope.model.families.architecture import Architecture
from kvscope.model.families.multimodal_parts import (
    feature_layers,
    read_text,
    read_tied,
    section,
    text_section,
    wrapped,
)
from kvscope.model.families.vision import Groups, placed, tower
from kvscope.model.modules import linear, norm, parameter

VISION, LANGUAGE_PROJECTOR = "vision", "model.multi_modal_projector"
CLIP_LARGE = {
    "intermediate_size": 4096,
    "hidden_size": 1024,
    "patch_size": 14,
    "image_size": 336,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
}
SIGLIP_LARGE = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "patch_size": 14,
    "image_size": 384,
    "num_hidden_layers": 26,
    "num_attention_heads": 16,
    "vision_use_head": False,
}
Projector = Callable[[ConfigReader, ConfigReader, Architecture], Groups]


def towered(
    config: ConfigReader,
    text: ConfigReader,
    vision: ConfigReader,
    projector: Projector,
    *,
    either: bool = False,
    tower_name: str = "vision_tower",
    base: str = "model.language_model",
) -> Architecture:
    """A model whose tower is made by its own type. ``projector``: from (config, vision, text model)."""
    model = read_text(text, tied=read_tied(config, text, either=either))
    seen = tower(vision)
    if seen is None:
        return replace(model, weights=None)
    joint = projector(config, vision, model)
    return wrapped(model, placed(f"model.{tower_name}", seen), joint, base=base)


def two_matrices(prefix: str, inputs: int, inner: int, hidden: int, *, bias: bool, half: bool = False) -> Groups:
    """linear_1 and linear_2. ``half``: a gated activation halves the width between them."""
    return [
        *linear(f"{prefix}.linear_1", inputs, inner, bias=bias, part=VISION),
        *linear(f"{prefix}.linear_2", inner // 2 if half else inner, hidden, bias=bias, part=VISION),
    ]


# -- LLaVA -------------------------------------------------------------------------------------------------------------


def llava_projector(config: ConfigReader, vision: ConfigReader, model: Architecture) -> Groups:
    inputs, hidden = vision.number("hidden_size") * feature_layers(config), model.hidden_size
    bias = config.flag("multimodal_projector_bias")
    return two_matrices(LANGUAGE_PROJECTOR, inputs, hidden, hidden, bias=bias)


def _with_newline(config: ConfigReader, vision: ConfigReader, model: Architecture) -> Groups:
    newline = parameter("model.image_newline", (model.hidden_size,), part=VISION)
    return [*newline, *llava_projector(config, vision, model)]


def llava(config: ConfigReader) -> Architecture:
    vision = section(config, "vision_config", "clip_vision_model", missing=CLIP_LARGE)
    return towered(config, text_section(config, "llama"), vision, llava_projector, either=True)


def llava_next(config: ConfigReader) -> Architecture:
    """LLaVA with an embedding for the ends of rows."""
    vision = section(config, "vision_config", "clip_vision_model", missing=CLIP_LARGE)
    return towered(config, text_section(config, "llama"), vision, _with_newline)


def llava_next_video(config: ConfigReader) -> Architecture:
    """LLaVA-Next whose pooling of frames has no weights unless it is a convolution."""
    if config.word("spatial_pool_mode") not in ("average", "max"):
        raise config.refuse("it pools frames by a convolution")
    vision = section(config, "vision_config", "clip_vision_model", missing=CLIP_LARGE)
    return towered(config, text_section(config, "llama"), vision, _with_newline, either=True)


def llava_onevision(config: ConfigReader) -> Architecture:
    vision = section(config, "vision_config", "siglip_vision_model", missing=SIGLIP_LARGE)
    return towered(config, text_section(config, "qwen2"), vision, _with_newline, either=True)


def vipllava(config: ConfigReader) -> Architecture:
    """Several layers of the tower side by side, behind a norm."""
    vision = section(config, "vision_config", "clip_vision_model", missing=CLIP_LARGE)
    return towered(config, text_section(config, "llama"), vision, _vip_projector)


def _vip_projector(config: ConfigReader, vision: ConfigReader, model: Architecture) -> Groups:
    chosen = config.lookup("vision_feature_layer", "vision_feature_layers")[0]
    inputs = vision.number("hidden_size") * (len(chosen) if isinstance(chosen, list | tuple) else 1)
    return [
        *norm(f"{LANGUAGE_PROJECTOR}.projector_layernorm", inputs, bias=True, part=VISION),
        *two_matrices(LANGUAGE_PROJECTOR, inputs, model.hidden_size, model.hidden_size, bias=True),
    ]


def internvl(config: ConfigReader) -> Architecture:
    vision = section(config, "vision_config", "internvl_vision", fixed=True)
    return towered(config, text_section(config, "qwen2"), vision, intern_projector)


def intern_projector(config: ConfigReader, vision: ConfigReader, model: Architecture) -> Groups:
    ratio = config.lookup("downsample_ratio")[0]
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 < ratio <= 1:
        raise config.malformed("downsample_ratio", "a number above 0, up to 1 was expected")
    inputs = vision.number("hidden_size") * int(1 / ratio) ** 2
    return [
        *norm(f"{LANGUAGE_PROJECTOR}.layer_norm", inputs, bias=True, part=VISION),
        *two_matrices(LANGUAGE_PROJECTOR, inputs, model.hidden_size, model.hidden_size, bias=True),
    ]


def deepseek_vl(config: ConfigReader) -> Architecture:
    vision = section(config, "vision_config", "siglip_vision_model")
    return towered(config, text_section(config, "llama"), vision, _aligner, tower_name="vision_model")


def _aligner(config: ConfigReader, vision: ConfigReader, model: Architecture) -> Groups:
    hidden = model.hidden_size
    return [
        *linear("model.aligner.linear1", vision.number("hidden_size"), hidden, bias=True, part=VISION),
        *linear("model.aligner.linear2", hidden, hidden, bias=True, part=VISION),
    ]


# -- Google, Cohere, Liquid --------------------------------------------------------------------------------------------

PALIGEMMA_TEXT: Mapping[str, Any] = {
    "hidden_size": 2048,
    "num_hidden_layers": 18,
    "intermediate_size": 16384,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
    "vocab_size": 257152,
}
PALIGEMMA_VISION = {**SIGLIP_LARGE, "intermediate_size": 4096, "image_size": 224, "num_hidden_layers": 27}


def paligemma(config: ConfigReader) -> Architecture:
    """Gemma that sees its whole prefix both ways, which changes no cache."""
    text = text_section(config, "gemma", missing=PALIGEMMA_TEXT)
    if text.model_type not in ("gemma", "gemma2"):
        raise config.refuse(f"its text_config is of type {text.model_type!r}")
    kept = {key: value for key, value in text.config.items() if key != "use_bidirectional_attention"}
    text = ConfigReader(kept, text.model_type, where=text.where, prefix=text.prefix, sources=text.sources)
    vision = section(config, "vision_config", "siglip_vision_model", missing=PALIGEMMA_VISION)
    return towered(config, text, vision, _pali_projector)


def _pali_projector(config: ConfigReader, vision: ConfigReader, model: Architecture) -> Groups:
    inputs, outputs = vision.number("hidden_size"), config.number("projection_dim")
    return linear(f"{LANGUAGE_PROJECTOR}.linear", inputs, outputs, bias=True, part=VISION)


def aya_vision(config: ConfigReader) -> Architecture:
    missing = {**SIGLIP_LARGE, "num_attention_heads": 14}
    vision = section(config, "vision_config", "siglip_vision_model", missing=missing)
    return towered(config, text_section(config, "cohere2"), vision, _aya_projector)


def _aya_projector(config: ConfigReader, vision: ConfigReader, model: Architecture) -> Groups:
    inputs = vision.number("hidden_size") * config.number("downsample_factor") ** 2
    inner = config.number_or("alignment_intermediate_size", model.hidden_size, "text_config.hidden_size")
    return [
        *norm(f"{LANGUAGE_PROJECTOR}.layernorm", inputs, bias=True, part=VISION),
        *two_matrices(LANGUAGE_PROJECTOR, inputs, inner, model.hidden_size, bias=True, half=True),
    ]


def cohere2_vision(config: ConfigReader) -> Architecture:
    missing = {
        "hidden_size": 1152,
        "intermediate_size": 3072,
        "image_size": 512,
        "num_hidden_layers": 27,
        "num_attention_heads": 12,
    }
    vision = section(config, "vision_config", "siglip_vision_model", missing=missing)
    return towered(config, text_section(config, "cohere2"), vision, _cohere2_projector)


def _cohere2_projector(config: ConfigReader, vision: ConfigReader, model: Architecture) -> Groups:
    inputs = vision.number("hidden_size") * config.number("downsample_factor") ** 2
    inner = config.number("alignment_intermediate_size")
    return two_matrices(LANGUAGE_PROJECTOR, inputs, inner, model.hidden_size, bias=True, half=True)


def lfm2_vl(config: ConfigReader) -> Architecture:
    """``tie_embedding`` is an older name of tie_word_embeddings, and wins."""
    if config.given("tie_embedding"):
        outer = {**config.config, "tie_word_embeddings": config.flag("tie_embedding")}
        config = ConfigReader(outer, config.model_type, where=config.where, sources=config.sources)
    vision = section(config, "vision_config", "siglip2_vision_model")
    return towered(config, text_section(config, "lfm2"), vision, _lfm_projector)


def _lfm_projector(config: ConfigReader, vision: ConfigReader, model: Architecture) -> Groups:
    inputs = vision.number("hidden_size") * config.number("downsample_factor") ** 2
    has_norm, bias = config.flag("projector_use_layernorm"), config.flag("projector_bias")
    return [
        *(norm(f"{LANGUAGE_PROJECTOR}.layer_norm", inputs, bias=True, part=VISION) if has_norm else []),
        *two_matrices(LANGUAGE_PROJECTOR, inputs, config.number("projector_hidden_size"), model.hidden_size, bias=bias),
    ]
