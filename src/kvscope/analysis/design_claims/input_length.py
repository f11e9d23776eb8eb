"""How TTFT grows with the prompt: a part for each token, and one for each pair of tokens, since each looks back at all
before it."""

from collections.abc import Sequence

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.design_claims.changed import time_findings
from kvscope.analysis.finding import Finding
from kvscope.analysis.fit import Parabola, scaled
from kvscope.analysis.latency import ttft_parabola
from kvscope.analysis.levels import error_rates
from kvscope.record.rows import DesignRow

_THOUSAND = 1000
# Fewer repeats than this give an interval too wide to tell a bend by.
_FEW_BLOCKS = 2
# Up to this share of the whole wait a part that was not seen may be.
_MOST_SHARE = 0.5


def claims(design: DesignRow, attempts: Sequence[Attempt]) -> tuple[Finding, ...]:
    """The law's two parts, each with its interval; without intervals (one repeat) no law. Where they cannot be told, or
    of fewer than three lengths, the differences from the shortest too: that TTFT grows is told by fewer repeats than
    how. A part is told by the slightly wider interval (``strict``) by which every difference is."""
    measured = [a for a in attempts if a.is_measured]
    lengths = sorted({a.prompt_tokens for a in measured if a.prompt_tokens})
    rates = error_rates(design)
    law, strict = (ttft_parabola(attempts, confidence=1 - error) for error in (rates.interval, rates.call))
    if law.num == 0 or len(lengths) < 3:
        return time_findings(design, attempts, ("ttft_s",))
    keys = tuple(a.key for a in measured)
    quadratic = _quadratic(law, strict, lengths, keys)
    if law.num < _FEW_BLOCKS:
        return (*time_findings(design, attempts, ("ttft_s",)), quadratic)
    linear = _linear(law, strict, lengths, keys)
    if linear.slug != "input_length_linear_unclear":
        return linear, quadratic
    return (*time_findings(design, attempts, ("ttft_s",)), linear, quadratic)


def _linear(law: Parabola, strict: Parabola, lengths: Sequence[int], keys: tuple[str, ...]) -> Finding:
    size, start = scaled(law.linear, _THOUSAND), law.intercept
    slug = "input_length_linear"
    if strict.linear.low is None or strict.linear.low <= 0:
        slug = "input_length_linear_unclear"
    elif start.high is not None and start.high < 0:
        slug = "input_length_linear_from_below"
    elif start.low is None or start.low <= 0:
        slug = "input_length_linear_start_unclear"
    return Finding(
        slug=slug,
        values={
            "linear_s": size.value,
            "intercept_s": start.value,
            "intercept_low_s": start.low,
            "intercept_high_s": start.high,
            "from_tokens": lengths[0],
            "to_tokens": lengths[-1],
            "blocks": law.num,
        },
        evidence=keys,
        size=size,
        also_possible=("busy_machine",),
        how_to_check="more_repeats",
    )


def _quadratic(law: Parabola, strict: Parabola, lengths: Sequence[int], keys: tuple[str, ...]) -> Finding:
    longest = lengths[-1]
    size = scaled(law.quadratic, _THOUSAND**2)
    low, high = strict.quadratic.low, strict.quadratic.high
    total, further = law.at(longest), law.estimate_at(2 * longest)
    part = scaled(law.quadratic, longest**2)
    if law.num < _FEW_BLOCKS or low is None or high is None:
        slug = "input_length_quadratic_unknown"
    elif low > 0:
        slug = "input_length_quadratic"
    elif high < 0:
        slug = "input_length_bends_down"
    else:
        # A part that may be all there is has not been looked for closely enough.
        is_ruled_out = (part.high or 0.0) <= _MOST_SHARE * (total or 0.0)
        slug = "input_length_quadratic_not_seen" if is_ruled_out else "input_length_quadratic_cannot_tell"
    return Finding(
        slug=slug,
        values={
            "quadratic_s": size.value,
            "longest_tokens": longest,
            "part_s": part.value,
            "part_low_s": part.low,
            "part_high_s": part.high,
            "most_s": part.high,
            "total_s": total,
            "share": None if part.value is None or not total else part.value / total,
            "further_tokens": 2 * longest,
            "further_s": further.value,
            "further_low_s": further.low,
            "further_high_s": further.high,
            "blocks": law.num,
        },
        evidence=keys,
        size=size,
        also_possible=("caches_of_processor",) if slug == "input_length_quadratic" else ("busy_machine",),
        how_to_check="measure_further" if slug == "input_length_quadratic" else "until_narrow",
    )
