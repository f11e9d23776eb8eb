"""Time against tokens: the wait for the first token, and the time of every later one."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.fit import CONFIDENCE, Estimate, Line, Parabola, fit_line, fit_quadratic, mean

# A time that changes by less than this share of where it began, over all its lengths, is called flat.
FLAT_SHARE = 0.05
# A line is told of so many lengths, each with so many repeats, and of steps that are off its slope by this share at
# most, or lie in its interval.
LINE_LEVELS = 3
LINE_REPEATS = 2
LINE_SHARE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """From one level to the next: the change of a time per token between them."""

    from_tokens: int
    to_tokens: int
    per_token_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLaw:
    """A time against a number of tokens. ``levels``: tokens → mean with its interval. ``steps`` show, level by level,
    what the line averages over."""

    line: Line
    points: tuple[tuple[int, float], ...]
    levels: tuple[tuple[int, Estimate], ...]
    steps: tuple[Step, ...]
    evidence: tuple[str, ...]

    @property
    def bends_up(self) -> bool:
        """The time grows faster than the tokens: the whole interval of the coefficient of x² is above zero."""
        return self.line.bend.low is not None and self.line.bend.low > 0

    @property
    def is_line(self) -> bool:
        """Whether one price for each token may be told: it takes three lengths, each repeated, no bend, no time below
        zero where the line begins, and first and last steps that its slope is true of."""
        slope, first = self.line.slope, self.line.at(self.levels[0][0])
        if len(self.levels) < LINE_LEVELS or min(each.num for _, each in self.levels) < LINE_REPEATS:
            return False
        if self.bends_up or slope.value is None or first is None or first <= 0:
            return False
        if self.line.intercept_high is not None and self.line.intercept_high < 0:
            return False
        ends = (self.steps[0].per_token_s, self.steps[-1].per_token_s)
        return all(slope.contains(each) or abs(each - slope.value) <= LINE_SHARE * abs(slope.value) for each in ends)

    @property
    def trend(self) -> str:
        """grows or falls: the whole interval is on that side of zero. flat: over the whole span the change is within
        FLAT_SHARE of where it began, whatever its sign. unclear: none of these can be said; without an interval
        always."""
        slope, start = self.line.slope, self.levels[0][1].value
        if slope.low is None or slope.high is None or start is None:
            return "unclear"
        span = self.levels[-1][0] - self.levels[0][0]
        if max(abs(slope.low), abs(slope.high)) * span <= FLAT_SHARE * start:
            return "flat"
        if slope.low > 0:
            return "grows"
        return "falls" if slope.high < 0 else "unclear"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputLimit:
    """The limit set and the tokens produced, of the attempts at one level."""

    limit_tokens: int
    produced_tokens: tuple[int, ...]

    @property
    def is_reached(self) -> bool:
        return all(count == self.limit_tokens for count in self.produced_tokens)


def ttft_law(attempts: Sequence[Attempt]) -> TimeLaw | None:
    """Time to first token against prompt tokens as the server counted them."""
    return time_law(attempts, lambda a: a.prompt_tokens, lambda a: a.metrics.ttft_s)


def ttft_parabola(attempts: Sequence[Attempt], *, confidence: float = CONFIDENCE) -> Parabola:
    """TTFT = intercept + linear · n + quadratic · n² for n prompt tokens as the server counted them, paired by block.
    Its parts have no value where no block has three lengths."""
    points = [
        (a.trial.block, float(a.prompt_tokens), a.metrics.ttft_s)
        for a in attempts
        if a.is_measured and a.prompt_tokens and a.metrics.ttft_s is not None
    ]
    return fit_quadratic(points, confidence=confidence)


def tpot_law(attempts: Sequence[Attempt]) -> TimeLaw | None:
    """Time per later token against prompt tokens: what one more token costs with that much behind it."""
    return time_law(attempts, lambda a: a.prompt_tokens, lambda a: a.metrics.tpot_s)


def completion_law(attempts: Sequence[Attempt]) -> TimeLaw | None:
    """Completion time against output tokens really produced."""
    return time_law(attempts, lambda a: a.output_tokens, lambda a: a.metrics.completion_s)


def tpot_by_output(attempts: Sequence[Attempt]) -> TimeLaw | None:
    """Time per later token against output tokens really produced."""
    return time_law(attempts, lambda a: a.output_tokens, lambda a: a.metrics.tpot_s)


def time_law(
    attempts: Sequence[Attempt], tokens: Callable[[Attempt], int | None], seconds: Callable[[Attempt], float | None]
) -> TimeLaw | None:
    """The law through all measured attempts that have both numbers; None if none has."""
    points, evidence = [], []
    for attempt in attempts:
        x, y = tokens(attempt), seconds(attempt)
        if attempt.is_measured and x is not None and y is not None:
            points.append((x, y))
            evidence.append(attempt.key)
    if not points:
        return None
    at_level: dict[int, list[float]] = {}
    for x, y in points:
        at_level.setdefault(x, []).append(y)
    levels = [(x, mean(at_level[x], floor=0.0)) for x in sorted(at_level)]
    return TimeLaw(
        line=fit_line(points),
        points=tuple(sorted(points)),
        levels=tuple(levels),
        steps=_steps(levels),
        evidence=tuple(evidence),
    )


def _steps(levels: Sequence[tuple[int, Estimate]]) -> tuple[Step, ...]:
    steps = []
    for (low, before), (high, after) in itertools.pairwise(levels):
        if before.value is not None and after.value is not None:
            steps.append(Step(from_tokens=low, to_tokens=high, per_token_s=(after.value - before.value) / (high - low)))
    return tuple(steps)


def output_limits(attempts: Sequence[Attempt]) -> tuple[OutputLimit, ...]:
    """Limit against what was produced, by limit."""
    produced: dict[int, list[int]] = {}
    for attempt in attempts:
        if not attempt.is_measured:
            continue
        for request in attempt.measured_requests:
            if request.output_tokens is not None:
                produced.setdefault(request.output_tokens_limit, []).append(request.output_tokens)
    return tuple(OutputLimit(limit_tokens=n, produced_tokens=tuple(v)) for n, v in sorted(produced.items()))
