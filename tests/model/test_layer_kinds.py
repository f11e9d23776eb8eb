"""Which layers slide. The rule is that of Gemma3TextConfig (transformers) and of llama.cpp's set_swa_pattern: a layer
slides unless it is the last of its period, so that a period of 1 leaves every layer full; llama.cpp's 0: all slide."""

import pytest

from kvscope.errors import UnsupportedArchitecture
from kvscope.model.layer_kinds import GGUF_FAMILIES, gguf_family, sliding_layers


@pytest.mark.parametrize(
    ("full_every", "expected"),
    [
        (0, [True] * 7),
        (1, [False] * 7),
        (2, [True, False, True, False, True, False, True]),
        (6, [True, True, True, True, True, False, True]),
    ],
)
def test_the_last_layer_of_each_period_is_full(full_every: int, expected: list[bool]) -> None:
    assert list(sliding_layers(full_every, 7)) == expected


@pytest.mark.parametrize(
    "name", ["smallthinker", "plamo2", "gptj", "grok", "afmoe", "bert", "t5", "clip", "Llama", "llama "]
)
def test_what_was_not_checked_on_the_engine_is_refused_by_name(name: str) -> None:
    assert name not in GGUF_FAMILIES
    with pytest.raises(UnsupportedArchitecture, match=name) as caught:
        gguf_family(name, "a.gguf")
    assert caught.value.hint is not None
    assert "qwen3next" in caught.value.hint


def test_every_family_is_found_under_its_own_name() -> None:
    assert all(gguf_family(name, "a.gguf").name == name for name in GGUF_FAMILIES)
    assert all(family.state is not None for family in GGUF_FAMILIES.values() if family.recurrent != "none")
