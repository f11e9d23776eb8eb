"""A chat request over HTTP in the form that OpenAI's API made common, its answer streamed as server-sent events.

What a server states is taken as it is; what it does not state is None. Failures become errors of kvscope's tree.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from kvscope.engine.base import ChatRequest, Generation, Message, Read, TokenEvent
from kvscope.engine.http_client import Exchange, Limits, Reply, exchange, request, verbatim
from kvscope.engine.usage import read_usage
from kvscope.errors import ContextOverflow, EngineReplyError, OutOfMemory, RateLimited, ServerError, UsageError
from kvscope.prompt.conversation import Image

_END = "[DONE]"


def wire_conversation(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], template_variables: Mapping[str, Any]
) -> dict[str, Any]:
    """What a request says of its conversation. ``chat_template_kwargs`` is how llama.cpp and vLLM are given further
    values for the template. Raises UsageError for a picture whose bytes were not kept."""
    body: dict[str, Any] = {"messages": [_wire_message(message) for message in messages]}
    if tools:
        body["tools"] = [dict(tool) for tool in tools]
    if template_variables:
        body["chat_template_kwargs"] = dict(template_variables)
    return body


def _wire_message(message: Message) -> dict[str, Any]:
    content = [_wire_block(block) for block in message.blocks] if message.blocks else message.content
    wire: dict[str, Any] = {"role": message.role, "content": content}
    if message.name is not None:
        wire["name"] = message.name
    if message.reasoning is not None:
        wire["reasoning_content"] = message.reasoning
    if message.tool_calls:
        wire["tool_calls"] = [dict(call) for call in message.tool_calls]
    if message.tool_call_id is not None:
        wire["tool_call_id"] = message.tool_call_id
    return wire


def _wire_block(block: str | Image) -> dict[str, Any]:
    if isinstance(block, str):
        return {"type": "text", "text": block}
    if block.source == "data:":
        raise UsageError(
            "A picture in this conversation cannot be sent: only its size was kept, not its bytes.",
            hint="Send the conversation without it, or give the picture's address.",
        )
    return {"type": "image_url", "image_url": {"url": block.source}}


def chat_payload(chat: ChatRequest) -> dict[str, Any]:
    """The request's body: greedy, streamed, with usage. ``ignore_eos`` and ``cache_prompt`` are llama.cpp's own
    fields; other servers leave unknown fields aside."""
    return {
        **wire_conversation(chat.messages, chat.tools, chat.template_variables),
        "max_tokens": chat.max_output_tokens,
        "temperature": 0,
        "seed": chat.seed,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": chat.ignore_end,
        "cache_prompt": chat.reuse_prefix,
    }


async def stream_chat(base_url: str, chat: ChatRequest) -> Generation:
    """Send ``chat`` and read its answer to the end. Raises an EngineError for every way in which that can fail."""
    limits = Limits(timeout_s=chat.timeout_s, stall_s=chat.stall_s)
    async with exchange("POST", f"{base_url}/v1/chat/completions", chat_payload(chat), limits=limits) as running:
        if running.reply.status != 200:
            raise_for_status(await running.whole())
        return await _read_answer(running)


async def _read_answer(running: Exchange) -> Generation:
    sent_s = running.reply.sent_s
    answer = _Answer()
    unfinished = b""
    at_s = sent_s
    async for chunk in running.chunks():
        at_s = chunk.at_s
        *lines, unfinished = (unfinished + chunk.body).split(b"\n")
        before = len(answer.events)
        for line in lines:
            answer.take_line(line.rstrip(b"\r"), at_s - sent_s)
        answer.reads.append(Read(at_s=at_s - sent_s, num_bytes=chunk.num_bytes, num_events=len(answer.events) - before))
    if unfinished.strip():
        answer.take_line(unfinished, at_s - sent_s)
    return answer.generation(completed_s=at_s - sent_s)


@dataclass(slots=True)
class _Answer:
    """What the events have said so far."""

    events: list[TokenEvent] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    finish_reason: str | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)
    timings: Mapping[str, Any] = field(default_factory=dict)
    calls: dict[int, dict[str, Any]] = field(default_factory=dict)
    ended: bool = False

    def take_line(self, line: bytes, at_s: float) -> None:
        """One line of the event stream. Blank lines end events; lines that begin with a colon keep it alive."""
        if not line or line.startswith(b":"):
            return
        name, _, value = line.partition(b":")
        if name not in (b"data", b"error"):
            if name in (b"event", b"id", b"retry"):
                return
            raise EngineReplyError(f"The answer is not an event stream: {verbatim(line)}", hint=_REPLY_HINT)
        text = value.strip().decode(errors="replace")
        if text == _END:
            self.ended = True
            return
        self._take(_json_object(text), at_s)

    def _take(self, event: Mapping[str, Any], at_s: float) -> None:
        if "error" in event or "code" in event:
            _raise_for_error(event.get("error", event), None, json.dumps(event))
        try:
            self.usage = event.get("usage") or self.usage
            self.timings = event.get("timings") or self.timings
            for choice in event.get("choices") or ():
                delta = choice.get("delta") or {}
                if delta.get("reasoning_content"):
                    self.events.append(TokenEvent(at_s=at_s, text=delta["reasoning_content"], kind="reasoning"))
                if delta.get("content"):
                    self.events.append(TokenEvent(at_s=at_s, text=delta["content"]))
                for piece in delta.get("tool_calls") or ():
                    self._take_call(piece, at_s)
                self.finish_reason = choice.get("finish_reason") or self.finish_reason
        except (AttributeError, TypeError) as error:
            raise EngineReplyError(
                f"The server sent an event of an unexpected form: {verbatim(json.dumps(event))}", hint=_REPLY_HINT
            ) from error

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
            self.events.append(TokenEvent(at_s=at_s, text=name + arguments, kind="tool_call"))

    def generation(self, completed_s: float) -> Generation:
        if not self.ended and self.finish_reason is None:
            raise EngineReplyError(
                f"The answer stopped after {len(self.events)} pieces, without its end being stated.", hint=_REPLY_HINT
            )
        usage = read_usage({"usage": self.usage, "timings": self.timings})
        return Generation(
            events=tuple(self.events),
            reads=tuple(self.reads),
            completed_s=completed_s,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            output_tokens=usage.output_tokens,
            finish_reason=self.finish_reason,
            engine_timings={
                name: float(value)
                for name, value in self.timings.items()
                # Neither infinite nor too large for a float, which no time is.
                if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
            },
            prompt_tokens_from=usage.stated_by,
            tool_calls=tuple(self.calls[index] for index in sorted(self.calls)),
        )


_REPLY_HINT = "Is it a server with an OpenAI-style chat interface? What it sent is kept with the trial."


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise EngineReplyError(f"The server sent what is not JSON: {verbatim(text)}", hint=_REPLY_HINT) from error
    if not isinstance(value, dict):
        raise EngineReplyError(f"The server sent JSON of an unexpected form: {verbatim(text)}", hint=_REPLY_HINT)
    return value


async def post_json(url: str, payload: object) -> dict[str, Any]:
    """POST, and the JSON object that comes back. Raises an EngineError for any other outcome."""
    return _json_object(body_text(await request("POST", url, payload)))


async def get_text(url: str) -> str:
    """GET, and the body of a 200. Raises an EngineError for any other outcome."""
    return body_text(await request("GET", url))


def body_text(reply: Reply) -> str:
    """The body of a 200. Raises an EngineError for any other status."""
    if reply.status != 200:
        raise_for_status(reply)
    return reply.body.decode(errors="replace")


def raise_for_status(reply: Reply) -> NoReturn:
    """Raise what a status other than 200 means."""
    body = reply.body.decode(errors="replace")
    try:
        error = json.loads(body).get("error", {})
    except (ValueError, AttributeError):
        error = {}
    _raise_for_error(error, reply.status, body)


def _raise_for_error(error: Any, status: int | None, body: str) -> NoReturn:
    """``error``: the server's error object. ``status``: None when it came inside a stream that began with 200."""
    details = error if isinstance(error, dict) else {"message": str(error)}
    message = str(details.get("message") or verbatim(body))
    code = status if status is not None else details.get("code")
    if details.get("type") == "exceed_context_size_error":
        asked, limit = details.get("n_prompt_tokens"), details.get("n_ctx")
        raise ContextOverflow(
            f"The prompt has {asked} tokens; the engine's context holds {limit}.",
            hint=f"Shorten the prompt, or load the model with a context of more than {asked} tokens (n_ctx).",
        )
    if "context size has been exceeded" in message.lower():
        raise ContextOverflow(
            f"The engine's context was full while it worked: {message}",
            hint="Send fewer requests at once, or load the model with a larger context (n_ctx).",
        )
    if code == 429:
        raise RateLimited(f"The server refuses for now (429): {message}", hint="Wait, or send fewer requests at once.")
    if isinstance(code, int) and code >= 500:
        if "out of memory" in message.lower() or "failed to allocate" in message.lower():
            raise OutOfMemory(f"The server ran out of memory: {message}", hint="Use a smaller context or cache type.")
        raise ServerError(f"The server failed ({code}): {message}", hint="Its log says more.")
    raise EngineReplyError(f"The server refused the request ({code}): {message}", hint=_REPLY_HINT)
