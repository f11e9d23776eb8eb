"""A conversation turn by turn, out of a record: medians worked out beside each case."""

from pathlib import Path

import pytest
from study_rows import attempt, design_row, request_row, token_rows, trial_row, write_record

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.study import analyse
from kvscope.analysis.turns import Turn, turn_tables
from kvscope.record.rows import DesignRow
from kvscope.record.store import open_records
from kvscope.report.markdown import render_markdown
from kvscope.report.text import render_text
from kvscope.report.turns import turn_lines

DESIGN = design_row("turns", held={"reuse_prefix": True})
# Prompt and reused tokens of the turns, as measured with llama.cpp b11549 and SmolLM2.
PROMPTS = ((64, 24), (125, 79), (186, 140))


def played(
    *ttft_s: float, repeat: int = 0, fails: bool = False, design: DesignRow = DESIGN, **trial: object
) -> Attempt:
    """A conversation with a turn for each time, after a warm-up; ``fails``: and then one that does not fit."""
    requests = [request_row(index=0, role="warmup")]
    tokens = list(token_rows(0, [9.0]))
    for turn, (prompt, cached) in enumerate(PROMPTS[: len(ttft_s)], start=1):
        role = "measured" if turn == len(ttft_s) and not fails else "earlier_turn"
        requests.append(request_row(index=turn, prompt=prompt, cached_tokens=cached, role=role))
        tokens += token_rows(turn, [ttft_s[turn - 1], 5.0])
    if fails:
        failed = {"prompt_tokens_server": None, "cached_tokens": None, "output_tokens": None}
        requests.append(request_row(index=len(requests), prompt=247, error_slug="prompt-does-not-fit", **failed))
    outcome = "context_overflow" if fails else "ok"
    row = trial_row(design, len(ttft_s) + fails, repeat, **{"outcome": outcome, **trial})
    return attempt(row, design=design, requests=tuple(requests), tokens=tuple(tokens))


def test_each_turn_is_the_median_of_its_repeats() -> None:
    (table,) = turn_tables([played(0.5, 0.8), played(0.7, 0.6, repeat=1), played(0.9, 0.9, repeat=2)])
    assert table.reuse_prefix is True
    first, second = table.turns
    assert first == Turn(
        turn=1, conversations=3, prompt_tokens=64, cached_tokens=24, computed_tokens=40, ttft_s=0.7, failed={}
    )
    assert (second.prompt_tokens, second.computed_tokens, second.ttft_s) == (125, 125 - 79, 0.8)


def test_a_turn_does_not_know_how_many_will_follow() -> None:
    (table,) = turn_tables([played(0.5), played(0.7, 0.8), played(0.6, 0.9, 1.0)])
    assert [(turn.turn, turn.conversations) for turn in table.turns] == [(1, 3), (2, 2), (3, 1)]
    assert [turn.ttft_s for turn in table.turns] == pytest.approx([0.6, 0.85, 1.0])


def test_a_turn_that_was_not_answered_has_our_count_and_its_outcome() -> None:
    (table,) = turn_tables([played(0.5, 0.8, fails=True)])
    last = table.turns[-1]
    assert (last.turn, last.conversations, last.prompt_tokens, last.ttft_s) == (3, 0, 247, None)
    assert last.failed == {"context_overflow": 1}
    assert "over the context limit × 1" in " ".join(" ".join(turn_lines([table])).split())


def test_warm_up_trials_repeated_attempts_and_other_designs_are_not_in_it() -> None:
    again = played(0.4, repeat=1, attempt=2)
    (table,) = turn_tables([played(9.0, role="warmup", trial_id="w"), played(8.0, repeat=1), again])
    assert [turn.ttft_s for turn in table.turns] == [0.4]
    assert turn_tables([attempt(requests=(request_row(),))]) == ()


def test_what_else_varies_is_told_apart() -> None:
    grid = [played(0.5, levels={"turns": 1, "n_batch": size}, trial_id=str(size)) for size in (64, 512)]
    tables = turn_tables(grid)
    assert [dict(table.levels) for table in tables] == [{"n_batch": 64}, {"n_batch": 512}]
    assert "n_batch = 64" in turn_lines(tables)[0]


def test_the_reports_first_sentence_tells_of_the_turns_and_the_table_is_in_all_forms(tmp_path: Path) -> None:
    path = write_record(tmp_path / "r.db", [played(0.5, 0.8, 1.25)])
    with open_records(path) as records:
        analysis = analyse(records)
    text = " ".join(render_text(analysis).split())
    assert "Turn 3 of a conversation waited 1.25 s for its first token: 46 of its 186 prompt tokens were" in text
    assert "Turn 1 waited 500 ms" in text
    assert "do not tell" not in text
    assert "Turn by turn, earlier turns reused" in text
    assert "3 186 140 46 1.250 1" in text
    assert "| 3 | 186 | 140 | 46 | 1.250 | 1 |" in render_markdown(analysis)
