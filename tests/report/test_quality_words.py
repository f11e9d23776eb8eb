"""Findings of answers and of scores in words: every slug and every reason has them, and they say the numbers."""

import ast
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from answer_rows import answer, answers, turned
from study_rows import attempt, design_row, trial_row

from kvscope.analysis import fidelity, quality_findings
from kvscope.analysis.attempts import Attempt
from kvscope.analysis.design_claims import claims_of
from kvscope.analysis.finding import Finding
from kvscope.analysis.fit import Estimate
from kvscope.analysis.quality_gate import Gate
from kvscope.record.rows import READINGS, AnswerRow, DesignRow
from kvscope.report.claims import claim_text, size_text
from kvscope.report.words import NO_BREAK, WORDS

LEVELS = ("f16", "q8_0", "q4_0")
DESIGN = replace(design_row("context_limit"), name="kv_dtype", factor="kv_dtype", levels=LEVELS, baseline_level="f16")


def attempts(rows: Sequence[Sequence[AnswerRow]], design: DesignRow = DESIGN) -> list[Attempt]:
    found = []
    for level, each in zip(design.levels, rows, strict=True):
        base = attempt(trial_row(design, level), design=design)
        found.append(replace(base, result=replace(base.result, answers=tuple(each))))
    return found


def said(rows: Sequence[Sequence[AnswerRow]], design: DesignRow = DESIGN) -> list[str]:
    """The sentences of answers, as a reader sees them."""
    found = [each for each in claims_of(design, attempts(rows, design)) if each.slug.startswith("quality_")]
    return [claim_text(each).replace(NO_BREAK, " ") for each in found]


def test_every_slug_has_a_sentence() -> None:
    slugs: set[str] = set()
    for table in ("OF_VERDICT", "OF_SIGN", "OF_FIDELITY", "OF_GAIN"):
        slugs |= set(getattr(quality_findings, table).values())
    for node in ast.walk(ast.parse(Path(quality_findings.__file__).read_text(encoding="utf-8"))):
        if isinstance(node, ast.keyword) and node.arg == "slug" and isinstance(node.value, ast.Constant):
            slugs.add(node.value.value)
    assert len(slugs) > 15
    assert {slug for slug in slugs if f"finding.{slug}" not in WORDS} == set()


def test_every_reason_and_every_reading_has_words() -> None:
    gates = [gate for gate in get_args(Gate) if gate != "measured"]
    asked = {f"quality_share_because.{gate}" for gate in gates}
    asked |= {f"{kind}.{why}" for kind in ("quality_because", "quality_why") for why in (*gates, "unread")}
    asked |= {f"reading.{reading}" for reading in READINGS if reading != "scored"}
    reasons = ("NO_REFERENCE", "OTHER_PATTERN", "OTHER_TOKENS", "OTHER_BUILD", "OTHER_ITEMS", "NOT_SCORED")
    asked |= {f"fidelity_because.{getattr(fidelity, name)}" for name in reasons}
    asked |= {f"fidelity_because.{name}" for name in ("too_few", "floor_unknown", "near_floor", "nothing_measured")}
    asked |= {"fidelity_because.lost_texts"}
    assert {slug for slug in asked if slug not in WORDS} == set()


def test_a_share_is_said_with_its_items_and_what_guessing_reaches() -> None:
    rows = [answer(f"d{n}/0", is_right=n < 26, document=f"d{n}", tokens=512) for n in range(30)]
    twins = [answer(f"d{n}/0", is_right=False, document=f"d{n}", tokens=512, is_twin=True) for n in range(30)]
    told = "26 of 30 right; without the fact 0.0 %, and 0 of 30 name another value, 0 say that it is not there."
    assert f"keys (en), f16, 512 tokens: {told}" in said([[*rows, *twins]] * 3)


def test_at_the_ceiling_it_cannot_tell_and_says_how_many_items_would() -> None:
    rows = [answer(f"d{n}/0", document=f"d{n}", tokens=512) for n in range(30)]
    told = said([rows] * 3)
    assert told[0].startswith("keys (en), f16, 512 tokens: 30 of 30 right. Cannot tell: at the ceiling")
    assert "to see a loss of 5 points 226 to" in told[0]  # the true share may be below 100 %
    assert told[1].startswith("keys (en) with q8_0 against f16: cannot tell, at the ceiling: all is right at the base")


def test_a_loss_and_the_bound_of_no_loss() -> None:
    base = answers(150, 4, 0.7, seed=1)
    told = said([base, base, turned(base, lost=0.3, gained=0.0)])
    (no_loss,) = [text for text in told if "q8_0:" in text]
    assert "no loss larger than" in no_loss
    assert "of 600 items 0 were lost and 0 gained" in no_loss
    (loss,) = [text for text in told if text.endswith("a loss.")]
    assert loss.startswith("keys (en) with q4_0: -")
    assert "points against f16" in loss


