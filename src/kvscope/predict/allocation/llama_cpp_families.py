"""Which of llama.cpp's graphs runs a model, whatever file it was read from, and what that graph is particular about.
Rules of xllamacpp 2026.10.11549 (llama.cpp b11549), found by starting it on generated files
(tests/golden/llamacpp/README.md)."""

from kvscope.errors import UnsupportedArchitecture
from kvscope.model.layer_kinds import GGUF_FAMILIES, Family
from kvscope.model.spec import ModelSpec

# Families of config.json by the GGUF architecture they are converted to, where "_" for "-" does not already give it.
_CONVERTED = {
    "mistral": "llama", "mixtral": "llama", "cohere": "command-r", "gpt_neox": "gptneox", "phi": "phi2",
    "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe", "qwen3_next": "qwen3next", "qwen3_5": "qwen35",
    "qwen3_5_moe": "qwen35moe", "deepseek_v2": "deepseek2", "deepseek_v3": "deepseek2", "glm4_moe": "glm4moe",
    "granitemoehybrid": "granitehybrid", "lfm2_moe": "lfm2moe", "olmo3": "olmo2", "hunyuan_v1_dense": "hunyuan-dense",
    "hunyuan_v1_moe": "hunyuan-moe", "ernie4_5_moe": "ernie4_5-moe", "minimax_m2": "minimax-m2",
    "kimi_linear": "kimi-linear", "mimo_v2": "mimo2", "exaone_moe": "exaone-moe", "gpt_bigcode": "starcoder",
}  # fmt: skip
# llama.cpp's graphs of these have no window, whatever the file says: every layer gets all cells.
_WINDOW_IGNORED = frozenset({"phi3"})
# Graphs that run layers of different shape; all others assert that every layer has the same heads.
MIXED_LAYERS = frozenset({"deci", "openelm", "gemma4", "mimo2"})
# Graphs that run keys and values of different width; all others assert that they are equal.
_UNEQUAL_WIDTHS = frozenset({"mimo2"})


def graph_family(model: ModelSpec) -> Family:
    """Raises UnsupportedArchitecture for a model that llama.cpp's rules here do not cover."""
    if model.source_kind == "stated":
        return Family(name=model.family or "stated", windows="stated")
    name = model.family
    if model.source_kind != "gguf":
        name = _CONVERTED.get(model.family, model.family)
        name = next((n for n in (name, name.replace("_", "-")) if n in GGUF_FAMILIES), name)
    family = GGUF_FAMILIES.get(name)
    if family is None:
        raise UnsupportedArchitecture(
            f"What llama.cpp reserves for the family {model.family!r} is not known here.",
            hint=f"Known: {', '.join(sorted(GGUF_FAMILIES))}.",
        )
    return family


def has_windows(model: ModelSpec) -> bool:
    """Whether llama.cpp keeps windowed layers of this model in a smaller cache."""
    family = graph_family(model)
    if family.name in _WINDOW_IGNORED or family.windows == "none":
        return False
    return family.windowed_depth in (None, len(model.layers))


def needs_equal_widths(family: Family) -> bool:
    """Whether the graph asserts that keys and values are equally wide."""
    return not family.is_latent and family.name not in _UNEQUAL_WIDTHS
