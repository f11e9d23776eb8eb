"""Model families, read from config.json: which function reads which model_type.

One module per kind of layer; each function takes a ConfigReader and returns an Architecture: the layers, each with its
cache, and the weights. A model_type that is not listed is refused by name: there is no default. To add one, see
docs/design/adding-a-model-family.md.
"""

import importlib
from collections.abc import Callable, Iterable

from kvscope.model.config_reader import ConfigReader
from kvscope.model.families.architecture import Architecture

Reader = Callable[[ConfigReader], Architecture]

# module → the model types its functions read. A type's function is named after it ("-" and "." become "_"), unless
# the module's READERS table names another. Listed here so that one family's module is imported for one model.
# fmt: off
MODULES: dict[str, tuple[str, ...]] = {
    "dense": (
        "llama", "granite", "exaone", "iquestcoder", "internlm3", "gemma", "helium", "ernie4_5", "seed_oss",
        "hunyuan_v1_dense", "hyperclovax", "arcee", "apertus", "apertus1p5_text", "bitnet", "diffllama", "glm", "glm4",
        "jais2", "nanochat", "nemotron", "olmo", "olmo2", "cohere", "phi", "stablelm", "persimmon",
    ),
    "dense_published": ("phi3small", "nemotron-nas"),
    "phi4_multimodal": ("phi4_multimodal",),
    "dense_window": ("qwen2", "qwen3", "smollm3", "starcoder2", "doge", "cohere_compass_text"),
    "moe": (
        "mixtral", "phimoe", "minimax_m2", "flex_olmo", "olmoe", "granitemoe", "granitemoeshared", "dots1",
        "ernie4_5_moe", "glm4_moe", "sarvam_moe", "solar_open", "hunyuan_v1_moe", "hy_v3", "qwen2_moe", "qwen3_moe",
    ),
    "moe_windowed": (
        "gpt_oss", "granitemoe_swa", "cohere2_moe", "exaone_moe", "afmoe", "mimo_v2_flash", "flint",
        "kolibri1", "mellum", "llama4_text",
    ),
    "moe_gated": ("laguna", "beam", "step3p5"),
    "moe_other": ("aria_text", "dbrx", "jetmoe"),
    "windowed": (
        "mistral", "ministral", "ministral3", "cwm", "granite_swa", "phi3", "olmo3", "exaone4", "cohere2",
    ),
    "windowed_inkling": ("inkling_text", "inkling2_text", "inkling2_loop_text"),
    "windowed_other": ("modernbert-decoder", "hrm_text", "moshi"),
    "gemma": ("gemma2", "vaultgemma", "gemma3_text", "gemma3n_text", "gemma4_text", "gemma4_unified_text"),
    "gemma_draft": ("gemma4_assistant", "gemma4_unified_assistant"),
    "latent": (
        "deepseek_v2", "deepseek_v3", "kimi_k2", "mistral4", "sarvam_mla", "glm4_moe_lite", "axk1", "youtu", "minicpm3",
        "longcat_flash",
    ),
    "latent_shared": ("mistral_large4_text",),
    "latent_sliding": ("dots3_note_text", "dots3_note"),
    "compressed": ("deepseek_v4",),
    "unlimited_ocr": ("unlimited_ocr",),
    "sparse": ("minimax_m3_vl_text",),
    "latent_indexed": ("deepseek_v32", "glm_moe_dsa", "hy_v4", "axk2"),
    "recurrent": ("mamba", "falcon_mamba", "mamba2", "rwkv", "xlstm", "recurrent_gemma"),
    "hybrid": ("jamba", "bamba", "falcon_h1", "granitemoehybrid", "nemotron_h"),
    "hybrid_shared": ("zamba", "zamba2"),
    "hybrid_conv": ("lfm2", "lfm2_moe", "lfm3", "zaya"),
    "hybrid_delta": (
        "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "lara_mini", "olmo_hybrid",
    ),
    "hybrid_kda": ("kimi_linear", "bailing_hybrid"),
    "hybrid_other": ("minimax", "minimax_text_01", "minimax_m1", "qwen4_exp_text", "dory"),
    "multimodal": (
        "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "qwen2_5_omni_thinker",
        "qwen3_omni_moe_thinker", "gemma3", "gemma4", "gemma4_unified", "llama4", "mllama", "mistral3",
        "mistral_large4", "lighton_ocr",
    ),
    "multimodal_llava": (
        "llava", "llava_next", "llava_next_video", "llava_onevision", "vipllava", "internvl", "deepseek_vl",
        "paligemma", "aya_vision", "cohere2_vision", "lfm2_vl",
    ),
    "multimodal_other": (
        "cohere_compass", "idefics2", "idefics3", "smolvlm", "granite_docling", "aria", "cosmos3_omni", "exaone4_5",
        "hyperclovax_vision_v2", "glm4v", "glm46v", "glmga", "glm4v_moe", "glm_ocr", "kimi_k25", "hunyuan_vl",
        "minicpmv4_6", "minicpmv4_7", "minicpm_ocr", "muse_glimmer", "ovis2", "paddleocr_vl", "got_ocr2",
    ),
    "multimodal_newer": (
        "qianfan_ocr", "video_llama_3", "video_llava", "lfm3_vl", "minimax_m3_vl", "qwen4_exp", "step3p7",
        "cosmos3_edge", "deepseek_vl_hybrid", "ernie4_5_vl_moe", "hy_v4_vl", "qwen2_audio", "voxtral",
    ),
    "encoder_decoder": ("whisper",),
    "multimodal_caches": (
        "gemma3n", "fast_vlm", "perception_lm", "janus", "granite4_vision", "apertus1p5", "inkling_mm_model",
        "internvl_chat", "kimi_vl", "deepseek_vl_v2", "qwen2_5_omni", "qwen3_omni_moe",
        "chameleon", "nemotron_h_omni",
    ),
    "bert": (
        "bert", "bert-generation", "ernie", "roberta", "xlm-roberta", "camembert", "data2vec-text",
        "roberta-prelayernorm", "xlm-roberta-xl", "roformer", "electra", "git",
    ),
    "older": (
        "gpt2", "gpt-sw3", "openai-gpt", "gpt_bigcode", "gptj", "codegen", "gpt_neo", "gpt_neox", "gpt_neox_japanese",
        "bloom", "ctrl",
    ),
    "older_decoders": ("falcon", "mpt", "opt", "xglm", "biogpt", "fuyu", "xlnet", "reformer", "cpmant"),
}
# fmt: on


def reader_of(model_type: str) -> Reader | None:
    """The function that reads this model_type, or None where the family is not known."""
    for module_name, types in MODULES.items():
        if model_type in types:
            module = importlib.import_module(f"kvscope.model.families.{module_name}")
            name = model_type.replace("-", "_").replace(".", "_")
            reader = getattr(module, "READERS", {}).get(model_type) or getattr(module, name)
            assert callable(reader)
            return reader  # type: ignore[no-any-return]  # what a module of families holds under a type's name
    return None


def known_types() -> Iterable[str]:
    """Every model_type that is read, sorted."""
    return sorted(name for types in MODULES.values() for name in types)
