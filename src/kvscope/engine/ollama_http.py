"""Ollama's own interface: what is sent, and what comes back (lines of JSON), with its failures told apart.

Read, not run: docs/api.md, docs/faq.mdx and the server's source (api/types.go, server/routes.go, server/sched.go,
llm/) of Ollama 0.3 to 0.33. What depends on the version says so where it is used.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from kvscope.engine.base import ChatRequest, Generation, Message, Read, TokenEvent
from kvscope.engine.http_client import Exchange, Limits, Reply, body_evidence, request, verbatim
from kvscope.engine.ollama_errors import NOT_OLLAMA_HINT, error_of
from kvscope.engine.openai_http import MOST_PIECES_PER_TOKEN
from kvscope.engine.prepared import Prepared, ask
from kvscope.engine.stated_words import known_end
from kvscope.engine.usage import read_ollama_counts
from kvscope.errors import EngineError, EngineReplyError, UsageError
from kvscope.prompt.conversation import Image

# The last object of an answer: nanoseconds.
_DURATIONS = {
    "total_duration": "total_s",
    "load_duration": "load_s",
    "prompt_eval_duration": "prompt_eval_s",
    "eval_duration": "eval_s",
}
# A piece takes about 150 bytes of the stream, and names the model each time. The last one may hold a whole tool's call.
_EXTRA_PIECES, _BYTES_PER_PIECE, _EXTRA_BYTES = 64, 1024, 4 * 1024 * 1024


def wire_conversation(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], template_variables: Mapping[str, Any]
) -> dict[str, Any]:
    """What a request says of its conversation, in Ollama's words: calls of tools with their arguments as an object,
    and ``think`` for what other engines give to the template. Raises UsageError for what it cannot be told."""
    body: dict[str, Any] = {"messages": [_wire_message(message) for message in messages]}
    if tools:
        body["tools"] = [dict(tool) for tool in tools]
    for name, value in template_variables.items():
        if name not in ("enable_thinking", "think", "reasoning_effort"):
            raise UsageError(
                f"Ollama's interface cannot give {name!r} to a chat template.",
                hint="It knows thinking alone: enable_thinking (true, false), reasoning_effort (low, medium, high).",
            )
        body["think"] = value
    return body


def _wire_message(message: Message) -> dict[str, Any]:
    if any(isinstance(block, Image) for block in message.blocks):
        raise UsageError(
            "A picture in this conversation cannot be sent to Ollama: only its size or its address was kept.",
            hint="Send the conversation without it.",
        )
    wire: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning is not None:
        wire["thinking"] = message.reasoning
    if message.tool_calls:
        wire["tool_calls"] = [_wire_call(call) for call in message.tool_calls]
    if message.tool_call_id is not None:
        wire["tool_call_id"] = message.tool_call_id
    if message.role == "tool" and message.name is not None:
        wire["tool_name"] = message.name
    return wire


def _wire_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function") or {}
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            arguments = None
    if not isinstance(arguments, Mapping):
        raise UsageError(
            f"Ollama takes the arguments of a tool's call as a JSON object, which these are not: "
            f"{verbatim(str(function.get('arguments')))}",
            hint="Correct the conversation.",
        )
    named = {"function": {"name": function.get("name") or "", "arguments": dict(arguments)}}
    return {"id": call["id"], **named} if call.get("id") else dict(named)


async def get_json(url: str, *, limits: Limits | None = None) -> dict[str, Any]:
    """GET, and the JSON object of a 200. Raises an EngineError for any other outcome."""
    return _plain_object(await request("GET", url, limits=limits))


async def post_json(url: str, payload: object, *, limits: Limits | None = None) -> dict[str, Any]:
    """POST, and the JSON object of a 200, of one that is an error in it too. Raises an EngineError otherwise."""
    return _plain_object(await request("POST", url, payload, limits=limits))


def _plain_object(reply: Reply) -> dict[str, Any]:
    if reply.status != 200:
        raise_for_status(reply)
    found = json_object(reply.body)
    if isinstance(found.get("error"), str):
        raise error_of(found["error"], status=200, body=reply.body)
    return found


def raise_for_status(reply: Reply) -> NoReturn:
    """Raise what a status other than 200 means; Ollama writes the reason as {"error": "..."}."""
    try:
        stated = json.loads(reply.body).get("error")
    except (ValueError, RecursionError, AttributeError):
        stated = None
    message = stated if isinstance(stated, str) else verbatim(reply.body)
    raise error_of(message, status=reply.status, body=reply.body, headers=reply.headers)


def json_object(data: bytes) -> dict[str, Any]:
    """Raises EngineReplyError for what is not a JSON object."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise EngineReplyError(
            f"The server sent what is not JSON: {verbatim(data)}",
            hint=NOT_OLLAMA_HINT,
            evidence={"known_by": "message", "body": body_evidence(data)},
        ) from error
    if not isinstance(value, dict):
        raise EngineReplyError(f"The server sent JSON of an unexpected form: {verbatim(data)}", hint=NOT_OLLAMA_HINT)
    return value


async def stream_chat(
    base_url: str, body: Mapping[str, Any], chat: ChatRequest, *, counts_whole_prompt: bool
) -> Generation:
    """Send what ``prepare_chat`` makes, and read its answer to the end. Raises an EngineError."""
    return await ask(prepare_chat(base_url, body, chat, counts_whole_prompt=counts_whole_prompt))


