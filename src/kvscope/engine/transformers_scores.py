"""What transformers' child states of the likelihood of given tokens, read and checked (``Engine.score``)."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from kvscope.engine.base import ScoredToken, ScoreRequest, TokenScores
from kvscope.engine.openai_text import check_prompt
from kvscope.errors import EngineReplyError, UsageError

_ONE_BY_ONE = "one token a pass on the kept prompt"
_IN_ONE_PASS = "the whole text anew in one pass"


def check_score(request: ScoreRequest, *, vocab_size: int) -> None:
    """Raises UsageError for an empty prompt, and for tokens that the model does not have."""
    check_prompt(request)
    outside = [token for token in (*request.prompt, *request.continuation) if not 0 <= token < vocab_size]
    if outside:
        raise UsageError(
            f"The model has no token {outside[0]}: its vocabulary has {vocab_size}.",
            hint="Use ids that its own tokenizer gives.",
        )


def read_scores(receive: Callable[[], Mapping[str, Any]], request: ScoreRequest, *, version: str) -> TokenScores:
    """The scores, of the messages that ``receive`` gives one after another. Raises EngineReplyError for an answer that
    is not about the tokens that were asked, or no number."""
    tokens: list[ScoredToken] = []
    while (message := receive())["event"] == "scored":
        tokens.append(_token_of(message))
    if tuple(each.token for each in tokens) != request.continuation:
        raise EngineReplyError(
            f"transformers scored {len(tokens)} of {len(request.continuation)} tokens, or others than those asked.",
            hint="This is a bug.",
        )
    total = sum(len(request.prompt) + position for position in range(len(tokens)))
    computed = message["computed_tokens"]
    return TokenScores(
        tokens=tuple(tokens),
        pattern=f"transformers {version}: {_IN_ONE_PASS if request.is_fresh else _ONE_BY_ONE}",
        prompt_tokens=total,
        cached_tokens=0 if request.is_fresh else total - computed,
    )


def _token_of(message: Mapping[str, Any]) -> ScoredToken:
    token, logprob = message["id"], message["logprob"]
    if not math.isfinite(logprob):
        raise EngineReplyError(
            f"The model's logits give token {token} the log-probability {logprob}: that is none.",
            hint="Its numbers overflow, or it masks this token. Use dtype=float32, or leave this text out.",
            evidence={"known_by": "message"},
        )
    return ScoredToken(
        token=token,
        logprob=logprob,
        top_tokens=tuple(message["top"]),
        top_logprobs=tuple(message["top_logprobs"]),
    )
