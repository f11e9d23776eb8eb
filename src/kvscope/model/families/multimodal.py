"""Qwen's, Gemma's, Mistral's and Meta's multimodal models: a text model, towers, and what joins them.

The text model's layers are those of its own family; only the text part keeps a cache. Tensors as in transformers
5.24.0, and which of the tie_word_embeddings flags counts.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from kvscope.model.config_reader import ConfigReader
from kvscope.model.families.architecture import Architecture
from kvscope.model.families.multimodal_audio import gemma4_audio, qwen2_5_omni_audio, qwen3_omni_audio
from kvscope.model.families.multimodal_parts import (
    feature_layers,
    is_class_default,
    read_text,
    read_tied,
    section,
    text_section,
    wrapped,
)
from kvscope.model.families.multimodal_text import mllama_text
from kvscope.model.families.vision import Groups, num_patches, placed, tower
from kvscope.model.families.vision_grid import qwen2_5_vl_vision, qwen2_vl_vision, qwen3_vl_vision
from kvscope.model.families.vision_own import gemma4_vision, llama4_vision, mllama_vision
from kvscope.model.modules import linear, norm, parameter
from kvscope.model.spec import WeightGroup

Tower = Callable[[ConfigReader], Groups]


def visual(
    config: ConfigReader, text_type: str, vision_type: str, build: Tower, *, either: bool = False, flat: bool = False
) -> Architecture:
    """Qwen's form: the tower is model.visual, and both nested configs are of fixed classes."""
    text = text_section(config, text_type, fixed=True, flat=flat)
    model = read_text(text, tied=read_tied(config, text, either=either))
    vision = build(section(config, "vision_config", vision_type, fixed=True))
    return wrapped(model, placed("model.visual", vision))


# -- Qwen --------------------------------------------------------------------------------------------------------------


def qwen2_vl(config: ConfigReader) -> Architecture:
    return visual(config, "qwen2_vl_text", "qwen2_vl_vision", qwen2_vl_vision, either=True, flat=True)


def qwen2_5_vl(config: ConfigReader) -> Architecture:
    return visual(config, "qwen2_5_vl_text", "qwen2_5_vl_vision", qwen2_5_vl_vision, either=True, flat=True)


def qwen3_vl(config: ConfigReader) -> Architecture:
    return visual(config, "qwen3_vl_text", "qwen3_vl_vision", qwen3_vl_vision)


def qwen3_vl_moe(config: ConfigReader) -> Architecture:
    return visual(config, "qwen3_vl_moe_text", "qwen3_vl_moe_vision", qwen3_vl_vision)


def qwen3_5(config: ConfigReader) -> Architecture:
    """transformers has a class of the text model alone for the same model_type: it is meant by a file that names it in
    ``architectures``, and by one that neither names a class nor says anything about a tower."""
    return text_or_whole(config, "qwen3_5", "Qwen3_5ForCausalLM")


def qwen3_5_moe(config: ConfigReader) -> Architecture:
    return text_or_whole(config, "qwen3_5_moe", "Qwen3_5MoeForCausalLM")


def text_or_whole(config: ConfigReader, name: str, text_class: str) -> Architecture:
    """Qwen3.5's form: Qwen3-VL's tower without inner mergers, or the text model alone."""
    classes = config.words("architectures")
    vision = section(config, "vision_config", f"{name}_vision", fixed=True)
    if text_class in classes if classes else is_class_default(vision):
        text = text_section(config, f"{name}_text", fixed=True)
        return _said(read_text(text, tied=read_tied(config, text)), classes, "the text model alone")
    whole = visual(config, f"{name}_text", f"{name}_vision", _without_deepstack)
    return _said(whole, classes, "the whole model with its tower")


def _said(found: Architecture, classes: tuple[str, ...] | None, counted: str) -> Architecture:
    """The model, with what was taken of two that the same file may mean: only its weights differ, not its caches."""
    if classes:
        return found
    doubt = (
        f"the file names no class (architectures), and transformers has two for it; weights and parameters are of "
        f"{counted}"
    )
    return replace(found, warnings=(*found.warnings, doubt))


def _without_deepstack(config: ConfigReader) -> Groups:
    return qwen3_vl_vision(config, deepstack=False)


def _apart(config: ConfigReader) -> Groups:
    return qwen2_5_vl_vision(config, apart=True)


def _omni_mergers(config: ConfigReader) -> Groups:
    return qwen3_vl_vision(config, merger_names=("ln_q", "mlp.0", "mlp.2"))


def qwen2_5_omni_thinker(config: ConfigReader) -> Architecture:
    """Qwen2.5-VL with ears."""
    found = visual(config, "qwen2_5_omni_text", "qwen2_5_omni_vision_encoder", _apart)
    return _with_audio(config, found, "qwen2_5_omni_audio_encoder", qwen2_5_omni_audio)


