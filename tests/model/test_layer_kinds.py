"""Which layers slide. The rule is that of Gemma3TextConfig (transformers) and of llama.cpp's set_swa_pattern: a layer
slides unless it is the last of its period, so that a period of 1 leaves every layer full; llama.cpp's 0: all slide."""

import pytest

from kvscope.model.layer_kinds import gemma3_sliding_layers, sliding_layers


@pytest.mark.parametrize(
    ("full_every", "expected"),
    [
        (None, [False] * 7),
        (0, [True] * 7),
        (1, [False] * 7),
        (2, [True, False, True, False, True, False, True]),
        (6, [True, True, True, True, True, False, True]),
    ],
)
def test_the_last_layer_of_each_period_is_full(full_every: int | None, expected: list[bool]) -> None:
    assert list(sliding_layers(full_every, 7)) == expected


@pytest.mark.parametrize("pattern", [1, 2, 3, 6, 9])
def test_a_config_follows_the_same_rule(pattern: int) -> None:
    found, where = gemma3_sliding_layers({"sliding_window_pattern": pattern}, 7, "config.json")
    assert found == sliding_layers(pattern, 7)
    assert where == "sliding_window_pattern"
