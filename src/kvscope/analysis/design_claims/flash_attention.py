"""What flash attention changed: the compute buffer, all memory once it was used, and times."""

from collections.abc import Sequence

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.design_claims.buffers import buffer_findings, predicted_difference
from kvscope.analysis.design_claims.changed import memory_findings, time_findings
from kvscope.analysis.finding import Finding
from kvscope.record.rows import DesignRow


def claims(design: DesignRow, attempts: Sequence[Attempt]) -> tuple[Finding, ...]:
    """The buffer is reserved at load and in memory as far as it was used: all memory is compared after the requests."""
    return (
        *buffer_findings(design, attempts, "compute_buffer"),
        *memory_findings(
            design,
            attempts,
            "memory_after_bytes",
            lambda level: predicted_difference(design, attempts, level, "compute_buffer"),
        ),
        *time_findings(design, attempts),
    )
