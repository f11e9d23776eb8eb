"""What keeping only the windows of a sliding cache saved, and what the next turn of the conversation lost by it."""

from collections.abc import Sequence
from statistics import median

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.design_claims.buffers import buffer_findings, predicted_difference
from kvscope.analysis.design_claims.changed import block_pairs, evidence, memory_findings, named, time_findings
from kvscope.analysis.effects import Effect, paired_effect
from kvscope.analysis.finding import Finding
from kvscope.analysis.levels import at_level, error_rates, level_key
from kvscope.analysis.prompt_copies import stated_checkpoints
from kvscope.record.rows import DesignRow, Json


def claims(design: DesignRow, attempts: Sequence[Attempt]) -> tuple[Finding, ...]:
    """Bytes, then reuse, then checkpoints, then times."""
    return (
        *buffer_findings(design, attempts, "kv_cache"),
        *memory_findings(
            design,
            attempts,
            "memory_loaded_bytes",
            lambda level: predicted_difference(design, attempts, level, "kv_cache"),
        ),
        *_reuse(design, attempts),
        *_checkpoints(design, attempts),
        *time_findings(design, attempts),
    )


def cached_tokens(attempt: Attempt) -> float | None:
    """Of the last measured request."""
    requests = attempt.measured_requests
    count = requests[-1].cached_tokens if requests else None
    return None if count is None else float(count)


def _reuse(design: DesignRow, attempts: Sequence[Attempt]) -> list[Finding]:
    base_key = level_key(design.baseline_level)
    found = []
    for level in (x for x in design.levels if level_key(x) != base_key):
        pairs = block_pairs(design, attempts, level, cached_tokens)
        if pairs:
            effect = paired_effect("cached_tokens", pairs, rates=error_rates(design))
            found.append(_reuse_finding(design, attempts, level, effect))
    return found


def _reuse_finding(design: DesignRow, attempts: Sequence[Attempt], level: Json, effect: Effect) -> Finding:
    prompts = [a.prompt_tokens for a in at_level(attempts, level) if a.is_measured and a.prompt_tokens is not None]
    is_equal = effect.difference.value == 0
    return Finding(
        slug="reuse_equal"
        if is_equal
        else "reuse_unclear"
        if effect.verdict == "no_difference_seen"
        else "reuse_differs",
        values={
            **named(design, level),
            "cached_tokens": effect.changed,
            "baseline_cached_tokens": effect.baseline,
            "prompt_tokens": median(prompts) if prompts else None,
        },
        evidence=evidence(design, attempts, level),
        size=effect.difference,
        also_possible=("answers_differ",) if not is_equal else (),
        how_to_check="cached_column",
    )


def _checkpoints(design: DesignRow, attempts: Sequence[Attempt]) -> list[Finding]:
    """What the copies of the windows' state take at each level that has some."""
    found = []
    for level in design.levels:
        measured = [a for a in at_level(attempts, level) if a.is_measured]
        held = [_held_checkpoints(a) for a in measured]
        counts, sizes = [count for count, _ in held], [size for _, size in held]
        if any(counts):
            found.append(
                Finding(
                    slug="window_checkpoints",
                    values={
                        **named(design, level),
                        "count": median(counts),
                        "held_bytes": median(sizes),
                    },
                    evidence=tuple(a.key for a in measured),
                    how_to_check="engine_lines",
                )
            )
    return found


def _held_checkpoints(attempt: Attempt) -> tuple[int, int]:
    """How many the engine holds after the last request, and their bytes by its log."""
    buffers = (
        stated_checkpoints(attempt.result, attempt.measured_requests[-1].index) if attempt.measured_requests else []
    )
    return len(buffers), sum(buffer.num_bytes for buffer in buffers)
