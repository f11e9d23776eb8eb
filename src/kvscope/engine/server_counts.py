"""Tokens of a prompt as a running server's own tokenizer counts them, without computing the prompt."""

from collections.abc import Coroutine, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

from kvscope.engine.base import ChatRequest, Message
from kvscope.engine.openai_http import wire_conversation
from kvscope.engine.served_facts import LLAMA_CPP, VLLM
from kvscope.engine.server_address import ServerAddress
from kvscope.errors import EngineReplyError


def plain_text(messages: Sequence[Message]) -> str:
    """What is sent to a server without chat: what the messages say, with an empty line between them."""
    return "\n\n".join(message.content for message in messages)


class _Counter(Protocol):
    def __call__(
        self, server: ServerAddress, model: str, request: ChatRequest, *, is_chat: bool
    ) -> Coroutine[Any, Any, int]: ...


async def count_by_llama_cpp(server: ServerAddress, model: str, request: ChatRequest, *, is_chat: bool) -> int:
    """llama.cpp's /apply-template and /tokenize, which read text as its own prompt is read: special tokens as such, BOS
    where the model wants one (the template never writes it)."""
    if request.text is not None:
        text: Any = request.text
    elif is_chat:
        wire = wire_conversation(request.messages, request.tools, request.template_variables)
        text = (await server.json("POST", "/apply-template", {"model": model, **wire})).get("prompt")
    else:
        text = plain_text(request.messages)
    body = {"model": model, "content": text, "add_special": True, "parse_special": True}
    tokens = (await server.json("POST", "/tokenize", body)).get("tokens")
    if not isinstance(tokens, list):
        raise EngineReplyError("The server's reply to /tokenize holds no tokens.", hint="Is it llama.cpp's server?")
    return len(tokens)


async def count_by_vllm(server: ServerAddress, model: str, request: ChatRequest, *, is_chat: bool) -> int:
    """vLLM's /tokenize, which takes a whole conversation."""
    body: dict[str, Any] = {"model": model}
    if request.text is not None:
        body["prompt"] = request.text
    elif is_chat:
        wire = wire_conversation(request.messages, request.tools, request.template_variables)
        body |= {**wire, "add_generation_prompt": True}
    else:
        body["prompt"] = plain_text(request.messages)
    tokens = (await server.json("POST", "/tokenize", body)).get("count")
    if not isinstance(tokens, int) or isinstance(tokens, bool):
        raise EngineReplyError("The server's reply to /tokenize holds no count.", hint="Is it vLLM's server?")
    return tokens


COUNTERS: Mapping[str, _Counter] = MappingProxyType({LLAMA_CPP: count_by_llama_cpp, VLLM: count_by_vllm})
