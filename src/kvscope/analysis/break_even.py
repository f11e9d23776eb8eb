"""From how many questions on, or up to which size, the whole document is cheaper than passages of it.

With the whole document first and the question last, a first question costs ``cold`` (everything is read) and each later
one ``warm`` (only the question is). Passages cost ``each`` for every question. N questions cost

    whole     cold + (N − 1) · warm
    passages  N · each

and both are equal at N = (cold − warm) ÷ (each − warm): the same in seconds, and in tokens that are computed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isinf, sqrt
from statistics import fmean

from kvscope.analysis.fit import CONFIDENCE, Estimate, mean, t_quantile
from kvscope.analysis.notes import note

# Beyond so many tokens no size is looked for.
MOST_TOKENS = 16_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Of one repeat, in seconds or in tokens: the first question on the whole document, each later one, and one on
    passages."""

    cold: float
    warm: float
    each: float


def break_even(costs: Costs) -> float:
    """The number of questions at which both ways cost the same: with more of them the whole document is cheaper.
    Infinite where a question on passages costs no more than a later one on the whole document; 1 where the whole
    document is cheaper from the first question on (nobody asks less than one)."""
    return inf if costs.each <= costs.warm else max(1.0, (costs.cold - costs.warm) / (costs.each - costs.warm))


def measured_break_even(repeats: Sequence[Costs]) -> Estimate:
    """The same of several repeats, with its 95 % interval. ``value`` is None, without a reason, where there is no
    break-even: the repeats tell that a question on passages costs no more than a later one on the whole. Where they do
    not tell that either way the reason is ``each_not_told``: the quotient has no bounded interval; ``low`` is what it
    is beyond, where that is known. One repeat tells nothing (``one_repeat``)."""
    if not repeats:
        return Estimate(value=None, reason=note("nothing_measured"))
    pairs = [(each.cold - each.warm, each.each - each.warm) for each in repeats]
    value = break_even(_mean_costs(repeats))
    known = None if isinf(value) else value
    if len(repeats) == 1:
        return Estimate(value=known, num=1, reason=note("one_repeat"))
    width = t_quantile(len(pairs) - 1, CONFIDENCE)
    limits = quotient_limits(pairs, width)
    if limits is not None and known is not None:
        return Estimate(value=known, low=max(1.0, limits[0]), high=max(1.0, limits[1]), num=len(repeats))
    dearer = mean([y for _, y in pairs])
    if dearer.high is not None and dearer.high <= 0:
        return Estimate(value=None, num=len(repeats))
    return Estimate(value=known, low=least_quotient(pairs, width), num=len(repeats), reason=note("each_not_told"))


def _mean_costs(repeats: Sequence[Costs]) -> Costs:
    return Costs(
        cold=fmean(each.cold for each in repeats),
        warm=fmean(each.warm for each in repeats),
        each=fmean(each.each for each in repeats),
    )


def quotient_limits(pairs: Sequence[tuple[float, float]], width: float) -> tuple[float, float] | None:
    """Fieller's limits (1954) of the quotient of the means of paired x and y: the numbers q at which the mean of
    x − q · y lies exactly ``width`` standard errors from 0. None where they do not bound it, the mean of y not being
    told from 0."""
    xx, xy, yy = _excess(pairs, width)
    if yy <= 0:
        return None
    root = sqrt(max(0.0, xy * xy - xx * yy))
    return (xy - root) / yy, (xy + root) / yy


def least_quotient(pairs: Sequence[tuple[float, float]], width: float) -> float | None:
    """Where the limits do not bound it: the number that the quotient is not below, if it is above 0 at all. None where
    the mean of x is not told from 0 either, or is below it: then it may be any number."""
    xx, xy, yy = _excess(pairs, width)
    if xx <= 0 or yy >= 0 or fmean(a for a, _ in pairs) <= 0:
        return None
    return max(1.0, (xy - sqrt(xy * xy - xx * yy)) / yy)


