"""Several requests at once on the fake engine: every moment is worked out here from the law's own numbers.

The law of these tests: the first token takes 1 s, each later one 0.5 s, whatever the length; three tokens are asked,
so that one request alone has them at 1.0, 1.5 and 2.0 s. With k requests in slots all takes 1 + 0.5 (k − 1) times as
long: 1.5 times with two.
"""

from itertools import pairwise

import pytest

from kvscope.engine.base import ChatRequest, Load, LoadResult, Message
from kvscope.engine.fake import FakeEngine, VirtualClock
from kvscope.errors import ContextOverflow, EngineDied, EngineStalled, InvalidSettings
from kvscope.scenario import SettingValue

LAW: dict[str, SettingValue] = {
    "n_ctx": 400,
    "load_s": 0.0,
    "ttft_s": 1.0,
    "ttft_s_per_token": 0.0,
    "itl_s": 0.5,
    "slowdown_per_request": 0.5,
}
ALONE_S = [1.0, 1.5, 2.0]


def loaded(clock: VirtualClock | None = None, **settings: SettingValue) -> FakeEngine:
    engine = FakeEngine(settings={**LAW, **settings}, clock=clock or VirtualClock())
    engine.launch()
    engine.load()
    return engine


def asking(text: str, **more: object) -> ChatRequest:
    messages = (Message(role="user", content=text),)
    return ChatRequest(messages=messages, max_output_tokens=3, **more)  # type: ignore[arg-type]  # as each test needs


def requests(number: int, **more: object) -> tuple[ChatRequest, ...]:
    return tuple(asking(f"question{index} and more", **more) for index in range(number))


def times(result: LoadResult) -> list[list[float]]:
    """Tokens' moments from the begin of the load."""
    return [
        [pytest.approx(answer.sent_s + event.at_s) for event in answer.generation.events]
        for answer in result.answers
        if answer.generation is not None
    ]


def test_one_at_a_time_is_as_alone_and_one_after_the_other() -> None:
    result = loaded().generate_many(Load(requests=requests(2), concurrency=1))
    assert times(result) == [ALONE_S, [3.0, 3.5, 4.0]]
    assert [answer.sent_s for answer in result.answers] == [0.0, 2.0]
    assert [answer.stream for answer in result.answers] == [0, 0]
    assert result.wall_s == pytest.approx(4.0)


def test_two_in_two_slots_slow_each_other() -> None:
    result = loaded(n_parallel=2).generate_many(Load(requests=requests(2), concurrency=2))
    assert times(result) == [[1.5, 2.25, 3.0]] * 2
    assert [answer.stream for answer in result.answers] == [0, 1]


def test_the_third_waits_for_a_slot_and_its_wait_is_in_its_first_token() -> None:
    result = loaded(n_parallel=2).generate_many(Load(requests=requests(3), concurrency=3))
    # The first two end at 3.0; the third is then alone.
    assert times(result) == [[1.5, 2.25, 3.0], [1.5, 2.25, 3.0], [4.0, 4.5, 5.0]]
    third = result.answers[2].generation
    assert third is not None
    assert third.events[0].at_s == pytest.approx(4.0)
    assert third.engine_timings["prompt_ms"] == pytest.approx(1000.0)  # of its own, without the wait


def test_who_joins_later_slows_from_then_on() -> None:
    # Due at 0 and at 1: the first has its first token at 1.0 as alone. Then both are under way: 0.5 s take 0.75.
    load = Load(requests=requests(2), arrival="constant", rate_per_s=1.0)
    result = loaded(n_parallel=2).generate_many(load)
    # First: 1.0, 1.75, 2.5. Second: 1.0 of work, of which (2.5 − 1.0) ÷ 1.5 = 1.0 is done at 2.5: its first token then,
    # and then alone.
    assert times(result) == [[1.0, 1.75, 2.5], [2.5, 3.0, 3.5]]
    assert [answer.due_s for answer in result.answers] == [0.0, 1.0]
    assert [answer.stream for answer in result.answers] == [0, 1]


