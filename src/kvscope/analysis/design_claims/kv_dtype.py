"""What a KV cache of fewer bits saved, and what it cost in time. Whether answers hold: ``quality_findings``."""

from collections.abc import Sequence

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.design_claims.buffers import buffer_findings, predicted_difference
from kvscope.analysis.design_claims.changed import memory_findings, time_findings
from kvscope.analysis.finding import Finding
from kvscope.record.rows import DesignRow


def claims(design: DesignRow, attempts: Sequence[Attempt]) -> tuple[Finding, ...]:
    """Bytes saved, all memory after the load beside them, and times; last, where no answers were asked for, that these
    rows do not say whether they hold."""
    return (
        *buffer_findings(design, attempts, "kv_cache"),
        *memory_findings(
            design,
            attempts,
            "memory_loaded_bytes",
            lambda level: predicted_difference(design, attempts, level, "kv_cache"),
        ),
        *time_findings(design, attempts),
        *(() if any(each.result.answers for each in attempts) else (Finding(slug="answers_not_judged"),)),
    )
