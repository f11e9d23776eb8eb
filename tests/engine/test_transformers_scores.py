"""transformers' engine: log-probabilities of given tokens against a computation of our own in torch, texts without a
chat template, and texts that end an answer."""

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvscope.engine.base import ChatRequest, ScoreRequest
from kvscope.engine.transformers import TransformersEngine
from kvscope.errors import ContextOverflow, EngineReplyError, EngineStartFailed, UsageError
from kvscope.model.load import load_model

sys.path.append(str(Path(__file__).parent))
from transformers_models import Child, folder_of, golden_config, llama_config, write_tokenizer

pytestmark = pytest.mark.engine

PROMPT = tuple(range(7, 107, 3))
CONTINUATION = (5, 1500, 3, 3, 2047, 0, 42, 99, 1024, 512, 300, 7, 8, 9, 1999, 6, 61, 62, 63, 64)
Load = Callable[..., TransformersEngine]


@pytest.fixture
def load(transformers_child: Child) -> Load:
    def loaded(folder: str, **settings: Any) -> TransformersEngine:
        engine = TransformersEngine(model=load_model(folder), settings={"num_threads": 1, **settings})
        transformers_child.give_to(engine)
        engine.load()
        return engine

    return loaded


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny model whose weights are in a file. They are made larger than a new model's, so that it is sure of some
    tokens and not of others."""
    import torch
    import transformers

    folder = folder_of(tmp_path_factory.mktemp("scores"), llama_config())
    torch.manual_seed(11)
    config = transformers.AutoConfig.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(12.0)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def oracle(saved: str) -> list[list[float]]:
    """The whole distribution before each token of the continuation: one pass over all, softmax in float64."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(saved).eval()
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*PROMPT, *CONTINUATION[:-1]]])).logits[0, -len(CONTINUATION) :]
        found: list[list[float]] = logits.double().log_softmax(-1).tolist()
    return found


# Two float32 computations of a logit of size 10 differ by about 10 × 2^-24 × a few hundred additions: below 1e-4.
TOLERANCE = 2e-4


@pytest.mark.parametrize("is_fresh", [False, True])
def test_scores_are_the_log_probabilities_of_the_logits(
    load: Load, saved: str, oracle: list[list[float]], is_fresh: bool
) -> None:
    engine = load(saved)
    scores = engine.score(ScoreRequest(prompt=PROMPT, continuation=CONTINUATION, num_top=5, is_fresh=is_fresh))
    assert tuple(each.token for each in scores.tokens) == CONTINUATION
    for found, token, expected in zip(scores.tokens, CONTINUATION, oracle, strict=True):
        assert found.logprob == pytest.approx(expected[token], abs=TOLERANCE)
        best = sorted(range(len(expected)), key=lambda each: -expected[each])[:5]
        assert found.top_logprobs == pytest.approx([expected[each] for each in best], abs=TOLERANCE)
        assert [expected[each] for each in found.top_tokens] == pytest.approx(list(found.top_logprobs), abs=TOLERANCE)
    assert max(each.logprob for each in scores.tokens) - min(each.logprob for each in scores.tokens) > 3


def test_one_token_a_pass_whatever_was_kept(load: Load, saved: str) -> None:
    """The second time the prompt is in the cache already: nothing differs, to the last bit. A fresh pass is another
    pattern, and is not passed off as the same."""
    engine = load(saved)
    request = ScoreRequest(prompt=PROMPT, continuation=CONTINUATION, num_top=3)
    first, again = engine.score(request), engine.score(request)
    assert first.tokens == again.tokens
    assert first.pattern == again.pattern
    assert again.cached_tokens == again.prompt_tokens - len(CONTINUATION)
    assert first.cached_tokens == again.cached_tokens - (len(PROMPT) - 1)
    fresh = engine.score(ScoreRequest(prompt=PROMPT, continuation=CONTINUATION, is_fresh=True))
    assert fresh.pattern != first.pattern
    assert fresh.cached_tokens == 0


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("gemma3_text", {}),  # windows that move on
        ("mamba", {}),  # states that cannot be cut back
        ("qwen2", {"cache_implementation": "static", "max_cache_len": 64}),
        ("gpt2", {}),
    ],
)
def test_one_by_one_and_all_at_once_agree(load: Load, tmp_path: Path, family: str, settings: dict[str, Any]) -> None:
    """Two ways through the same model, whatever it keeps from step to step. float32, a few thousand additions each."""
    engine = load(folder_of(tmp_path / family, golden_config(family)), random_weights=True, **settings)
    request = ScoreRequest(prompt=tuple(range(40, 70)), continuation=tuple(range(90, 110)), num_top=3)
    kept, fresh = engine.score(request), engine.score(replace(request, is_fresh=True))
    assert kept.tokens == engine.score(request).tokens
    for ours, anew in zip(kept.tokens, fresh.tokens, strict=True):
        assert ours.logprob == pytest.approx(anew.logprob, abs=2e-3)


