"""What the last of so many turns waited for its first token, and how much of its prompt was computed anew."""

from collections.abc import Sequence

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.design_claims.changed import count_span, named, time_findings
from kvscope.analysis.design_claims.turns_reuse import reuse_findings
from kvscope.analysis.finding import Finding
from kvscope.analysis.fit import mean
from kvscope.analysis.levels import at_level
from kvscope.record.metrics import computed_prompt_tokens
from kvscope.record.rows import DesignRow, Json


def claims(design: DesignRow, attempts: Sequence[Attempt]) -> tuple[Finding, ...]:
    """From which turn on nothing is reused, where that is so; each number of turns by itself, and against the
    fewest."""
    last = [finding for level in design.levels for finding in _last_turn(design, attempts, level)]
    return (*reuse_findings(design, attempts), *last, *time_findings(design, attempts, ("ttft_s",)))


def _last_turn(design: DesignRow, attempts: Sequence[Attempt], level: Json) -> list[Finding]:
    here = [a for a in at_level(attempts, level) if a.is_measured and a.metrics.ttft_s is not None]
    if not here:
        return []
    wait = mean([a.metrics.ttft_s for a in here if a.metrics.ttft_s is not None], floor=0.0)
    prompt, computed = count_span(here, level, _prompt), count_span(here, level, _computed)
    return [
        Finding(
            slug="turns_last" if computed is not None else "turns_last_unstated",
            values={
                **named(design, level),
                "turns": level,
                "ttft_s": wait.value,
                "prompt_span": prompt,
                "computed_span": computed,
            },
            evidence=tuple(a.key for a in here),
            size=wait,
            how_to_check="cached_column",
        )
    ]


def _prompt(attempt: Attempt) -> int | None:
    return attempt.measured_requests[-1].prompt_tokens_server if attempt.measured_requests else None


def _computed(attempt: Attempt) -> int | None:
    return computed_prompt_tokens(attempt.measured_requests[-1]) if attempt.measured_requests else None
