"""What each engine's rule says, against its sources and hand-derived numbers."""

import pytest

from kvscope.errors import UnknownName
from kvscope.prompt.reuse_rules import Reusable, reusable_tokens
from kvscope.scenario import SettingValue


def ask(common: int, held: int, prompt: int, engine: str = "llama.cpp", **settings: SettingValue) -> Reusable:
    return reusable_tokens(
        common,
        held_tokens=held,
        prompt_tokens=prompt,
        engine=engine,
        engine_version=None,
        model=None,
        settings=settings,
    )


def test_a_prompt_that_is_held_whole_is_computed_from_its_last_token() -> None:
    assert ask(100, 120, 100).tokens == 99


def test_what_is_not_held_is_not_reused() -> None:
    assert ask(200, 120, 300).tokens == 120


def test_a_prompt_that_may_not_be_cached_is_not() -> None:
    assert ask(100, 120, 100, cache_prompt=False).tokens == 0


def test_an_engine_without_a_rule_is_an_error() -> None:
    with pytest.raises(UnknownName):
        ask(1, 1, 1, engine="nothing")
