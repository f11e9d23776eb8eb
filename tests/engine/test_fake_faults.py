"""Faults of the fake engine: each is as large as it was told to be, and none is there unless asked for."""

from itertools import pairwise

import pytest

from kvscope.engine.base import ChatRequest, Generation, Message
from kvscope.engine.client_health import MOST_LAG_S
from kvscope.engine.fake import FakeEngine, VirtualClock
from kvscope.scenario import SettingValue
from kvscope.units import KIB, MIB


def loaded(**settings: SettingValue) -> FakeEngine:
    engine = FakeEngine(settings=settings, clock=VirtualClock())
    engine.launch()
    engine.load()
    return engine


def ask(engine: FakeEngine, text: str = "a b c") -> Generation:
    return engine.generate(ChatRequest(messages=(Message(role="user", content=text),), max_output_tokens=2))


def held(engine: FakeEngine) -> int:
    reading = engine.memory.read()
    return reading["anon_bytes"] + reading["swap_bytes"]


def test_a_leak_grows_with_each_request_and_ends_with_the_process() -> None:
    engine = loaded(leak_bytes=MIB, compute_bytes=0)
    before = held(engine)
    for _ in range(3):
        ask(engine)
    assert held(engine) == before + 3 * MIB
    engine.unload()
    # Beside the process and what every engine keeps of its run time, what has leaked stays.
    assert held(engine) == engine.law.process_bytes + engine.law.fixed_bytes + 3 * MIB
    engine.stop()
    engine.launch()
    assert held(engine) == engine.law.process_bytes


def test_copies_that_the_engine_does_not_speak_of_are_held_all_the_same() -> None:
    silent, open_ = (loaded(cache_ram_mib=100, states_copies=states) for states in (0, 1))
    for engine in (silent, open_):
        ask(engine)
    assert held(silent) == held(open_)
    assert silent.host_cache() is None
    assert open_.host_cache() is not None


def test_swapped_memory_is_held_and_not_resident_from_a_request_on() -> None:
    engine = loaded(swapped_bytes=2 * MIB, swaps_at_request=1, compute_bytes=0)
    before = held(engine)
    assert engine.memory.read()["swap_bytes"] == 0
    ask(engine)
    assert engine.memory.read()["swap_bytes"] == 2 * MIB
    assert held(engine) == before
    mapped = sum(mapping.anonymous_bytes for mapping in engine.memory.maps())
    assert mapped == engine.memory.read()["anon_bytes"]


def test_each_process_holds_more_than_the_one_before() -> None:
    sizes = [held(loaded(more_bytes_per_launch=64 * KIB, noise_seed=70_001)) for _ in range(3)]
    assert [after - before for before, after in pairwise(sizes)] == [64 * KIB] * 2


@pytest.mark.parametrize(("law", "off"), [("counts_more_tokens", 5), ("counts_fewer_tokens", -2)])
def test_a_server_counts_prompts_otherwise(law: str, off: int) -> None:
    engine = loaded(**{law: abs(off)})
    ours = engine.count_prompt_tokens((Message(role="user", content="a b c"),))
    assert ask(engine).prompt_tokens == ours + off


def test_a_client_that_is_late_is_limited_beyond_what_is_allowed() -> None:
    assert ask(loaded()).health is None
    late, near = (ask(loaded(client_lag_s=lag)).health for lag in (2 * MOST_LAG_S, MOST_LAG_S / 2))
    assert late is not None
    assert near is not None
    assert late.limited_by
    assert not near.limited_by


def test_a_heap_that_moves_from_request_to_request_comes_from_the_seed() -> None:
    def curve() -> list[int]:
        engine = loaded(heap_noise_bytes=64 * KIB, noise_seed=3, compute_bytes=0)
        return [held(engine) for _ in range(4) if ask(engine)]

    assert curve() == curve()
    assert len(set(curve())) == 4
