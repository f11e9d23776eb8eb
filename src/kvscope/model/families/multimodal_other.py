"""Idefics, GLM's, Kimi's and other multimodal models, whose towers or joints are their own. Only the text part keeps a
cache. Tensors as in transformers 5.24.0, and which of the tie_word_embeddings flags counts."""

from collections.abc import Mapping
from dataclasses import replace

from kvscope.model.config_reader import MAX_LAYERS, ConfigReader
from kvscope.model.families.architecture import Architecture
from kvscope.model.families.multimodal import visual
from kvscope.model.families.multimodal_llava import LANGUAGE_PROJECTOR, VISION, towered, two_matrices
from kvscope.model.families.multimodal_parts import (
    read_text,
    read_tied,
    section,
    text_section,
    wrapped,
)
from kvscope.model.families.vision import Groups, packed_attention, placed, siglip_body
from kvscope.model.families.vision_grid import (
    glm4v_vision,
    glm_ocr_vision,
    qwen2_5_vl_vision,
    qwen3_vl_vision,
)
from kvscope.model.families.vision_own import (
    granite_docling_vision,
    hunyuan_vision,
    idefics2_resampler,
    kimi_vision,
    minicpm_vision,
    muse_glimmer_vision,
    ovis2_vision,
    sam_vision,
)
from kvscope.model.modules import Layers, conv, embedding, linear, norm, parameter


def cohere_compass(config: ConfigReader) -> Architecture:
    return visual(config, "cohere_compass_text", "cohere_compass_vision", qwen3_vl_vision)


# -- Idefics -----------------------------------------------------------------------------------------------------------


def idefics3(config: ConfigReader) -> Architecture:
    return _idefics3(config, "idefics3_vision")


def smolvlm(config: ConfigReader) -> Architecture:
    return _idefics3(config, "smolvlm_vision")


def _idefics3(config: ConfigReader, vision_type: str) -> Architecture:
    text = text_section(config, "llama")
    vision = section(config, "vision_config", vision_type, fixed=True)
    return towered(config, text, vision, _idefics_connector, tower_name="vision_model", base="model.text_model")


def _idefics_connector(config: ConfigReader, vision: ConfigReader, model: Architecture) -> Groups:
    inputs = vision.number("hidden_size") * config.number("scale_factor") ** 2
    return linear("model.connector.modality_projection.proj", inputs, model.hidden_size, part=VISION)


IDEFICS2_TEXT = {"max_position_embeddings": 32768}


def idefics2(config: ConfigReader) -> Architecture:
    """A resampler of a few queries joins the two."""
    text = text_section(config, "mistral", missing=IDEFICS2_TEXT)
    model = read_text(text, tied=read_tied(config, text))
    vision = section(config, "vision_config", "idefics2_vision", fixed=True)
    sampler = section(config, "perceiver_config", "idefics2_perceiver", fixed=True)
    inner = ConfigReader(text.config, text.model_type, where=text.where, prefix=text.prefix).number("intermediate_size")
    width, hidden, prefix = vision.number("hidden_size"), model.hidden_size, "model.connector"
    mlp = f"{prefix}.modality_projection"
    joint = [
        *linear(f"{mlp}.gate_proj", width, inner, part=VISION),
        *linear(f"{mlp}.up_proj", width, inner, part=VISION),
        *linear(f"{mlp}.down_proj", inner, hidden, part=VISION),
        *placed(f"{prefix}.perceiver_resampler", idefics2_resampler(sampler, hidden)),
    ]
    return wrapped(model, placed("model.vision_model", siglip_body(vision)), joint, base="model.text_model")


def granite_docling(config: ConfigReader) -> Architecture:
    text = text_section(config, "granite_docling_text", fixed=True)
    model = read_text(text, tied=read_tied(config, text))
    vision = section(config, "vision_config", "granite_docling_vision", fixed=True)
    parts = placed("model.vision_model", granite_docling_vision(vision))
    if config.given("density_router_hidden_size"):
        width, inner = vision.number("hidden_size"), config.number("density_router_hidden_size")
        router = [
            *linear("att", width, 1, bias=True),
            *norm("norm", width, bias=True),
            *linear("fc1", width, inner, bias=True),
            *linear("fc2", inner, 1, bias=True),
        ]
        parts += placed("model.density_router", router)
    return wrapped(model, parts, base="model.text_model")


def aria(config: ConfigReader) -> Architecture:
    """Learnt queries, as many as the largest image needs, look at the patches."""
    vision = section(config, "vision_config", "idefics3_vision")
    return towered(config, text_section(config, "aria_text", fixed=True), vision, _aria_projector)


