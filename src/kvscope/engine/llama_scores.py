"""How likely a text is, as llama.cpp's server computes it: one forced token a request.

Its ``echo`` is ignored, so a prompt's own tokens have no log-probabilities. But ``/completion`` with a bias of ten
thousand on one token answers with that token, and states its log-probability by the *raw* logits (before the bias),
with the likeliest tokens beside it. What was computed for the prompt is kept, so each position costs one token.

Nothing is believed that the reply does not show: that the forced token came, that the distribution is without bias,
and that one token (or, ``is_fresh``, the whole prefix) was computed for it. Otherwise EngineReplyError.
"""

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from kvscope.engine.base import ScoredToken, ScoreRequest, TokenScores
from kvscope.engine.http_client import Limits, Reply
from kvscope.engine.openai_http import body_text, json_object
from kvscope.engine.openai_text import check_prompt
from kvscope.errors import EngineReplyError

BIAS = 1e4
TOKENIZE_TIMEOUT_S = 60.0
# A reply's bytes for each of the likeliest tokens, and beside them (the prompt as text, the settings).
_BYTES_PER_TOP = 1024
_BYTES_BESIDE = 16 * 1024 * 1024
# llama.cpp writes the lowest float32 for the logarithm of a probability that float32 has no number for.
_LOWEST = -1e30
# Probabilities of the likeliest tokens sum to at most 1; float32 sums over a vocabulary are off by 2e-4 (measured).
_SUM_SLACK = 1e-2
# More than any vocabulary: the server then lists all of it.
_WHOLE_VOCABULARY = 2**22
_FIRST_WIDER = 1024

# A token id of llama.cpp is a signed 32-bit number.
_LIMIT_ID = 2**31

# A sliding-window model goes back to a checkpoint and computes the few tokens after it again (5 or 6, measured).
_A_FEW = 32

_FRESH = "the whole prefix anew in one pass"
_ONE = "one token a pass on the kept prompt"
_FEW = "the last few tokens a pass on the kept prompt"

Post = Callable[[str, object, Limits], Awaitable[Reply]]


async def tokenize(post: Post, text: str, *, with_special: bool, timeout_s: float) -> tuple[int, ...]:
    """As ``Engine.tokenize``, by /tokenize. Raises EngineReplyError where the reply holds no ids."""
    body = {"content": text, "add_special": with_special, "parse_special": True}
    reply = await post("/tokenize", body, Limits(timeout_s=timeout_s, stall_s=timeout_s))
    tokens = json_object(body_text(reply)).get("tokens")
    if not isinstance(tokens, list) or not all(_is_count(token) for token in tokens):
        raise EngineReplyError("The server's reply to /tokenize holds no tokens.", hint="Is it llama.cpp's server?")
    return tuple(tokens)


