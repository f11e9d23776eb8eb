"""What each design says of its own rows: true of what was measured, with its interval and its evidence, or that these
rows cannot tell. One design a file; a grid of two factors says what a grid can say, whichever design it began as."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from kvscope.analysis.answer_designs import is_of_tasks
from kvscope.analysis.attempts import Attempt, load_attempts
from kvscope.analysis.design_claims import (
    concurrency,
    context_limit,
    flash_attention,
    grid,
    host_cache,
    input_length,
    kv_dtype,
    microbatch,
    offload,
    output_length,
    prefix_reuse,
    retrieval,
    turns,
    window,
)
from kvscope.analysis.design_claims.level_not_taken import not_taken
from kvscope.analysis.finding import Finding
from kvscope.analysis.finding_remarks import with_remarks
from kvscope.analysis.quality_findings import quality_findings
from kvscope.analysis.retrieval_panel import recorded_others
from kvscope.record.rows import DesignRow
from kvscope.record.store import Records

Claims = Callable[[DesignRow, Sequence[Attempt]], tuple[Finding, ...]]

# The name of a design → what it says of its rows. A design without an entry says nothing beyond the study's findings.
CLAIMS: Mapping[str, Claims] = {
    "concurrency": concurrency.claims,
    "context_limit": context_limit.claims,
    "flash_attention": flash_attention.claims,
    "host_cache": host_cache.claims,
    "input_length": input_length.claims,
    "kv_dtype": kv_dtype.claims,
    "microbatch": microbatch.claims,
    "offload": offload.claims,
    "output_length": output_length.claims,
    "prefix_reuse": prefix_reuse.claims,
    "retrieval": retrieval.claims,
    "turns": turns.claims,
    "window": window.claims,
}


def claims_of(design: DesignRow, attempts: Sequence[Attempt], others: Sequence[Attempt] = ()) -> tuple[Finding, ...]:
    """What a design says of its attempts, each finding named as its own. ``others``: attempts of the record's other
    designs, of which retrieval makes what it says before it is measured. Nothing where none was measured. Levels that
    the engine did not take come first: what was measured there is something else."""
    say = grid.claims if design.is_grid else CLAIMS.get(design.name)
    if is_of_tasks(design):  # what one task takes longer than another is no effect
        say = None
    if not any(attempt.is_measured for attempt in attempts):
        return ()
    said = () if say is None else say(design, attempts)
    if say is retrieval.claims:
        said = retrieval.claims(design, attempts, others)
    # What answers say is the same question whatever a design varies; retrieval has its own of them.
    answers = () if design.name == "retrieval" else quality_findings(design, attempts)
    found = (*not_taken(design, attempts), *said, *answers)
    measured = [attempt.key for attempt in attempts if attempt.is_measured]
    return tuple(with_remarks(replace(finding, design_id=design.design_id), measured) for finding in found)


def recorded_claims(records: Records, design_id: str) -> tuple[Finding, ...]:
    """The same of a design in a record."""
    design = next(row for row in records.designs() if row.design_id == design_id)
    attempts = load_attempts(records, design, {run.run_id: run for run in records.runs()})
    return claims_of(design, attempts, recorded_others(records, design) if design.name == "retrieval" else ())
