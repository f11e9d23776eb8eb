"""What one more token of context limit costs when the model loads: measured, with its interval, against predicted."""

from collections.abc import Sequence

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.finding import Finding
from kvscope.analysis.fit import Estimate
from kvscope.analysis.growth import ContextGrowth, context_growth
from kvscope.record.rows import DesignRow

# A measured slope further from the predicted one than this is a contradiction, if its interval excludes it as well.
SLOPE_SHARE = 0.01


def claims(design: DesignRow, attempts: Sequence[Attempt]) -> tuple[Finding, ...]:
    """Bytes per token of context. Nothing where memory was not read or one limit alone was measured."""
    context = context_growth(attempts)
    return () if context is None else growth_findings(context)


def growth_findings(context: ContextGrowth) -> tuple[Finding, ...]:
    """Measured against predicted bytes per token: one slope where the prediction is straight, else step by step."""
    if not context.is_straight:
        return tuple(
            _compared("step", s.measured, s.predicted, context, (s.from_tokens, s.to_tokens)) for s in context.steps
        )
    levels = [x for x, _ in context.points]
    slope = context.measured.slope
    if slope.value is None:
        return ()
    return (_compared("slope", slope, context.predicted.slope.value, context, (levels[0], levels[-1])),)


def _compared(
    kind: str, measured: Estimate, predicted: float | None, context: ContextGrowth, span: tuple[int, int]
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
    is_excluded = measured.has_interval and not measured.contains(predicted)
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


def _apart(measured: float, predicted: float) -> float:
    """The difference as a share of the prediction; anything at all is the whole of it where nothing was predicted."""
    if predicted:
        return (measured - predicted) / predicted
    return 0.0 if measured == 0 else 1.0 if measured > 0 else -1.0
