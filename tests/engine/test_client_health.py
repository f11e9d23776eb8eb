"""How late the client came, held against delays that are made on purpose; its limits."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest
from kept_server import Asked, KeptServer, kept
from scripted_server import END, HEAD, chunk, finish, token

from kvscope.engine import client_health, load_sending, loop_timer
from kvscope.engine.base import ChatRequest, Generation, Message, Read, TokenEvent
from kvscope.engine.client_health import (
    Lateness,
    Seen,
    Ticker,
    coalesced,
    limits_passed,
    percentile_99,
    seen_of,
)
from kvscope.engine.event_loop import fast_loop
from kvscope.engine.loop_timer import LoopTimer
from kvscope.engine.openai_http import stream_chat
from kvscope.engine.processor_wait import ProcessorWait


def ticked(*blocks_s: float, between_s: float = 0.1, with_kernel: bool = True) -> Ticker:
    async def go() -> Ticker:
        with Ticker(every_s=0.01) as ticker:
            for block_s in blocks_s:
                await asyncio.sleep(between_s)
                time.sleep(block_s)
        return ticker

    with asyncio.Runner(loop_factory=fast_loop if with_kernel else None) as runner:
        return runner.run(go())


@pytest.mark.parametrize("with_kernel", [True, False])
def test_a_loop_held_up_for_a_known_time(with_kernel: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """0.2 s in which twenty ticks were due: the first is 0.2 s late or a tick less, each of the others a tick less."""
    if not with_kernel:
        monkeypatch.setattr(loop_timer, "_kernel", lambda: None)
    health = ticked(0.2, with_kernel=with_kernel).health()
    assert (health.loop_lag_max_s or 0) >= 0.185
    assert (health.loop_lag_p99_s or 0) >= 0.185
    assert [words.split(" ")[2] for words in health.limited_by][:1] == ["loop"]


def test_missed_ticks_are_not_forgotten() -> None:
    """Half of the time the loop is held up, so half of the ticks are late: none is left out."""
    ticker = ticked(0.2, 0.2, between_s=0.2)
    late = sum(lag_s > 0.005 for lag_s in ticker._lags)
    assert len(ticker._lags) == pytest.approx((ticker.end_s - ticker.begin_s) / 0.01, abs=2)
    assert late >= 0.4 * len(ticker._lags)


def test_a_span_has_its_own_ticks() -> None:
    ticker = ticked(0.0, 0.2, 0.0)
    begin, end = ticker.begin_s, ticker.end_s
    assert (ticker.health(begin + 0.1, end).loop_lag_max_s or 0) > 0.15
    assert ticker.health(begin, end).loop_lag_max_s == ticker.health().loop_lag_max_s
    before = ticker.health(begin, begin + 0.05)
    assert before.loop_lag_max_s is not None
    assert before.loop_lag_max_s <= (ticker.health().loop_lag_max_s or 0)


def test_processor_time() -> None:
    """Busy for three quarters of the time."""

    async def go() -> Ticker:
        with Ticker() as ticker:
            until = time.process_time() + 0.3
            while time.process_time() < until:
                pass
            await asyncio.sleep(0.1)
        return ticker

    ticker = asyncio.run(go())
    share = ticker.health().cpu_share
    assert share is not None
    assert share >= 0.29 / (ticker.end_s - ticker.begin_s)
    assert share < 1.2


def test_what_was_too_short_is_not_known() -> None:
    assert ticked(0.0, between_s=0.0).health().cpu_share is None


@pytest.mark.parametrize(
    ("lags", "cpu", "late", "part"),
    [
        ([0.001] * 50, 0.5, 0.001, None),
        ([0.001] * 49 + [0.02], 0.5, None, None),  # one alone says nothing
        ([0.001] * 48 + [0.02] * 2, 0.5, None, "more than 5 ms late 2 of 50 times"),
        ([0.001] * 198 + [0.02] * 2, 0.5, None, None),  # one in a hundred
        ([0.001] * 197 + [0.02] * 3, 0.5, None, "3 of 200 times"),
        ([0.001] * 49 + [0.15], None, None, "stood still for 150 ms (limit 100 ms)"),
        ([], 0.95, None, "took 95% of a processor (limit 90%)"),
        ([], None, 0.02, "was sent 20 ms late (limit 10 ms)"),
        ([], None, None, None),
    ],
)
def test_limits(lags: list[float], cpu: float | None, late: float | None, part: str | None) -> None:
    found = limits_passed(lags, cpu, late)
    assert (len(found) == 0) if part is None else part in "; ".join(found)


@pytest.mark.parametrize(
    ("first_ms", "ttft_ms", "last_ms", "span_ms", "parts"),
    [
        (0.3, 20, 0.3, 20, []),  # what being woken takes
        (0.31, 20, 0.31, 1000, ["0.3 ms late to the first token, 1.6% of the time to it (limit 0.5%)"]),
        (0.31, 1000, 0.31, 1, ["0.3 ms late to the first or last token, 31.0% of the time between them (limit 0.5%)"]),
        (5.0, 1000, 5.0, 1000, []),  # half a percent
        (5.1, 1000, 10.1, 2000, ["5.1 ms late to the first token", "10.1 ms late to the first or last token"]),
        (0.4, 50, 0.4, 0.0, ["to the first token"]),  # one token has no gap
    ],
)
def test_limits_of_what_was_measured(
    first_ms: float, ttft_ms: float, last_ms: float, span_ms: float, parts: list[str]
) -> None:
    late = Lateness(first_s=first_ms / 1e3, ttft_s=ttft_ms / 1e3, last_s=last_ms / 1e3, span_s=span_ms / 1e3)
    found = limits_passed([], None, None, late)
    assert len(found) == len(parts), found
    for part, words in zip(parts, found, strict=True):
        assert part in words


def ticks(lags_s: list[float], waited_s: list[float | None]) -> Ticker:
    """Begun at 0, a tick every 20 ms; the wait for a processor as it stood at the begin and after each."""
    ticker = Ticker()
    ticker._lags, ticker._due = lags_s, [0.02 * k for k in range(1, len(lags_s) + 1)]
    ticker._cpu = [0.0] * len(lags_s)
    ticker._marks, ticker._waited = [0.02 * k for k in range(len(waited_s))], waited_s
    ticker.begin_s, ticker.end_s, ticker._cpu_begin_s, ticker._cpu_end_s = 0.0, ticker._marks[-1], 0.0, 0.0
    return ticker


def test_how_late_a_token_may_have_been_by_hand() -> None:
    # 3 ms without a processor between 20 and 40 ms, 5 ms between 60 and 80 ms, of 100 ms.
    ticker = ticks([0.0001] * 5, [0.0, 0.0, 0.003, 0.003, 0.008, 0.008])
    hit = Seen(sent_s=0.0, first_s=0.03, last_s=0.05)
    health = ticker.health(seen=[hit])
    assert (health.first_late_s, health.last_late_s) == pytest.approx((0.003, 0.003))
    assert health.waited_share == pytest.approx(0.08)
    assert len(health.limited_by) == 2  # of 30 and of 20 ms
    later = ticker.health(seen=[Seen(sent_s=0.0, first_s=0.05, last_s=0.07)])
    assert (later.first_late_s, later.last_late_s) == pytest.approx((0.0001, 0.005))
    of_both = ticker.health(seen=[hit, Seen(sent_s=0.0, first_s=0.05, last_s=0.07)])
    assert (of_both.first_late_s, of_both.last_late_s) == pytest.approx((0.0015, 0.004))
    assert ticker.health(0.04, 0.06).waited_share == pytest.approx(0.0)
    assert ticker.health(0.021, 0.039).waited_share == pytest.approx(0.15)
    # Past the last mark, and where the first mark is the token's own moment.
    assert ticker.health(seen=[Seen(sent_s=0.0, first_s=0.0, last_s=9.0)]).first_late_s == pytest.approx(0.0001)


def test_a_loop_that_lags_is_late_though_it_had_its_processor() -> None:
    ticker = ticks([0.0, 0.002, 0.0, 0.002], [0.0] * 5)
    health = ticker.health(seen=[Seen(sent_s=0.0, first_s=0.03, last_s=0.03)])
    assert (health.first_late_s, health.last_late_s) == pytest.approx((0.001, 0.001))
    assert "1.0 ms late to the first token" in health.limited_by[0]


def test_a_tick_that_came_with_the_token_says_how_late_it_was() -> None:
    # Held up from 15 to 38 ms: the tick of 20 ms comes at 38 ms, and with it a token that may have been there since.
    ticker = ticks([0.0] * 500, [0.0] * 501)
    ticker._lags[0] = 0.018
    # (Within a millisecond of each other they came together. The mean of 500 ticks is 0.036 ms.)
    for first_ms, late_ms in ((38.0, 18), (38.9, 18), (37.1, 18), (39.1, 0.036), (19.1, 18), (18.9, 0.036)):
        health = ticker.health(seen=[Seen(sent_s=0.0, first_s=first_ms / 1e3, last_s=5.0)])
        assert (health.first_late_s or 0) * 1e3 == pytest.approx(late_ms), first_ms
    # Of several ticks that were missed, the first says it.
    ticker = ticks([0.0] * 500, [0.0] * 501)
    ticker._lags[3], ticker._lags[4], ticker._lags[5] = 0.050, 0.030, 0.010
    health = ticker.health(seen=[Seen(sent_s=0.0, first_s=0.1302, last_s=5.0)])
    assert health.first_late_s == pytest.approx(0.050)
    assert health.last_late_s == pytest.approx(0.050)
    assert "50.0 ms late to one first token, 38% of the longest time to one (limit 5%)" in health.limited_by[-1]


def test_the_worst_and_the_longest_of_several_are_looked_for() -> None:
    ticker = ticks([0.0] * 500, [0.0] * 501)
    ticker._lags[3:6] = [0.050, 0.030, 0.010]  # due at 80, 100 and 120 ms, came at 130 ms
    hit, right = Seen(sent_s=0.1, first_s=0.13, last_s=5.0), Seen(sent_s=1.0, first_s=1.5, last_s=5.0)
    for seen in ([hit, right], [right, hit]):
        limited_by = ticker.health(seen=seen).limited_by
        assert "50.0 ms late to one first token, 10% of the longest time to one (limit 5%)" in limited_by[-1]


def test_one_late_answer_of_many_counts_by_the_longest() -> None:
    late = Lateness(first_s=0.0001, ttft_s=0.1, last_s=0.0001, span_s=1.0, worst_s=0.0051, longest_s=0.1)
    assert limits_passed([], None, None, late) == (
        "it may have been 5.1 ms late to one first token, 5% of the longest time to one (limit 5%)",
    )
    for worst_s, longest_s in ((0.005, 0.05), (0.019, 0.4), (0.0, 0.0)):
        late = Lateness(first_s=0.0, ttft_s=0.1, last_s=0.0, span_s=1.0, worst_s=worst_s, longest_s=longest_s)
        assert limits_passed([], None, None, late) == ()


def test_it_ticks_more_slowly_from_the_first_token_on() -> None:
    async def go() -> Ticker:
        with Ticker() as ticker:
            await asyncio.sleep(0.1)
            ticker.slow_down()
            ticker.slow_down()
            await asyncio.sleep(0.2)
        return ticker

    ticker = asyncio.run(go())
    gaps = [round((later - before) * 1e3) for before, later in pairwise(ticker._due)]
    assert gaps == [5] * gaps.count(5) + [20] * gaps.count(20)
    assert gaps.count(5) >= 10
    assert gaps.count(20) >= 5


def test_a_client_held_up_at_the_first_token_says_so() -> None:
    """The loop stands still for 60 ms; the first token comes in the middle of it, 20 more after it."""

    async def talk(server: KeptServer, asked: Asked, writer: asyncio.StreamWriter) -> bool:
        writer.write(HEAD)
        await writer.drain()
        held_up.wait(20)
        await asyncio.sleep(0.03)
        writer.write(chunk(token("a")))
        await asyncio.sleep(0.04)
        for _ in range(20):
            writer.write(chunk(token("a")))
            await asyncio.sleep(0.005)
        writer.write(chunk(finish()) + END)
        await writer.drain()
        return True

    held_up = threading.Event()

    def hold_up() -> None:
        held_up.set()
        time.sleep(0.06)

    async def go(url: str) -> Generation:
        asyncio.get_running_loop().call_later(0.05, hold_up)
        return await stream_chat(url, ChatRequest(messages=(Message(role="user", content="a"),), max_output_tokens=21))

    with kept(talk) as server:
        health = asyncio.run(go(server.url)).health
    assert health is not None
    assert (health.first_late_s or 0) > 0.02
    assert any("late to the first token" in words for words in health.limited_by)


def test_where_the_kernel_does_not_say_only_the_ticks_count(monkeypatch: pytest.MonkeyPatch) -> None:
    health = ticks([0.0001] * 2, [None] * 3).health(seen=[Seen(sent_s=0.0, first_s=0.03, last_s=0.03)])
    assert (health.first_late_s, health.waited_share, health.limited_by) == (pytest.approx(0.0001), None, ())
    monkeypatch.setattr("kvscope.engine.processor_wait._SCHEDULE", "/nowhere")
    wait = ProcessorWait()
    assert wait.read() is None
    wait.close()


def test_moments_of_an_answer() -> None:
    def answer(*times_s: float) -> Generation:
        return Generation(
            events=tuple(TokenEvent(at_s=at_s, text="a") for at_s in times_s),
            reads=(),
            completed_s=9.0,
            prompt_tokens=None,
            cached_tokens=None,
            output_tokens=None,
            finish_reason=None,
        )

    assert seen_of(answer(), 5.0) == ()
    assert seen_of(answer(0.5, 0.6, 0.75), 5.0) == (Seen(sent_s=5.0, first_s=5.5, last_s=5.75),)


@pytest.mark.skipif(not Path("/proc/thread-self/schedstat").exists(), reason="the kernel does not count it")
def test_a_wait_for_a_processor_is_counted() -> None:
    """Two programs that never rest share one processor: each has it half of the time."""
    before = os.sched_getaffinity(0)
    core = min(before)
    code = (
        f"import os, time\nos.sched_setaffinity(0, {{{core}}})\nprint(flush=True)\nwhile time.process_time() < 9: pass"
    )
    with subprocess.Popen((sys.executable, "-c", code), stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None
            other.stdout.readline()
            os.sched_setaffinity(0, {core})
            wait = ProcessorWait()
            begin_s, waited_s = time.perf_counter(), wait.read()
            ran_s = time.thread_time() + 0.1
            while time.thread_time() < ran_s:
                pass
            passed_s, after_s = time.perf_counter() - begin_s, wait.read()
            wait.close()
        finally:
            os.sched_setaffinity(0, before)
            other.kill()
    assert waited_s is not None
    assert after_s is not None
    assert after_s - waited_s > 0.01
    # What passed was run or waited for (a hypervisor may have taken more).
    assert after_s - waited_s <= passed_s - 0.1 + 0.02


def test_percentile_and_share_by_hand() -> None:
    assert percentile_99([]) is None
    assert percentile_99([3.0]) == 3.0
    assert percentile_99([float(value) for value in range(1, 101)]) == 99.0
    assert percentile_99([float(value) for value in range(1, 201)]) == 198.0
    assert coalesced([]) is None
    assert coalesced([Read(at_s=0.0, num_bytes=9, num_events=0)]) is None
    reads = [Read(at_s=float(number), num_bytes=9, num_events=number) for number in (0, 1, 3, 4)]
    assert coalesced(reads) == 5 / 8


def test_the_page_states_the_limits() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "client.md").read_text(encoding="utf-8")
    for stated in (
        f"every {client_health.FINE_TICK_S * 1e3:g} ms until the first token",
        f"every {client_health.TICK_S * 1e3:g} ms",
        f"{client_health.MOST_WORST_SHARE * 100:g} % of the longest",
        f"more than one tick in a hundred (and more than one at all) came over {client_health.MOST_LAG_S * 1e3:g} ms",
        f"stood still for more than {client_health.MOST_HALT_S * 1e3:g} ms",
        f"over {client_health.MOST_CPU_SHARE * 100:g} % of a processor",
        f"more than {client_health.MOST_OFF_SHARE * 100:g} % of it and {client_health.LEAST_OFF_S * 1e3:g} ms",
        f"was sent over {client_health.MOST_LATE_P99_S * 1e3:g} ms late",
        f"says nothing for {load_sending.QUIET_S:g} s is read",
        f"more than {load_sending.MOST_HELD_BYTES // 1024**2} MiB are held",
    ):
        assert " ".join(stated.split()) in " ".join(page.split()), stated
    assert client_health.MOST_LATE_SHARE == 1 / 100


@pytest.mark.parametrize("with_kernel", [True, False])
def test_a_timer_is_never_early_and_can_be_moved(with_kernel: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not with_kernel:
        monkeypatch.setattr(loop_timer, "_kernel", lambda: None)

    async def go() -> list[float]:
        came: list[float] = []
        timer = LoopTimer(asyncio.get_running_loop(), lambda: came.append(time.perf_counter() - begin))
        begin = time.perf_counter()
        timer.arm(begin + 0.03)
        await asyncio.sleep(0.01)
        timer.arm(begin + 0.1)
        await asyncio.sleep(0.2)
        timer.arm(begin)  # passed: at once
        await asyncio.sleep(0.05)
        timer.close()
        timer.close()
        await asyncio.sleep(0.02)
        return came

    came = asyncio.run(go())
    assert len(came) == 2
    assert came[0] >= 0.1
