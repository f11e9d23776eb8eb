"""Parameters that transformers keeps as float32 when it loads a model in another format: routers, states' decay rates.

Facts of the classes in transformers 5.24.0. A class lists parts of names (_keep_in_fp32_modules_strict; for float16
alone _keep_in_fp32_modules): every parameter of the whole model whose name contains one is kept, in whichever part it
is. Others are made as float32 whatever the format. A family's reader may say so itself too (``WeightGroup.dtype``).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from kvscope.model.class_defaults import ClassDefaults
from kvscope.model.spec import WeightGroup

_GATE = ("e_score_correction_bias", "gate.weight")
_MLP_GATE = ("e_score_correction_bias", "mlp.gate.weight")
_SCONV = ("attn_sconv", "mlp_sconv", "k_sconv", "v_sconv", "gate.global_scale")
_INKLING2 = (
    *_MLP_GATE, "attention_input", "mlp_input", "final_input", "post_attention_convolution", "post_mlp_convolution",
    "sconv.conv1d",
)  # fmt: skip
_LOOP = (*_INKLING2, "forget_gate_proj", "message_gate_proj", "message_input")
_INDEXER = ("indexer.weights_proj",)

# model_type → what the names of kept parameters contain, as regular expressions.
_ALWAYS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        (
            "axk1", "axk2", "deepseek_v3", "deepseek_v32", "dots1", "dots3_note", "dots3_note_text", "ernie4_5_moe",
            "ernie4_5_vl_moe", "exaone_moe", "glm4_moe", "glm4_moe_lite", "glm4v_moe", "glm4v_moe_text", "glm_moe_dsa",
            "hy_v3", "kimi_k2", "nemotron_h", "sarvam_mla", "sarvam_moe", "solar_open",
        ),
        _GATE,
    ),
    **dict.fromkeys(("beam", "mimo_v2_flash"), _MLP_GATE),
    "afmoe": ("expert_bias",),
    "apertus1p5": ("vision_tokenizer", "audio_tokenizer"),
    "bailing_hybrid": (*_GATE, "A_log", "conv1d", "dt_bias"),
    "deepseek_v2": ("gate.weight",),
    "deepseek_v4": ("attn_hc", "ffn_hc", "hc_head", "norm", "position_bias", "sinks", "e_score_correction_bias"),
    "flint": ("gate.weight", "sinks"),
    "hy_v4": ("lm_head",),
    "hy_v4_vl": ("lm_head",),
    "inkling2_loop_text": _LOOP,
    "inkling2_text": _INKLING2,
    "inkling_mm_model": _SCONV,
    "inkling_text": _SCONV,
    "kimi_linear": (*_GATE, "dt_bias"),
    "mistral_large4": ("mlp.gate.weight", "rotary_emb"),
    "voxtral": ("embed_positions",),
}  # fmt: skip
_IN_FLOAT16: dict[str, tuple[str, ...]] = {
    "afmoe": ("norm",),
    "axk2": _INDEXER,
    "deepseek_v32": _INDEXER,
    "deepseek_v4": (
        "self_attn.compressor.gate_proj",
        "self_attn.compressor.kv_proj",
        "self_attn.compressor.indexer.gate_proj",
        "self_attn.compressor.indexer.kv_proj",
        "self_attn.compressor.indexer.scorer.weights_proj",
    ),
    "glm_moe_dsa": _INDEXER,
    "gpt_oss": ("norm",),
    "longcat_flash": ("classifier.weight",),
    "mistral_large4": _INDEXER,
    "rwkv": ("time_decay", "time_first"),
}
_MADE_FLOAT32: dict[str, tuple[str, ...]] = {
    "hunyuan_v1_moe": (r"\.mlp\.gate\.wg\.weight$",),
    "olmo_hybrid": (r"\.A_log$",),
    "unlimited_ocr": (r"\.mlp\.gate\.weight$",),
    "xlnet": (r"\.rel_attn\.(q|k|v|o|r|r_r_bias|r_s_bias|r_w_bias|seg_embed)$", r"\.mask_emb$"),
    "zamba": (r"\.A_log$",),
}


def with_kept_formats(
    config: Mapping[str, Any], defaults: ClassDefaults, weights: Iterable[WeightGroup]
) -> tuple[WeightGroup, ...]:
    """The weights of the model of a config, with the formats that its class and those of its nested configs keep."""
    types = [config.get("model_type")]
    for key in {"text_config", "llm_config", *defaults.nested}:
        nested = config.get(key)
        stated = nested.get("model_type") if isinstance(nested, Mapping) else None
        types.append(stated or defaults.nested.get(key))
    always = _joined(types, _ALWAYS, _MADE_FLOAT32)
    in_float16 = _joined(types, _IN_FLOAT16)
    if always is None and in_float16 is None:
        return tuple(weights)
    return tuple(_kept(group, always, in_float16) for group in weights)


def _joined(types: list[Any], *tables: dict[str, tuple[str, ...]]) -> re.Pattern[str] | None:
    found = [pattern for name in types for table in tables for pattern in table.get(str(name), ())]
    return re.compile("|".join(found)) if found else None


def _kept(group: WeightGroup, always: re.Pattern[str] | None, in_float16: re.Pattern[str] | None) -> WeightGroup:
    if always is not None and always.search(group.name):
        return replace(group, dtype="float32")
    if in_float16 is not None and in_float16.search(group.name):
        return replace(group, float16_dtype="float32")
    return group
