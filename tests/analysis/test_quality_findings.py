"""Findings from answers: which are made, and that their values can be told in a sentence."""

import json
from collections.abc import Sequence
from dataclasses import replace

from answer_rows import answers, turned
from study_rows import attempt, design_row, trial_row

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.finding import Finding
from kvscope.analysis.quality_findings import quality_findings
from kvscope.record.rows import AnswerRow, DesignRow

LEVELS = ("f16", "q8_0", "q4_0")
DESIGN = replace(design_row("context_limit"), name="kv_dtype", factor="kv_dtype", levels=LEVELS, baseline_level="f16")


def attempts(rows: Sequence[Sequence[AnswerRow]], design: DesignRow = DESIGN) -> list[Attempt]:
    found = []
    for level, each in zip(LEVELS, rows, strict=True):
        base = attempt(trial_row(design, level), design=design)
        found.append(replace(base, result=replace(base.result, answers=tuple(each))))
    return found


def by_slug(found: Sequence[Finding]) -> dict[str, list[Finding]]:
    return {slug: [each for each in found if each.slug == slug] for slug in dict.fromkeys(each.slug for each in found)}


def test_a_loss_and_no_loss_with_their_evidence() -> None:
    base = answers(150, 4, 0.7, seed=1)
    made = attempts([base, base, turned(base, lost=0.3, gained=0.0)])
    found = by_slug(quality_findings(DESIGN, made))
    assert list(found) == ["quality_share", "quality_no_loss", "quality_loss", "quality_not_beaten"]
    (loss,) = found["quality_loss"]
    assert loss.values["level"] == "q4_0"
    assert loss.size is not None
    assert loss.size.high is not None
    assert loss.size.high < 0
    assert loss.evidence == (made[0].key, made[2].key)
    (share,) = found["quality_share"]
    assert (share.values["gate"], share.values["items"], share.values["documents"]) == ("measured", 600, 150)


def test_what_cannot_be_told_says_why_and_how_many_items_would() -> None:
    base = answers(10, 1, 0.7, seed=2)
    found = by_slug(quality_findings(DESIGN, attempts([base, base, base])))
    for each in found["quality_cannot_tell"]:
        assert each.values["reason"] == "too_few"
        needed = each.values["items_needed"]
        assert isinstance(needed, int)
        assert needed > 100


def test_a_cut_an_unsteady_item_and_what_was_left_out_are_said() -> None:
    whole = answers(10, 8, 0.9, seed=1)
    cut = answers(10, 8, lambda depth: 0.9 if depth > 70 else 0.0, seed=1)
    ends = [replace(row, reading="cut_output") if index % 9 == 0 else row for index, row in enumerate(whole)]
    unsteady = [*whole, *turned(whole, lost=0.2, gained=0.0, seed=4)]
    found = by_slug(quality_findings(DESIGN, attempts([unsteady, cut, ends])))
    (sign,) = found["quality_head_never_arrives"]
    assert sign.values["level"] == "q8_0"
    assert sign.values["of_tokens"] == 1000
    low, high = sign.values["tokens_low"], sign.values["tokens_high"]
    assert isinstance(low, float)
    assert isinstance(high, float)
    assert low - 20 <= 300 <= high + 20
    assert found["quality_unsteady"][0].values["level"] == "f16"
    assert found["quality_left_out"][0].values["readings"] == {"cut_output": 18}


def test_values_can_be_written_as_json() -> None:
    base = answers(20, 2, 0.7, seed=2)
    found = quality_findings(DESIGN, attempts([base, base, base]))
    assert found
    for each in found:
        assert json.loads(json.dumps(dict(each.values))).keys() == each.values.keys()


def test_nothing_was_asked_nothing_is_found() -> None:
    assert quality_findings(DESIGN, attempts([(), (), ()])) == ()
