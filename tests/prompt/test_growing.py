"""A conversation grown turn by turn: what is sent, what is kept, where it ends. The answers are given by the test; a
token is a word, so every count can be read off the texts."""

from collections.abc import Callable

import pytest

from kvscope.errors import BadDesign, EngineDied
from kvscope.prompt.conversation import Conversation, Message
from kvscope.prompt.growing import (
    MOST_TOOL_ROUNDS,
    NO_SUCH_TOOL,
    AskedTurn,
    Growth,
    History,
    Script,
    ToolUse,
    UserTurn,
    grow,
)


def words(conversation: Conversation) -> int:
    return sum(len(message.content.split()) for message in conversation.messages)


def numbered() -> Callable[[Conversation], Message]:
    """Answers "a1 a1", "a2 a2" ... with a thought each."""
    asked = []

    def ask(conversation: Conversation) -> Message:
        asked.append(conversation)
        number = len(asked)
        return Message(role="assistant", content=f"a{number} a{number}", reasoning=f"t{number}")

    return ask


def script(num_turns: int = 3, **fields: object) -> Script:
    turns = tuple(UserTurn(text=f"q{number}") for number in range(1, num_turns + 1))
    return Script(**{"turns": turns, **fields})  # type: ignore[arg-type]  # keyword by keyword, as each test needs


def played(growth: Growth) -> list[AskedTurn]:
    return list(growth)


def lines(turn: AskedTurn) -> list[str]:
    return [f"{message.role}: {message.content}" for message in turn.conversation.messages]


def reason(growth: Growth) -> str | None:
    return None if growth.ended is None else growth.ended.reason


def test_every_answer_goes_back_into_the_next_prompt() -> None:
    growth = grow(script(system="be brief", tools=({"type": "function"},)), numbered(), count=words, turns=3)
    turns = played(growth)
    assert lines(turns[2]) == [
        *("system: be brief", "user: q1", "assistant: a1 a1", "user: q2", "assistant: a2 a2", "user: q3"),
    ]
    assert turns[2].conversation.tools == ({"type": "function"},)
    assert [turn.conversation.messages[: len(turns[0].conversation.messages)] for turn in turns] == [
        turns[0].conversation.messages
    ] * 3
    # 2 words of the system's and 1 of the user's; then 2 of an answer and 1 of the user's each time.
    assert [turn.prompt_tokens for turn in turns] == [3, 6, 9]
    assert [turn.added_tokens for turn in turns] == [3, 3, 3]
    assert [(turn.turn, turn.request) for turn in turns] == [(1, 1), (2, 1), (3, 1)]
    assert reason(growth) == "turns"


def test_parts_are_counted_where_they_are_asked_for() -> None:
    turns = played(
        grow(
            script(2),
            numbered(),
            count=words,
            count_parts=lambda sent: {"user": sum(m.role == "user" for m in sent.messages)},
        )
    )
    assert [turn.parts for turn in turns] == [{"user": 1}, {"user": 2}]
    assert played(grow(script(1), numbered(), count=words))[0].parts is None


class TestHistory:
    def test_only_the_last_turns_are_sent_again(self) -> None:
        kept = script(4, system="s", history=History(last_turns=1))
        turns = played(grow(kept, numbered(), count=words))
        assert lines(turns[3]) == ["system: s", "user: q3", "assistant: a3 a3", "user: q4"]
        assert [turn.prompt_tokens for turn in turns] == [2, 5, 5, 5]
        assert [turn.added_tokens for turn in turns] == [2, 3, 0, 0]

    def test_reasoning_is_kept_or_left_out(self) -> None:
        for history, thoughts in ((History(), ["t1", "t2"]), (History(reasoning=False), [None, None])):
            last = played(grow(script(history=history), numbered(), count=words))[-1]
            assert [m.reasoning for m in last.conversation.messages if m.role == "assistant"] == thoughts

    def test_reasoning_of_the_turn_under_way_stays_while_it_calls_tools(self) -> None:
        call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        answers = iter(
            [
                Message(role="assistant", content="", reasoning="look", tool_calls=(call,)),
                Message(role="assistant", content="done", reasoning="so"),
                Message(role="assistant", content="bye"),
            ]
        )
        dropping = script(2, history=History(reasoning=False))
        turns = played(grow(dropping, lambda sent: next(answers), count=words))
        thoughts = [[m.reasoning for m in t.conversation.messages if m.role == "assistant"] for t in turns]
        assert thoughts == [[], ["look"], [None, None]]

    @pytest.mark.parametrize(
        ("keeps", "expected"),
        [
            (True, ["user: [1] p1", "user: q1", "assistant: a1 a1", "user: [1] p2\n\n[2] p3", "user: q2"]),
            (False, ["user: q1", "assistant: a1 a1", "user: [1] p2\n\n[2] p3", "user: q2"]),
        ],
    )
    def test_passages_stand_before_their_question(self, keeps: bool, expected: list[str]) -> None:
        turns = (UserTurn(text="q1", retrieved=("p1",)), UserTurn(text="q2", retrieved=("p2", "p3")))
        last = played(grow(Script(turns=turns, history=History(retrieved=keeps)), numbered(), count=words))[-1]
        assert lines(last) == expected
        marked = [message.content for message in last.conversation.messages if message.origin == "retrieved"]
        assert marked == [line.removeprefix("user: ") for line in expected if "[1]" in line]

    def test_passages_in_the_question_for_models_that_want_turns_to_alternate(self) -> None:
        turns = (UserTurn(text="q1", retrieved=("p1",)), UserTurn(text="q2", retrieved=("p2",)))
        asked = played(grow(Script(turns=turns, passages_as="question"), numbered(), count=words))
        assert lines(asked[1]) == ["user: [1] p1\n\nq1", "assistant: a1 a1", "user: [1] p2\n\nq2"]