@pytest.mark.parametrize(
    ("arrives", "where", "much"),
    [
        (lambda depth: depth > 60, "at the head of the text", "Of its end about "),
        (lambda depth: depth < 40, "at the end of the text", "Of its beginning about "),
        (
            lambda depth: depth < 30 or depth > 70,
            "between 30 and 70 % of the text",
            "or the model does not use it. The ",
        ),
    ],
)
@pytest.mark.parametrize("tokens", [1000, None])
def test_a_part_that_is_never_found_is_said_and_nothing_judges_beside_it(
    arrives: Callable[[float], bool], where: str, much: str, tokens: int | None
) -> None:
    whole = answers(20, 5, 0.9, seed=3)
    cut = answers(20, 5, lambda depth: 0.95 if arrives(depth) else 0.0, seed=3)
    told = said([[replace(row, document_tokens=tokens) for row in rows] for rows in (whole, cut, whole)])
    (sign,) = [text for text in told if "not certain" in text]
    assert f"facts {where} are found no oftener than by guessing" in sign
    assert "the prompt may have been cut there, or the model does not use it" in sign
    assert much in sign
    unit = "of 1,000 tokens seem to reach" if tokens else "% seem to reach"
    assert (unit in sign) == ("between" not in where)
    (compared,) = [text for text in told if "with q8_0 against f16" in text]
    assert "cannot tell, facts in one part of the text are not found" in compared
    assert "items are needed" not in compared
    alone = said([[replace(row, document_tokens=tokens) for row in cut]] * 3)
    assert any("Cannot tell: the prompt may have been cut, or the model does not use all of it." in t for t in alone)


def test_a_share_of_nothing_says_what_became_of_the_answers() -> None:
    rows = [answer(f"d{n}/0", document=f"d{n}", reading="cut_output", chance=0.2) for n in range(10)]
    told = said([rows] * 3)
    assert "keys (en), f16: 10 of 10 answers are in no share: 10 cut by the limit." in told
    assert any("0 of 0 right; by chance 20.0 %. Cannot tell: no answer could be read (10 cut by" in t for t in told)


def test_what_was_left_out_is_named() -> None:
    rows = answers(10, 4, 0.7, seed=1, twin_right=None)
    cut = [replace(row, reading="truncated_input", score=None) for row in rows[:3]]
    told = said([[*cut, *rows[3:]], rows, rows])
    assert told[0] == "keys (en), f16, 1,000 tokens: 3 of 40 answers are in no share: 3 prompt cut."


@pytest.mark.parametrize(
    ("noise", "words"),
    [(0.002, "the engine's own noise: 0.0020"), (0.0, "repeats itself exactly"), (None, "was not measured")],
)
def test_divergence_is_said_beside_the_engines_noise(noise: float | None, words: str) -> None:
    values = {"level": "q4_0/f16", "baseline_level": "f16", "reason": None, "noise": noise, "flips": 45,
              "positions": 634, "documents": 6}  # fmt: skip
    found = Finding(slug="fidelity_loss", values=values, size=Estimate(value=0.047, low=0.03, high=0.07, num=6))
    text = claim_text(found).replace(NO_BREAK, " ")
    assert text.startswith("q4_0/f16: KL 0.047 nats per token against f16")
    assert words in text
    assert "at 45 of 634 places" in text
    assert size_text(found) == "95 % interval 0.030 to 0.070 nats, 6 documents."


def test_texts_that_were_lost_are_named() -> None:
    values = {"level": "q4_0/f16", "baseline_level": "f16", "reason": None, "noise": 0.0, "flips": 45, "positions": 400,
              "documents": 6, "texts": 43, "lost": ["d1/new", "d2/new", "d3/new", "d4/new", "d5/new"]}  # fmt: skip
    told = Finding(slug="fidelity_loss", values=values, size=Estimate(value=0.047, low=0.03, high=0.07, num=6))
    text = claim_text(told).replace(NO_BREAK, " ")
    assert "5 of 48 texts that the baseline has are not in these numbers" in text
    assert text.endswith("d1/new, d2/new, d3/new and 2 more.")
    unknown = replace(told, slug="fidelity_cannot_tell", values={**values, "reason": "lost_texts", "lost": ["d1/new"]})
    text = claim_text(unknown).replace(NO_BREAK, " ")
    assert "texts that were not scored may hide one. 1 of 44 texts" in text
    none = replace(unknown, values={**values, "reason": "not_scored", "texts": 0})
    assert claim_text(none).endswith("cannot tell, the texts could not be scored.")


def test_scores_without_a_reference_say_why() -> None:
    values = {"level": "q8_0", "baseline_level": "f16", "reason": "no_reference", "noise": None, "flips": 0,
              "positions": 0, "documents": 0}  # fmt: skip
    found = Finding(slug="fidelity_cannot_tell", values=values, size=Estimate(value=None))
    assert claim_text(found) == "q8_0: cannot tell, the baseline was not scored."


def test_levels_that_are_beaten_and_pairs_that_are_not_known() -> None:
    values = {"levels": ["q8_0"], "beaten": [("f16", ["q8_0"])], "unknown": [("q4_0", "q8_0", ["time", "quality"])]}
    assert claim_text(Finding(slug="quality_not_beaten", values=values)) == (
        "Not beaten on memory, time and quality together: q8_0. Beaten: f16 by q8_0. "
        "Not told apart: q4_0 from q8_0 (time, quality)."
    )


def test_retrieval_has_its_own_words_for_answers() -> None:
    design = replace(DESIGN, name="retrieval", factor="given", levels=("whole", "evidence", "nothing"))
    design = replace(design, baseline_level="whole")
    assert said([answers(10, 1, 0.7)] * 3, design) == []
