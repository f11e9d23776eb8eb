"""A conversation played turn by turn, as an app holds it: the user's next message, what the app puts before it, the
assistant's real answer, and all of that sent again with the next one.

Nothing is sent or counted here: ``ask`` brings the answers, ``count`` the tokens. The same script, answers and options
give the same conversation.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from kvscope.errors import BadDesign
from kvscope.prompt.chat_template.template import ChatTemplate
from kvscope.prompt.conversation import RETRIEVED, Conversation, Message
from kvscope.prompt.conversation_file import LoadedRequest
from kvscope.prompt.counting.request import count_request
from kvscope.prompt.counting.request_spans import PARTS
from kvscope.prompt.tokenizers.base import Tokenizer

# A model that answers every tool's result with another call would never end a turn.
MOST_TOOL_ROUNDS = 4
NO_SUCH_TOOL = "This tool is not available."

Ask = Callable[[Conversation], Message]
Count = Callable[[Conversation], int]
CountParts = Callable[[Conversation], Mapping[str, int]]
EndReason = Literal["turns", "tokens", "context", "script"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """A tool that the app's assistant called, and what came back."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    result: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UserTurn:
    """What one turn adds before the assistant answers: the user's ``text``, passages that the app looked up for it,
    and tools that are called before there is an answer."""

    text: str
    retrieved: tuple[str, ...] = ()
    tool_uses: tuple[ToolUse, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What an app sends again of earlier turns. ``last_turns``: only so many of them, None for all. Without
    ``reasoning`` the assistant's thinking is left out; without ``retrieved``, the passages that were looked up."""

    last_turns: int | None = None
    reasoning: bool = True
    retrieved: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """Everything but the answers. ``passages_as``: retrieved passages are a message of their own before the question
    (then they can be counted apart), or stand in the question's own text, as models need that refuse two messages of
    the user in a row. ``tool_results``: what a tool answers when the model itself calls it, by the tool's name."""

    turns: Sequence[UserTurn]
    system: str | None = None
    tools: tuple[Mapping[str, Any], ...] = ()
    history: History = History()
    passages_as: Literal["message", "question"] = "message"
    tool_results: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedTurn:
    """One request and its answer. ``turn`` counts from 1; ``request`` is above 1 where the model called tools and was
    asked again with their results. ``added_tokens``: how much longer this prompt is than the one before it, the
    answer in between included; negative where old turns were dropped. ``parts``: tokens by part, None if not asked."""

    turn: int
    request: int
    conversation: Conversation
    prompt_tokens: int
    added_tokens: int
    parts: Mapping[str, int] | None
    answer: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """Why a conversation went no further: the turns asked for were played, the next prompt would have had more tokens
    than asked for, it would not have fitted the context, or the script has no more messages. ``next_prompt_tokens`` is
    the prompt that was counted and not sent."""

    reason: EndReason
    message: str
    next_prompt_tokens: int | None = None


class Growth:
    """The turns, one after another as they are played. ``ended`` is None until the last of them was taken. Errors of
    ``ask`` and ``count`` pass through, after the turns before them."""

    def __init__(self, turns: Callable[["Growth"], Iterator[AskedTurn]]) -> None:
        self.ended: Ended | None = None
        self._turns = turns(self)

    def __iter__(self) -> Iterator[AskedTurn]:
        return self._turns


def grow(
    script: Script,
    ask: Ask,
    *,
    count: Count,
    turns: int | None = None,
    until_tokens: int | None = None,
    context_limit_tokens: int | None = None,
    reserve_output_tokens: int = 1,
    count_parts: CountParts | None = None,
) -> Growth:
    """Play ``script`` until ``turns`` are done, until the next prompt would have more than ``until_tokens`` tokens, or
    until it and ``reserve_output_tokens`` would not fit ``context_limit_tokens``; each prompt is counted before it is
    sent. The answer that ``ask`` brings is put back into the conversation as it came, tool calls and reasoning too.

    Raises BadDesign for limits below 1.
    """
    for name, limit in (
        ("turns", turns),
        ("until_tokens", until_tokens),
        ("context_limit_tokens", context_limit_tokens),
        ("last_turns", script.history.last_turns),
    ):
        if limit is not None and limit < 1:
            raise BadDesign(f"A conversation cannot be grown with {name} = {limit}.", hint="Use 1 or more.")
    limits = _Limits(until_tokens, context_limit_tokens, reserve_output_tokens)
    return Growth(lambda growth: _play(growth, script, ask, count, turns, limits, count_parts))


def parts_counter(template: ChatTemplate, tokenizer: Tokenizer) -> CountParts:
    """Tokens by part as ``kvscope count`` has them, for ``count_parts``; they sum to the prompt."""

    def count_parts(conversation: Conversation) -> dict[str, int]:
        request = LoadedRequest(conversation=conversation, source="a turn")
        counted = count_request(request, template=template, tokenizer=tokenizer)
        return {name: counted.part(name).tokens for name in PARTS}

    return count_parts


@dataclass(frozen=True, slots=True)
class _Limits:
    until_tokens: int | None
    context_tokens: int | None
    reserve_tokens: int

    def stop(self, prompt_tokens: int) -> Ended | None:
        """Why a prompt of that many tokens is not sent."""
        if self.context_tokens is not None and prompt_tokens + self.reserve_tokens > self.context_tokens:
            return Ended(
                reason="context",
                message=f"The next prompt would have {prompt_tokens} tokens, and {self.reserve_tokens} for its answer: "
                f"the context holds {self.context_tokens}.",
                next_prompt_tokens=prompt_tokens,
            )
        if self.until_tokens is not None and prompt_tokens > self.until_tokens:
            return Ended(
                reason="tokens",
                message=f"The next prompt would have {prompt_tokens} tokens, more than the {self.until_tokens} asked.",
                next_prompt_tokens=prompt_tokens,
            )
        return None


def _play(
    growth: Growth,
    script: Script,
    ask: Ask,
    count: Count,
    turns: int | None,
    limits: _Limits,
    count_parts: CountParts | None,
) -> Iterator[AskedTurn]:
    done: list[_Turn] = []
    before_tokens = 0
    for user_turn in script.turns if turns is None else script.turns[:turns]:
        turn = _Turn(user_turn, len(done) + 1, _scripted_calls(user_turn, len(done) + 1))
        for request in range(1, MOST_TOOL_ROUNDS + 2):
            conversation = _conversation(script, done, turn)
            prompt_tokens = count(conversation)
            growth.ended = limits.stop(prompt_tokens)
            if growth.ended is not None:
                return
            parts = None if count_parts is None else count_parts(conversation)
            answer = ask(conversation)
            yield AskedTurn(
                turn=turn.number,
                request=request,
                conversation=conversation,
                prompt_tokens=prompt_tokens,
                added_tokens=prompt_tokens - before_tokens,
                parts=parts,
                answer=answer,
            )
            before_tokens = prompt_tokens
            turn.exchange += [answer, *_results(answer, script.tool_results)]
            if not answer.tool_calls:
                break
        done.append(turn)
    if turns is not None and len(done) == turns:
        growth.ended = Ended(reason="turns", message=f"All {turns} turns were played.")
    else:
        growth.ended = Ended(reason="script", message=f"The script has no more than {len(done)} messages.")


@dataclass(slots=True)
class _Turn:
    """A turn under way: ``exchange`` is what came after the user's message."""

    user: UserTurn
    number: int
    exchange: list[Message]


def _scripted_calls(turn: UserTurn, number: int) -> list[Message]:
    messages = []
    for index, use in enumerate(turn.tool_uses, start=1):
        call_id = f"call_{number}_{index}"
        # Arguments are text in OpenAI's interface, and spelled in one way only here.
        arguments = json.dumps(use.arguments, ensure_ascii=False, sort_keys=True)
        call = {"id": call_id, "type": "function", "function": {"name": use.name, "arguments": arguments}}
        messages.append(Message(role="assistant", content="", tool_calls=(call,)))
        messages.append(Message(role="tool", content=use.result, name=use.name, tool_call_id=call_id))
    return messages


def _results(answer: Message, results: Mapping[str, str]) -> list[Message]:
    """What the app's tools say to the calls of an answer."""
    messages = []
    for call in answer.tool_calls:
        name = str((call.get("function") or {}).get("name"))
        content = results.get(name, NO_SUCH_TOOL)
        call_id = call.get("id")
        messages.append(
            Message(role="tool", content=content, name=name, tool_call_id=None if call_id is None else str(call_id))
        )
    return messages


def _conversation(script: Script, done: Sequence[_Turn], turn: _Turn) -> Conversation:
    """What the app sends now: the system message, what it kept of earlier turns, and all of this one."""
    history = script.history
    messages = [] if script.system is None else [Message(role="system", content=script.system)]
    kept = done if history.last_turns is None else done[-history.last_turns :]
    for earlier in kept:
        messages += _user_messages(earlier.user, script.passages_as, with_passages=history.retrieved)
        messages += [m if history.reasoning else replace(m, reasoning=None) for m in earlier.exchange]
    messages += _user_messages(turn.user, script.passages_as, with_passages=True)
    return Conversation(messages=(*messages, *turn.exchange), tools=script.tools)


def _user_messages(turn: UserTurn, passages_as: str, *, with_passages: bool) -> list[Message]:
    if not turn.retrieved or not with_passages:
        return [Message(role="user", content=turn.text)]
    passages = "\n\n".join(f"[{number}] {passage}" for number, passage in enumerate(turn.retrieved, start=1))
    if passages_as == "question":
        return [Message(role="user", content=f"{passages}\n\n{turn.text}")]
    return [Message(role="user", content=passages, origin=RETRIEVED), Message(role="user", content=turn.text)]
