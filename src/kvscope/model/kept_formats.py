"""Parameters that transformers keeps as float32 when it loads a model in another format: routers, states' decay rates.

The lists are those of the classes in transformers 5.24.0: what they ask for by name (_keep_in_fp32_modules_strict), and
parameters made as float32 whatever the format (olmo_hybrid, unlimited_ocr, xlnet, zamba). Lists for float16 alone:
_keep_in_fp32_modules. Families whose reader says the format of a tensor itself (``WeightGroup.dtype``) are not listed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from kvscope.model.class_defaults import ClassDefaults
from kvscope.model.spec import WeightGroup

_GATE = ("gate.weight", "e_score_correction_bias")
_INKLING = ("attention_input.query", "mlp_input.query", "final_input.query", "mlp.gate.weight", "conv1d.weight")
_NORMS = ("input_layernorm.weight", "post_attention_layernorm.weight", "norm.weight")
_INDEXER = ("indexer.weights_proj.weight",)

# model_type → how the names of its parameters end.
_ALWAYS: dict[str, tuple[str, ...]] = {
    "afmoe": ("expert_bias",),
    "bailing_hybrid": (*_GATE, "conv1d.weight", "A_log", "dt_bias"),
    "beam": ("mlp.gate.weight",),
    "dots1": _GATE,
    "ernie4_5_moe": _GATE,
    "ernie4_5_vl_moe": _GATE,
    "exaone_moe": _GATE,
    "flint": ("gate.weight", "sinks"),
    "glm4_moe": _GATE,
    "glm4v_moe": _GATE,
    "glm4v_moe_text": _GATE,
    "hunyuan_v1_moe": ("mlp.gate.wg.weight",),
    "hy_v3": _GATE,
    "hy_v4_vl": ("lm_head.weight",),
    "inkling2_loop_text": (
        *_INKLING,
        "message_input.query",
        "forget_gate_proj.weight",
        "message_gate_proj.weight",
    ),
    "inkling2_text": _INKLING,
    "inkling_text": (
        "attn_sconv.conv1d.weight",
        "mlp_sconv.conv1d.weight",
        "k_sconv.conv1d.weight",
        "v_sconv.conv1d.weight",
        "gate.global_scale",
    ),
    "kimi_linear": (*_GATE, "dt_bias"),
    "mimo_v2_flash": ("mlp.gate.weight", "e_score_correction_bias"),
    "nemotron_h": _GATE,
    "olmo_hybrid": ("A_log",),
    "sarvam_moe": _GATE,
    "solar_open": _GATE,
    "unlimited_ocr": ("mlp.gate.weight",),
    "voxtral": ("audio_tower.embed_positions.weight",),
    "xlnet": (
        *(f"rel_attn.{name}" for name in ("q", "k", "v", "o", "r", "r_r_bias", "r_s_bias", "r_w_bias", "seg_embed")),
        "mask_emb",
    ),
    "zamba": ("A_log",),
}
_IN_FLOAT16: dict[str, tuple[str, ...]] = {
    "afmoe": (*_NORMS, "pre_mlp_layernorm.weight", "post_mlp_layernorm.weight", "q_norm.weight", "k_norm.weight"),
    "axk2": _INDEXER,
    "deepseek_v32": _INDEXER,
    "deepseek_v4": (
        "compressor.gate_proj.weight",
        "compressor.kv_proj.weight",
        "indexer.gate_proj.weight",
        "indexer.kv_proj.weight",
        "indexer.scorer.weights_proj.weight",
    ),
    "glm_moe_dsa": _INDEXER,
    "gpt_oss": _NORMS,
    "longcat_flash": ("classifier.weight",),
    "mistral_large4": _INDEXER,
    "rwkv": ("time_decay", "time_first"),
}


def with_kept_formats(
    config: Mapping[str, Any], defaults: ClassDefaults, weights: Iterable[WeightGroup]
) -> tuple[WeightGroup, ...]:
    """The weights of the model of a config, with the formats that its class and those of its nested configs keep: the
    library applies the lists of all parts to the whole."""
    types = [config.get("model_type")]
    for key in {"text_config", "llm_config", *defaults.nested}:
        nested = config.get(key)
        stated = nested.get("model_type") if isinstance(nested, Mapping) else None
        types.append(stated or defaults.nested.get(key))
    always = tuple(ending for name in types for ending in _ALWAYS.get(str(name), ()))
    in_float16 = tuple(ending for name in types for ending in _IN_FLOAT16.get(str(name), ()))
    if not always and not in_float16:
        return tuple(weights)
    return tuple(_kept(group, always, in_float16) for group in weights)


def _kept(group: WeightGroup, always: tuple[str, ...], in_float16: tuple[str, ...]) -> WeightGroup:
    if _ends_with(group.name, always):
        return replace(group, dtype="float32")
    if _ends_with(group.name, in_float16):
        return replace(group, float16_dtype="float32")
    return group


def _ends_with(name: str, endings: tuple[str, ...]) -> bool:
    return any(f".{name}".endswith(f".{ending}") for ending in endings)
