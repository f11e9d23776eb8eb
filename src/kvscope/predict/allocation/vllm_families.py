"""Which model families vLLM 0.32.0 runs, and how, where that is not plain from their layers. Read from its registry of
architectures and its list of families that keep MLA's latent."""

from kvscope.errors import UnsupportedArchitecture
from kvscope.model.spec import (
    CacheKind,
    CrossAttention,
    FullAttention,
    IndexedAttention,
    LatentAttention,
    ModelSpec,
    RecurrentState,
)
from kvscope.predict.allocation.vllm_settings import VERSION

# Families that keep the latent; any other with a kv_lora_rank keeps keys and values of every head, or is not run.
MLA_TYPES = frozenset(
    {
        "axk1", "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa", "kimi_k2", "kimi_linear",
        "longcat_flash", "bailing_hybrid",
    }
)  # fmt: skip
INDEXED_TYPES = frozenset({"deepseek_v32", "glm_moe_dsa"})
# Families with recurrent layers that it runs, whose pools were measured or planned by vLLM's own functions ...
CHECKED_STATE_TYPES = frozenset(
    {
        "mamba", "falcon_mamba", "mamba2", "jamba", "falcon_h1", "granitemoehybrid", "nemotron_h", "lfm2", "lfm2_moe",
        "qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text",
    }
)  # fmt: skip
# ... and those that were not.
_OTHER_STATE_TYPES = frozenset({"zamba2", "olmo_hybrid", "kimi_linear", "bailing_hybrid"})
_STATE_FORMS = frozenset({"mamba", "mamba2", "gated_delta_net", "kda", "lightning", "short_conv"})
_REMOVED = {"bamba": "0.23", "minimax": "0.23", "minimax_text_01": "0.23", "minimax_m1": "0.23", "mllama": "0.10.2"}
# Attention-only families of its registry whose layers are what the config says.
_PLAIN_TYPES = frozenset(
    {
        "llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "gemma", "gemma2", "gemma3",
        "gemma3_text", "phi", "phi3", "phimoe", "granite", "granitemoe", "granitemoeshared", "olmo", "olmo2", "olmo3",
        "olmoe", "cohere", "cohere2", "stablelm", "starcoder2", "gpt2", "gpt_neox", "gptj", "gpt_bigcode", "opt",
        "bloom", "falcon", "mpt", "exaone", "exaone4", "glm", "glm4", "glm4_moe", "ernie4_5", "ernie4_5_moe",
        "nemotron", "nemotron-nas", "gpt_oss", "llama4", "llama4_text", "minimax_m2", "seed_oss", "dbrx",
        "hunyuan_v1_dense",
        "hunyuan_v1_moe", "internlm3", "arcee", "apertus", "smollm3", "ministral",
    }
)  # fmt: skip


def check_family(model: ModelSpec, cache: CacheKind) -> None:
    """Raises UnsupportedArchitecture for a layer that vLLM runs in no way known here. Layers stated by hand are taken
    at their word."""
    if model.source_kind not in ("config", "safetensors"):
        return _check_form(model, cache)
    name = model.architecture
    if name in _REMOVED:
        raise _unsupported(model, f"vLLM ran it until {_REMOVED[name]}; {VERSION} does not")
    if isinstance(cache, FullAttention) and (cache.prefix_tokens or cache.window_after_prompt is not None):
        raise _unsupported(model, f"how {VERSION} keeps its prompt is not known")
    if isinstance(cache, CrossAttention):
        raise _unsupported(model, f"how {VERSION} keeps its cross attention is not known")
    if isinstance(cache, IndexedAttention) and name not in INDEXED_TYPES:
        raise _unsupported(model, f"how {VERSION} keeps its index keys is not known")
    if isinstance(cache, LatentAttention) and name not in MLA_TYPES:
        raise _unsupported(
            model, f"{VERSION} is not known to keep its latent; it may keep keys and values of every head"
        )
    if isinstance(cache, RecurrentState) and name not in CHECKED_STATE_TYPES | _OTHER_STATE_TYPES:
        raise _unsupported(model, f"{VERSION} has no implementation of its recurrent layers ({cache.form})")
    return _check_form(model, cache)


def is_checked(model: ModelSpec) -> bool:
    """Whether what vLLM makes of this family's layers was measured, planned by its own functions, or is plain."""
    return model.architecture in _PLAIN_TYPES | CHECKED_STATE_TYPES | {"deepseek_v2", "deepseek_v3", "kimi_k2"}


def _check_form(model: ModelSpec, cache: CacheKind) -> None:
    if isinstance(cache, RecurrentState) and cache.form not in _STATE_FORMS:
        raise _unsupported(model, f"{VERSION} has no backend for recurrent layers of the form {cache.form}")


def _unsupported(model: ModelSpec, why: str) -> UnsupportedArchitecture:
    return UnsupportedArchitecture(
        f"{model.architecture}: {why}.", hint="Engine 'logical' says what the tokens need on any engine."
    )
