"""Per model family: which layer attends to everything and which to a sliding window.

A family is here only when every byte it takes was checked against a real engine or its own code. Anything else is
refused by name: a wrong sum is worse than none.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kvscope.errors import UnsupportedArchitecture


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
