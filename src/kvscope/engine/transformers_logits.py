"""Part of the worker (``transformers_worker.py``): log-probabilities of given tokens, out of the model's own logits.

It runs in the child process and imports nothing of kvscope.
"""

from collections.abc import Callable, Iterator
from typing import Any

Feed = Callable[[list[int]], Any]


def one_by_one(feed: Feed, prompt_end: int, continuation: list[int]) -> Iterator[Any]:
    """The logits before each token of the continuation, each from a pass of one token. ``prompt_end``: the prompt's
    last token, all before it being in the cache."""
    for token in [prompt_end, *continuation[:-1]]:
        yield feed([token])


def in_one_pass(model: Any, torch: Any, ids: list[int], number: int, given: dict[str, Any]) -> Iterator[Any]:
    """The logits after each of the last ``number`` of these ids, from one pass over all. ``given``: further arguments
    of the model's ``forward``."""
    outputs = model(input_ids=torch.tensor([ids], device=model.device), **given)
    yield from outputs.logits[0, -number:]


def scored(logits: Any, token: int, num_top: int) -> dict[str, Any]:
    """The message about one position: natural logarithms of probabilities, by a float32 softmax of the raw logits."""
    logprobs = logits.float().log_softmax(-1)
    top = logprobs.topk(min(num_top, logprobs.shape[-1]))
    return {
        "event": "scored",
        "id": token,
        "logprob": float(logprobs[token]),
        "top": top.indices.tolist(),
        "top_logprobs": top.values.tolist(),
    }
