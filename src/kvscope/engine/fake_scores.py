"""Distributions of the fake engine whose divergence is known: what ``Engine.score`` of it answers.

A word with the blanks before it is one token. At each position the tokens have ranks, drawn from the tokens before, and
each rank its probability: p(r) ∝ (r + 2)^−2, the *reference*. A token that stands in the prompt already has one of
the first four ranks, so what was told is likelier than what was not. An engine with ``score_kl`` has every rank's
logarithm moved by t · cos(r), where t is such that the divergence Σ p log(p ÷ q) of the reference from it is half of
``score_kl`` at one half of the positions and one and a half times that at the others.
"""

import functools
import re
from collections.abc import Sequence
from math import cos, exp, log
from zlib import crc32

from kvscope.engine.base import ScoredToken, ScoreRequest, TokenScores

VOCABULARY = 4096
BOS = 0
_PIECE = re.compile(r"\s*\S+|\s+$")
# Multiplies ranks: odd, so that every token has a rank of its own; and what undoes it.
_FACTOR = 1_229
_INVERSE = pow(_FACTOR, -1, VOCABULARY)
_LIKELY_RANKS = 4
# So many tokens before decide about a position.
_LOOKS_BACK = 4


def tokens_of(text: str, *, with_special: bool) -> tuple[int, ...]:
    """One token for each word. Words may share an id, as they may in no real tokenizer."""
    ids = (1 + crc32(piece.encode()) % (VOCABULARY - 1) for piece in _PIECE.findall(text))
    return (BOS, *ids) if with_special else tuple(ids)


def scores_of(request: ScoreRequest, divergence: float) -> TokenScores:
    """Every position of the continuation, with a mean divergence from the reference of about ``divergence``."""
    before = list(request.prompt)
    scored = []
    for token in request.continuation:
        scored.append(_position(before, token, divergence, request.num_top))
        before.append(token)
    return TokenScores(
        tokens=tuple(scored),
        pattern="fake: each position alone, anew" if request.is_fresh else "fake: each position alone",
        prompt_tokens=len(request.prompt) + len(request.continuation),
        cached_tokens=0 if request.is_fresh else len(request.prompt),
    )


def position_divergence(before: Sequence[int], divergence: float) -> float:
    """The divergence of the reference from the engine behind these tokens, over all ranks."""
    return divergence * (0.5 if _draw(before) % 2 else 1.5)


def _draw(before: Sequence[int]) -> int:
    return crc32(",".join(map(str, before[-_LOOKS_BACK:])).encode())


def _position(before: Sequence[int], token: int, divergence: float, num_top: int) -> ScoredToken:
    shift = _draw(before) // 2
    logprobs, order = _ranks(position_divergence(before, divergence))
    own = (token * _FACTOR + shift) % VOCABULARY
    # What stands in the prompt already changes places with a likely token.
    likely = token % _LIKELY_RANKS if token in before else own
    moved = {own: likely, likely: own}
    by_rank = [((moved.get(rank, rank) - shift) * _INVERSE) % VOCABULARY for rank in order[:num_top]]
    return ScoredToken(
        token=token,
        logprob=logprobs[likely],
        top_tokens=tuple(by_rank),
        top_logprobs=tuple(logprobs[rank] for rank in order[:num_top]),
    )


@functools.cache
def _ranks(divergence: float) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """The logarithm of each rank's probability, and ranks from the likeliest, at this divergence from the reference."""
    low, high = 0.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        if divergence_of(reference(), moved_by(middle)) < divergence:
            low = middle
        else:
            high = middle
    logprobs = moved_by(low) if divergence else reference()
    return logprobs, tuple(sorted(range(VOCABULARY), key=lambda rank: (-logprobs[rank], rank)))


def divergence_of(first: Sequence[float], second: Sequence[float]) -> float:
    """Σ p log(p ÷ q) in nats, from logarithms of probabilities."""
    return sum(exp(one) * (one - other) for one, other in zip(first, second, strict=True))


@functools.cache
def reference() -> tuple[float, ...]:
    """The logarithm of each rank's probability where nothing is moved."""
    return moved_by(0.0)


def moved_by(strength: float) -> tuple[float, ...]:
    """The logarithm of each rank's probability, moved by strength · cos(rank)."""
    raw = [-2 * log(rank + 2) + strength * cos(rank) for rank in range(VOCABULARY)]
    most = max(raw)
    total = most + log(sum(exp(value - most) for value in raw))
    return tuple(value - total for value in raw)