class LlamaScores:
    """Scores over one connection (``post``). ``version``: of the engine, for the name of the pattern. ``fields``: sent
    with each request, such as the served model's name."""

    def __init__(self, post: Post, *, version: str, fields: Mapping[str, Any] | None = None) -> None:
        self._post = post
        self._version = version
        self._fields = dict(fields or {})
        self._slot: int | None = None
        # Tokens that end within a character: the server states nothing of an answer that is only such a token.
        self._partial: set[int] = set()
        self._plain: int | None = None

    async def score(self, request: ScoreRequest) -> TokenScores:
        """As ``Engine.score``. Raises UsageError for an empty prompt, EngineReplyError as in the module's docstring."""
        prefix = list(request.prompt)
        check_prompt(request)
        tokens: list[ScoredToken] = []
        counts: list[int] = []
        for token in request.continuation:
            found, computed = await self._position(prefix, token, request)
            if not tokens and computed > 1 and not request.is_fresh:
                # The prompt was computed just now; ask again, so that this position is like those after it.
                found, computed = await self._position(prefix, token, request)
            _check_computed(computed, len(prefix), is_fresh=request.is_fresh)
            tokens.append(found)
            counts.append(computed)
            prefix.append(token)
        total = sum(len(request.prompt) + position for position in range(len(tokens)))
        way = _FRESH if request.is_fresh else _ONE if max(counts, default=1) == 1 else _FEW
        return TokenScores(
            tokens=tuple(tokens),
            # The engine's softmax sums in the order that it sorted the likeliest tokens in.
            pattern=f"llama.cpp {self._version}: {way}, n_probs {_num_listed(request)}",
            prompt_tokens=total,
            cached_tokens=total - sum(counts),
        )

    async def _position(self, prefix: Sequence[int], token: int, request: ScoreRequest) -> tuple[ScoredToken, int]:
        """The score of ``token`` after ``prefix``, and how many tokens were computed for it."""
        num_top = _num_listed(request)
        if token not in self._partial:
            reply = await self._forced(prefix, token, num_top, request)
            top = _top_of(reply, forced=token, num_top=num_top)
            if top is not None:
                return _scored(token, _logprob_of(reply), top[: request.num_top]), _computed(reply, len(prefix))
            self._partial.add(token)
        return await self._by_list(prefix, token, num_top, request)

    async def _by_list(
        self, prefix: Sequence[int], token: int, num_top: int, request: ScoreRequest
    ) -> tuple[ScoredToken, int]:
        """The same out of the list beside another forced token, which is made longer until ``token`` is in it."""
        if self._plain is None:
            self._plain = (await tokenize(self._post, "a", with_special=False, timeout_s=request.timeout_s))[-1]
        for length in (max(num_top, _FIRST_WIDER), _WHOLE_VOCABULARY):
            reply = await self._forced(prefix, self._plain, length, request)
            top = _top_of(reply, forced=self._plain, num_top=num_top)
            if top is None:
                raise _unusable("states no log-probabilities", "It ignores n_probs, or has it turned off.")
            found = next((logprob for each, logprob in top if each == token), None)
            if found is not None:
                return _scored(token, found, top[: request.num_top]), _computed(reply, len(prefix))
        raise EngineReplyError(
            f"The server does not state how likely token {token} is: it is not in its list of the whole vocabulary.",
            hint="Is it a token of this model? Use ids that its own tokenizer gives.",
            evidence={"known_by": "message"},
        )

    async def _forced(
        self, prefix: Sequence[int], token: int, num_top: int, request: ScoreRequest
    ) -> Mapping[str, Any]:
        body: dict[str, Any] = {
            **self._fields,
            "prompt": prefix,
            "n_predict": 1,
            "n_probs": num_top,
            "logit_bias": [[token, BIAS]],
            # One sampler, so that the server sorts no vocabulary: the bias is applied before it.
            "samplers": ["top_k"],
            "top_k": 1,
            "temperature": 0,
            "post_sampling_probs": False,
            "cache_prompt": not request.is_fresh,
            "stream": False,
        }
        if self._slot is not None:
            body["id_slot"] = self._slot
        limits = Limits(
            timeout_s=request.timeout_s,
            stall_s=request.timeout_s,
            max_bytes=_BYTES_BESIDE + _BYTES_PER_TOP * min(num_top, 2**19),
        )
        reply = json_object(body_text(await self._post("/completion", body, limits)))
        if _is_count(reply.get("id_slot")):
            self._slot = reply["id_slot"]
        return reply


def _top_of(reply: Mapping[str, Any], *, forced: int, num_top: int) -> list[tuple[int, float]] | None:
    """The likeliest tokens and their log-probabilities, likeliest first; None where none are stated: so it is of an
    answer that ends within a character. Raises EngineReplyError for another token than the forced one, and for what is
    no raw distribution."""
    entries = reply.get("completion_probabilities")
    if not entries:
        return None
    try:
        came, stated = entries[0]["id"], _logprob_of(reply)
        top = [(_token_id(each["id"]), _finite(each["logprob"])) for each in entries[0]["top_logprobs"]]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise _unusable(
            "states log-probabilities in a form that is not known here",
            "llama.cpp's server does since December 2024; older ones state probabilities of cut distributions.",
        ) from error
    if not _is_count(came) or came != forced:
        raise _unusable(
            f"answered with token {came} where {forced} was forced",
            "It does not obey logit_bias, or has no such token.",
        )
    _check_raw(top, forced, stated, num_top)
    return top


