"""Whole document against retrieval from rows made by a known law: the break-even, what was said of it before, the lost
facts. 40 ms a request, 2 ms a token, 0.1 µs a pair of tokens."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from study_rows import attempt, design_row, request_row, run_row, token_rows, trial_row, write_record

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.break_even import Costs, ReadingLaw, break_even
from kvscope.analysis.design_claims import claims_of, recorded_claims
from kvscope.analysis.findings import find
from kvscope.analysis.retrieval_panel import RetrievalPanel, lost_by, recorded_panel, retrieval_panel
from kvscope.analysis.study import analyse
from kvscope.record.rows import AnswerRow, DesignRow
from kvscope.record.store import open_records
from kvscope.report.claim_lines import claim_lines
from kvscope.report.retrieval_text import MOST_LINES, retrieval_lines
from kvscope.report.terminal_text import WIDTH

LAW = ReadingLaw(fixed_s=0.04, per_token_s=0.002, per_pair_s=1e-7, num=0)
# (kept tokens, tokens read) of each question.
WHOLE = [(24, 2000), (2004, 20), (2004, 20), (2004, 20)]
PASSAGES = [(24, 300), (48, 276), (48, 276), (48, 276)]
QUESTIONS = ("q1", "q2", "q3", "q4")
DESIGN = replace(
    design_row("input_length"),
    design_id="retrieval-1",
    name="retrieval",
    factor="given",
    levels=("whole", "passages=3", "nothing"),
    baseline_level="whole",
)


def answer(number: int, level: str, failure: str | None, **changes: Any) -> AnswerRow:
    values: dict[str, Any] = {
        "index": number,
        "task": "retrieval",
        "item": QUESTIONS[number],
        "document": f"page-{number}",
        "language": "en",
        "reading": "wrong" if failure else "right",
        "score": 0.0 if failure else 1.0,
        "chance": 0.0,
        "evidence_in_prompt": level != "nothing" and failure != "not_retrieved",
        "request_index": number + 1,
        "expected": str(number),
        "answer": "some answer",
        "facts": {"question": f"What is number {number}?", "failure": failure},
    }
    return AnswerRow(**{**values, **changes})


def trial(
    design: DesignRow,
    level: str,
    repeat: int,
    reads: list[tuple[int, int]],
    failures: list[str | None],
    *,
    slow: float = 1.0,
    is_predicted: bool = True,
    at: str = "2026-11-29T12:00",
    role: str = "measured",
) -> Attempt:
    """One that took as long as the law says, times ``slow``."""
    requests, tokens = [], []
    for number, (kept, computed) in enumerate(reads):
        predicted = kept if is_predicted else None
        requests.append(
            request_row(number + 1, kept + computed, 2, cached_tokens=kept, cached_tokens_predicted=predicted)
        )
        first_s = LAW.seconds(kept, computed) * slow
        tokens += token_rows(number + 1, [first_s, first_s + 0.01])
    answers = tuple(answer(number, level, failure) for number, failure in enumerate(failures))
    begun, name = f"{at}:{repeat:02d}.000+00:00", f"{design.design_id}-{level}-{repeat}-{role}"
    row = trial_row(design, level, repeat, trial_id=name, started_at=begun, prompt_tokens_asked=None, role=role)
    return attempt(row, design=design, requests=tuple(requests), tokens=tuple(tokens), answers=answers)


def warmup(level: str = "whole", at: str = "2026-11-29T11:59") -> Attempt:
    """Two questions, before anything is measured."""
    return trial(DESIGN, level, 0, WHOLE[:2] if level == "whole" else PASSAGES[:2], [None, None], at=at, role="warmup")


def study(*slow: float, **more: Any) -> list[Attempt]:
    """A warm-up, and a block for each of ``slow``, in which passages lose one fact and the whole document another."""
    found = [warmup()]
    for block, factor in enumerate(slow):
        found += [
            trial(DESIGN, "whole", block, WHOLE, [None, None, "buried", None], slow=factor, **more),
            trial(DESIGN, "passages=3", block, PASSAGES, [None, "not_retrieved", None, None], slow=factor, **more),
            trial(DESIGN, "nothing", block, [(24, 30)] * 4, ["not_given"] * 4, slow=factor, **more),
        ]
    return found


def costs() -> Costs:
    """By hand: the first question of the whole, the mean of its others, the mean of all of passages."""
    cold, *warm = [LAW.seconds(*read) for read in WHOLE]
    each = [LAW.seconds(*read) for read in PASSAGES]
    return Costs(cold=cold, warm=sum(warm) / 3, each=sum(each) / 4)


def test_the_break_even_is_that_of_the_waits() -> None:
    panel = retrieval_panel(DESIGN, study(1.0, 1.1, 0.95))
    assert panel is not None
    (even,) = panel.evens
    assert even.on_time.value == pytest.approx(break_even(costs()), rel=1e-6)
    # A block that is slow as a whole does no harm: the quotient is the same in each.
    assert even.on_time.low == pytest.approx(even.on_time.value, rel=1e-6)
    assert even.on_tokens == pytest.approx((2000 - 20) / ((300 + 3 * 276) / 4 - 20))
    assert even.predicted_on_tokens == even.on_tokens


def test_the_first_trial_of_the_whole_predicts_what_passages_then_cost() -> None:
    panel = retrieval_panel(DESIGN, study(1.0, 1.0))
    assert panel is not None
    (even,) = panel.evens
    assert even.law_from == "first_trial"
    # Two kinds of requests give a straight law, which has no part for pairs of tokens.
    assert even.predicted_on_time == pytest.approx(even.on_time.value, rel=0.15)


def test_a_trial_that_is_measured_predicts_nothing_and_one_behind_passages_neither() -> None:
    measured = study(1.0, 1.0)[1:]
    for before in ([], [warmup("passages=3")], [warmup(at="2026-11-29T12:30")]):
        panel = retrieval_panel(DESIGN, [*before, *measured])
        assert panel is not None
        assert (panel.evens[0].law_from, panel.evens[0].predicted_on_time) == (None, None)
        assert "Predicted before it was measured: unknown." in page(panel)


def page(panel: RetrievalPanel) -> str:
    return " ".join(" ".join(retrieval_lines(panel)).split())


def waits(*each: tuple[float, float, float], **more: Any) -> list[Attempt]:
    """A block for each (cold, warm, passages) of so many times what the law says."""
    found = []
    for block, (cold, warm, passages) in enumerate(each):
        whole = trial(DESIGN, "whole", block, WHOLE, [None] * 4, **more)
        found += [
            timed(whole, [cold, warm, warm, warm]),
            timed(trial(DESIGN, "passages=3", block, PASSAGES, [None] * 4, **more), [passages] * 4),
        ]
    return found


def timed(of: Attempt, seconds: list[float]) -> Attempt:
    """With these waits for the first token."""
    tokens = [row for number, at in enumerate(seconds) for row in token_rows(number + 1, [at, at + 0.01])]
    return replace(of, result=replace(of.result, tokens=tuple(tokens)))


# One wait on passages is not told from a later one on the whole: by 3 ms of 100, give or take 20.
NOISE = [(1.0, 0.100 + 0.02 * sign, 0.103 - 0.02 * sign) for sign in (-1, 1, -1, 1, 1, -1)]


def test_what_noise_hides_is_not_there_is_none() -> None:
    for attempts in (waits(*NOISE), waits(*[(cold, each, warm) for cold, warm, each in NOISE])):
        panel = retrieval_panel(DESIGN, attempts)
        assert panel is not None
        (even,) = panel.evens
        assert even.on_time.reason is not None
        assert "Break-even: cannot tell" in page(panel)
        assert "beyond" in page(panel)
        assert ("by their means alone it is at" in page(panel)) is (even.on_time.value is not None)
        assert not even.on_time.has_interval
        slugs = [finding.slug for finding in claims_of(DESIGN, attempts)]
        assert "retrieval_even_not_told" in slugs
        assert not {"retrieval_never_even", "retrieval_even"} & set(slugs)


def test_where_passages_surely_wait_less_there_is_none() -> None:
    panel = retrieval_panel(DESIGN, waits((1.0, 0.3, 0.1), (1.1, 0.31, 0.1), (1.0, 0.29, 0.11)))
    assert panel is not None
    assert (panel.evens[0].on_time.value, panel.evens[0].on_time.reason) == (None, None)
    assert "there is none, passages=3 is quicker for any number of questions" in page(panel)
    once = retrieval_panel(DESIGN, waits((1.0, 0.3, 0.1)))
    assert once is not None
    assert "cannot tell, in the one repeat" in page(once)


def test_quicker_from_the_first_question_on_is_no_number_below_one() -> None:
    panel = retrieval_panel(DESIGN, waits((0.30, 0.29, 2.0), (0.28, 0.29, 2.0), (0.29, 0.29, 2.0)))
    assert panel is not None
    assert panel.evens[0].on_time.value == panel.evens[0].on_time.low == 1
    assert "quicker from the first question on." in page(panel)


def test_where_nothing_is_reused_there_is_none_in_tokens_either() -> None:
    uncached = [(0, 2024), (0, 2024), (0, 2024), (0, 2024)]
    attempts = [
        each
        for block in (0, 1)
        for each in (
            trial(DESIGN, "whole", block, uncached, [None] * 4),
            trial(DESIGN, "passages=3", block, [(0, 324)] * 4, [None] * 4),
        )
    ]
    panel = retrieval_panel(DESIGN, attempts)
    assert panel is not None
    (even,) = panel.evens
    assert (even.on_tokens, even.predicted_on_tokens) == (None, None)
    assert set(even.never) >= {"on_tokens", "predicted_on_tokens"}
    assert even.token_sizes == {1: 324, 10: 0, 100: 0}
    assert "In tokens: there is none; counted before they were sent: there is none." in page(panel)
    said = " ".join(claim_lines(list(claims_of(DESIGN, attempts))))
    assert "inf" not in page(panel) + said
    assert "retrieval_never_even_tokens" in [finding.slug for finding in claims_of(DESIGN, attempts)]
    assert "at no size" in page(panel) or "up to" in page(panel)


def test_no_size_is_told_beyond_what_the_model_was_trained_for() -> None:
    panel = retrieval_panel(DESIGN, study(1.0, 1.0))
    assert panel is not None
    (even,) = panel.evens
    assert even.largest_tokens == 8192
    assert (even.sizes[100] or 0) > 8192
    assert "for 100 questions at any size that the model's window holds (8,192 tokens)" in page(panel)


@pytest.mark.parametrize(
    ("levels", "left_out", "why"),
    [
        (("whole/question-first", "passages=3"), ("whole",), "the level whole was not asked for"),
        (("whole", "nothing"), (), "no level gives passages"),
        (("whole", "passages=3"), ("passages=3",), "no way of passages was measured"),
        (("whole", "passages=3"), ("whole",), "the whole document was not measured"),
    ],
)
def test_why_there_is_no_break_even_is_told(levels: tuple[str, ...], left_out: tuple[str, ...], why: str) -> None:
    attempts = [each for each in study(1.0) if each.trial.level in levels and each.trial.level not in left_out]
    panel = retrieval_panel(replace(DESIGN, levels=levels, baseline_level=levels[0]), attempts)
    assert panel is not None
    assert f"Break-even: unknown, {why}." in page(panel)


def test_one_question_has_no_break_even_and_is_one() -> None:
    attempts = [
        trial(DESIGN, "whole", 0, WHOLE[:1], ["buried"]),
        trial(DESIGN, "passages=3", 0, PASSAGES[:1], [None]),
    ]
    panel = retrieval_panel(DESIGN, attempts)
    assert panel is not None
    said = page(panel)
    assert "1 question, each way measured once" in said
    assert "Break-even: unknown, it takes two questions or more." in said
    assert "Not right with whole: 1 buried." in said


def test_nothing_to_lose_is_no_praise() -> None:
    for failure, says in (("buried", "had nothing to lose"), ("cut", "it is not known what passages=3 lost")):
        attempts = [
            trial(DESIGN, "whole", 0, WHOLE, [failure] * 4),
            trial(DESIGN, "passages=3", 0, PASSAGES, [failure] * 4),
        ]
        if failure == "cut":
            attempts = [
                replace(
                    each,
                    result=replace(
                        each.result,
                        answers=tuple(replace(row, reading="cut_output", score=None) for row in each.result.answers),
                    ),
                )
                for each in attempts
            ]
        panel = retrieval_panel(DESIGN, attempts)
        assert panel is not None
        assert says in page(panel)
        assert "lost nothing that" not in page(panel)


def test_the_names_of_lost_facts_are_what_a_crowded_page_gives_up_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """It said "lost 3 that the whole document got right:", named none, and explained kinds of failure below."""
    panel = retrieval_panel(DESIGN, study(1.0, 1.1, 0.95))
    assert panel is not None
    full = retrieval_lines(panel)
    for fewer in (2, 3):
        monkeypatch.setattr("kvscope.report.retrieval_text.MOST_LINES", len(full) - fewer)
        lines = retrieval_lines(panel)
        assert len(lines) <= len(full) - fewer
        assert "  What is number 1? (1): not retrieved" in lines
        assert "Buried: " not in " ".join(lines)
        assert not lines[-1].endswith("got right:")


def test_what_a_page_has_no_room_for_is_said() -> None:
    levels = ("whole", *(f"passages={number}" for number in (1, 2, 3, 5, 8)), "evidence", "nothing")
    design = replace(DESIGN, levels=levels)
    attempts = [warmup()]
    for level in levels:
        reads = WHOLE if level == "whole" else PASSAGES
        lost: list[str | None] = ["not_retrieved"] * 3 + [None] if level != "whole" else [None] * 4
        attempts.append(trial(design, level, 0, reads, lost))
    panel = retrieval_panel(design, attempts)
    assert panel is not None
    lines = retrieval_lines(panel)
    assert len(lines) <= MOST_LINES
    assert "passages=5, passages=8" in page(panel)
    assert "no more is told here" in page(panel)
    for level in levels[1:-1]:
        assert f"Not right with {level}: " in page(panel)


def test_page_and_findings_hold_the_same_prediction(tmp_path: Path) -> None:
    alike = replace(design_row("input_length"), held=DESIGN.held)
    write_record(tmp_path / "r.db", [*earlier(alike), *study(1.0, 1.0)])
    with open_records(tmp_path / "r.db") as records:
        panel = recorded_panel(records, DESIGN.design_id)
        found = recorded_claims(records, DESIGN.design_id)
        (reported,) = analyse(records).studies
    assert panel is not None
    assert panel.evens[0].law_from == "earlier_designs"
    of_report = [each for each in find(reported) if each.slug == "retrieval_even"]
    of_record = [each for each in found if each.slug == "retrieval_even"]
    for each in (*of_report, *of_record):
        assert each.values["predicted_questions"] == panel.evens[0].predicted_on_time
    assert (len(of_report), len(of_record)) == (1, 1)


def earlier(design: DesignRow, at: str = "2026-11-29T09:00") -> list[Attempt]:
    """Prompts of several lengths, measured before."""
    return [
        trial(design, str(length), number, [(0, length)], [], at=at) for number, length in enumerate((100, 400, 1600))
    ]


def test_designs_of_before_predict_it_by_their_law() -> None:
    before = earlier(design_row("input_length"))
    panel = retrieval_panel(DESIGN, study(1.0, 1.0), before)
    assert panel is not None
    (even,) = panel.evens
    assert even.law_from == "earlier_designs"
    assert even.predicted_on_time == pytest.approx(even.on_time.value, rel=0.02)


def test_of_a_record_only_what_was_there_before_predicts(tmp_path: Path) -> None:
    alike = replace(design_row("input_length"), held=DESIGN.held)
    other = replace(alike, design_id="other", engine_build="another build")
    for name, before, law_from in (
        ("before", earlier(alike), "earlier_designs"),
        ("after", earlier(alike, at="2026-11-29T13:00"), "first_trial"),
        ("another", earlier(other), "first_trial"),
    ):
        path = tmp_path / f"{name}.db"
        write_record(path, [*before, *study(1.0, 1.0)])
        with open_records(path) as records:
            panel = recorded_panel(records, DESIGN.design_id)
            assert recorded_panel(records, "no such design") is None
        assert panel is not None
        assert panel.evens[0].law_from == law_from, name


def test_where_nothing_was_predicted_nothing_is_said_of_it() -> None:
    panel = retrieval_panel(DESIGN, study(1.0, 1.0, is_predicted=False))
    assert panel is not None
    (even,) = panel.evens
    assert (even.predicted_on_time, even.predicted_on_tokens) == (None, None)
    assert even.on_tokens is not None


def test_what_each_way_lost_against_the_other() -> None:
    panel = retrieval_panel(DESIGN, study(1.0, 1.0))
    assert panel is not None
    assert [(each.item, each.failure) for each in lost_by(panel, "passages=3")] == [("q2", "not_retrieved")]
    assert [(each.item, each.failure) for each in lost_by(panel, "whole", "passages=3")] == [("q3", "buried")]
    whole, passages = panel.row("whole"), panel.row("passages=3")
    assert whole is not None
    assert passages is not None
    assert (whole.num_right, whole.num_scored, whole.failures) == (3, 4, {"buried": 1})
    assert (passages.with_evidence, passages.evidence_known) == (3, 4)


def test_repeats_ask_no_new_questions() -> None:
    once, thrice = (retrieval_panel(DESIGN, study(*slow)) for slow in ((1.0,), (1.0, 1.0, 1.0)))
    assert once is not None
    assert thrice is not None
    assert once.rows[0].share == thrice.rows[0].share


def test_a_way_that_was_refused_says_why_and_has_no_break_even() -> None:
    refused = replace(
        trial_row(DESIGN, "whole"), outcome="refused", error_message="9,000 prompt tokens; the limit is 512. Not run."
    )
    rest = [each for each in study(1.0) if each.trial.level != "whole"]
    panel = retrieval_panel(DESIGN, [attempt(refused, design=DESIGN), *rest])
    assert panel is not None
    assert panel.evens == ()
    assert panel.rows[0].why_not == "9,000 prompt tokens; the limit is 512. Not run."
    assert "9,000 prompt tokens" in " ".join(retrieval_lines(panel))


def test_the_page_and_the_findings_say_it() -> None:
    attempts = study(1.0, 1.1, 0.95)
    panel = retrieval_panel(DESIGN, attempts)
    assert panel is not None
    lines = retrieval_lines(panel)
    assert len(lines) <= MOST_LINES
    assert max(map(len, lines)) <= WIDTH
    said = " ".join(" ".join(lines).split())
    # Cold 4.4496 s, warm 0.0881 s, passages (0.6504 + 3 × 0.6023) ÷ 4 = 0.6143 s: (4.4496 − 0.0881) ÷ 0.5262 = 8.288.
    assert "from 8.3 questions on, the whole document is quicker (95 %: 8.3 to 8.3)" in said
    assert "What is number 1? (1): not retrieved" in said
    assert "What is number 2? (2): buried" in said
    found = {finding.slug: finding for finding in claims_of(DESIGN, attempts)}
    assert {"retrieval_even", "retrieval_even_tokens", "retrieval_right", "retrieval_lost"} <= found.keys()
    assert found["retrieval_even"].values["questions"] == pytest.approx(8.288, abs=0.001)
    assert claim_lines(list(found.values()))


def test_rows_are_as_they_are_told(tmp_path: Path) -> None:
    write_record(tmp_path / "r.db", study(1.0, 1.0))
    with open_records(tmp_path / "r.db") as records:
        panel = recorded_panel(records, DESIGN.design_id)
    assert panel == retrieval_panel(DESIGN, study(1.0, 1.0))
    assert run_row().run_id == "run"
