"""The turns design: how it is planned, what its trials send and record, and that what reads a record can read it. The
engine is the fake one, whose counts are words."""

from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvscope.analysis.study import analyse
from kvscope.analysis.table import table_rows
from kvscope.cli.main import cli
from kvscope.engine.base import ChatRequest, Generation
from kvscope.engine.fake import FakeEngine, VirtualClock
from kvscope.errors import BadDesign
from kvscope.experiment.design import Condition, Trial
from kvscope.experiment.measure import Held, measure, plan_design
from kvscope.experiment.trial import run_trial
from kvscope.record.metrics import metrics_of
from kvscope.record.rows import TrialResult, TrialRow
from kvscope.record.store import open_records
from kvscope.report.markdown import render_markdown
from kvscope.report.page import write_report
from kvscope.report.text import render_text

ROW = TrialRow(
    trial_id="t",
    attempt=1,
    design_id="d",
    run_id="r",
    role="measured",
    levels={},
    level=3,
    repeat=0,
    block=0,
    position=0,
    started_at="2026-01-01T00:00:00.000+00:00",
    settings={},
)


class Listening(FakeEngine):
    """Keeps what it was asked."""

    def __init__(self, clock: VirtualClock, **settings: int) -> None:
        super().__init__(settings=settings, clock=clock)
        self.asked: list[ChatRequest] = []

    def generate(self, request: ChatRequest) -> Generation:
        self.asked.append(request)
        return super().generate(request)


def run(turns: int, *, reuse_prefix: bool = True, **settings: int) -> tuple[TrialResult, list[ChatRequest]]:
    clock = VirtualClock()
    engine = Listening(clock, **settings)
    point = Condition(
        settings=settings,
        prompt_tokens=60,
        output_tokens=8,
        requests=turns,
        is_conversation=True,
        reuse_prefix=reuse_prefix,
    )
    trial = Trial(trial_id="t", role="measured", levels={}, level=turns, repeat=0, block=0, position=0, condition=point)
    result = run_trial(lambda: engine, trial, ROW, seed=3, now=clock.now, sleep=clock.sleep)
    return result, engine.asked


def test_each_turn_is_sent_with_all_that_went_before_it() -> None:
    result, asked = run(3)
    assert result.trial.outcome == "ok"
    _, *turns = asked
    assert [[message.role for message in request.messages] for request in turns] == [
        ["user"],
        ["user", "assistant", "user"],
        ["user", "assistant", "user", "assistant", "user"],
    ]
    for before, after in pairwise(turns):
        assert after.messages[: len(before.messages)] == before.messages
    # The fake engine's own answer, word for word.
    assert turns[1].messages[1].content == "".join(f"word{number} " for number in range(8))
    assert {request.reuse_prefix for request in turns} == {True}
    assert len({message.content for message in turns[2].messages if message.role == "user"}) == 3


def test_each_turn_is_a_row_and_the_last_one_is_measured() -> None:
    result, _ = run(3, reuse_prefix=False)
    assert [request.role for request in result.requests] == ["warmup", "earlier_turn", "earlier_turn", "measured"]
    # A user's message of 60 tokens when sent alone: 54 words, 4 for the message, 2 to open the answer. The next prompt
    # has the answer as well, 8 words and 4, and another message of 58.
    expected = [60, 60 + 8 + 4 + 58, 60 + 2 * (8 + 4 + 58)]
    turns = result.requests[1:]
    assert [request.prompt_tokens_ours for request in turns] == expected
    assert [request.prompt_tokens_server for request in turns] == expected
    assert [request.prompt_tokens_asked for request in turns] == [None] * 3
    assert [mark.request_index for mark in result.marks if mark.phase == "after_request"] == [1, 2, 3]
    # 0.01 s and 0.1 ms for each prompt token is the fake engine's own law.
    assert metrics_of(result).ttft_s == pytest.approx(0.01 + 0.0001 * expected[2])