def test_an_open_loop_does_not_wait_for_answers_and_reuses_streams() -> None:
    load = Load(requests=requests(3), arrival="constant", rate_per_s=0.25)  # every 4 s, each over after 2
    result = loaded().generate_many(load)
    assert times(result) == [ALONE_S, [5.0, 5.5, 6.0], [9.0, 9.5, 10.0]]
    assert [answer.stream for answer in result.answers] == [0, 0, 0]


def test_random_arrivals_are_the_seeds_own_and_of_the_asked_rate() -> None:
    def due(seed: int) -> list[float]:
        load = Load(requests=requests(2000), arrival="poisson", rate_per_s=5.0, seed=seed)
        result = loaded(ttft_s=0.0, itl_s=0.0, n_parallel=1).generate_many(load)
        return [answer.due_s for answer in result.answers if answer.due_s is not None]

    one = due(1)
    assert one == due(1) != due(2)
    gaps = [later - earlier for earlier, later in pairwise(one)]
    # 1,999 exponential gaps with a mean of 0.2 s: the standard deviation of their mean is 0.2 ÷ √1999 = 0.0045 s.
    assert sum(gaps) / len(gaps) == pytest.approx(0.2, abs=4 * 0.0045)


def test_a_slot_keeps_its_last_prompt_and_the_longest_common_beginning_is_taken() -> None:
    engine = loaded(n_parallel=2)
    texts = ("alpha beta gamma one", "delta epsilon zeta one")
    engine.generate_many(Load(requests=tuple(asking(text) for text in texts), concurrency=2))
    again = engine.generate_many(Load(requests=(asking("delta epsilon zeta two", reuse_prefix=True),)))
    assert again.answers[0].generation is not None
    assert again.answers[0].generation.cached_tokens == 3


def test_a_shared_beginning_is_computed_once_in_each_slot() -> None:
    texts = [f"the same six words for all {index}" for index in range(6)]
    load = Load(requests=tuple(asking(text, reuse_prefix=True) for text in texts), concurrency=2)
    result = loaded(n_parallel=2).generate_many(load)
    assert [answer.generation and answer.generation.cached_tokens for answer in result.answers] == [0, 0, 6, 6, 6, 6]


def test_slots_divide_the_context_and_the_pool_is_the_same() -> None:
    one, four = loaded(), loaded(n_parallel=4)
    assert four.load().slots == (100,) * 4
    assert four.memory.read()["anon_bytes"] == one.memory.read()["anon_bytes"]
    with pytest.raises(ContextOverflow, match="holds 100"):
        four.generate(asking("word " * 150))


def test_memory_does_not_follow_the_requests_under_way() -> None:
    engine = loaded(n_parallel=4, compute_bytes=0)
    before = engine.memory.read()["anon_bytes"]
    engine.generate_many(Load(requests=requests(8), concurrency=4))
    assert engine.memory.read()["anon_bytes"] == before


def test_an_error_of_one_is_its_own() -> None:
    load = Load(requests=(asking("one"), asking("word " * 500), asking("three")), concurrency=3)
    result = loaded(n_parallel=3).generate_many(load)
    assert [type(answer.error) for answer in result.answers] == [type(None), ContextOverflow, type(None)]
    assert times(result) == [[1.5, 2.25, 3.0]] * 2  # the one that was refused took no slot


def test_one_that_stalls_holds_its_slot_until_its_limit() -> None:
    load = Load(requests=requests(2, stall_s=10.0), concurrency=2)
    result = loaded(n_parallel=2, stall_at_request=1).generate_many(load)
    assert isinstance(result.answers[0].error, EngineStalled)
    assert times(result) == [[1.5, 2.25, 3.0]]
    assert result.wall_s == pytest.approx(10.0)


def test_a_death_ends_what_is_under_way_and_what_comes_after() -> None:
    engine = loaded(n_parallel=2, die_at_request=3)
    result = engine.generate_many(Load(requests=requests(6), concurrency=2))
    # The third begins when the first two are over.
    assert [type(answer.error) for answer in result.answers] == [type(None)] * 2 + [EngineDied] * 4
    assert not engine.memory.running


def test_no_slots_are_refused() -> None:
    with pytest.raises(InvalidSettings, match="n_parallel"):
        FakeEngine(settings={"n_parallel": 0})
