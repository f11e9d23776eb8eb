"""Noise of the fake engine: as large as it was told to be, the same for the same trial, and none unless asked for."""

from math import sqrt
from statistics import fmean, stdev

import pytest

from kvscope.engine.base import ChatRequest, Generation, Message
from kvscope.engine.fake import FakeEngine, VirtualClock
from kvscope.engine.fake_noise import SLOW_STRETCH_S
from kvscope.scenario import SettingValue

COUNT = 1000


def answer(text: str, clock: VirtualClock | None = None, **settings: SettingValue) -> Generation:
    law: dict[str, SettingValue] = {"ttft_s": 0.5, "ttft_s_per_token": 0.0, "itl_s": 0.1, "load_s": 0.0}
    engine = FakeEngine(settings={**law, **settings}, clock=clock or VirtualClock())
    engine.launch()
    engine.load()
    return engine.generate(ChatRequest(messages=(Message(role="user", content=text),), max_output_tokens=3))


def times(found: Generation) -> tuple[float, float]:
    return found.events[0].at_s, found.events[-1].at_s - found.events[0].at_s


@pytest.mark.parametrize("is_skewed", [0, 1])
def test_times_scatter_around_the_law(is_skewed: int) -> None:
    settings: dict[str, SettingValue] = {"noise_share": 0.2, "noise_seed": 3, "noise_is_skewed": is_skewed}
    found = [times(answer(f"prompt {number}", **settings)) for number in range(COUNT)]
    for values, truth in zip(zip(*found, strict=True), (0.5, 0.2), strict=True):
        # Mean within 4 standard errors of the law's, 0.2 / √1,000 = 0.63 % each.
        assert fmean(values) == pytest.approx(truth, rel=4 * 0.2 / sqrt(COUNT))
        assert stdev(values) == pytest.approx(0.2 * truth, rel=0.08)
        third = fmean(((v - fmean(values)) / stdev(values)) ** 3 for v in values)
        # A lognormal of that spread has skewness (e^σ² + 2) √(e^σ² − 1) = 2.04 × 0.2 = 0.61; a normal has none.
        assert third == pytest.approx(0.61 if is_skewed else 0.0, abs=0.25)
    first, later = zip(*found, strict=True)
    pairs = zip(first, later, strict=True)
    together = fmean((a - fmean(first)) * (b - fmean(later)) for a, b in pairs) / stdev(first) / stdev(later)
    assert abs(together) < 0.1  # the two are drawn apart


def test_the_same_trial_takes_the_same_time_and_another_seed_another() -> None:
    assert answer("one", noise_share=0.1) == answer("one", noise_share=0.1)
    assert times(answer("one", noise_share=0.1)) != times(answer("two", noise_share=0.1))
    assert times(answer("one", noise_share=0.1)) != times(answer("one", noise_share=0.1, noise_seed=1))


def test_there_is_none_unless_asked_for() -> None:
    assert times(answer("one")) == (0.5, pytest.approx(0.2))


def test_a_machine_that_slows_down() -> None:
    clock = VirtualClock()
    clock.sleep(100.0)
    # After 100 s at 0.1 % a second everything takes 1.1 times as long.
    assert times(answer("one", clock, drift_per_s=0.001)) == (pytest.approx(0.55), pytest.approx(0.22))


def test_one_minute_of_five_is_slow() -> None:
    slow = 0
    for minute in range(1000):
        clock = VirtualClock()
        clock.sleep(minute * SLOW_STRETCH_S + 1.0)
        first, _ = times(answer("one", clock, slow_share=0.5))
        assert first in (0.5, 0.75)
        slow += first == 0.75
    # Binomial with 1,000 and 0.2: standard deviation 12.6.
    assert abs(slow - 200) < 4 * 12.6


def test_memory_scatters_from_process_to_process() -> None:
    held = []
    for _ in range(500):
        engine = FakeEngine(settings={"noise_bytes": 1_000_000, "noise_seed": 8}, clock=VirtualClock())
        engine.launch()
        engine.load()
        held.append(engine.memory.read()["anon_bytes"] - engine.law.loaded_bytes())
        assert engine.memory.read() == engine.memory.read()
    assert stdev(held) == pytest.approx(1_000_000, rel=0.15)
    assert abs(fmean(held)) < 4 * 1_000_000 / sqrt(500)
