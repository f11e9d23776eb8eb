"""A thousand simulated studies with a known effect and known noise: how often the interval holds the truth, and how
often a difference is called where there is none.

What may come out by chance: of 1,000 studies that each hold the truth with probability 0.95 the number that do is
binomial, and outside 930 … 970 with probability 0.4 %. Of 1,000 that each call a difference with probability 0.035 more
than 50 do with probability 0.6 %. Seeds are fixed, so a test that passes here passes again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
from scipy.stats import binom
from simulated_studies import SimulatedStudy, a_design

from kvscope.analysis.attempts import load_attempts
from kvscope.analysis.effects import FIXED, Effect, paired_effect
from kvscope.analysis.levels import level_rows
from kvscope.engine.base import Message
from kvscope.engine.fake import FakeEngine, VirtualClock
from kvscope.engine.registry import EngineChoice
from kvscope.experiment.design import Design, Trial
from kvscope.experiment.runner import run_design, start_run
from kvscope.model.load import load_model
from kvscope.model.spec import ModelSpec
from kvscope.prompt.exact_length.build import build_prompt
from kvscope.record.store import create_records, open_records
from kvscope.scenario import SettingValue

STUDIES = 1000
# 0.1 s and 0.5 ms a token: 0.11 s for 20 tokens, 0.15 s for 100.
LAW: dict[str, SettingValue] = {"ttft_s": 0.1, "ttft_s_per_token": 0.0005}
NULL: dict[str, SettingValue] = {"ttft_s": 0.1, "ttft_s_per_token": 0.0}

NOISES: dict[str, dict[str, SettingValue]] = {
    "normal 5 %": {"noise_share": 0.05},
    "normal 20 %": {"noise_share": 0.2},
    "skewed 5 %": {"noise_share": 0.05, "noise_is_skewed": 1},
    "skewed 30 %": {"noise_share": 0.3, "noise_is_skewed": 1},
    "slow minutes": {"noise_share": 0.05, "slow_share": 1.0},
    "drift": {"noise_share": 0.05, "drift_per_s": 0.005},
}

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 4096,
}


def effects(
    noise: dict[str, SettingValue], law: dict[str, SettingValue], levels: tuple[int, ...] = (20, 100), repeats: int = 5
) -> list[tuple[Effect, ...]]:
    """The effects of the levels on TTFT, of each of the studies."""
    found = []
    for number in range(STUDIES):
        design = a_design(levels, repeats=repeats, **law, **noise, noise_seed=number)
        study = SimulatedStudy(design, f"study-{number}")
        rows = level_rows(study.row, study.run(), ("ttft_s",))
        found.append(tuple(row.effects["ttft_s"] for row in rows[1:]))
    return found


def holding(studies: Sequence[tuple[Effect, ...]], truth: float, *, share: bool = False) -> int:
    return sum((one.relative if share else one.difference).contains(truth) for (one,) in studies)


def test_what_chance_alone_can_do() -> None:
    outside = binom.cdf(929, STUDIES, 0.95) + binom.sf(970, STUDIES, 0.95)
    assert outside == pytest.approx(0.004, abs=0.001)
    assert binom.sf(50, STUDIES, FIXED.call) == pytest.approx(0.006, abs=0.001)


@pytest.mark.parametrize("noise", ["normal 5 %", "normal 20 %", "skewed 5 %", "skewed 30 %"])
def test_the_interval_holds_the_truth(noise: str) -> None:
    studies = effects(NOISES[noise], LAW)
    # From 20 to 100 tokens: 0.04 s, which is 0.04 ÷ 0.11 of the baseline.
    assert 930 <= holding(studies, 0.04) <= 970
    assert 930 <= holding(studies, 0.04 / 0.11, share=True) <= 970


@pytest.mark.parametrize("noise", ["slow minutes", "drift"])
def test_a_slow_minute_hits_both_of_a_pair(noise: str) -> None:
    # Where everything takes longer, so does the difference; its share of the baseline stays what it is.
    studies = effects(NOISES[noise], LAW, repeats=6)
    assert 930 <= holding(studies, 0.04 / 0.11, share=True) <= 970


@pytest.mark.parametrize("noise", ["normal 5 %", "skewed 30 %", "slow minutes", "drift"])
def test_no_effect_is_called_one_in_no_more_than_five_of_a_hundred(noise: str) -> None:
    studies = effects(NOISES[noise], NULL)
    assert sum(one.is_seen for (one,) in studies) <= 50
    assert holding(studies, 0.0) >= 930


def test_nor_in_a_study_of_several_levels() -> None:
    studies = effects(NOISES["normal 5 %"], NULL, levels=(20, 30, 40, 50))
    assert sum(any(one.is_seen for one in study) for study in studies) <= 50
    # Each interval by itself is one of 95 %: taken as verdicts, they would call far too much.
    assert sum(any(not one.difference.contains(0.0) for one in study) for study in studies) > 80


@pytest.mark.parametrize("repeats", [2, 3, 5])
@pytest.mark.parametrize("pages", [0.1, 0.5, 1.0, 3.0, 10.0])
def test_nor_of_memory_that_is_read_in_whole_pages(repeats: int, pages: float) -> None:
    # Two repeats often read the same pages twice: an interval of no width called a difference in up to 12 of a hundred.
    chance = Random(f"{repeats} {pages}")
    seen = 0
    for _ in range(4 * STUDIES):
        size = 18_000 + chance.random()
        read = [[4096.0 * round(chance.gauss(size, pages)) for _ in range(2)] for _ in range(repeats)]
        seen += paired_effect("memory_loaded_bytes", [(before, after) for before, after in read]).is_seen
    assert seen <= 4 * 50


@dataclass(frozen=True, slots=True, kw_only=True)
class OnClock(EngineChoice):
    """The fake engine on the clock of the study."""

    clock: VirtualClock

    def create(self, model: ModelSpec, settings: Mapping[str, SettingValue]) -> FakeEngine:
        return FakeEngine(settings=settings, clock=self.clock)


def built_prompt(engine: FakeEngine, trial: Trial, seed: int) -> tuple[Message, ...]:
    """The prompt as a trial builds it."""
    prompt = build_prompt(
        prompt_tokens=trial.condition.prompt_tokens, count=engine.count_prompt_tokens, seed=seed, salt=trial.trial_id
    )
    return prompt.messages


def recorded(path: Path, design: Design) -> tuple[str, dict[str, Effect]]:
    """A study run by the runner and read back from its file: its id, and the effects of its second level."""
    clock = VirtualClock()
    with create_records(path) as recorder:
        run, choice = start_run(recorder, "test"), OnClock(name="fake", clock=clock)
        run_design(recorder, run, design, load_model(CONFIG), choice, now=clock.now, sleep=clock.sleep)
    with open_records(path) as records:
        (row,) = records.designs()
        attempts = load_attempts(records, row, {one.run_id: one for one in records.runs()})
        return row.study_id, dict(level_rows(row, attempts)[1].effects)


def test_through_runner_and_record_the_same_effects_come_out(tmp_path: Path) -> None:
    for number in range(5):
        design = a_design((100, 500), **LAW, **NOISES["normal 5 %"], noise_seed=number)
        study_id, through_file = recorded(tmp_path / f"{number}.db", design)
        study = SimulatedStudy(design, study_id, built_prompt)
        simulated = level_rows(study.row, study.run())[1].effects
        for metric in ("ttft_s", "tpot_s", "completion_s"):
            assert simulated[metric] == through_file[metric]
        assert through_file["ttft_s"].num_pairs == 5