def qwen3_omni_moe_thinker(config: ConfigReader) -> Architecture:
    found = visual(config, "qwen3_omni_moe_text", "qwen3_omni_moe_vision_encoder", _omni_mergers)
    return _with_audio(config, found, "qwen3_omni_moe_audio_encoder", qwen3_omni_audio)


def _with_audio(config: ConfigReader, found: Architecture, audio_type: str, build: Tower) -> Architecture:
    audio = placed("model.audio_tower", build(section(config, "audio_config", audio_type, fixed=True)), "audio")
    return found if found.weights is None else replace(found, weights=(*audio, *found.weights))


# -- Gemma -------------------------------------------------------------------------------------------------------------


def gemma3(config: ConfigReader) -> Architecture:
    """SigLIP, and one matrix between the two."""
    text = text_section(config, "gemma3_text", fixed=True)
    model = read_text(text, tied=read_tied(config, text))
    vision = section(config, "vision_config", "siglip_vision_model")
    seen, prefix = tower(vision), "model.multi_modal_projector"
    if seen is None:
        return replace(model, weights=None)
    width = vision.number("hidden_size")
    joint = [
        *parameter(f"{prefix}.mm_input_projection_weight", (width, model.hidden_size), part="vision"),
        *norm(f"{prefix}.mm_soft_emb_norm", width, part="vision"),
    ]
    return wrapped(model, placed("model.vision_tower", seen), joint)


def gemma4(config: ConfigReader) -> Architecture:
    """Either tower may be missing."""
    text = text_section(config, "gemma4_text", fixed=True)
    model = read_text(text, tied=read_tied(config, text))
    parts: Groups = []
    if config.given("vision_config"):
        vision = section(config, "vision_config", "gemma4_vision", fixed=True)
        parts += placed("model.vision_tower", gemma4_vision(vision))
        parts += _embedder("embed_vision", vision.number("hidden_size"), model, "vision")
    if config.given("audio_config"):
        audio = section(config, "audio_config", "gemma4_audio", fixed=True)
        parts += placed("model.audio_tower", gemma4_audio(audio), "audio")
        parts += _embedder("embed_audio", audio.number("output_proj_dims"), model, "audio")
    return wrapped(model, parts)


def gemma4_unified(config: ConfigReader) -> Architecture:
    """No towers: patches of pixels and pieces of sound go into the text model by one matrix each."""
    text = text_section(config, "gemma4_unified_text", fixed=True)
    model = read_text(text, tied=read_tied(config, text))
    parts: Groups = []
    if config.given("vision_config"):
        parts += _unified_patches(section(config, "vision_config", "gemma4_unified_vision", fixed=True), model)
    if config.given("audio_config"):
        audio = section(config, "audio_config", "gemma4_unified_audio", fixed=True)
        parts += _embedder("embed_audio", audio.number("audio_embed_dim"), model, "audio")
    return wrapped(model, parts)


def _embedder(name: str, width: int, model: Architecture, part: str) -> Groups:
    return linear(f"model.{name}.embedding_projection", width, model.hidden_size, part=part)


def _unified_patches(config: ConfigReader, model: Architecture) -> Groups:
    prefix, width = "model.embed_vision", config.number("mm_embed_dim")
    pixels = 3 * (config.number("patch_size") * config.number("pooling_kernel_size")) ** 2
    return [
        *norm(f"{prefix}.patch_ln1", pixels, bias=True, part="vision"),
        *linear(f"{prefix}.patch_dense", pixels, width, bias=True, part="vision"),
        *norm(f"{prefix}.patch_ln2", width, bias=True, part="vision"),
        *parameter(f"{prefix}.pos_embedding", (config.number("mm_posemb_size"), 2, width), part="vision"),
        *norm(f"{prefix}.pos_norm", width, bias=True, part="vision"),
        *_embedder("embed_vision.multimodal_embedder", config.number("output_proj_dims"), model, "vision"),
    ]


# -- Meta --------------------------------------------------------------------------------------------------------------


def llama4(config: ConfigReader) -> Architecture:
    """The text model comes with its own output matrix, tied where text_config says so. A file that does not name the
    multimodal class is taken for transformers' causal language model, which is the text model alone."""
    text = text_section(config, "llama4_text", fixed=True)
    model = read_text(text, tied=text.flag("tie_word_embeddings"))
    vision = section(config, "vision_config", "llama4_vision_model", fixed=True)
    classes = config.words("architectures")
    if model.weights is None or "Llama4ForConditionalGeneration" not in (classes or ()):
        return _said(model, classes, "the text model alone")
    inside = [replace(group, name=f"language_model.{group.name}") for group in model.weights]
    seen = placed("vision_model", llama4_vision(vision))
    joint = linear(
        "multi_modal_projector.linear_1", vision.number("vision_output_dim"), model.hidden_size, part="vision"
    )
    return replace(model, weights=(*seen, *joint, *inside))


