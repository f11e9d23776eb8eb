"""What one more token of context limit costs when the model loads: measured, with its interval, against predicted."""

from collections.abc import Sequence

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.finding import Finding
from kvscope.analysis.fit import CONFIDENCE, Estimate, t_quantile
from kvscope.analysis.growth import ContextGrowth, context_growth
from kvscope.record.rows import DesignRow

# A measured slope further from the predicted one than this is a contradiction, if its interval excludes it as well.
SLOPE_SHARE = 0.01
# Of a thousand studies whose memory is as predicted so many may call it a contradiction, over all that they compare.
FALSE_ALARMS = 0.001


def claims(design: DesignRow, attempts: Sequence[Attempt]) -> tuple[Finding, ...]:
    """Bytes per token of context. Nothing where memory was not read or one limit alone was measured."""
    context = context_growth(attempts)
    return () if context is None else growth_findings(context)


def growth_findings(context: ContextGrowth) -> tuple[Finding, ...]:
    """Measured against predicted bytes per token: one slope where the prediction is straight, else step by step."""
    if not context.is_straight:
        return tuple(
            _compared("step", s.measured, s.predicted, context, (s.from_tokens, s.to_tokens), s.measured.num - 1)
            for s in context.steps
        )
    levels = [x for x, _ in context.points]
    slope = context.measured.slope
    if slope.value is None:
        return ()
    ends = (levels[0], levels[-1])
    return (_compared("slope", slope, context.predicted.slope.value, context, ends, slope.num - 2),)


def _compared(
    kind: str,
    measured: Estimate,
    predicted: float | None,
    context: ContextGrowth,
    span: tuple[int, int],
    degrees: int,
) -> Finding:
    values: dict[str, object] = {
        "measured_bytes": measured.value,
        "predicted_bytes": predicted,
        "from_tokens": span[0],
        "to_tokens": span[1],
    }
    if measured.value is None or predicted is None:
        return Finding(slug=f"{kind}_measured", values=values, evidence=context.evidence, size=measured)
    share = _apart(measured.value, predicted)
    is_off = abs(share) > SLOPE_SHARE
    is_excluded = _is_excluded(measured, predicted, degrees, 1 if context.is_straight else len(context.steps))
    verdict = "differs" if is_off and is_excluded else ("unclear" if is_off else "agrees")
    likely = ("other_buffers_follow_context", "reused_heap") if is_off else ()
    return Finding(
        slug=f"{kind}_{verdict}",
        is_contradiction=is_off and is_excluded,
        values={**values, "share": share},
        evidence=context.evidence,
        size=measured,
        also_possible=("prediction_excluded", *likely) if is_excluded and not is_off else likely,
        how_to_check="more_context_levels" if is_off else None,
    )


def _is_excluded(measured: Estimate, predicted: float, degrees: int, comparisons: int) -> bool:
    """Whether the prediction is outside the interval that holds for all comparisons together (Bonferroni), with
    FALSE_ALARMS to be wrong: the 95 % interval, as wide as Student's t at these degrees of freedom makes that."""
    if measured.value is None or measured.low is None or measured.high is None:
        return False
    wider = t_quantile(degrees, 1 - FALSE_ALARMS / comparisons) / t_quantile(degrees, CONFIDENCE)
    return abs(measured.value - predicted) > wider * (measured.high - measured.low) / 2


def _apart(measured: float, predicted: float) -> float:
    """The difference as a share of the prediction; anything at all is the whole of it where nothing was predicted."""
    if predicted:
        return (measured - predicted) / predicted
    return 0.0 if measured == 0 else 1.0 if measured > 0 else -1.0
