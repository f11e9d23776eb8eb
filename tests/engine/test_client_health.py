"""How late the client came, held against delays that are made on purpose; its limits."""

import asyncio
import time
from pathlib import Path

import pytest

from kvscope.engine import client_health, load_sending, loop_timer
from kvscope.engine.base import Read
from kvscope.engine.client_health import Ticker, coalesced, limits_passed, percentile_99
from kvscope.engine.event_loop import fast_loop
from kvscope.engine.loop_timer import LoopTimer


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
        f"every {client_health.TICK_S * 1e3:g} ms",
        f"more than one tick in a hundred (and more than one at all) came over {client_health.MOST_LAG_S * 1e3:g} ms",
        f"stood still for more than {client_health.MOST_HALT_S * 1e3:g} ms",
        f"over {client_health.MOST_CPU_SHARE * 100:g} % of a processor",
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