MAX_TILES_KEY = "max_num_tiles"


def mllama(config: ConfigReader) -> Architecture:
    """Llama 3.2 Vision: layers of cross attention see the image's patches, of as many tiles as there may be."""
    text = text_section(config, "mllama_text_model", fixed=True)
    vision = section(config, "vision_config", "mllama_vision_model", fixed=True)
    image_tokens = vision.number(MAX_TILES_KEY) * (num_patches(vision) + 1)
    alone = ConfigReader(
        {**text.config, "tie_word_embeddings": False},
        text.model_type,
        where=text.where,
        prefix=text.prefix,
        sources=text.sources,
    )
    model = mllama_text(alone, image_tokens)
    text.sources["source_tokens"] = f"derived: {MAX_TILES_KEY} × ((image_size / patch_size)² + 1)"
    joint = linear(
        "model.multi_modal_projector", vision.number("vision_output_dim"), model.hidden_size, bias=True, part="vision"
    )
    return wrapped(model, placed("model.vision_model", mllama_vision(vision)), joint)


# -- Mistral -----------------------------------------------------------------------------------------------------------

MISTRAL3_TEXT = {
    "head_dim": 128,
    "hidden_size": 5120,
    "intermediate_size": 32768,
    "max_position_embeddings": 131072,
    "num_attention_heads": 32,
    "num_hidden_layers": 40,
    "num_key_value_heads": 8,
    "sliding_window": None,
    "vocab_size": 131072,
}
PIXTRAL_LARGE = {
    "intermediate_size": 4096,
    "hidden_size": 1024,
    "patch_size": 14,
    "image_size": 1540,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
}
LIGHTON_TEXT = {
    "head_dim": 128,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "max_position_embeddings": 40960,
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "sliding_window": None,
    "vocab_size": 151936,
}


def mistral3(config: ConfigReader) -> Architecture:
    """Mistral Small 3.1 and later, Ministral 3."""
    text = text_section(config, "mistral", missing=MISTRAL3_TEXT)
    return _pixtral_model(config, text, "vision_tower", "multi_modal_projector", bias=None)


def lighton_ocr(config: ConfigReader) -> Architecture:
    """The same parts around Qwen3."""
    text = text_section(config, "qwen3", missing=LIGHTON_TEXT)
    return _pixtral_model(config, text, "vision_encoder", "vision_projection", bias=False)


MISTRAL_LARGE4_VISION = {**PIXTRAL_LARGE, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 30}


def mistral_large4(config: ConfigReader) -> Architecture:
    """The same parts, the tower larger, around layers that share their caches."""
    text = text_section(config, "mistral_large4_text", fixed=True)
    missing = MISTRAL_LARGE4_VISION
    return _pixtral_model(config, text, "vision_tower", "multi_modal_projector", bias=None, missing=missing)


def _pixtral_model(
    config: ConfigReader,
    text: ConfigReader,
    tower_name: str,
    projector: str,
    *,
    bias: bool | None,
    missing: Mapping[str, int] = PIXTRAL_LARGE,
) -> Architecture:
    model = read_text(text, tied=read_tied(config, text))
    vision = section(config, "vision_config", "pixtral", missing=missing)
    seen = tower(vision)
    if seen is None:
        return replace(model, weights=None)
    times = 1 if bias is False else feature_layers(config)
    has_bias = config.flag("multimodal_projector_bias") if bias is None else bias
    joint = merging_projector(config, f"model.{projector}", vision, model.hidden_size, times, bias=has_bias)
    return wrapped(model, placed(f"model.{tower_name}", seen), joint)


def merging_projector(
    config: ConfigReader, prefix: str, vision: ConfigReader, hidden: int, times: int, *, bias: bool
) -> list[WeightGroup]:
    """Mistral's: a norm, neighbours merged into one patch, two matrices."""
    width = vision.number("hidden_size")
    merged = width * config.number("spatial_merge_size") ** 2
    return [
        *norm(f"{prefix}.norm", width, part="vision"),
        *linear(f"{prefix}.patch_merger.merging_layer", merged, width, part="vision"),
        *linear(f"{prefix}.linear_1", width * times, hidden, bias=bias, part="vision"),
        *linear(f"{prefix}.linear_2", hidden, hidden, bias=bias, part="vision"),
    ]