def _aria_projector(config: ConfigReader, vision: ConfigReader, model: Architecture) -> Groups:
    width, hidden, cross = vision.number("hidden_size"), model.hidden_size, "cross_attn"
    sizes = config.config.get("projector_patch_to_query_dict") or {"1225": 128, "4900": 256}
    if not isinstance(sizes, Mapping) or not all(isinstance(value, int) for value in sizes.values()):
        raise config.malformed("projector_patch_to_query_dict", "an object of whole numbers was expected")
    groups = [
        *parameter("query", (max(sizes.values()), width)),
        *(group for name in "qkv" for group in linear(f"{cross}.{name}_proj", width, width)),
        *packed_attention(f"{cross}.multihead_attn", width),
        *linear(f"{cross}.linear", width, width, bias=True),
        *norm(f"{cross}.layer_norm", width, bias=True),
        *norm(f"{cross}.layer_norm_kv", width, bias=True),
        *norm("layer_norm", width, bias=True),
        *linear("feed_forward.linear_in", width, hidden),
        *linear("feed_forward.linear_out", hidden, hidden),
    ]
    return placed(LANGUAGE_PROJECTOR, groups)


# -- Qwen's towers in other models -------------------------------------------------------------------------------------


def cosmos3_omni(config: ConfigReader) -> Architecture:
    """Qwen3-VL under another name."""
    text = text_section(config, "qwen3_vl_text")
    model = read_text(text, tied=read_tied(config, text))
    vision = qwen3_vl_vision(section(config, "vision_config", "qwen3_vl_vision", fixed=True))
    return wrapped(model, placed("model.visual", vision))


def exaone4_5(config: ConfigReader) -> Architecture:
    text = text_section(config, "exaone4")
    if text.model_type == "exaone4_5_text":
        text = ConfigReader(text.config, "exaone4", where=text.where, prefix=text.prefix, sources=text.sources)
    model = read_text(text, tied=read_tied(config, text))
    vision = section(config, "vision_config", "exaone4_5_vision", fixed=True)
    return wrapped(model, placed("model.visual", qwen2_5_vl_vision(vision, grouped=True)))


def hyperclovax_vision_v2(config: ConfigReader) -> Architecture:
    text = text_section(config, "hyperclovax")
    model = read_text(text, tied=read_tied(config, text))
    vision = section(config, "vision_config", "qwen2_5_vl_vision")
    if vision.model_type not in ("qwen2_5_vl_vision", "qwen2_5_vl"):
        return replace(model, weights=None)
    vision = ConfigReader(vision.config, "qwen2_5_vl_vision", where=vision.where, prefix=vision.prefix)
    width = vision.number("out_hidden_size")
    joint = linear("model.projector", width, model.hidden_size, bias=True, part=VISION)
    return wrapped(model, placed("model.vision_model", qwen2_5_vl_vision(vision)), joint)


# -- GLM ---------------------------------------------------------------------------------------------------------------


def glm4v(config: ConfigReader) -> Architecture:
    return visual(config, "glm4v_text", "glm4v_vision", glm4v_vision, either=True)


def glm46v(config: ConfigReader) -> Architecture:
    """GLM-4.6V: dense or with experts, by the type of its text_config."""
    text = text_section(config, "glm4v_text")
    model = read_text(text, tied=read_tied(config, text))
    vision = section(config, "vision_config", "glm4v_vision")
    if vision.model_type not in ("glm4v_vision", "glm4v_moe_vision"):
        return replace(model, weights=None)
    return wrapped(model, placed("model.visual", glm4v_vision(vision)))


def glmga(config: ConfigReader) -> Architecture:
    """The same class under another name."""
    return glm46v(config)


def glm4v_moe(config: ConfigReader) -> Architecture:
    return visual(config, "glm4v_moe_text", "glm4v_moe_vision", glm4v_vision, either=True)


def glm_ocr(config: ConfigReader) -> Architecture:
    return visual(config, "glm_ocr_text", "glm_ocr_vision", glm_ocr_vision, either=True)


# -- others ------------------------------------------------------------------------------------------------------------


def kimi_k25(config: ConfigReader) -> Architecture:
    """DeepSeek-V3's text model and MoonViT."""
    text = text_section(config, "deepseek_v3")
    if text.model_type == "kimi_k2":
        text = ConfigReader(text.config, "deepseek_v3", where=text.where, prefix=text.prefix, sources=text.sources)
    model = read_text(text, tied=read_tied(config, text))
    vision = section(config, "vision_config", "kimi_k25_vision", fixed=True)
    sides = vision.numbers("merge_kernel_size", smallest=1) or ()
    if len(sides) != 2:
        raise config.malformed("vision_config.merge_kernel_size", "two numbers were expected")
    merged, prefix = vision.number("hidden_size") * sides[0] * sides[1], "model.mm_projector"
    joint = [
        *norm(f"{prefix}.pre_norm", config.number("projection_hidden_size"), bias=True, part=VISION),
        *linear(f"{prefix}.in_proj", merged, merged, bias=True, part=VISION),
        *linear(f"{prefix}.out_proj", merged, model.hidden_size, bias=True, part=VISION),
    ]
    return wrapped(model, placed("model.vision_tower", kimi_vision(vision)), joint)