def _excess(pairs: Sequence[tuple[float, float]], width: float) -> tuple[float, float, float]:
    """Squares and product of the means of x and y, each less ``width``² times its own error."""
    count = len(pairs)
    x, y = fmean(a for a, _ in pairs), fmean(b for _, b in pairs)
    scale = width**2 / (count * (count - 1))
    xx = x * x - scale * sum((a - x) ** 2 for a, _ in pairs)
    yy = y * y - scale * sum((b - y) ** 2 for _, b in pairs)
    xy = x * y - scale * sum((a - x) * (b - y) for a, b in pairs)
    return xx, xy, yy


# --- how long reading takes ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """``tokens`` read behind ``start`` that were kept, in ``seconds`` until the first token of the answer."""

    start: int
    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingLaw:
    """Seconds until the first token: ``fixed_s`` for a request, ``per_token_s`` for each token that is read, and
    ``per_pair_s`` · ((start + tokens)² − start²) for the attention of each to all before it. ``num``: of how many
    requests it was made."""

    fixed_s: float
    per_token_s: float
    per_pair_s: float
    num: int

    def seconds(self, start: int, tokens: int) -> float:
        """To read ``tokens`` behind ``start`` that are kept."""
        return self.fixed_s + self.per_token_s * tokens + self.per_pair_s * _pairs(start, tokens)

    def costs(self, *, whole_tokens: int, warm_tokens: int, each_tokens: int, each_start: int = 0) -> Costs:
        """Of a whole document whose first prompt has ``whole_tokens`` to read and whose later ones ``warm_tokens`` at
        its end, and of passages with ``each_tokens``."""
        return Costs(
            cold=self.seconds(0, whole_tokens),
            warm=self.seconds(max(0, whole_tokens - warm_tokens), warm_tokens),
            each=self.seconds(each_start, each_tokens),
        )


# The parts that a law may have, the richest first: 0 for a request, 1 for each token, 2 for pairs of tokens.
_TERMS = ([0, 1, 2], [0, 1], [1, 2], [1])


def _pairs(start: int, tokens: int) -> float:
    return float((start + tokens) ** 2 - start**2)


def reading_law(reads: Sequence[Read]) -> ReadingLaw | None:
    """The law through requests, each counted by its share of error (a long wait is not worth more than a short one):
    least squares of which no part is below 0 (scipy's nnls). Parts that the requests cannot tell apart are left out of
    it. None where they say nothing: fewer than two different ones."""
    import numpy as np
    from scipy.optimize import nnls

    usable = [read for read in reads if read.tokens > 0 and read.seconds > 0]
    if len({(read.start, read.tokens) for read in usable}) < 2:
        return None
    features = np.array([(1.0, float(read.tokens), _pairs(read.start, read.tokens)) for read in usable])
    scales = features.max(axis=0)
    rows = features / scales / np.array([[read.seconds] for read in usable])
    terms = next(each for each in _TERMS if np.linalg.matrix_rank(rows[:, each]) == len(each))
    found, _ = nnls(rows[:, terms], np.ones(len(usable)))
    parts = dict(zip(terms, found / scales[terms], strict=True))
    return ReadingLaw(
        fixed_s=float(parts.get(0, 0.0)),
        per_token_s=float(parts[1]),
        per_pair_s=float(parts.get(2, 0.0)),
        num=len(usable),
    )


# --- up to which size -----------------------------------------------------------------------------------------------


def equal_tokens(questions: int, *, warm_tokens: float, each_tokens: float) -> float:
    """The size of a document at which ``questions`` questions compute as many tokens both ways: a smaller one is
    cheaper given whole; 0 where none is. From S + (questions − 1) · warm = questions · each."""
    return max(0.0, questions * each_tokens - (questions - 1) * warm_tokens)


def equal_size(law: ReadingLaw, questions: int, *, warm_tokens: int, each_tokens: int) -> float | None:
    """The same on time, by a law of reading: the tokens of a document at which both ways take as long. None where even
    the largest document that is looked at is cheaper given whole; 0 where none is."""
    passages_s = questions * law.seconds(0, each_tokens)

    def whole_s(tokens: int) -> float:
        costs = law.costs(whole_tokens=tokens, warm_tokens=min(warm_tokens, tokens), each_tokens=each_tokens)
        return costs.cold + (questions - 1) * costs.warm

    low, high = 0, MOST_TOKENS
    if whole_s(high) <= passages_s:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if whole_s(middle) <= passages_s else (low, middle)
    return float(low)
