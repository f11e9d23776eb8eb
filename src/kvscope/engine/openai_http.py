"""A request over HTTP in the form that OpenAI's API made common. Its answer is read in ``openai_answer.py``.

A server that refuses unknown fields is sent none: whoever knows which server it is says which of its own it takes.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvscope.engine.api_key import ApiKey
from kvscope.engine.base import ChatRequest, Generation, Message
from kvscope.engine.http_client import (
    Exchange,
    Limits,
    Reply,
    body_evidence,
    hidden_in_errors,
    keys_among,
    request,
    verbatim,
)
from kvscope.engine.openai_answer import read_answer
from kvscope.engine.prepared import Prepared, ask
from kvscope.engine.server_errors import REPLY_HINT, raise_for_status
from kvscope.errors import EngineReplyError, UsageError
from kvscope.prompt.conversation import Image

# A server may cut a token's text into several pieces, and one that pays no heed to the limit has no end. So reading
# stops at this many pieces for each token that was asked for, and some more.
MOST_PIECES_PER_TOKEN = 8
_EXTRA_PIECES = 64
# What such a piece takes of the stream: a few hundred bytes with llama.cpp, and more with log probabilities.
_BYTES_PER_TOKEN = 4 * 1024
_EXTRA_BYTES = 4 * 1024 * 1024


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


def chat_payload(
    chat: ChatRequest, *, model: str | None = None, fields: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The request's body: greedy, streamed, with usage. ``fields`` are the server's own, llama.cpp's where none are
    given; one whose value is None is left out, ours included (a server that refuses ``seed``)."""
    wire = wire_conversation(chat.messages, chat.tools, chat.template_variables)
    return _payload({"model": model, **wire}, chat, fields)


