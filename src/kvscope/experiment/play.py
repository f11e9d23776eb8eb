"""A growing conversation played on a loaded engine: each turn is a row, and what ends it is one too.

``play`` is for a script of any kind; ``play_prompts`` is what a trial of the turns design runs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvscope.engine.base import ChatRequest, Engine, Generation
from kvscope.errors import KvscopeError, PromptDoesNotFit
from kvscope.experiment.ending import ending_of
from kvscope.prompt.conversation import Conversation, Message
from kvscope.prompt.growing import AskedTurn, CountParts, Growth, Script, UserTurn, grow


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRow:
    """One request of a played conversation. What is not known is None: counts the server did not state, and everything
    that a request which was never answered has none of.

    ``added_tokens``: how much longer this prompt is than the one before. ``computed_tokens``: prompt tokens that were
    not served from the prefix cache (prefill). ``memory_bytes``: as ``memory`` of ``play`` read it after the answer.
    ``outcome``: ok, or how the conversation ended here, as a trial's outcome is called.
    """

    turn: int
    request: int
    outcome: str
    prompt_tokens_ours: int | None = None
    prompt_tokens_server: int | None = None
    cached_tokens: int | None = None
    computed_tokens: int | None = None
    added_tokens: int | None = None
    parts: Mapping[str, int] | None = None
    ttft_s: float | None = None
    completion_s: float | None = None
    output_tokens: int | None = None
    finish_reason: str | None = None
    memory_bytes: int | None = None
    error_slug: str | None = None
    error_message: str | None = None
    conversation: Conversation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayOptions:
    """How each turn is asked. ``ignore_end``: answers run to ``max_output_tokens``, whatever the model would do;
    otherwise they end where it ends them, as in an app."""

    max_output_tokens: int = 128
    reuse_prefix: bool = True
    ignore_end: bool = False
    seed: int = 0


def play(
    engine: Engine,
    script: Script,
    *,
    options: PlayOptions | None = None,
    turns: int | None = None,
    until_tokens: int | None = None,
    context_limit_tokens: int | None = None,
    count: Callable[[Conversation], int] | None = None,
    count_parts: CountParts | None = None,
    memory: Callable[[], int] | None = None,
) -> Iterator[TurnRow]:
    """Play ``script`` on an engine that is loaded, a row for each request as it is answered.

    Ends as ``grow`` does; a prompt that would not fit ``context_limit_tokens`` with its answer is not sent and is the
    last row (context_overflow), and so is an error of the engine or of the count. ``count``: our own count of a
    conversation; None: the engine is asked. Raises BadDesign for limits below 1.
    """
    player = _Player(engine, options or PlayOptions(), count, memory)
    growth = grow(
        script,
        player.ask,
        count=player.count,
        turns=turns,
        until_tokens=until_tokens,
        context_limit_tokens=context_limit_tokens,
        reserve_output_tokens=player.options.max_output_tokens,
        count_parts=count_parts,
    )
    return _rows(player, growth)


def answer_message(answer: Generation) -> Message:
    """An answer as an app puts it back into the conversation."""
    texts = {
        kind: "".join(event.text for event in answer.events if event.kind == kind) for kind in ("content", "reasoning")
    }
    return Message(
        role="assistant",
        content=texts["content"],
        reasoning=texts["reasoning"] or None,
        tool_calls=answer.tool_calls,
    )


def _computed_tokens(answer: Generation) -> int | None:
    """None where one of the counts is not known, or they contradict each other."""
    if answer.prompt_tokens is None or answer.cached_tokens is None or answer.cached_tokens > answer.prompt_tokens:
        return None
    return answer.prompt_tokens - answer.cached_tokens


class _Player:
    """Asks the engine, and remembers what a row needs of the last request."""

    def __init__(
        self,
        engine: Engine,
        options: PlayOptions,
        count: Callable[[Conversation], int] | None,
        memory: Callable[[], int] | None,
    ) -> None:
        self.options = options
        self._engine = engine
        self._count = count
        self._memory = memory
        self._answer: Generation | None = None
        self._before: AskedTurn | None = None
        self._counted: int | None = None

    def count(self, conversation: Conversation) -> int:
        self._counted = None
        if self._count is not None:
            self._counted = self._count(conversation)
        else:
            self._counted = self._engine.count_prompt_tokens(conversation.messages, conversation.tools)
        return self._counted

    def ask(self, conversation: Conversation) -> Message:
        self._answer = self._engine.generate(
            ChatRequest(
                messages=conversation.messages,
                tools=conversation.tools,
                max_output_tokens=self.options.max_output_tokens,
                ignore_end=self.options.ignore_end,
                reuse_prefix=self.options.reuse_prefix,
                seed=self.options.seed,
            )
        )
        return answer_message(self._answer)

    def answered(self, asked: AskedTurn) -> TurnRow:
        answer = self._answer
        assert answer is not None, "a turn that was asked has an answer"
        self._before = asked
        return TurnRow(
            turn=asked.turn,
            request=asked.request,
            outcome="ok",
            prompt_tokens_ours=asked.prompt_tokens,
            prompt_tokens_server=answer.prompt_tokens,
            cached_tokens=answer.cached_tokens,
            computed_tokens=_computed_tokens(answer),
            added_tokens=asked.added_tokens,
            parts=asked.parts,
            ttft_s=next((event.at_s for event in answer.events if event.text), None),
            completion_s=answer.completed_s,
            output_tokens=answer.output_tokens,
            finish_reason=answer.finish_reason,
            memory_bytes=None if self._memory is None else self._memory(),
            conversation=asked.conversation,
        )

    def stopped(self, outcome: str, slug: str | None, message: str | None, prompt_tokens: int | None) -> TurnRow:
        """The row of a request that was not answered."""
        before = self._before
        if before is None:
            turn, request = 1, 1
        elif before.answer.tool_calls:
            turn, request = before.turn, before.request + 1
        else:
            turn, request = before.turn + 1, 1
        return TurnRow(
            turn=turn,
            request=request,
            outcome=outcome,
            prompt_tokens_ours=prompt_tokens,
            error_slug=slug,
            error_message=message,
        )

    def failed(self, error: KvscopeError) -> TurnRow:
        ending = ending_of(error, None)
        return self.stopped(ending.outcome, ending.slug, ending.message, self._counted)


def _rows(player: _Player, growth: Growth) -> Iterator[TurnRow]:
    turns = iter(growth)
    while True:
        try:
            asked = next(turns, None)
        except KvscopeError as error:
            yield player.failed(error)
            return
        if asked is None:
            break
        yield player.answered(asked)
    ended = growth.ended
    if ended is not None and ended.reason == "context":
        yield player.stopped(PromptDoesNotFit.outcome, PromptDoesNotFit.slug, ended.message, ended.next_prompt_tokens)


class AskNext(Protocol):
    """Sends one prompt within a trial and records it. ``ours``: its tokens as counted before, None where they were
    not. ``asked``: the length that was asked for, None where none was."""

    def __call__(
        self, messages: tuple[Message, ...], *, ours: int | None, asked: int | None, role: str, is_last: bool
    ) -> Generation: ...


def play_prompts(
    prompts: Sequence[tuple[Message, ...]], count: Callable[[Sequence[Message]], int], ask_next: AskNext
) -> None:
    """Play one conversation whose user's messages are those of ``prompts`` (what stands before it in the first is the
    system's), each turn a request of its own: the last is ``measured``, those before it are ``earlier_turn``."""
    system = [message.content for message in prompts[0] if message.role == "system"]
    script = Script(
        turns=tuple(UserTurn(text=prompt[-1].content) for prompt in prompts), system=system[0] if system else None
    )
    counted: list[int] = []

    def count_next(conversation: Conversation) -> int:
        counted.append(count(conversation.messages))
        return counted[-1]

    def ask(conversation: Conversation) -> Message:
        is_last = len(counted) == len(prompts)
        role = "measured" if is_last else "earlier_turn"
        return answer_message(ask_next(conversation.messages, ours=counted[-1], asked=None, role=role, is_last=is_last))

    for _ in grow(script, ask, count=count_next, turns=len(prompts)):
        pass