def test_reuse_is_in_the_rows() -> None:
    kept, _ = run(3)
    anew, _ = run(3, reuse_prefix=False)
    assert [request.cached_tokens for request in anew.requests] == [0, 0, 0, 0]
    cached = [request.cached_tokens for request in kept.requests[1:]]
    # The fake engine keeps the words of the prompt before: 54, then 54 + 8 + 54.
    assert cached == [0, 54, 116]


def test_a_conversation_that_outgrows_the_context_keeps_the_turns_before() -> None:
    result, asked = run(3, n_ctx=150)
    assert result.trial.outcome == "context_overflow"
    assert [request.error_slug for request in result.requests] == [None, None, None, "prompt-does-not-fit"]
    assert len(asked) == 3  # counted, and not sent
    assert result.requests[-1].prompt_tokens_ours == 200
    assert "150" in (result.trial.error_message or "")


def test_a_cut_prompt_of_an_earlier_turn_is_not_hidden() -> None:
    result, _ = run(3, prompt_limit_tokens=100)
    assert result.trial.outcome == "truncated_input"


def test_the_plan() -> None:
    design = plan_design("turns", engine="llama.cpp")
    assert design.factor.levels == (1, 2, 4, 8)
    assert design.held.reuse_prefix
    assert [design.condition(point).requests for point in design.points()] == [1, 2, 4, 8]
    # 8 turns of 96 and 32 tokens, and 16 for a template each, are 1,152: rounded up to 256 cells.
    assert design.held.settings["n_ctx"] == 1280
    assert not plan_design("turns", engine="fake", held=Held(reuse_prefix=False)).held.reuse_prefix
    assert not plan_design("input_length", engine="fake").held.reuse_prefix
    with pytest.raises(BadDesign, match="its turns"):
        plan_design("turns", engine="fake", held=Held(requests=3))
    with pytest.raises(BadDesign, match="number of turns"):
        plan_design("turns", engine="fake", levels=(0,))


def test_what_reads_a_record_reads_this_one(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    for reuse_prefix in (True, False):
        summary = measure(
            "turns",
            engine="fake",
            levels=(1, 3),
            repeats=2,
            reuse_prefix=reuse_prefix,
            settings={"load_s": 0.0, "itl_s": 0.0},
            records=path,
        )
        assert (summary.measured, summary.failed) == (5, 0)
    with open_records(path) as records:
        rows = [row for row in table_rows(records) if row["role"] == "measured"]
        analysis = analyse(records)
    assert {(row["factor"], row["level"], row["requests"], row["outcome"]) for row in rows} == {
        ("turns", 1, 1, "ok"),
        ("turns", 3, 1, "ok"),
    }
    # 96 tokens and twice 32 + 4 and 94 more; of these, the words of two messages and one answer were there already.
    third = {(row["prompt_tokens_server"], row["cached_tokens"]) for row in rows if row["level"] == 3}
    assert third == {(356, 2 * 90 + 32), (356, 0)}
    assert "turns of one conversation" in render_markdown(analysis)
    assert render_text(analysis)
    assert write_report(path, tmp_path / "r.html").stat().st_size > 10_000


def test_the_command_prints_the_conversation_turn_by_turn(tmp_path: Path) -> None:
    words = ["measure", "turns", "--engine", "fake", "--levels", "1,3", "--repeats", "2", "--no-reuse-prefix"]
    done = CliRunner().invoke(cli, [*words, "--set", "load_s=0.0", "--records", str(tmp_path / "r.db")])
    assert done.exit_code == 0
    assert "Turn by turn, without reuse" in done.stdout
    turns = [line for line in done.stdout.splitlines() if line.split()[:1] in (["1"], ["2"], ["3"])]
    # 96 tokens, and 32 + 4 and 94 more each; two conversations of one turn and two of three.
    cells = [line.split() for line in turns]
    assert [row[:4] + row[5:] for row in cells] == [
        ["1", "96", "0", "96", "4"],
        ["2", "226", "0", "226", "2"],
        ["3", "356", "0", "356", "2"],
    ]
    assert all(float(row[4]) > 0 for row in cells)
