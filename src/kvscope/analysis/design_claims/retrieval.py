"""What the design retrieval says of its rows: the break-even of whole document and passages, predicted and measured;
what each way did not answer right, and why; and what did not fit."""

from collections.abc import Sequence
from dataclasses import replace

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.design_claims.changed import evidence, named
from kvscope.analysis.finding import Finding
from kvscope.analysis.fit import Estimate
from kvscope.analysis.retrieval_even import WHOLE, Even
from kvscope.analysis.retrieval_panel import RetrievalPanel, WayRow, lost_by, retrieval_panel
from kvscope.record.rows import DesignRow

# Reasons of a failure, by the facts of an answer's row; each has words of its own.
NOTHING = "nothing"


def claims(design: DesignRow, attempts: Sequence[Attempt], others: Sequence[Attempt] = ()) -> tuple[Finding, ...]:
    """First the break-even of each way of passages, then what each way lost, then what could not be measured.
    ``others``: as ``retrieval_panel``."""
    panel = retrieval_panel(design, attempts, others)
    if panel is None:
        return ()
    found = [finding for even in panel.evens for finding in _evens(panel, even)]
    found += [finding for row in panel.rows for finding in _answers(panel, row)]
    return tuple(
        replace(finding, evidence=evidence(design, attempts, finding.values["level"]) or _keys(attempts, finding))
        for finding in found
    )


def _keys(attempts: Sequence[Attempt], finding: Finding) -> tuple[str, ...]:
    return tuple(a.key for a in attempts if a.trial.level == finding.values["level"])


def _evens(panel: RetrievalPanel, even: Even) -> list[Finding]:
    values: dict[str, object] = {
        **named(panel.design, even.level),
        "questions": even.on_time.value,
        "predicted_questions": even.predicted_on_time,
        "token_questions": even.on_tokens,
        "predicted_token_questions": even.predicted_on_tokens,
        "cold_s": None if even.costs is None else even.costs.cold,
        "warm_s": None if even.costs is None else even.costs.warm,
        "each_s": None if even.costs is None else even.costs.each,
    }
    size: Estimate | None = even.on_time if even.on_time.value is not None else None
    tokens = Finding(slug=_tokens_slug(even), values=values)
    reason = even.on_time.reason
    if even.on_time.value is None or (reason is not None and reason.slug == "each_not_told"):
        slug = "retrieval_never_even" if reason is None else "retrieval_even_not_told"
        return [Finding(slug=slug, values=values), tokens]
    slug = "retrieval_even" if even.on_time.value > 1 else "retrieval_even_at_once"
    return [
        Finding(slug=slug, values=values, size=size, also_possible=("busy_machine",), how_to_check="until_narrow"),
        tokens,
    ]


def _tokens_slug(even: Even) -> str:
    if "on_tokens" in even.never:
        return "retrieval_never_even_tokens"
    return "retrieval_even_tokens" if even.on_tokens is not None else "retrieval_even_tokens_unknown"


def _answers(panel: RetrievalPanel, row: WayRow) -> list[Finding]:
    right = round(row.num_right, 1)
    values: dict[str, object] = {
        **named(panel.design, row.level),
        "right": int(right) if right == int(right) else right,  # of several repeats it may be between two questions
        "scored": row.num_scored,
    }
    if row.why_not is not None:
        return [Finding(slug="retrieval_not_measured", values={**values, "why": row.why_not.rstrip(".")})]
    if not row.num_trials or not row.num_scored:
        return []
    slug = "retrieval_right_sent" if row.is_maybe_cut else "retrieval_right"
    found = [Finding(slug=slug, values=values, size=row.share)]
    if row.level == NOTHING:
        return [replace(found[0], slug="retrieval_guessed")]
    if row.failures:
        values |= {"failures": dict(row.failures)}
        values |= {"lost": len(lost_by(panel, row.level)), "gained": len(lost_by(panel, WHOLE, row.level))}
        whole = panel.row(WHOLE)
        values |= {"whole_right": None if whole is None else whole.num_right}
        slug = "retrieval_failed" if row.level == WHOLE else "retrieval_lost"
        found.append(Finding(slug=slug, values=values))
    return found
