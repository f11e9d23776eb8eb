"""Is a declared context believable? Some files declare a placeholder (1,024,000 for a model of 131,072), and a
prediction "at the model's context" is then far too large. What is found here is a warning; no number is changed.

A rope scaling never multiplies the declared context: max_position_embeddings is already the scaled one in every family
of transformers 5.24.0. It only says how far positions were stretched, which the declared number can be held against.
"""

from collections.abc import Mapping
from typing import Any

# How a warning of this module starts.
DOUBTFUL_CONTEXT = "The declared context of "
# Beyond this, published models have a larger rotary base (Qwen2.5-1M and Seed-OSS: 10 million) or a scaling.
MODEST_CONTEXT_TOKENS = 262_144
SMALLEST_LONG_BASE = 5_000_000
# A declared context this many times beyond what the file itself supports is doubtful (Llama 3.1 declares twice its
# original context × factor).
TOLERANCE = 4
OTHER_NAMES = ("max_sequence_length", "model_max_length", "seq_length", "max_seq_len")
# longrope's two lists of factors select by length; its original context says nothing of the limit.
SELF_SCALED = frozenset({"longrope", "su"})
# Models with these have layers without rotary positions, which reach further than the others (Llama 4).
NO_ROPE_KEYS = ("no_rope_layers", "no_rope_layer_interval", "attention_chunk_size", "attn_temperature_tuning")


def context_warnings(content: Mapping[str, Any], declared: int | None, *, has_rope: bool) -> tuple[str, ...]:
    """Warnings about the ``declared`` context of a config. ``has_rope``: its class has rotary positions."""
    if declared is None:
        return ()
    places = [content, *(value for key, value in content.items() if key.endswith("_config"))]
    reasons = [
        reason
        for place in places
        if isinstance(place, Mapping)
        for reason in _reasons(place, declared, has_rope and (place is content or "max_position_embeddings" in place))
    ]
    return tuple(
        f"{DOUBTFUL_CONTEXT}{declared:,} tokens is doubtful: {reason}. "
        "Name the context you will use instead of relying on it."
        for reason in dict.fromkeys(reasons)
    )


def _reasons(place: Mapping[str, Any], declared: int, has_rope: bool) -> list[str]:
    found = []
    for name in OTHER_NAMES:
        other = _number(place.get(name))
        if other and declared > TOLERANCE * other:
            found.append(f"{name} is {other:,.0f}")
    rope = _rope(place)
    original = _number(rope.get("original_max_position_embeddings"))
    factor = _number(rope.get("factor"))
    kind = rope.get("rope_type", rope.get("type", "default"))
    if not isinstance(kind, str) or kind in SELF_SCALED or any(place.get(key) for key in NO_ROPE_KEYS):
        return found
    if original:
        reach = original * (factor or 1)
        if declared > TOLERANCE * reach:
            found.append(f"its rope scaling reaches {reach:,.0f} tokens ({original:,.0f} × {factor or 1:g})")
    elif factor is None and has_rope and declared > MODEST_CONTEXT_TOKENS and place.get("max_position_embeddings"):
        base = _number(rope.get("rope_theta")) or _number(place.get("rope_theta"))
        if base is None or base < SMALLEST_LONG_BASE:
            stated = "the default" if base is None else f"{base:,.0f}"
            found.append(f"there is no rope scaling, and the rotary base is {stated}, too small for so many positions")
    return found


def _rope(place: Mapping[str, Any]) -> Mapping[str, Any]:
    """rope_parameters (transformers 5) or rope_scaling; of several per layer type, the full layers'."""
    for key in ("rope_parameters", "rope_scaling"):
        rope = place.get(key)
        if isinstance(rope, Mapping):
            inner = rope.get("full_attention")
            return inner if isinstance(inner, Mapping) else rope
    return {}


def _number(value: Any) -> float | None:
    """A positive number, or None: what is no number here is no reason either way."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 2**60 else None
