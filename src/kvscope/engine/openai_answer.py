"""A streamed answer in OpenAI's form, read event by event: text, thinking, calls of tools, counts and its end.

What a server states is taken as it is; what it does not state is None. An event without text is no token: the first
one often names the role alone. Reading stops at a stated number of pieces, and silence counts from the first piece on:
before it, the server works on the prompt, and what it sends then only keeps the connection alive.
"""

import json
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from kvscope.engine.base import Generation, Read, TokenEvent
from kvscope.engine.event_stream import EventStream
from kvscope.engine.http_client import Chunk, Exchange, body_evidence, verbatim
from kvscope.engine.server_errors import REPLY_HINT, event_error, is_error, read_words
from kvscope.engine.stated_words import known_end, known_timings
from kvscope.engine.usage import Usage, read_usage
from kvscope.errors import ConnectionLost, EngineError, EngineReplyError, ServerError

# vLLM aborts a request, and routers end one, with these words where a reason to stop should be.
_FAILED_ENDS = ("error", "abort")
_MOST_READS_PER_PIECE = 16
# A token's text has at most a few hundred characters.
_MOST_CHARACTERS_PER_PIECE = 512
# Without one of these, an event is neither an error nor states counts: most are looked at no further.
_OF_ERRORS = frozenset(("error", "code"))
_COUNTS = frozenset(("usage", "x_groq", "timings"))
# Names under which deltas carry the thinking: llama.cpp, DeepSeek, SGLang; vLLM since 0.11, OpenRouter, Ollama.
_THINKING = ("reasoning_content", "reasoning")


async def read_answer(running: Exchange, most_pieces: int) -> Generation:
    """The answer that begins, as a whole. Raises an EngineError for every way in which it can fail, with the number of
    pieces until then in its evidence."""
    answer = _Answer(most_pieces)
    try:
        return await _read(running, answer)
    except EngineError as error:
        error.evidence = {**running.evidence(), **error.evidence, "pieces_received": len(answer.events)}
        raise


async def _read(running: Exchange, answer: "_Answer") -> Generation:
    sent_s = at_s = running.reply.sent_s
    stream = EventStream()
    running.keeps_quiet_clock, running.quiet_since_s = True, None
    chunks = running.chunks()
    while (chunk := await _next(chunks, stream)) is not None:
        at_s = chunk.at_s
        before, num_taken = len(answer.events), answer.num_taken
        for event in stream.feed(chunk.body):
            answer.take(event, at_s - sent_s)
        answer.reads.append(Read(at_s=at_s - sent_s, num_bytes=chunk.num_bytes, num_events=len(answer.events) - before))
        answer.check_length()
        if answer.events and not before and answer.events[0].at_s <= 0:
            raise _answered_too_early(running)
        if answer.events and answer.num_taken > num_taken:
            running.quiet_since_s = at_s
    answer.take_last(stream.finish(), at_s - sent_s)
    if stream.foreign:
        _raise_for_foreign(bytes(stream.foreign), answer)
    return answer.generation(completed_s=at_s - sent_s, is_ended=stream.ended)


async def _next(chunks: AsyncIterator[Chunk], stream: EventStream) -> Chunk | None:
    """The next read; None at the end. A connection that is closed after [DONE] has said all, if not in HTTP's form."""
    try:
        return await anext(chunks, None)
    except ConnectionLost:
        if stream.ended:
            return None
        raise


def _answered_too_early(running: Exchange) -> EngineReplyError:
    return EngineReplyError(
        "The first token came before the whole request had been sent: how long it took is not known.",
        hint="The server, or a proxy before it, answers without having read what it was asked.",
        evidence=running.evidence(),
    )


