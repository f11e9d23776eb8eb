"""Levels that are other work: never beaten by each other, and each held against the baseline's settings at its work."""

from dataclasses import replace

from answer_rows import answer, answers, turned
from study_rows import attempt, design_row, trial_row

from kvscope.analysis.fidelity import Comparison
from kvscope.analysis.fidelity_panel import FidelityFloors, FidelityLevel, FidelityPanel, Verdict
from kvscope.analysis.fit import Estimate
from kvscope.analysis.quality_effects import of_fidelity, quality_effects
from kvscope.analysis.quality_gain import copy_gains
from kvscope.analysis.quality_panel import LevelAnswers, panel_of
from kvscope.analysis.quality_work import _WORK_FACTORS, baseline_of, is_choice, work_of
from kvscope.experiment.factors import REQUEST_FACTORS
from kvscope.record.rows import AnswerRow, Json
from kvscope.units import MIB

LEVELS = tuple({"kv_dtype": kind, "prompt_tokens": length} for kind in ("f16", "q4_0") for length in (300, 600))
GRID = replace(design_row("context_limit"), name="grid", factor="kv_dtype", levels=LEVELS, baseline_level=LEVELS[0])


def test_all_factors_of_requests_are_work_but_how_a_document_is_given() -> None:
    assert set(REQUEST_FACTORS) - {"given"} == _WORK_FACTORS


def test_a_level_is_held_against_the_baselines_settings_at_its_own_work() -> None:
    assert baseline_of(LEVELS[3], LEVELS[0], LEVELS) == LEVELS[1]
    assert baseline_of(LEVELS[1], LEVELS[0], LEVELS) == LEVELS[0]
    assert baseline_of(LEVELS[3], LEVELS[0], (LEVELS[0], LEVELS[3])) == LEVELS[0]
    assert baseline_of("q4_0", "f16", ("f16", "q4_0")) == "f16"


def test_a_loss_at_the_longer_prompt_is_found_on_the_same_items() -> None:
    short, long = answers(100, 4, 0.8, seed=1, tokens=300), answers(100, 4, 0.7, seed=2, tokens=600)
    rows = (short, long, short, turned(long, lost=0.3, gained=0.0))
    panel = panel_of(
        [LevelAnswers(level=lev, rows=tuple(each)) for lev, each in zip(LEVELS, rows, strict=True)], LEVELS[0]
    )
    compared = {str(each.level): each for each in panel.comparisons}
    of_loss = compared[str(LEVELS[3])]
    assert (of_loss.baseline_level, of_loss.method, of_loss.judged.verdict) == (LEVELS[1], "tango_paired", "loss")
    assert compared[str(LEVELS[2])].baseline_level == LEVELS[0]
    assert compared[str(LEVELS[1])].method == "newcombe_unpaired"


def test_a_longer_prompt_is_not_beaten_by_a_shorter_one() -> None:
    """The short prompts take less memory and time, and are as right; only q4_0 at the same length beats f16."""
    base = {300: answers(150, 4, 0.7, seed=1, tokens=300), 600: answers(150, 4, 0.7, seed=2, tokens=600)}
    made = []
    for level in LEVELS:
        length = int(level["prompt_tokens"])
        for repeat in range(3):
            trial = attempt(trial_row(GRID, level, repeat, block=repeat), design=GRID)
            memory = length * (1.0 if level["kv_dtype"] == "f16" else 0.8) * MIB * (1 + repeat / 1000)
            metrics = replace(trial.metrics, memory_peak_bytes=round(memory), completion_s=length / 100)
            result = replace(trial.result, answers=tuple(base[length]))
            made.append(replace(trial, metrics=metrics, result=result))
    found = quality_effects(GRID, made)
    assert found is not None
    assert found.is_choice
    beaten = {str(each.level): each.beaten_by for each in found.levels}
    assert beaten[str(LEVELS[0])] == (LEVELS[2],)
    assert beaten[str(LEVELS[1])] == (LEVELS[3],)
    assert (beaten[str(LEVELS[2])], beaten[str(LEVELS[3])]) == ((), ())


def test_a_grid_of_nothing_but_work_is_no_choice() -> None:
    levels = tuple({"prompt_tokens": length, "output_tokens": 16} for length in (300, 600))
    assert not is_choice(GRID, levels)
    assert is_choice(GRID, LEVELS)
    assert work_of(GRID, LEVELS[0]) == work_of(GRID, LEVELS[2]) != work_of(GRID, LEVELS[1])


def _scored(level: Json, verdict: Verdict, divergence: float | None, reference: Json = "f16") -> FidelityLevel:
    found = Estimate(value=divergence)
    return FidelityLevel(
        level=level,
        reference_level=reference,
        floors=FidelityFloors(same_pattern=None, batch_shape=None),
        comparison=Comparison(positions=(), left_out={}),
        divergence=found,
        together=found,
        logprob_change=found,
        verdict=verdict,
    )


def test_what_could_not_be_held_against_the_reference_is_not_beaten_by_it() -> None:
    levels = (
        _scored("f16", "reference", None),
        _scored("near", "cannot_tell", 0.001),
        _scored("other", "cannot_tell", None),
        _scored("far", "loss", 0.1),
        _scored("else", "reference", None, reference="else"),
    )
    floors = FidelityFloors(same_pattern=None, batch_shape=None)
    panel = FidelityPanel(reference_level="f16", levels=levels, orders=(), floors=floors)
    assert of_fidelity(panel, "f16", "other") == "unknown"
    assert of_fidelity(panel, "f16", "near") == "not_worse"
    assert of_fidelity(panel, "f16", "far") == "better"
    assert of_fidelity(panel, "f16", "else") == "unknown"
    assert of_fidelity(panel, "other", "far") == "unknown"


def test_a_gain_in_a_grid_is_held_against_that_of_the_same_documents() -> None:
    """At 600 tokens f16 gains 5 nats, q4_0 3: −2, and not less the 8 of other documents at 300."""

    def rows(tokens: int, gain: float) -> list[AnswerRow]:
        made = []
        for number in range(4):
            for is_twin in (False, True):
                each = answer(f"{tokens}-{number}", document=f"{tokens}-{number}", task="copy_gain", reading="scored")
                score = -10.0 if is_twin else -10.0 + gain + number / 100
                made.append(replace(each, score=score, is_twin=is_twin))
        return made

    found = copy_gains(list(zip(LEVELS, (rows(300, 8), rows(600, 5), rows(300, 8), rows(600, 3)), strict=True)))
    last = found[3]
    assert (last.level, last.baseline_level) == (LEVELS[3], LEVELS[1])
    assert last.change is not None
    assert last.change.value is not None
    assert abs(last.change.value + 2) < 1e-9
    assert found[1].change is None
