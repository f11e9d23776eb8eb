"""An engine with known errors, asked the real tasks: the panel reports what it was told to do, and nothing else."""

from statistics import fmean

import pytest
from scripted_answers import Documents, documents, scripted
from study_rows import design_row, trial_row

from kvscope.analysis.fidelity_panel import fidelity_panel
from kvscope.analysis.quality_cell import QualityCell, cell_of
from kvscope.analysis.quality_panel import LevelAnswers, panel_of
from kvscope.engine.fake import FakeEngine, VirtualClock
from kvscope.engine.fake_scores import position_divergence
from kvscope.experiment.trial_scores import score_document, split_text
from kvscope.quality.task import prompt_text
from kvscope.record.rows import AnswerRow, ScoredTokenRow, TrialResult
from kvscope.scenario import SettingValue

SEEDS = range(1, 7)


def cell(
    seed: int, *, task: str = "keys", number: int = 10, language: str = "en", **settings: SettingValue
) -> QualityCell:
    asked = documents(task, number, seed=seed, language=language)
    return cell_of(scripted(asked, answer_seed=seed, **settings), 1)


@pytest.mark.parametrize("right", [0.35, 0.8, 0.95])
@pytest.mark.parametrize("task", ["keys", "needle"])
@pytest.mark.parametrize("language", ["en", "ko"])
def test_the_share_right_is_within_its_interval(right: float, task: str, language: str) -> None:
    """Six studies each; all of 72 would be too many by the interval's own promise, so one of six may miss."""
    found = [cell(seed, task=task, language=language, answer_right=right) for seed in SEEDS]
    assert sum(each.share.contains(right) for each in found) >= 5
    least = 40 if language == "en" else 20  # a Korean text of as many tokens has half as many facts
    assert all(each.num_items >= least and each.num_documents == 10 for each in found)
    assert all(each.sign is None for each in found)
    assert all(each.twin is not None and each.twin.value == 0 for each in found)
    assert all(each.num_left_out == 0 for each in found)


def test_a_cut_that_is_stated_is_never_a_wrong_answer() -> None:
    for seed in SEEDS:
        found = cell(seed, answer_right=0.9, cuts_at_tokens=200, cut_states=1)
        assert found.num_items == 0
        assert found.left_out == {"truncated_input": found.num_left_out}
        assert found.gate == "unread"


@pytest.mark.parametrize("states", [0, 2])
@pytest.mark.parametrize(("keeps_head", "slug"), [(0, "head_never_arrives"), (1, "tail_never_arrives")])
def test_a_cut_in_silence_is_found_and_about_where_it_is(states: int, keeps_head: int, slug: str) -> None:
    for seed in SEEDS:
        found = cell(seed, answer_right=0.95, cuts_at_tokens=200, cut_states=states, cut_keeps_head=keeps_head)
        assert found.sign is not None
        assert found.sign.slug == slug
        assert found.sign.tokens_low is not None
        assert found.sign.tokens_high is not None
        assert found.sign.tokens_low - 50 <= 200 <= found.sign.tokens_high + 50
        assert found.sign.of_tokens is not None
        assert 450 < found.sign.of_tokens <= 500


def test_an_ignored_middle_is_found() -> None:
    for seed in SEEDS:
        found = cell(seed, answer_right=0.95, ignores_middle=1)
        assert found.sign is not None
        assert found.sign.slug == "middle_ignored"
        assert found.thirds["middle"].value == pytest.approx(0.0, abs=0.2)


@pytest.mark.parametrize("task", ["keys", "needle"])
def test_guessing_is_told_from_reading(task: str) -> None:
    guessers = [cell(seed, task=task, guesses=1) for seed in SEEDS]
    assert sum(each.gate == "guessing" for each in guessers) >= 5
    # Of who guesses one in forty is above chance by a 95 % interval (1 of 60 seeds of keys): one of six may be.
    assert sum(each.gate in ("guessing", "floor") for each in guessers) >= 5
    assert all(cell(seed, task=task, answer_right=0.7).gate == "measured" for seed in SEEDS)


def test_a_level_that_loses_is_called_and_one_that_does_not_is_not() -> None:
    asked = documents("keys", 40, seed=3)
    rows = {share: scripted(asked, answer_right=share) for share in (0.9, 0.75)}
    again = scripted(asked, answer_right=0.9)
    levels = [
        LevelAnswers(level=name, rows=tuple(each))
        for name, each in (("f16", rows[0.9]), ("q8_0", again), ("q4_0", rows[0.75]))
    ]
    same, lost = panel_of(levels, "f16").comparisons
    assert same.judged.verdict == "no_loss_beyond"
    assert lost.judged.verdict == "loss"
    assert lost.difference.contains(-0.15)


@pytest.mark.parametrize("divergence", [0.01, 0.1])
def test_a_known_divergence_comes_out_as_the_fidelity_of_a_level(divergence: float) -> None:
    """Every position's divergence is known; what is kept of it (100 tokens and a rest) states at most that, and most of
    it: a tail of 1 in 60 is in the rest."""
    asked = documents("fidelity", 8, seed=1)
    results = [_scored(asked, score_kl=each) for each in (0.0, divergence)]
    panel = fidelity_panel([(0.0, [results[0], results[0]]), (divergence, [results[1]])])
    assert panel is not None
    level = panel.level(divergence)
    assert level is not None
    truth = _mean_divergence(asked, divergence)
    assert level.divergence.value is not None
    assert 0.9 * truth < level.divergence.value <= truth * (1 + 1e-6)
    assert len(level.comparison.documents) == 8


def _engine(**settings: SettingValue) -> FakeEngine:
    engine = FakeEngine(settings=settings, clock=VirtualClock())
    engine.launch()
    engine.load()
    return engine


def _scored(asked: Documents, **settings: SettingValue) -> TrialResult:
    """One attempt's rows of the documents, each behind the one before."""
    engine = _engine(**settings)
    answers: list[AnswerRow] = []
    tokens: list[ScoredTokenRow] = []
    for document, _ in asked:
        found = score_document(engine, document, first_index=len(answers))
        answers += found.answers
        tokens += found.scored_tokens
    trial = trial_row(design_row(), str(settings))
    return TrialResult(trial=trial, answers=tuple(answers), scored_tokens=tuple(tokens))


def _mean_divergence(asked: Documents, divergence: float) -> float:
    """By the engine's law, from the tokens before each position: the mean over documents of the mean over positions."""
    engine = _engine()
    means = []
    for document, _ in asked:
        found = []
        for question in document.questions:
            text = split_text(engine, prompt_text(document, question, "cue"), question.continuation or "")
            for number in range(len(text.continuation)):
                found.append(position_divergence((*text.prompt, *text.continuation[:number]), divergence))
        means.append(fmean(found))
    return fmean(means)
