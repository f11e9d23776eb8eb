"""Per model family: which layer attends to everything and which to a sliding window.

A family is here only when every byte it takes was checked against a real engine or its own code. Anything else is
refused by name: a wrong sum is worse than none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvscope.errors import MalformedFile, UnsupportedArchitecture


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """``full_every``: every n-th layer is full and the others slide; 0 = every layer slides; None = no window."""

    name: str
    full_every: int | None


# GGUF architectures, as measured on llama.cpp b11549 (tests/golden/llamacpp). gemma3: 5 sliding layers, then 1 full.
GGUF_FAMILIES: Mapping[str, Family] = {
    name: Family(name=name, full_every=every)
    for name, every in (
        ("llama", None),
        ("gemma3", 6),
        ("qwen2", None),
        ("qwen3", None),
        ("granite", None),
        ("command-r", None),
        ("ernie4_5", None),
        ("phi3", 0),
        ("deci", None),
    )
}

GEMMA3_DEFAULT_PATTERN = 6  # Gemma3TextConfig, transformers 5.x: sliding_window_pattern

_FULL, _SLIDING = "full_attention", "sliding_attention"


def gguf_family(architecture: str) -> Family:
    """Raises UnsupportedArchitecture naming the architecture."""
    family = GGUF_FAMILIES.get(architecture)
    if family is None:
        raise UnsupportedArchitecture(
            f"kvscope does not know which layers of the GGUF architecture {architecture!r} hold what cache.",
            hint=f"Known: {', '.join(GGUF_FAMILIES)}.",
        )
    return family


def sliding_layers(full_every: int | None, num_layers: int) -> tuple[bool, ...]:
    """For each layer, whether it slides: the last layer of each period of ``full_every`` is full, so with 1 all are;
    with 0 none is."""
    if full_every is None:
        return (False,) * num_layers
    return tuple(full_every == 0 or (index + 1) % full_every != 0 for index in range(num_layers))


def gemma3_sliding_layers(config: Mapping[str, Any], num_layers: int, path: str) -> tuple[tuple[bool, ...], str]:
    """For each layer of a Gemma 3 config.json, whether it slides, and where that is said.

    Source: Gemma3TextConfig of transformers 5.x. ``layer_types`` decides where given; else every
    ``sliding_window_pattern``-th layer (default 6) is full.
    """
    listed = config.get("layer_types")
    if listed is not None:
        return _listed(listed, num_layers, path), "layer_types"
    pattern = config.get("sliding_window_pattern")
    if pattern is None:
        # Older files carry the pattern under its private name only, which transformers itself does not read back.
        private = config.get("_sliding_window_pattern", GEMMA3_DEFAULT_PATTERN)
        if private != GEMMA3_DEFAULT_PATTERN:
            raise UnsupportedArchitecture(
                f"{path} gives _sliding_window_pattern = {private!r} but neither layer_types nor "
                "sliding_window_pattern, so which layers slide is not certain.",
                hint='Add "layer_types" to config.json, one of full_attention or sliding_attention per layer.',
            )
        return sliding_layers(GEMMA3_DEFAULT_PATTERN, num_layers), "class default of transformers 5.x Gemma3TextConfig"
    if isinstance(pattern, bool) or not isinstance(pattern, int) or pattern < 1:
        raise MalformedFile(path, "sliding_window_pattern", f"the pattern is {pattern!r}; a whole number was expected")
    return sliding_layers(pattern, num_layers), "sliding_window_pattern"


def _listed(listed: Any, num_layers: int, path: str) -> tuple[bool, ...]:
    if not isinstance(listed, Sequence) or isinstance(listed, str) or len(listed) != num_layers:
        raise MalformedFile(path, "layer_types", f"a list of {num_layers} layer types was expected, one per layer")
    unknown = [kind for kind in listed if kind not in (_FULL, _SLIDING)]
    if unknown:
        raise UnsupportedArchitecture(
            f"{path} lists the layer type {unknown[0]!r}, which kvscope does not know.",
            hint=f"Known for this family: {_FULL}, {_SLIDING}.",
        )
    return tuple(kind == _SLIDING for kind in listed)