class TestTools:
    def test_tools_of_the_script_are_called_before_the_answer(self) -> None:
        use = ToolUse(name="find", arguments={"b": 2, "a": "물"}, result="3 notes")
        turns = played(grow(Script(turns=(UserTurn(text="q", tool_uses=(use,)),)), numbered(), count=words))
        user, call, result = turns[0].conversation.messages
        assert user.content == "q"
        assert call.tool_calls == (
            {
                "id": "call_1_1",
                "type": "function",
                "function": {"name": "find", "arguments": '{"a": "물", "b": 2}'},
            },
        )
        assert (result.role, result.content, result.name, result.tool_call_id) == (
            "tool",
            "3 notes",
            "find",
            "call_1_1",
        )

    def test_calls_of_the_model_itself_are_answered_and_it_is_asked_again(self) -> None:
        calls = tuple({"id": name, "type": "function", "function": {"name": name}} for name in ("find", "none"))
        answers = iter(
            [
                Message(role="assistant", content="", tool_calls=calls),
                *(Message(role="assistant", content=f"a{number}") for number in (1, 2)),
            ]
        )
        known = script(2, tool_results={"find": "7 notes"})
        turns = played(grow(known, lambda sent: next(answers), count=words))
        assert [(turn.turn, turn.request) for turn in turns] == [(1, 1), (1, 2), (2, 1)]
        assert lines(turns[2]) == [
            *("user: q1", "assistant: ", "tool: 7 notes", f"tool: {NO_SUCH_TOOL}", "assistant: a1", "user: q2"),
        ]
        assert [m.tool_call_id for m in turns[2].conversation.messages if m.role == "tool"] == ["find", "none"]

    def test_a_model_that_only_calls_tools_does_not_hold_the_turn_for_ever(self) -> None:
        call = {"id": "c", "type": "function", "function": {"name": "f"}}
        again = Message(role="assistant", content="", tool_calls=(call,))
        turns = played(grow(script(2), lambda sent: again, count=words, turns=2))
        assert [turn.turn for turn in turns] == [1] * (MOST_TOOL_ROUNDS + 1) + [2] * (MOST_TOOL_ROUNDS + 1)


class TestTheEnd:
    def test_tokens_asked_for_may_be_reached_and_not_exceeded(self) -> None:
        # Prompts of 1, 4, 7 ... words.
        for until, num_turns, following in ((7, 3, 10), (8, 3, 10), (9, 3, 10), (6, 2, 7), (1, 1, 4)):
            growth = grow(script(9), numbered(), count=words, until_tokens=until)
            assert len(played(growth)) == num_turns
            assert growth.ended is not None
            assert (growth.ended.reason, growth.ended.next_prompt_tokens) == ("tokens", following)

    def test_a_prompt_that_would_not_fit_is_counted_and_not_sent(self) -> None:
        sent: list[int] = []

        def ask(conversation: Conversation) -> Message:
            sent.append(words(conversation))
            return Message(role="assistant", content="a a")

        growth = grow(script(9), ask, count=words, context_limit_tokens=12, reserve_output_tokens=5, until_tokens=100)
        played(growth)
        assert sent == [1, 4, 7]  # the next, 10 + 5, is over 12
        assert growth.ended is not None
        assert (growth.ended.reason, growth.ended.next_prompt_tokens) == ("context", 10)
        assert "10" in growth.ended.message
        assert "12" in growth.ended.message

    def test_a_script_with_no_more_messages(self) -> None:
        for turns in (None, 5):
            growth = grow(script(2), numbered(), count=words, turns=turns)
            assert growth.ended is None
            assert len(played(growth)) == 2
            assert reason(growth) == "script"

    def test_an_error_of_the_engine_passes_after_the_turns_before_it(self) -> None:
        answers = numbered()

        def ask(conversation: Conversation) -> Message:
            if len(conversation.messages) > 2:
                raise EngineDied("gone", hint="start it")
            return answers(conversation)

        growth = grow(script(3), ask, count=words)
        turns = iter(growth)
        assert next(turns).turn == 1
        with pytest.raises(EngineDied):
            next(turns)
        assert growth.ended is None

    @pytest.mark.parametrize("limit", ["turns", "until_tokens", "context_limit_tokens"])
    def test_limits_below_one_are_refused(self, limit: str) -> None:
        with pytest.raises(BadDesign, match=limit):
            grow(script(), numbered(), count=words, **{limit: 0})  # type: ignore[arg-type]  # one of the three
        with pytest.raises(BadDesign, match="last_turns"):
            grow(script(history=History(last_turns=0)), numbered(), count=words)


def test_the_same_script_and_answers_give_the_same_conversation() -> None:
    first, second = (played(grow(script(4), numbered(), count=words)) for _ in range(2))
    assert first == second
