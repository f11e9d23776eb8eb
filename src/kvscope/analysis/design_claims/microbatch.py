"""What a larger or smaller microbatch changed: the compute buffer, all memory once it was used, and TTFT."""

from collections.abc import Sequence

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.design_claims.buffers import buffer_findings, predicted_difference
from kvscope.analysis.design_claims.changed import memory_findings, named, time_findings
from kvscope.analysis.finding import Finding
from kvscope.analysis.levels import at_level
from kvscope.record.rows import DesignRow


def claims(design: DesignRow, attempts: Sequence[Attempt]) -> tuple[Finding, ...]:
    """Levels whose microbatch no prompt filled come first."""
    return (
        *_not_filled(design, attempts),
        *buffer_findings(design, attempts, "compute_buffer"),
        *memory_findings(
            design,
            attempts,
            "memory_after_bytes",
            lambda level: predicted_difference(design, attempts, level, "compute_buffer"),
        ),
        *time_findings(design, attempts, ("ttft_s",)),
    )


def _not_filled(design: DesignRow, attempts: Sequence[Attempt]) -> list[Finding]:
    """Levels above the prompt's length: no microbatch was ever full."""
    found = []
    for level in design.levels:
        measured = [a for a in at_level(attempts, level) if a.is_measured and a.prompt_tokens is not None]
        longest = max((a.prompt_tokens or 0 for a in measured), default=None)
        if longest is not None and isinstance(level, int) and longest < level:
            found.append(
                Finding(
                    slug="microbatch_not_filled",
                    values={**named(design, level), "prompt_tokens": longest},
                    evidence=tuple(a.key for a in measured),
                )
            )
    return found
