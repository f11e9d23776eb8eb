"""Multimodal models of which only the caches are known: those of the text model inside. Their parameters are unknown
(towers of other libraries, vector quantisers, remote code), so none are counted."""

from collections.abc import Callable
from dataclasses import replace

from kvscope.model.config_reader import ConfigReader
from kvscope.model.families.architecture import Architecture
from kvscope.model.families.dense import llama
from kvscope.model.families.multimodal import qwen2_5_omni_thinker, qwen3_omni_moe_thinker
from kvscope.model.families.multimodal_parts import read_text, text_section

Reader = Callable[[ConfigReader], Architecture]

# model_type → (the nested config of the text model, its class, whether the class is fixed). The classes of
# transformers 5.24.0, and of the code published beside InternVL, Kimi-VL and DeepSeek-VL2.
_TEXTS: dict[str, tuple[str, str, bool]] = {
    "gemma3n": ("text_config", "gemma3n_text", True),
    "fast_vlm": ("text_config", "qwen2", False),
    "perception_lm": ("text_config", "llama", False),
    "janus": ("text_config", "llama", False),
    "granite4_vision": ("text_config", "granite4_vision_text", True),
    "apertus1p5": ("text_config", "apertus1p5_text", True),
    "inkling_mm_model": ("text_config", "inkling_text", True),
    "nemotron_h_omni": ("text_config", "nemotron_h", False),
    "internvl_chat": ("llm_config", "", False),
    "kimi_vl": ("text_config", "deepseek_v3", False),
    "deepseek_vl_v2": ("language_config", "deepseek_v2", False),
}

# The text models of these have defaults that are not their class's own.
_NEED_TEXT = ("fast_vlm", "internvl_chat", "kimi_vl", "deepseek_vl_v2")


def _text_inside(config: ConfigReader) -> Architecture:
    key, model_type, fixed = _TEXTS[config.model_type]
    if key == "text_config" and not config.given(key) and config.given("llm_config"):
        key = "llm_config"  # an older name, of Nemotron's
    if config.model_type in _NEED_TEXT and not config.given(key):
        raise config.refuse(f"it has no {key}")
    text = text_section(config, model_type, fixed=fixed, key=key)
    return replace(read_text(text, tied=False), weights=None, is_tied=None)


def qwen2_5_omni(config: ConfigReader) -> Architecture:
    """The thinker, which writes the text; the talker has a cache of its own while it speaks."""
    return replace(qwen2_5_omni_thinker(_thinker(config, "qwen2_5_omni_thinker")), weights=None)


def qwen3_omni_moe(config: ConfigReader) -> Architecture:
    """The thinker, which writes the text; the talker has a cache of its own while it speaks."""
    return replace(qwen3_omni_moe_thinker(_thinker(config, "qwen3_omni_moe_thinker")), weights=None)


def _thinker(config: ConfigReader, model_type: str) -> ConfigReader:
    found = config.nested("thinker_config", model_type)
    return ConfigReader(found.config, model_type, where=found.where, prefix=found.prefix, sources=config.sources)


def chameleon(config: ConfigReader) -> Architecture:
    """Llama with norms per head; images are tokens of the same vocabulary."""
    return replace(llama(config), family="chameleon", weights=None)


READERS: dict[str, Reader] = dict.fromkeys(_TEXTS, _text_inside)
