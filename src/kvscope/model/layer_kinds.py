"""Which GGUF architectures are known, and for each: which layers slide, which are recurrent, which keys may occur.

An architecture is here only when the bytes llama.cpp takes for it were checked against the real engine
(tests/golden/llamacpp/README.md). Anything else is refused by name: a wrong sum is worse than none.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from kvscope.errors import UnsupportedArchitecture

# How the layers with a window are told from the others:
# "none": there are none; "period": every n-th layer is full, unless the file gives a pattern; "stated": by the file's
# pattern, one truth value per layer; "all": every layer slides; "chunked": as "period", in chunks instead of a window.
Windows = Literal["none", "period", "stated", "all", "chunked"]
# Which layers hold a recurrent state instead of a cache: none; all; those without key-value heads; those without
# key-value heads and without feed-forward (the rest are feed-forward alone); all but every n-th; all, beside a cache.
Recurrent = Literal["none", "all", "no_kv_heads", "no_kv_heads_no_ffn", "interval", "both"]
StateRule = Literal["mamba", "mamba2", "gated_delta_net", "kda", "short_conv", "rwkv"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """``period``: every n-th layer is full. ``handled``: keys that change the cache, read for this architecture; any
    other key of that sort makes the file a variant that is refused. ``window_is_optional``: without the window's width
    (or with 0) every layer is full. ``windowed_depth``: only models of so many layers have windows in llama.cpp.
    ``default_window``: its width where the file does not say, as llama.cpp has it. ``own_layers``: llama.cpp lets all
    layers after the first so many share, whatever attention.shared_kv_layers says."""

    name: str
    windows: Windows = "none"
    period: int = 0
    window_is_optional: bool = False
    windowed_depth: int | None = None
    default_window: int | None = None
    own_layers: int | None = None
    recurrent: Recurrent = "none"
    state: StateRule | None = None
    is_latent: bool = False
    handled: frozenset[str] = frozenset()


_EXPERTS = frozenset({"expert_count"})
_WINDOW = frozenset({"attention.sliding_window", "attention.sliding_window_pattern"})
_MAMBA = frozenset({"ssm.conv_kernel", "ssm.inner_size", "ssm.state_size", "ssm.group_count"})
_LATENT = frozenset({"attention.kv_lora_rank", "attention.key_length_mla", "attention.value_length_mla"})
_SWA_DIMS = frozenset({"attention.key_length_swa", "attention.value_length_swa"})
_SHARED = frozenset({"attention.shared_kv_layers"})
_WKV = frozenset({"wkv.head_size", "token_shift_count"})
_SHORT_CONV = frozenset({"shortconv.l_cache"})
_DELTA_NET = _MAMBA | {"full_attention_interval"}

# Every layer full attention, one dense feed-forward.
_DENSE = (
    "deci", "openelm", "qwen", "qwen2", "qwen2vl", "qwen3", "qwen3vl", "gemma", "gpt2", "gptneox", "command-r",
    "ernie4_5", "phi2", "exaone", "glm4", "chatglm", "olmo", "stablelm", "starcoder", "starcoder2", "falcon",
    "internlm2", "baichuan", "bloom", "mpt", "orion", "xverse", "arcee", "smollm3", "minicpm", "hunyuan-dense",
    "seed_oss", "nemotron", "refact", "codeshell", "bitnet", "jais",
)  # fmt: skip
# The same with experts, in some or all layers; the first three without them too.
_MIXTURES = (
    "llama", "mistral3", "granite", "granitemoe", "qwen2moe", "qwen3moe", "qwen3vlmoe", "olmoe", "dbrx", "deepseek",
    "ernie4_5-moe", "bailingmoe", "bailingmoe2", "glm4moe", "dots1", "hunyuan-moe", "arctic", "minimax-m2", "phimoe",
)  # fmt: skip
_OTHERS = (
    # Sliding windows. gemma3 and olmo2 (OLMo 3) without a window: every layer full.
    Family(name="gemma2", windows="period", period=2, default_window=4096, handled=_WINDOW),
    Family(name="gemma3", windows="period", period=6, window_is_optional=True, handled=_WINDOW),
    Family(name="gemma3n", windows="period", period=5, own_layers=20, handled=_WINDOW | _SHARED),
    Family(name="gemma4", windows="stated", handled=_WINDOW | _SHARED | _EXPERTS | _SWA_DIMS),
    Family(name="mimo2", windows="stated", handled=_WINDOW | _EXPERTS),
    Family(name="olmo2", windows="period", period=4, window_is_optional=True, handled=_WINDOW),
    Family(name="exaone4", windows="period", period=4, windowed_depth=64, default_window=4096, handled=_WINDOW),
    Family(name="exaone-moe", windows="period", period=4, handled=_WINDOW | _EXPERTS),
    Family(name="cohere2", windows="period", period=4, handled=_WINDOW),
    Family(name="gpt-oss", windows="period", period=2, handled=_WINDOW | _EXPERTS),
    Family(name="phi3", windows="all", window_is_optional=True, handled=frozenset({"attention.sliding_window"})),
    Family(
        name="llama4",
        windows="chunked",
        period=4,
        default_window=8192,
        handled=_EXPERTS | {"attention.chunk_size", "attention.sliding_window_pattern"},
    ),
    # Latent attention. minicpm3's graph in llama.cpp expands it again.
    Family(name="deepseek2", is_latent=True, handled=_LATENT | _EXPERTS),
    Family(name="mistral4", is_latent=True, handled=_LATENT | _EXPERTS),
    Family(name="minicpm3", is_latent=True, handled=frozenset({"attention.kv_lora_rank"})),
    # Recurrent, and hybrids.
    Family(name="mamba", recurrent="all", state="mamba", handled=_MAMBA),
    Family(name="mamba2", recurrent="all", state="mamba2", handled=_MAMBA),
    Family(name="rwkv6", recurrent="all", state="rwkv", handled=_WKV),
    Family(name="rwkv7", recurrent="all", state="rwkv", handled=_WKV),
    Family(name="jamba", recurrent="no_kv_heads", state="mamba", handled=_MAMBA | _EXPERTS),
    Family(name="granitehybrid", recurrent="no_kv_heads", state="mamba2", handled=_MAMBA | _EXPERTS),
    Family(name="falcon-h1", recurrent="both", state="mamba2", handled=_MAMBA),
    Family(name="nemotron_h", recurrent="no_kv_heads_no_ffn", state="mamba2", handled=_MAMBA),
    Family(name="nemotron_h_moe", recurrent="no_kv_heads_no_ffn", state="mamba2", handled=_MAMBA | _EXPERTS),
    Family(name="lfm2", recurrent="no_kv_heads", state="short_conv", handled=_SHORT_CONV),
    Family(name="lfm2moe", recurrent="no_kv_heads", state="short_conv", handled=_SHORT_CONV | _EXPERTS),
    Family(name="qwen3next", recurrent="interval", state="gated_delta_net", handled=_DELTA_NET | _EXPERTS),
    Family(name="qwen35", recurrent="interval", state="gated_delta_net", handled=_DELTA_NET),
    Family(name="qwen35moe", recurrent="interval", state="gated_delta_net", handled=_DELTA_NET | _EXPERTS),
    Family(
        name="kimi-linear",
        recurrent="no_kv_heads",
        state="kda",
        is_latent=True,
        handled=_LATENT | _EXPERTS | {"ssm.conv_kernel", "kda.head_dim"},
    ),
)
GGUF_FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        *(Family(name=name) for name in _DENSE),
        *(Family(name=name, handled=_EXPERTS) for name in _MIXTURES),
        *_OTHERS,
    )
}


def gguf_family(architecture: str, path: str) -> Family:
    """Raises UnsupportedArchitecture naming the architecture and the file."""
    family = GGUF_FAMILIES.get(architecture)
    if family is None:
        raise UnsupportedArchitecture(
            f"{path}: kvscope does not know which layers of the GGUF architecture {_shortened(architecture)} hold what "
            "cache.",
            hint=f"Known: {', '.join(sorted(GGUF_FAMILIES))}.",
        )
    return family


def _shortened(text: str) -> str:
    return repr(text) if len(text) <= 80 else f"{text[:80]!r}..."


def sliding_layers(full_every: int, num_layers: int) -> tuple[bool, ...]:
    """For each layer, whether it slides: the last layer of each period of ``full_every`` is full, so with 1 all are;
    with 0 none is."""
    return tuple(full_every == 0 or (index + 1) % full_every != 0 for index in range(num_layers))
