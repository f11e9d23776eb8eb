"""What a design holds fixed never names what it varies."""

from dataclasses import replace

from rows_for_tests import design_row

from kvscope.record.held import held_fixed, held_of

HELD = {
    "prompt_tokens": 128,
    "output_tokens": 32,
    "rate_per_s": None,
    "settings": {"n_ctx": 512, "cache_type_k": "f16"},
}


def test_the_factor_is_not_held_nor_what_is_not_set() -> None:
    # As measured: input_length listed prompt_tokens 128 as held, and a load at a rate listed rate_per_s as null.
    assert held_fixed(HELD, {"prompt_tokens"}) == {"output_tokens": 32, "settings": HELD["settings"]}


def test_settings_that_a_level_stands_for_are_not_held() -> None:
    fixed = held_fixed(HELD, {"kv_dtype", "cache_type_k", "cache_type_v"})
    assert fixed["settings"] == {"n_ctx": 512}


def test_a_conversation_of_so_many_turns_is_one_at_every_level() -> None:
    assert held_fixed({"turns": 8, "is_conversation": True, "language": "en"}, {"turns"}) == {"language": "en"}


def test_neither_factor_of_a_grid_is_held() -> None:
    levels = tuple({"n_ubatch": size, "prompt_tokens": 64} for size in (128, 512))
    grid = replace(
        design_row(), is_grid=True, factor="n_ubatch × prompt_tokens", levels=levels,
        held={"prompt_tokens": 1024, "output_tokens": 4},
    )  # fmt: skip
    assert held_of(grid) == {"output_tokens": 4}
