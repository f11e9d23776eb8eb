"""What each further output token takes, counted in tokens that really came; and whether later ones take longer."""

from collections.abc import Sequence

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.design_claims.changed import time_findings
from kvscope.analysis.finding import Finding
from kvscope.analysis.fit import Estimate, mean
from kvscope.analysis.latency import output_limits
from kvscope.analysis.levels import error_rates
from kvscope.record.rows import DesignRow


def claims(design: DesignRow, attempts: Sequence[Attempt]) -> tuple[Finding, ...]:
    """Seconds for each further token, paired by block; limits that were not reached; the time per token by length."""
    measured = [a for a in attempts if a.is_measured and a.output_tokens]
    lengths = sorted({a.output_tokens for a in measured if a.output_tokens})
    rates = error_rates(design)
    slope, strict = (_per_token(measured, 1 - error) for error in (rates.interval, rates.call))
    keys = tuple(a.key for a in measured)
    found = []
    if len(lengths) > 1 and slope.value is not None:
        is_told = strict.low is not None and strict.low > 0
        found.append(
            Finding(
                slug="output_length_per_token" if is_told else "output_length_per_token_unclear",
                values={"per_token_s": slope.value, "from_tokens": lengths[0], "to_tokens": lengths[-1]},
                evidence=keys,
                size=slope,
                also_possible=("busy_machine",),
                how_to_check="more_repeats",
            )
        )
    short = [limit for limit in output_limits(attempts) if not limit.is_reached]
    if short:
        fewest = min(min(limit.produced_tokens) for limit in short)
        values = {"limits": tuple(limit.limit_tokens for limit in short), "fewest": fewest}
        found.append(Finding(slug="output_length_short", values=values, evidence=keys))
    return (*found, *time_findings(design, attempts, ("tpot_s",)))


def _per_token(measured: Sequence[Attempt], confidence: float) -> Estimate:
    """Over the blocks, (longest answer − shortest) ÷ (tokens of the one − tokens of the other)."""
    slopes = []
    for block in sorted({a.trial.block for a in measured}):
        points = sorted(
            (a.output_tokens or 0, a.metrics.completion_s)
            for a in measured
            if a.trial.block == block and a.metrics.completion_s is not None
        )
        if points and points[-1][0] > points[0][0]:
            slopes.append((points[-1][1] - points[0][1]) / (points[-1][0] - points[0][0]))
    return mean(slopes, confidence=confidence)