def hunyuan_vl(config: ConfigReader) -> Architecture:
    text = text_section(config, "hunyuan_vl_text", fixed=True, flat=True)
    model = read_text(text, tied=read_tied(config, text, either=True))
    vision = section(config, "vision_config", "hunyuan_vl_vision", fixed=True)
    return wrapped(model, placed("model.vision_tower", hunyuan_vision(vision, model.hidden_size)))


def minicpmv4_6(config: ConfigReader) -> Architecture:
    return _minicpm(config, "minicpmv4_6_vision")


def minicpmv4_7(config: ConfigReader) -> Architecture:
    return _minicpm(config, "minicpmv4_7_vision")


def minicpm_ocr(config: ConfigReader) -> Architecture:
    return _minicpm(config, "minicpm_ocr_vision")


def _minicpm(config: ConfigReader, vision_type: str) -> Architecture:
    """Qwen3.5's text model; several mergers in a row, of which the last is as wide as the text."""
    text = text_section(config, "qwen3_5_text")
    model = read_text(text, tied=read_tied(config, text))
    vision = section(config, "vision_config", vision_type, fixed=True)
    width, last = vision.number("hidden_size"), config.number("merger_times", limit=MAX_LAYERS) - 1
    joint = _minicpm_merger("model.merger.mlp.{}", width, width, tuple(range(last))) if last else []
    joint += _minicpm_merger(f"model.merger.mlp.{last}", width, model.hidden_size, ())
    return wrapped(model, placed("model.vision_tower", minicpm_vision(vision)), joint)


def _minicpm_merger(prefix: str, width: int, outputs: int, numbers: Layers) -> Groups:
    merged = 4 * width
    return [
        *norm(f"{prefix}.pre_norm", merged, bias=True, layers=numbers, part=VISION),
        *linear(f"{prefix}.linear_1", merged, merged, bias=True, layers=numbers, part=VISION),
        *linear(f"{prefix}.linear_2", merged, outputs, bias=True, layers=numbers, part=VISION),
    ]


def muse_glimmer(config: ConfigReader) -> Architecture:
    text = text_section(config, "muse_glimmer_text", fixed=True)
    model = read_text(text, tied=read_tied(config, text))
    vision = section(config, "vision_config", "muse_glimmer_vision", fixed=True)
    inner = config.number("projector_hidden_size")
    joint = [
        *linear("model.vision_adapter.fc1", config.number("out_hidden_size"), inner, part=VISION),
        *linear("model.vision_adapter.fc2", inner, inner, part=VISION),
        *linear("model.vision_projection", inner, model.hidden_size, part=VISION),
    ]
    return wrapped(model, placed("model.vision_tower", muse_glimmer_vision(vision)), joint)


def ovis2(config: ConfigReader) -> Architecture:
    """Visual words have embeddings of their own, as wide as the outer hidden_size."""
    text = text_section(config, "qwen2")
    model = read_text(text, tied=read_tied(config, text))
    vision = section(config, "vision_config", "ovis2_vision", fixed=True)
    rows, width = vision.number("vocab_size"), config.number("hidden_size")
    if not model.is_tied and width != model.hidden_size:
        raise config.refuse("its hidden_size is not that of its text_config")
    words = embedding("model.visual_embeddings_table", rows, width, part=VISION)
    return wrapped(
        model,
        placed("model.vision_tower", ovis2_vision(vision)),
        words,
        head_rows=None if model.is_tied else config.number("vocab_size"),
    )


def paddleocr_vl(config: ConfigReader) -> Architecture:
    text = text_section(config, "paddleocr_vl_text", fixed=True, flat=True)
    model = read_text(text, tied=read_tied(config, text, either=True))
    vision = section(config, "vision_config", "paddleocr_vl_vision", fixed=True)
    width, prefix = vision.number("hidden_size"), "model.projector"
    merged = width * vision.number("spatial_merge_size") ** 2
    joint = [
        *norm(f"{prefix}.pre_norm", width, bias=True, part=VISION),
        *two_matrices(prefix, merged, merged, model.hidden_size, bias=True),
    ]
    return wrapped(model, placed("model.visual.vision_model", siglip_body(vision)), joint)


GOT_OCR2_TEXT = {
    "vocab_size": 151860,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "max_position_embeddings": 32768,
    "max_window_layers": 21,
}


def got_ocr2(config: ConfigReader) -> Architecture:
    """SAM's tower, two convolutions and a matrix."""
    text = text_section(config, "qwen2", missing=GOT_OCR2_TEXT)
    model = read_text(text, tied=read_tied(config, text))
    vision = section(config, "vision_config", "got_ocr2_vision", fixed=True)
    channels, hidden = vision.number("output_channels"), model.hidden_size
    joint = [
        *conv("conv_upsampler1", (2 * channels, channels, 3, 3), bias=False),
        *conv("conv_upsampler2", (hidden, 2 * channels, 3, 3), bias=False),
        *linear("multimodal_projector", hidden, hidden, bias=True),
    ]
    return wrapped(model, placed("model.vision_tower", sam_vision(vision)), placed(LANGUAGE_PROJECTOR, joint))
