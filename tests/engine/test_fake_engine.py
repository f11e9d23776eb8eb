"""The fake engine obeys its law: every expected number is worked out here from the law's own numbers."""

import pytest

from kvscope.engine.base import ChatRequest, Message
from kvscope.engine.fake import FakeEngine, FakeLaw, VirtualClock
from kvscope.errors import EngineDied, EngineStalled, InvalidSettings, ProbeLost
from kvscope.scenario import SettingValue
from kvscope.units import MIB

LAW: dict[str, SettingValue] = {
    "n_ctx": 1000,
    "n_ubatch": 100,
    "process_bytes": 1_000_000,
    "weights_bytes": 5_000_000,
    "fixed_bytes": 300_000,
    "bytes_per_token": 1024,
    "compute_bytes": 200_000,
    "load_s": 2.0,
    "ttft_s": 0.5,
    "ttft_s_per_token": 0.01,
    "ttft_s_per_token_pair": 0.0001,
    "itl_s": 0.1,
    "itl_s_per_token": 0.001,
}


def loaded(clock: VirtualClock | None = None, **settings: SettingValue) -> FakeEngine:
    engine = FakeEngine(settings={**LAW, **settings}, clock=clock or VirtualClock())
    engine.launch()
    engine.load()
    return engine


def asking(num_words: int, output: int = 1, **more: object) -> ChatRequest:
    text = " ".join(f"w{number}" for number in range(num_words))
    return ChatRequest(messages=(Message(role="user", content=text),), max_output_tokens=output, **more)  # type: ignore[arg-type]


def anon(engine: FakeEngine) -> int:
    return engine.memory_probe().read()["anon_bytes"]


def test_tokens_are_words_and_a_template() -> None:
    # 94 words, 4 for the one message, 2 to open the answer.
    assert loaded().count_prompt_tokens(asking(94).messages) == 100


def test_tools_calls_and_reasoning_are_words_too() -> None:
    call = Message(role="assistant", content="one two", reasoning="three", tool_calls=({"a": 1},), name="four")
    # one two three four, {"a": and 1} of the call; {"b": and 2} of the tool; 4 for the message, 2 to open the answer.
    assert loaded().count_prompt_tokens((call,), ({"b": 2},)) == 4 + 2 + 2 + 4 + 2
    asked = ChatRequest(messages=(call,), tools=({"b": 2},), max_output_tokens=1)
    assert loaded().generate(asked).prompt_tokens == 14


def test_memory_follows_the_law() -> None:
    engine = FakeEngine(settings=LAW, clock=VirtualClock())
    with pytest.raises(ProbeLost):
        engine.memory_probe().read()
    engine.launch()
    assert anon(engine) == 1_000_000
    engine.load()
    at_load = 1_000_000 + 300_000 + 1024 * 1000
    assert anon(engine) == at_load == engine.law.loaded_bytes()
    assert engine.memory_probe().read()["file_bytes"] == 5_000_000
    engine.generate(asking(44))  # 50 prompt tokens: half a microbatch touches half the buffer
    assert anon(engine) == at_load + 100_000
    engine.generate(asking(494))  # 500 tokens: all of it, and no more
    assert anon(engine) == at_load + 200_000
    engine.unload()
    assert anon(engine) == 1_000_000 + 300_000
    assert engine.memory_probe().read()["file_bytes"] == 0
    engine.stop()
    with pytest.raises(ProbeLost):
        engine.memory_probe().read()


def test_copies_of_conversations_stay_up_to_the_limit() -> None:
    engine = loaded(cache_ram_mib=1)
    before = anon(engine)
    grown = []
    for _ in range(4):
        engine.generate(asking(394, output=100))  # 400 + 100 tokens × 1,024 bytes each
        grown.append(anon(engine) - before - 200_000)
    # 1 MiB holds two of 512,000 bytes; then the oldest goes.
    assert grown == [512_000, 1_024_000, 1_024_000, 1_024_000]
    cache = engine.host_cache()
    assert cache is not None
    assert cache.printed_mib == f"{1_024_000 / MIB:.2f}"
    assert loaded().host_cache() is None


def test_the_peak_can_be_set_back() -> None:
    engine = loaded()
    engine.generate(asking(494))
    everything = sum(engine.memory.parts().values()) + 5_000_000
    engine.unload()
    assert engine.memory_probe().read()["peak_bytes"] == everything
    assert engine.memory_probe().reset_peak() is None
    assert engine.memory_probe().read()["peak_bytes"] == 1_300_000


def test_mappings_hold_what_the_reading_says() -> None:
    engine = loaded()
    engine.generate(asking(44))
    maps = engine.memory_probe().maps()
    assert sum(mapping.anonymous_bytes for mapping in maps) == anon(engine)
    buffer = next(mapping for mapping in maps if mapping.size_bytes == 200_000)
    assert buffer.resident_bytes == 100_000


def test_times_follow_the_law() -> None:
    clock = VirtualClock()
    engine = loaded(clock)
    assert clock.now() == 2.0
    answer = engine.generate(asking(94, output=3))
    # TTFT: 0.5 + 0.01 × 100 + 0.0001 × 100². Then 0.1 + 0.001 × (100 + 1), 0.1 + 0.001 × (100 + 2).
    times = [event.at_s for event in answer.events]
    assert times == pytest.approx([2.5, 2.5 + 0.201, 2.5 + 0.201 + 0.202])
    assert answer.completed_s == times[-1]
    assert clock.now() == pytest.approx(2.0 + times[-1])


def test_a_reused_prefix_is_not_computed_again() -> None:
    engine = loaded()
    engine.generate(asking(94))
    again = engine.generate(asking(194, reuse_prefix=True))
    assert again.cached_tokens == 94
    assert again.events[0].at_s == pytest.approx(0.5 + 0.01 * 106 + 0.0001 * 106**2)


def test_failures_on_demand() -> None:
    engine = loaded(die_at_request=2)
    engine.generate(asking(1))
    with pytest.raises(EngineDied):
        engine.generate(asking(1))
    with pytest.raises(ProbeLost):
        engine.memory_probe().read()
    clock = VirtualClock()
    stalling = loaded(clock, stall_at_request=1)
    with pytest.raises(EngineStalled):
        stalling.generate(asking(1, stall_s=30.0))
    assert clock.now() == 32.0
    assert loaded(prompt_limit_tokens=50).generate(asking(94)).prompt_tokens == 50
    ending = loaded(natural_end_tokens=5)
    assert ending.generate(asking(1, output=9)).output_tokens == 9
    early = ending.generate(asking(1, output=9, ignore_end=False))
    assert (early.output_tokens, early.finish_reason) == (5, "stop")


@pytest.mark.parametrize(
    "settings", [{"nonsense": 1}, {"n_ctx": 1.5}, {"n_ctx": -1}, {"itl_s": "fast"}, {"n_ctx": True}]
)
def test_settings_are_checked(settings: dict[str, SettingValue]) -> None:
    with pytest.raises(InvalidSettings):
        FakeEngine(settings=settings)


def test_by_default_it_takes_real_time() -> None:
    engine = FakeEngine(settings={"load_s": 0.0, "ttft_s": 0.05, "ttft_s_per_token": 0.0})
    engine.launch()
    engine.load()
    import time

    started_s = time.perf_counter()
    engine.generate(asking(1))
    assert time.perf_counter() - started_s >= 0.05
    assert FakeLaw().first_token_s(0) == 0.01