def completion_payload(
    chat: ChatRequest, prompt: str | Sequence[int], *, model: str | None = None, fields: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """As ``chat_payload``, for a prompt as text or ids, without a chat template."""
    return _payload({"model": model, "prompt": prompt if isinstance(prompt, str) else list(prompt)}, chat, fields)


def llama_cpp_fields(chat: ChatRequest) -> dict[str, Any]:
    """What llama.cpp's server takes beyond OpenAI's interface. vLLM and SGLang take ``ignore_eos`` too."""
    return {"ignore_eos": chat.ignore_end, "cache_prompt": chat.reuse_prefix}


def _payload(begin: Mapping[str, Any], chat: ChatRequest, fields: Mapping[str, Any] | None) -> dict[str, Any]:
    body = {
        **begin,
        "max_tokens": chat.max_output_tokens,
        "temperature": 0,
        "seed": chat.seed,
        "stop": list(chat.stop) or None,
        "stream": True,
        "stream_options": {"include_usage": True},
        **(llama_cpp_fields(chat) if fields is None else fields),
    }
    return {name: value for name, value in body.items() if value is not None}


async def stream_chat(
    base_url: str,
    chat: ChatRequest,
    *,
    model: str | None = None,
    headers: Mapping[str, str] | None = None,
    fields: Mapping[str, Any] | None = None,
) -> Generation:
    """Send ``chat`` to ``base_url``/v1/chat/completions and read its answer to the end. ``model``: the served name,
    where the server wants one. ``headers`` (keys) are shown nowhere. ``fields``: see ``chat_payload``.

    Raises an EngineError for every way in which that can fail."""
    return await ask(prepare_chat(base_url, chat, model=model, headers=headers, fields=fields))


async def stream_completion(
    base_url: str,
    chat: ChatRequest,
    prompt: str | Sequence[int],
    *,
    model: str | None = None,
    headers: Mapping[str, str] | None = None,
    fields: Mapping[str, Any] | None = None,
) -> Generation:
    """As ``stream_chat``, over ``base_url``/v1/completions: ``prompt`` is sent instead of the conversation, whose
    limits and seed are ``chat``'s."""
    return await ask(prepare_completion(base_url, chat, prompt, model=model, headers=headers, fields=fields))


def prepare_chat(
    base_url: str,
    chat: ChatRequest,
    *,
    model: str | None = None,
    headers: Mapping[str, str] | None = None,
    fields: Mapping[str, Any] | None = None,
) -> Prepared:
    """What ``stream_chat`` sends, made ready: for ``load_client.send_load``. Raises UsageError for a conversation that
    cannot be sent."""
    body = chat_payload(chat, model=model, fields=fields)
    return _prepared(f"{base_url.rstrip('/')}/v1/chat/completions", body, chat, headers)


def prepare_completion(
    base_url: str,
    chat: ChatRequest,
    prompt: str | Sequence[int],
    *,
    model: str | None = None,
    headers: Mapping[str, str] | None = None,
    fields: Mapping[str, Any] | None = None,
) -> Prepared:
    """As ``prepare_chat``, of what ``stream_completion`` sends."""
    body = completion_payload(chat, prompt, model=model, fields=fields)
    return _prepared(f"{base_url.rstrip('/')}/v1/completions", body, chat, headers)


def _prepared(url: str, body: Mapping[str, Any], chat: ChatRequest, headers: Mapping[str, str] | None) -> Prepared:
    most_pieces, keys = _most_pieces(chat), keys_among(headers or {})

    async def read(running: Exchange) -> Generation:
        if running.reply.status != 200:
            raise_for_status(await running.whole())
        answer = await read_answer(running, most_pieces)
        for key in keys:
            answer = _without_key(answer, key)
        return answer

    limits = Limits(
        timeout_s=chat.timeout_s, stall_s=chat.stall_s, max_bytes=_EXTRA_BYTES + _BYTES_PER_TOKEN * most_pieces
    )
    return Prepared(url=url, payload=body, limits=limits, headers=headers or {}, read=read)


def _without_key(answer: Generation, key: ApiKey) -> Generation:
    """The same where the server put the key into its answer."""
    texts = key.hide_in_pieces([event.text for event in answer.events])
    return replace(
        answer,
        events=tuple(replace(event, text=text) for event, text in zip(answer.events, texts, strict=True)),
        finish_reason=key.hide(answer.finish_reason),
        engine_timings=key.hide(answer.engine_timings),
        tool_calls=key.hide(answer.tool_calls),
    )


async def post_json(
    url: str, payload: object, *, limits: Limits | None = None, headers: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """POST, and the JSON object that comes back. Raises an EngineError for any other outcome."""
    with hidden_in_errors(headers or {}):
        return json_object(body_text(await request("POST", url, payload, limits=limits, headers=headers)))


async def get_text(url: str, *, limits: Limits | None = None, headers: Mapping[str, str] | None = None) -> str:
    """GET, and the body of a 200. Raises an EngineError for any other outcome."""
    with hidden_in_errors(headers or {}):
        return body_text(await request("GET", url, limits=limits, headers=headers))


def json_object(text: str) -> dict[str, Any]:
    """The JSON object that a text is. Raises EngineReplyError for anything else."""
    evidence = {"known_by": "message", "body": body_evidence(text)}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise EngineReplyError(
            f"The server sent what is not JSON: {verbatim(text)}", hint=REPLY_HINT, evidence=evidence
        ) from error
    if not isinstance(value, dict):
        raise EngineReplyError(
            f"The server sent JSON of an unexpected form: {verbatim(text)}", hint=REPLY_HINT, evidence=evidence
        )
    return value


def body_text(reply: Reply) -> str:
    """The body of a 200. Raises an EngineError for any other status."""
    if reply.status != 200:
        raise_for_status(reply)
    return reply.body.decode(errors="replace")


def _most_pieces(chat: ChatRequest) -> int:
    return MOST_PIECES_PER_TOKEN * chat.max_output_tokens + _EXTRA_PIECES
