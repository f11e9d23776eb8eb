"""A conversation played on an engine: the rows of its turns, and the row that ends it. The engine is the fake one."""

import pytest

from kvscope.engine.base import Generation, TokenEvent
from kvscope.engine.fake import FakeEngine, VirtualClock
from kvscope.errors import BadDesign
from kvscope.experiment.play import PlayOptions, TurnRow, answer_message, play
from kvscope.prompt.conversation import Conversation
from kvscope.prompt.growing import Script, UserTurn
from kvscope.record.rows import OUTCOMES

SCRIPT = Script(turns=tuple(UserTurn(text=" ".join([f"q{number}"] * 10)) for number in range(1, 6)), system="be brief")
OPTIONS = PlayOptions(max_output_tokens=6)


def loaded(**settings: int) -> FakeEngine:
    engine = FakeEngine(settings=settings, clock=VirtualClock())
    engine.launch()
    engine.load()
    return engine


def answer(**changes: object) -> Generation:
    values: dict[str, object] = {
        "events": (),
        "reads": (),
        "completed_s": 1.0,
        "prompt_tokens": 5,
        "cached_tokens": None,
        "output_tokens": 2,
        "finish_reason": "stop",
    }
    return Generation(**{**values, **changes})  # type: ignore[arg-type]  # field by field, as each test needs


def test_a_row_for_each_turn() -> None:
    memory = iter(range(100, 200))
    rows = list(
        play(
            loaded(),
            SCRIPT,
            options=OPTIONS,
            turns=3,
            memory=lambda: next(memory),
            count_parts=lambda sent: {"messages": len(sent.messages)},
        )
    )
    # The system's 2 words and the user's 10, 4 for each of two messages, 2 to open the answer: 22. Each turn adds an
    # answer of 6 and 4, and a question of 10 and 4.
    assert [row.prompt_tokens_ours for row in rows] == [22, 46, 70]
    assert [row.prompt_tokens_server for row in rows] == [22, 46, 70]
    # The fake engine keeps the words of the prompt before.
    assert [row.cached_tokens for row in rows] == [0, 12, 28]
    assert [row.computed_tokens for row in rows] == [22, 34, 42]
    assert [row.added_tokens for row in rows] == [22, 24, 24]
    assert [row.ttft_s for row in rows] == pytest.approx([0.01 + 0.0001 * computed for computed in (22, 34, 42)])
    assert [row.output_tokens for row in rows] == [6, 6, 6]
    assert [row.memory_bytes for row in rows] == [100, 101, 102]
    assert [row.parts for row in rows] == [{"messages": 2}, {"messages": 4}, {"messages": 6}]
    assert {row.outcome for row in rows} == {"ok"}


def test_without_reuse_every_prompt_is_computed_whole() -> None:
    options = PlayOptions(max_output_tokens=6, reuse_prefix=False)
    rows = list(play(loaded(), SCRIPT, options=options, turns=3))
    assert [row.computed_tokens for row in rows] == [row.prompt_tokens_server for row in rows] == [22, 46, 70]


def test_answers_end_by_themselves_unless_told_to_go_on() -> None:
    for ignore_end, output in ((False, 2), (True, 6)):
        options = PlayOptions(max_output_tokens=6, ignore_end=ignore_end)
        (row,) = play(loaded(natural_end_tokens=2), SCRIPT, options=options, turns=1)
        assert row.output_tokens == output


def test_a_prompt_that_would_not_fit_is_the_last_row_and_is_not_sent() -> None:
    engine = loaded(n_ctx=60)
    rows = list(play(engine, SCRIPT, options=OPTIONS, context_limit_tokens=60))
    assert [(row.turn, row.outcome) for row in rows] == [(1, "ok"), (2, "ok"), (3, "context_overflow")]
    assert (rows[-1].prompt_tokens_ours, rows[-1].error_slug) == (70, "prompt-does-not-fit")
    assert rows[-1].prompt_tokens_server is None
    assert "request 3" not in engine.log_tail()


@pytest.mark.parametrize(
    ("settings", "outcome", "slug"),
    [
        ({"n_ctx": 60}, "context_overflow", "context-overflow"),  # the engine refuses, where nobody told us its limit
        ({"die_at_request": 3}, "engine_died", "engine-died"),
        ({"stall_at_request": 3}, "stalled", "stalled"),
    ],
)
def test_a_failure_is_the_last_row(settings: dict[str, int], outcome: str, slug: str) -> None:
    rows = list(play(loaded(**settings), SCRIPT, options=OPTIONS))
    assert [row.turn for row in rows] == [1, 2, 3]
    assert (rows[-1].outcome, rows[-1].error_slug, rows[-1].prompt_tokens_ours) == (outcome, slug, 70)
    assert outcome in OUTCOMES
    assert rows[-1].error_message


def test_the_end_of_the_script_and_tokens_asked_for_are_no_failures() -> None:
    assert [row.outcome for row in play(loaded(), SCRIPT, options=OPTIONS)] == ["ok"] * 5
    assert [row.prompt_tokens_ours for row in play(loaded(), SCRIPT, options=OPTIONS, until_tokens=69)] == [22, 46]
    with pytest.raises(BadDesign):
        play(loaded(), SCRIPT, turns=0)


def test_our_own_count_stands_beside_the_servers() -> None:
    def ours(conversation: Conversation) -> int:
        return sum(len(message.content.split()) for message in conversation.messages)

    (row,) = play(loaded(), SCRIPT, options=OPTIONS, turns=1, count=ours)
    assert (row.prompt_tokens_ours, row.prompt_tokens_server) == (12, 22)


def test_what_the_server_does_not_state_is_unknown() -> None:
    class Silent(FakeEngine):
        def generate(self, request):  # type: ignore[no-untyped-def]  # as the class it extends
            super().generate(request)
            return answer(prompt_tokens=None, output_tokens=None, finish_reason=None)

    engine = Silent(settings={}, clock=VirtualClock())
    engine.launch()
    engine.load()
    (row,) = play(engine, SCRIPT, turns=1)
    unknown = TurnRow(turn=1, request=1, outcome="ok")
    for name in ("prompt_tokens_server", "cached_tokens", "computed_tokens", "ttft_s", "output_tokens", "memory_bytes"):
        assert getattr(row, name) is getattr(unknown, name) is None


def test_an_answer_goes_back_with_its_thinking_and_its_calls_apart() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    events = (
        TokenEvent(at_s=0.1, text="hm ", kind="reasoning"),
        TokenEvent(at_s=0.2, text="so", kind="reasoning"),
        TokenEvent(at_s=0.3, text="I "),
        TokenEvent(at_s=0.4, text="look."),
        TokenEvent(at_s=0.5, text="f{}", kind="tool_call"),
    )
    message = answer_message(answer(events=events, tool_calls=(call,)))
    assert (message.role, message.content, message.reasoning, message.tool_calls) == (
        *("assistant", "I look.", "hm so", (call,)),
    )
    assert answer_message(answer(events=events[2:4])).reasoning is None
