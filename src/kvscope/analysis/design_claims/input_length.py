"""How TTFT grows with the prompt: a part for each token, and one for each pair of tokens, since each looks back at all
before it."""

from collections.abc import Sequence

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.design_claims.changed import time_findings
from kvscope.analysis.finding import Finding
from kvscope.analysis.fit import Parabola, scaled
from kvscope.analysis.latency import ttft_parabola
from kvscope.record.rows import DesignRow

_THOUSAND = 1000
# Fewer repeats than this give an interval too wide to tell a bend by.
_FEW_BLOCKS = 2


def claims(design: DesignRow, attempts: Sequence[Attempt]) -> tuple[Finding, ...]:
    """The law's two parts, each with its interval. Where they cannot be told, or of fewer than three lengths, the
    differences from the shortest too: that TTFT grows is told by fewer repeats than how."""
    measured = [a for a in attempts if a.is_measured]
    lengths = sorted({a.prompt_tokens for a in measured if a.prompt_tokens})
    law = ttft_parabola(attempts)
    if law.num == 0 or len(lengths) < 3:
        return time_findings(design, attempts, ("ttft_s",))
    keys = tuple(a.key for a in measured)
    linear, quadratic = _linear(law, lengths, keys), _quadratic(law, lengths, keys)
    if linear.slug == "input_length_linear":
        return linear, quadratic
    return (*time_findings(design, attempts, ("ttft_s",)), linear, quadratic)


def _linear(law: Parabola, lengths: Sequence[int], keys: tuple[str, ...]) -> Finding:
    size = scaled(law.linear, _THOUSAND)
    slug = "input_length_linear"
    if size.low is not None and size.low <= 0:
        slug = "input_length_linear_unclear"
    return Finding(
        slug=slug,
        values={
            "linear_s": size.value,
            "intercept_s": law.intercept.value,
            "from_tokens": lengths[0],
            "to_tokens": lengths[-1],
            "blocks": law.num,
        },
        evidence=keys,
        size=size,
        also_possible=("busy_machine",),
        how_to_check="more_repeats",
    )


def _quadratic(law: Parabola, lengths: Sequence[int], keys: tuple[str, ...]) -> Finding:
    longest = lengths[-1]
    size = scaled(law.quadratic, _THOUSAND**2)
    low, high = size.low, size.high
    if law.num < _FEW_BLOCKS or low is None or high is None:
        slug = "input_length_quadratic_unknown"
    elif low > 0:
        slug = "input_length_quadratic"
    elif high < 0:
        slug = "input_length_bends_down"
    else:
        slug = "input_length_quadratic_not_seen"
    total = law.at(longest)
    part = None if law.quadratic.value is None else law.quadratic.value * longest**2
    most = None if law.quadratic.high is None else law.quadratic.high * longest**2
    return Finding(
        slug=slug,
        values={
            "quadratic_s": size.value,
            "longest_tokens": longest,
            "part_s": part,
            "most_s": most,
            "total_s": total,
            "share": None if part is None or not total else part / total,
            "further_tokens": 2 * longest,
            "further_s": law.at(2 * longest),
            "blocks": law.num,
        },
        evidence=keys,
        size=size,
        also_possible=("caches_of_processor",) if slug == "input_length_quadratic" else ("busy_machine",),
        how_to_check="measure_further" if slug == "input_length_quadratic" else "until_narrow",
    )