def _check_raw(top: Sequence[tuple[int, float]], forced: int, stated: float, num_top: int) -> None:
    """Raises EngineReplyError where the list is cut short, out of order, biased, or says otherwise of the forced token
    than the answer itself."""
    total = math.fsum(math.exp(logprob) for _, logprob in top)
    if len(top) < num_top and not abs(total - 1) < _SUM_SLACK:
        raise _unusable(f"lists {len(top)} of the {num_top} likeliest tokens", "It limits how many it states.")
    has_twice = len({token for token, _ in top}) < len(top)
    if has_twice or any(after > before for (_, before), (_, after) in pairwise(top)) or total > 1 + _SUM_SLACK:
        raise _unusable(
            "lists log-probabilities that are none", "They are out of order, of a token twice, or sum to more than 1."
        )
    if len(top) > 1 and top[1][1] < top[0][1] - BIAS / 2:
        raise _unusable(
            "states the distribution after the bias", "It is another build of llama.cpp than is known here."
        )
    listed = next((logprob for token, logprob in top if token == forced), None)
    if stated > top[-1][1] if listed is None else listed != stated:
        raise _unusable("states two log-probabilities for one token", "It is another build than is known here.")


def _logprob_of(reply: Mapping[str, Any]) -> float:
    return _finite(reply["completion_probabilities"][0]["logprob"])


def _token_id(stated: Any) -> int:
    """Raises TypeError, ValueError for no token id."""
    if isinstance(stated, bool) or not isinstance(stated, int):
        raise TypeError("no token id")
    if not 0 <= stated < _LIMIT_ID:
        raise ValueError("no token id")
    return stated


def _finite(stated: Any) -> float:
    """A log-probability. Below what float32 holds it is minus infinity. Raises TypeError, ValueError, OverflowError for
    none."""
    if isinstance(stated, bool) or not isinstance(stated, int | float):
        raise TypeError("no number")
    if math.isnan(stated) or stated > _SUM_SLACK:
        raise ValueError("no log-probability")
    return -math.inf if stated < _LOWEST else float(stated)


def _scored(token: int, logprob: float, top: Sequence[tuple[int, float]]) -> ScoredToken:
    if logprob == -math.inf:
        raise EngineReplyError(
            f"llama.cpp gives token {token} a probability of 0: it is below what its numbers hold (e^-103).",
            hint="Leave this text out, or use one that the model does not hold for impossible.",
            evidence={"known_by": "message"},
        )
    return ScoredToken(
        token=token,
        logprob=logprob,
        top_tokens=tuple(each for each, _ in top),
        top_logprobs=tuple(logprob for _, logprob in top),
    )


def _computed(reply: Mapping[str, Any], prompt_tokens: int) -> int:
    """How many tokens of the prompt were computed for this reply. Raises EngineReplyError where it does not say so, or
    where it was not sent all of them. ``truncated`` alone says less: it is so of the last token that the context holds,
    too."""
    timings = reply.get("timings")
    computed: Any = timings.get("prompt_n") if isinstance(timings, Mapping) else None
    if not _is_count(computed):
        raise _unusable("does not state how many tokens it computed (timings.prompt_n)", "Use llama.cpp's own server.")
    sent = reply.get("tokens_evaluated")
    if (sent is not None and sent != prompt_tokens) or (sent is None and reply.get("truncated")):
        raise _unusable(
            f"says that it cut the prompt of {prompt_tokens} tokens"
            + ("" if sent is None else f": {sent} of them were evaluated"),
            "The text does not fit its context: use a shorter one, or a larger n_ctx.",
        )
    if not 1 <= computed <= prompt_tokens:
        raise _unusable(f"states that it computed {computed} of {prompt_tokens} tokens", "Use llama.cpp's own server.")
    return int(computed)


def _check_computed(computed: int, prompt_tokens: int, *, is_fresh: bool) -> None:
    """Raises EngineReplyError where another part of the prefix was computed than this way of scoring computes."""
    if is_fresh and computed != prompt_tokens:
        raise _unusable(
            f"computed {computed} of {prompt_tokens} tokens, though it was asked to compute them all anew",
            "It does not obey cache_prompt: it cannot be compared with fresh passes.",
        )
    if not is_fresh and computed > _A_FEW:
        raise _unusable(
            f"computed {computed} of {prompt_tokens} tokens anew where only the last one was new",
            "It keeps no prompts, or another program uses it at the same time. Run it alone, with its prompt cache on.",
        )


def _num_listed(request: ScoreRequest) -> int:
    """At least two: with one alone, a biased distribution could not be told from a sure model's."""
    return max(request.num_top, 2)


def _unusable(what: str, hint: str) -> EngineReplyError:
    return EngineReplyError(
        f"The server {what}: its log-probabilities cannot be used.", hint=hint, evidence={"known_by": "message"}
    )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