def _raise_for_foreign(body: bytes, answer: "_Answer") -> NoReturn:
    """What is no event stream: an error in one piece, an answer in one piece, or something else altogether."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict) and is_error(found):
        raise event_error(found)
    evidence = {"known_by": "message", "body": body_evidence(body)}
    if isinstance(found, dict) and found.get("choices"):
        raise EngineReplyError(
            "The server sent its answer in one piece, though it was asked to stream it: when its first token came "
            "cannot be known.",
            hint="Turn streaming on in the server, or in the proxy before it.",
            evidence=evidence,
        )
    if answer.events:
        raise EngineReplyError(
            f"The answer turned into something else after {len(answer.events)} pieces: {verbatim(body)}",
            hint=REPLY_HINT,
            evidence=evidence,
        )
    said = read_words(body).message or body  # a page, without its markup
    raise EngineReplyError(f"The answer is not an event stream: {verbatim(said)}", hint=REPLY_HINT, evidence=evidence)


@dataclass(slots=True)
class _Answer:
    """What the events have said so far."""

    most_pieces: int
    events: list[TokenEvent] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    finish_reason: str | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)
    timings: Mapping[str, Any] = field(default_factory=dict)
    calls: dict[int, dict[str, Any]] = field(default_factory=dict)
    model: str | None = None
    num_characters: int = 0
    num_taken: int = 0

    def take(self, event: Mapping[str, Any], at_s: float) -> None:
        """One event. Raises the error that it states, or EngineReplyError for one of an unexpected form."""
        may_be = event.get("object") == "error" or not _OF_ERRORS.isdisjoint(event)
        if may_be and is_error(event):
            raise event_error(event)
        self.num_taken += 1
        try:
            if not _COUNTS.isdisjoint(event):
                self.usage = _object(event, "usage") or _object(_object(event, "x_groq"), "usage") or self.usage
                self.timings = _object(event, "timings") or self.timings
            stated = event.get("model")
            if stated is not self.model and isinstance(stated, str) and stated:
                self.model = stated
            for choice in event.get("choices") or ():
                self._take_choice(choice, at_s)
        except (AttributeError, TypeError) as error:
            text = json.dumps(event)
            raise EngineReplyError(
                f"The server sent an event of an unexpected form: {verbatim(text)}",
                hint=REPLY_HINT,
                evidence={"known_by": "message", "body": body_evidence(text)},
            ) from error

    def take_last(self, events: list[dict[str, Any]], at_s: float) -> None:
        """Events that only the end of the answer made whole: they belong to its last read."""
        before = len(self.events)
        for event in events:
            self.take(event, at_s)
        if self.reads and len(self.events) > before:
            last = self.reads[-1]
            added = last.num_events + len(self.events) - before
            self.reads[-1] = Read(at_s=last.at_s, num_bytes=last.num_bytes, num_events=added)

    def _take_choice(self, choice: Mapping[str, Any], at_s: float) -> None:
        delta = choice.get("delta") or {}
        for name in _THINKING:
            if delta.get(name):
                self._add(TokenEvent(at_s=at_s, text=_string(delta[name]), kind="reasoning"))
                break
        for text in (delta.get("content"), delta.get("refusal"), choice.get("text")):
            if text:
                self._add(TokenEvent(at_s=at_s, text=_string(text)))
        for piece in delta.get("tool_calls") or ():
            self._take_call(piece, at_s)
        reason = choice.get("finish_reason")
        if reason in _FAILED_ENDS:
            raise ServerError(
                f"The server ended its answer with {reason!r} after {len(self.events)} pieces and did not say why.",
                hint="Its log says more.",
                evidence={"known_by": "message", "body": body_evidence(json.dumps(choice))},
            )
        self.finish_reason = _string(reason) if reason else self.finish_reason

    def _take_call(self, piece: Mapping[str, Any], at_s: float) -> None:
        """A call of a tool comes in pieces: its name at first, then its arguments as they are written."""
        function = piece.get("function") or {}
        name, arguments = function.get("name") or "", function.get("arguments") or ""
        index = piece.get("index")
        empty = {"id": None, "type": "function", "function": {"name": "", "arguments": ""}}
        call = self.calls.setdefault(index if isinstance(index, int) else len(self.calls), empty)
        call["id"] = piece.get("id") or call["id"]
        call["function"]["name"] += name
        call["function"]["arguments"] += arguments
        if name + arguments:
            self._add(TokenEvent(at_s=at_s, text=name + arguments, kind="tool_call"))

    def _add(self, event: TokenEvent) -> None:
        self.events.append(event)
        self.num_characters += len(event.text)

    def check_length(self) -> None:
        """Raises EngineReplyError where there is more than an answer of the asked length can have."""
        most = self.most_pieces
        if len(self.events) > most:
            what = f"{len(self.events):,} pieces"
        elif self.num_characters > most * _MOST_CHARACTERS_PER_PIECE:
            what = f"{self.num_characters:,} characters"
        elif len(self.reads) > most * _MOST_READS_PER_PIECE + 10_000:
            what = f"{len(self.reads):,} crumbs of {len(self.events):,} pieces"
        else:
            return
        raise EngineReplyError(
            f"The answer does not end: {what} so far, and at most {most:,} pieces were expected for the output tokens "
            "that were asked for. Reading was stopped.",
            hint="The server pays no heed to max_tokens. Does it want the limit under another name, such as "
            "max_completion_tokens?",
            evidence={"known_by": "message"},
        )

    def generation(self, completed_s: float, *, is_ended: bool) -> Generation:
        """The whole answer. Raises EngineReplyError where its end was not stated."""
        usage = read_usage({"usage": self.usage, "timings": self.timings})
        says_nothing = not self.events and self.finish_reason is None and not usage.output_tokens
        if not self.num_taken or (is_ended and says_nothing):
            raise EngineReplyError(
                "The server answered with nothing at all.", hint=REPLY_HINT, evidence={"known_by": "message"}
            )
        if not is_ended and self.finish_reason is None:
            raise EngineReplyError(
                f"The answer stopped after {len(self.events)} pieces, without its end being stated.",
                hint=REPLY_HINT,
                evidence={"known_by": "message"},
            )
        usage = _without_impossible_zeros(usage, has_pieces=bool(self.events))
        return Generation(
            events=tuple(self.events),
            reads=tuple(self.reads),
            completed_s=completed_s,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            output_tokens=usage.output_tokens,
            finish_reason=known_end(self.finish_reason),
            engine_timings={
                name: float(value)
                for name, value in known_timings(self.timings).items()
                # Neither infinite nor too large for a float, which no time is.
                if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
            },
            prompt_tokens_from=usage.stated_by,
            tool_calls=tuple(self.calls[index] for index in sorted(self.calls)),
            reasoning_tokens=usage.reasoning_tokens,
            model=self.model,
        )


def _without_impossible_zeros(usage: Usage, *, has_pieces: bool) -> Usage:
    """Some gateways state counts of 0 that they do not know. Nothing is answered to a prompt of no tokens, and what has
    pieces has tokens: such a 0 is no count."""
    if usage.prompt_tokens == 0:
        usage = replace(usage, prompt_tokens=None, stated_by=None, cached_tokens=usage.cached_tokens or None)
    return replace(usage, output_tokens=None) if has_pieces and usage.output_tokens == 0 else usage


def _object(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = value.get(name)
    if found is not None and not isinstance(found, Mapping):
        raise TypeError(name)
    return found or {}


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return value