def prepare_chat(base_url: str, body: Mapping[str, Any], chat: ChatRequest, *, counts_whole_prompt: bool) -> Prepared:
    """POST /api/chat, or of a text /api/generate without a template (``raw``), streamed, made ready.
    ``counts_whole_prompt``: this version's prompt_eval_count includes what was cached; otherwise the prompt's length is
    not known from it."""
    most_pieces = MOST_PIECES_PER_TOKEN * chat.max_output_tokens + _EXTRA_PIECES
    most_bytes = _EXTRA_BYTES + _BYTES_PER_PIECE * most_pieces
    limits = Limits(timeout_s=chat.timeout_s, stall_s=chat.stall_s, max_bytes=most_bytes)

    async def read(running: Exchange) -> Generation:
        answer = _Answer(most_pieces)
        try:
            if running.reply.status != 200:
                raise_for_status(await running.whole())
            completed_s = await _collect(running, answer)
            return answer.generation(completed_s, counts_whole_prompt)
        except EngineError as error:
            error.evidence.setdefault("pieces_received", len(answer.events))
            raise

    path, payload = "/api/chat", {**body, "stream": True}
    if chat.text is not None:
        path, payload = "/api/generate", {**payload, "prompt": chat.text, "raw": True}
    return Prepared(url=base_url + path, payload=payload, limits=limits, read=read)


async def _collect(running: Exchange, answer: "_Answer") -> float:
    """Read until the last object; when that came, in seconds since the request was sent. Silence counts from the first
    piece on: before it the prompt is computed, or the model waits for its turn."""
    rest, at_s = b"", running.reply.sent_s
    running.keeps_quiet_clock, running.quiet_since_s = True, None
    async for chunk in running.chunks():
        before, at_s = len(answer.events), chunk.at_s
        *lines, rest = (rest + chunk.body).split(b"\n")
        for line in [*lines, *([rest] if chunk.last else [])]:
            answer.take_line(line, at_s - running.reply.sent_s)
        num_events = len(answer.events) - before
        answer.reads.append(Read(at_s=at_s - running.reply.sent_s, num_bytes=chunk.num_bytes, num_events=num_events))
        if num_events:
            running.quiet_since_s = at_s
        if answer.last is not None:
            break
    return at_s - running.reply.sent_s


@dataclass(slots=True)
class _Answer:
    """An answer as it comes. ``last`` is its last object (``done``), with the counts."""

    most_pieces: int
    events: list[TokenEvent] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    last: Mapping[str, Any] | None = None

    def take_line(self, line: bytes, at_s: float) -> None:
        """One line of the stream: an object with a piece of the answer, the last one, or an error."""
        if not line.strip():
            return
        found = json_object(line)
        if found.get("error"):
            raise error_of(str(found["error"]), status=200, body=line)
        try:
            self._take(found, at_s)
        except (AttributeError, TypeError, KeyError) as error:
            raise EngineReplyError(
                f"The server sent a line of an unexpected form: {verbatim(line)}", hint=NOT_OLLAMA_HINT
            ) from error

    def _take(self, found: Mapping[str, Any], at_s: float) -> None:
        message = found.get("message") or {}
        if thought := _text(message, "thinking"):
            self.events.append(TokenEvent(at_s=at_s, text=thought, kind="reasoning"))
        if content := _text(message, "content") or _text(found, "response"):
            self.events.append(TokenEvent(at_s=at_s, text=content))
        for call in message.get("tool_calls") or ():
            name = call["function"]["name"]
            arguments = json.dumps(call["function"].get("arguments") or {}, ensure_ascii=False)
            self.events.append(TokenEvent(at_s=at_s, text=name + arguments, kind="tool_call"))
            function = {"name": name, "arguments": arguments}
            self.calls.append({"id": call.get("id"), "type": "function", "function": function})
        if found.get("done"):
            self.last = found
        if len(self.events) > self.most_pieces:
            raise EngineReplyError(
                f"The server sent more than {self.most_pieces:,} pieces; reading was stopped.",
                hint="It does not heed num_predict, or is not Ollama.",
            )

    def generation(self, completed_s: float, counts_whole_prompt: bool) -> Generation:
        if self.last is None:
            raise EngineReplyError(
                f"The answer stopped after {len(self.events)} pieces, without its end being stated.",
                hint=NOT_OLLAMA_HINT,
            )
        usage = read_ollama_counts(self.last)
        reason = self.last.get("done_reason")
        return Generation(
            events=tuple(self.events),
            reads=tuple(self.reads),
            completed_s=completed_s,
            prompt_tokens=usage.prompt_tokens if counts_whole_prompt else None,
            cached_tokens=None,
            output_tokens=usage.output_tokens,
            finish_reason=known_end(reason if isinstance(reason, str) else None),
            engine_timings={
                ours: self.last[theirs] / 1e9
                for theirs, ours in _DURATIONS.items()
                if _is_duration(self.last.get(theirs))
            },
            prompt_tokens_from=usage.stated_by if counts_whole_prompt else None,
            tool_calls=tuple(self.calls),
        )


def _text(message: Mapping[str, Any], name: str) -> str:
    text = message.get(name) or ""
    if not isinstance(text, str):
        raise TypeError(name)
    return text


def _is_duration(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def version_numbers(version: str) -> tuple[int, int, int] | None:
    """(0, 12, 6) of "0.12.6" and of "0.12.6-rc0"; None for 0.0.0, as builds from source call themselves, and for what
    is no version."""
    found = re.match(r"v?(\d+)\.(\d+)\.(\d+)", version)
    numbers = (int(found[1]), int(found[2]), int(found[3])) if found else (0, 0, 0)
    return numbers if numbers != (0, 0, 0) else None