def test_the_whole_vocabulary_sums_to_one(load: Load, saved: str) -> None:
    [found] = load(saved).score(ScoreRequest(prompt=PROMPT, continuation=(5,), num_top=10**6)).tokens
    assert len(found.top_tokens) == len(set(found.top_tokens)) == 2048
    assert math.fsum(math.exp(each) for each in found.top_logprobs) == pytest.approx(1, abs=1e-5)
    assert dict(zip(found.top_tokens, found.top_logprobs, strict=True))[5] == found.logprob


def test_what_cannot_be_scored(load: Load, saved: str) -> None:
    engine = load(saved)
    with pytest.raises(UsageError, match="empty prompt"):
        engine.score(ScoreRequest(prompt=(), continuation=(5,)))
    with pytest.raises(UsageError, match="no token 2048"):
        engine.score(ScoreRequest(prompt=PROMPT, continuation=(2048,)))
    with pytest.raises(ContextOverflow):
        engine.score(ScoreRequest(prompt=(1,) * 512, continuation=(2, 3)))
    assert len(engine.score(ScoreRequest(prompt=(1,) * 512, continuation=(2,))).tokens) == 1
    engine.unload()
    with pytest.raises(EngineStartFailed):
        engine.score(ScoreRequest(prompt=PROMPT, continuation=(5,)))


def test_logits_that_are_no_numbers_are_an_error(load: Load, saved: str, tmp_path: Path) -> None:
    import torch
    import transformers

    folder = str(tmp_path / "broken")
    model = transformers.AutoModelForCausalLM.from_pretrained(saved)
    with torch.no_grad():
        model.get_output_embeddings().weight[5] = float("nan")
    model.save_pretrained(folder)
    with pytest.raises(EngineReplyError, match="that is none"):
        load(folder).score(ScoreRequest(prompt=PROMPT, continuation=(5,)))


def test_a_text_is_sent_as_it_is(load: Load, saved: str) -> None:
    """Without a tokenizer each byte is one token: six of them, no template around them."""
    engine = load(saved)
    assert engine.tokenize("Hello.", with_special=True) == tuple(b"Hello.")
    answer = engine.generate(ChatRequest(messages=(), text="Hello.", max_output_tokens=3))
    assert answer.prompt_tokens == 6
    greedy = engine.score(ScoreRequest(prompt=tuple(b"Hello."), continuation=(0,))).tokens[0].top_tokens[0]
    stream = "".join(event.text for event in answer.events)
    assert stream.startswith(bytes([greedy]).decode() if greedy < 128 else f"<{greedy}>")
    with pytest.raises(UsageError, match="only one of both"):
        engine.generate(ChatRequest(messages=(), tools=({},), text="Hello.", max_output_tokens=3))


def of_letters(folder: str) -> str:
    """A tokenizer that only transformers itself reads: a token a letter, marks before a text and behind it."""
    letters = ["[UNK]", "[CLS]", "[SEP]", *"abcdefghijklmnopqrstuvwxyz"]
    (Path(folder) / "vocab.txt").write_text("\n".join(letters), encoding="utf-8")
    marks = '"unk_token": "[UNK]", "pad_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"'
    (Path(folder) / "tokenizer_config.json").write_text(f'{{"tokenizer_class": "BertTokenizer", {marks}}}')
    return folder


@pytest.mark.parametrize("in_child", [False, True])
def test_an_answer_ends_at_a_stop_text(load: Load, tmp_path: Path, in_child: bool) -> None:
    folder = folder_of(tmp_path / "stop", llama_config(vocab_size=29 if in_child else 262))
    if in_child:
        of_letters(folder)
    else:
        write_tokenizer(folder)
    engine = load(folder, random_weights=True)
    request = ChatRequest(messages=(), text="a b c", max_output_tokens=40)
    joined = "".join(event.text for event in engine.generate(request).events)
    stop = joined[11:14]
    ended = engine.generate(replace(request, stop=("never", stop)))
    assert "".join(event.text for event in ended.events) == joined[: joined.find(stop)]
    assert ended.finish_reason == "stop"
    assert ended.output_tokens == len(ended.events) < 40
    assert engine.generate(request).finish_reason == "length"


def test_special_tokens_are_put_before_a_text_alone(load: Load, tmp_path: Path) -> None:
    """BERT's tokenizer puts [CLS] (1) before and [SEP] (2) behind; what is to go on has none behind."""
    engine = load(of_letters(folder_of(tmp_path / "marks", llama_config(vocab_size=29))), random_weights=True)
    assert engine.tokenize("a b", with_special=False) == (3, 4)
    assert engine.tokenize("a b", with_special=True) == (1, 3, 4)
