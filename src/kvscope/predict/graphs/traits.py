"""What sets the graphs of llama.cpp's architectures apart where the weights in the file do not tell."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

Norm = Literal["RMS_NORM", "NORM"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """``norm``: of whole rows; None: NORM where the file has biases for it. ``key_first``: keys are computed before
    values. ``rope``: positions turn the heads, of which layers. ``head_norm_after_rope``: heads are normalised after
    that. ``bare_*``: normalised without weights. ``clamped_heads``: joint queries, keys and values are clamped.
    ``scaled_*``: the query, the embeddings (``scaled_rows``: each by a number of its own), what a layer adds and the
    logits (before or after they are computed) are multiplied. ``softcap``, ``logit_softcap``:
    scores, logits are bent by tanh. ``chosen_after``: the rows that are put out are taken after attention's were added
    to the layer's. ``parallel``: attention and feed-forward read the same row. ``hidden_first``: a layer's row is added
    to before what is added. ``repeated_keys``: keys are repeated for every value head. ``gate``,
    ``normalised_weights``, ``weights_before``, ``experts_first``, ``always_shared``, ``divided_gate``: how experts are
    chosen, weighed and put in order."""

    norm: Norm | None = None
    bare_norm: bool = False
    clamped_heads: bool = False
    key_first: bool = False
    rope: Literal["all", "windowed", "three_of_four", "none"] = "all"
    head_norm_after_rope: bool = False
    bare_head_norm: bool = False
    bare_value_norm: bool = False
    scaled_query: bool = False
    scaled_input: bool = False
    scaled_rows: bool = False
    scaled_residual: bool = False
    scaled_logits: Literal["", "before", "after"] = ""
    chosen_after: bool = False
    softcap: bool = False
    logit_softcap: bool = False
    parallel: bool = False
    hidden_first: Literal["", "attention", "both"] = ""
    repeated_keys: bool = False
    positions_per_token: int = 1
    squared_activation: bool = False
    gate: Literal["softmax", "sigmoid", "late_softmax"] = "softmax"
    normalised_weights: bool = True
    weights_before: bool = False
    experts_first: bool = False
    always_shared: bool = False
    divided_gate: bool = False


_PLAIN = Traits()
_LAYER_NORM = Traits(norm="NORM")
TRAITS: dict[str, Traits] = {
    "gemma2": Traits(key_first=True, scaled_query=True, scaled_input=True, softcap=True, logit_softcap=True),
    "gemma": Traits(scaled_query=True, scaled_input=True),
    "gemma3": Traits(key_first=True, scaled_query=True, scaled_input=True, scaled_rows=True),
    "gemma4": Traits(logit_softcap=True, key_first=True, scaled_input=True, scaled_rows=True, bare_value_norm=True),
    "gemma3n": Traits(key_first=True, scaled_input=True, scaled_rows=True, bare_value_norm=True, logit_softcap=True),
    "gpt-oss": Traits(key_first=True, gate="late_softmax"),
    "llama4": Traits(rope="three_of_four", key_first=True, bare_head_norm=True, gate="sigmoid",
                     normalised_weights=False, weights_before=True),
    "gpt2": Traits(norm="NORM", rope="none"),
    "command-r": Traits(norm="NORM", parallel=True, scaled_logits="after"),
    "cohere2": Traits(norm="NORM", rope="windowed", key_first=True, parallel=True, scaled_logits="after"),
    "granite": Traits(scaled_logits="after"),
    "granitemoe": Traits(scaled_logits="after"),
    "falcon-h1": Traits(chosen_after=True),
    "phi2": Traits(scaled_query=True),
    "phi3": Traits(scaled_query=True),
    "phimoe": Traits(norm="RMS_NORM", scaled_query=True),
    "arcee": Traits(squared_activation=True),
    "nemotron": Traits(squared_activation=True),
    "olmo2": Traits(key_first=True),
    "exaone4": Traits(key_first=True, rope="windowed"),
    "exaone-moe": Traits(key_first=True, rope="windowed", gate="sigmoid"),
    "hunyuan-dense": Traits(head_norm_after_rope=True),
    "hunyuan-moe": Traits(head_norm_after_rope=True),
    "deepseek": Traits(normalised_weights=False),
    "olmoe": Traits(normalised_weights=False),
    "qwen2moe": Traits(divided_gate=True, normalised_weights=False),
    "glm4moe": Traits(gate="sigmoid"),
    "mistral4": Traits(gate="sigmoid"),
    "bailingmoe2": Traits(gate="sigmoid"),
    "dots1": Traits(gate="sigmoid"),
    "minimax-m2": Traits(gate="sigmoid"),
    "openelm": Traits(hidden_first="attention"),
    "lfm2": Traits(hidden_first="both"),
    "lfm2moe": Traits(experts_first=True, hidden_first="both", gate="sigmoid"),
    "jamba": Traits(rope="none", hidden_first="attention", normalised_weights=False),
    "granitehybrid": Traits(experts_first=True, scaled_logits="after"),
    "nemotron_h": Traits(rope="none", squared_activation=True),
    "nemotron_h_moe": Traits(rope="none", squared_activation=True, gate="sigmoid", experts_first=True),
    "mimo2": Traits(key_first=True, gate="sigmoid"),
    "qwen35": Traits(positions_per_token=4),
    "qwen35moe": Traits(positions_per_token=4),
    "qwen2vl": Traits(positions_per_token=4),
    "qwen3vl": Traits(positions_per_token=4),
    "qwen3vlmoe": Traits(positions_per_token=4),
    "baichuan": Traits(rope="none"),
    "bloom": Traits(rope="none"),
    "mpt": Traits(norm="NORM", rope="none"),
    "jais": Traits(rope="none"),
    "refact": Traits(rope="none"),
    "starcoder": Traits(rope="none"),
    "dbrx": Traits(norm="NORM", clamped_heads=True),
    "olmo": Traits(norm="NORM", bare_norm=True),
    "rwkv6": _LAYER_NORM,
    "rwkv7": _LAYER_NORM,
    "kimi-linear": Traits(rope="none", gate="sigmoid", always_shared=True),
    "qwen3next": Traits(repeated_keys=True),
    "minicpm": Traits(scaled_input=True, scaled_residual=True, scaled_logits="after"),
    "minicpm3": Traits(scaled_input=True, scaled_residual=True, scaled_logits="before"),
    "stablelm": _LAYER_NORM,
    "deepseek2": Traits(gate="sigmoid", normalised_weights=False),
}  # fmt: skip


# Architectures that weigh experts as the file's expert_weights_norm says; the others never look.
_READ_NORMALISED = frozenset(
    {"bailingmoe", "bailingmoe2", "deepseek2", "dots1", "exaone-moe", "glm4moe", "mistral4", "nemotron_h_moe"}
)

_READ_SCALES = frozenset({"granite", "granitemoe", "granitehybrid"})


def traits_of(architecture: str, keys: Mapping[str, object]) -> Traits:
    """``keys``: ModelSpec.graph_keys."""
    found = TRAITS.get(architecture, _PLAIN)
    if architecture in _READ_SCALES:
        found = replace(
            found,
            scaled_input=bool(keys.get("embedding_scale")),
            scaled_residual=bool(keys.get("residual_scale")),
        )
    if architecture in _READ_NORMALISED:
        found = replace(found, normalised_weights=bool(keys.get("expert_weights_norm")))
    return found
