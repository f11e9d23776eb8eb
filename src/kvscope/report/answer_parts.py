"""Parts of the first screen: whether to believe it, in badges; predicted, engine-reported and measured side by side."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from kvscope.analysis.attribution import Attribution
from kvscope.analysis.compare import Component
from kvscope.analysis.identity import RowIdentity
from kvscope.analysis.study import MemoryView, Study
from kvscope.report.blocks import Badge, Link, Row, Table, columns, row
from kvscope.report.charts_memory import PART_TERMS
from kvscope.report.links import rows_behind
from kvscope.report.numbers import mib_cell
from kvscope.report.section_trust import doubt_name
from kvscope.report.words import name_of, say
from kvscope.units import format_number

_TABLE_PARTS: Mapping[str, tuple[str, ...]] = {
    "weights": ("weights",),
    "kv_cache": ("kv_cache", "recurrent_state"),
    "buffers": ("compute_buffer", "output_buffer"),
}
_RUNTIME = ("runtime", "libraries")
# Parts that few loads have: shown where there is something of them.
_RARE = ("host_cache", "checkpoint")


def badges(study: Study, prefix: str, sections: Collection[str]) -> tuple[Badge, ...]:
    """Share explained, failures and warnings counted. Each leads to its section where the page has it."""
    if not study.attempts:
        slug = "badge.predicted" if study.prediction else "badge.nothing"
        return (Badge(mark="?", text=say(slug), kind="doubt", anchor=f"{prefix}trust"),)
    found = [_explained(study, prefix)] if "memory" in sections else []
    found += [_failed(study, prefix), _warnings(study, prefix)]
    return tuple(badge for badge in found if badge is not None)


def _explained(study: Study, prefix: str) -> Badge | None:
    shares = [share for share in map(_unexplained, study.identities) if share is not None]
    if shares:
        text = say("badge.explained_rows", share=1 - max(shares), rows=len(shares))
    elif study.main is not None and study.main.loaded is not None:
        found = study.main.loaded.unexplained_share
        if found is None:
            return None
        text = say("badge.explained", share=1 - found)
    else:
        return None
    # By the limits of the check, which knows how each row was measured.
    is_good = not any(each.slug == "unexplained" and each.passed is False for each in study.checks)
    return Badge(mark="=" if is_good else "≠", text=text, kind="good" if is_good else "bad", anchor=f"{prefix}memory")


def _unexplained(identity: RowIdentity) -> float | None:
    """Share of a row's growth that has no name, at the last moment that is known of it."""
    moment = identity.peak or identity.after or identity.loaded
    return None if moment is None else moment.unexplained_share


def _failed(study: Study, prefix: str) -> Badge:
    failed, total = study.num_failed, len(study.trials)
    if failed:
        text = say("badge.failed", failed=failed, total=total)
        return Badge(mark="×", text=text, kind="bad", anchor=f"{prefix}failed")
    if not_ended := sum(attempt.is_unfinished for attempt in study.trials):
        text = say("badge.not_ended", count=not_ended, total=total)
        return Badge(mark="?", text=text, kind="doubt", anchor=f"{prefix}failed")
    return Badge(mark="=", text=say("badge.no_failures", total=total), kind="good", anchor=f"{prefix}failed")


def _warnings(study: Study, prefix: str) -> Badge:
    doubts = [check for check in study.checks if check.passed is False]
    if doubts:
        names = tuple(map(doubt_name, doubts))
        text = say("badge.warnings", count=len(doubts), names=names)
        return Badge(mark="!", text=text, kind="doubt", anchor=f"{prefix}trust")
    text = say("badge.no_warnings", total=len(study.checks))
    return Badge(mark="=", text=text, kind="good", anchor=f"{prefix}trust")


def answer_table(study: Study, anchors: Mapping[str, Link]) -> Table | None:
    """MiB of the main attempt after load: predicted, engine-reported, measured, and the unexplained rest with its
    sign. Of a prediction alone the predicted column has numbers; None where there is neither."""
    view = study.main or study.until_failure
    if view is None:
        return _predicted_table(study)
    loaded = view.loaded
    rows = [_part_row(view, part, slugs) for part, slugs in _TABLE_PARTS.items()]
    if loaded is not None and loaded.maps_read:
        rows.append(row(say("row.runtime"), _own(loaded), say("none"), mib_cell(_terms(loaded, *_RUNTIME))))
        rows += [
            row(name_of("part", part), say("none"), say("none"), mib_cell(_terms(loaded, part)))
            for part in _RARE
            if _terms(loaded, part)
        ]
    if loaded is not None:
        left = mib_cell(loaded.unexplained_bytes, signed=True)
        rows.append(row(say("row.unexplained"), say("none"), say("none"), left, kind="total"))
        rows.append(row(say("row.total"), *_totals(view), mib_cell(loaded.growth_bytes), kind="total"))
    return Table(
        caption=say("caption.answer", context_tokens=view.attempt.context_tokens),
        columns=columns(say("col.mib"), say("col.predicted"), say("col.reported"), say("col.measured")),
        rows=tuple(rows),
        evidence=rows_behind([view.attempt], anchors),
    )


def _predicted_table(study: Study) -> Table | None:
    items = (study.prediction or {}).get("items") or ()
    if not items:
        return None
    totals: Mapping[str, Any] = (study.prediction or {}).get("totals") or {}
    rows = []
    for part, slugs in _TABLE_PARTS.items():
        sizes = [item.get("allocated_bytes") for item in items if item.get("component") in slugs]
        known = [size for size in sizes if isinstance(size, int)]
        size = sum(known) if known and len(known) == len(sizes) else None
        rows.append(row(name_of("part", part), mib_cell(size), say("none"), say("none")))
    total = totals.get("total_bytes")
    told = say("unknown") if not isinstance(total, int) else say("cell.at_least", size=mib_cell(total))
    rows.append(row(say("row.runtime"), say("unknown"), say("none"), say("none")))
    rows.append(row(say("row.total"), told, say("none"), say("none"), kind="total"))
    context = ((study.prediction or {}).get("effective") or {}).get("context_tokens")
    return Table(
        caption=say("caption.answer_predicted", context_tokens=context),
        columns=columns(say("col.mib"), say("col.predicted"), say("col.reported"), say("col.measured")),
        rows=tuple(rows),
    )


def _terms(loaded: Attribution, *parts: str) -> int:
    return sum(loaded.term_bytes(term) for part in parts for term in PART_TERMS[part])


def _own(loaded: Attribution) -> str:
    """The engine's own memory as tiny models had it; no model file tells it. What a trial counted is no prediction."""
    size = _calibrated(loaded)
    return say("resident.calibrated", size=mib_cell(size)) if size else say("unknown")


def _calibrated(loaded: Attribution) -> int:
    return sum(term.num_bytes for term in loaded.terms if term.basis == "calibrated")


def _totals(view: MemoryView) -> tuple[str, str]:
    """Predicted and reported sums. No prediction has libraries, stacks and what the allocator keeps, so the predicted
    one is a lower bound of what is reserved."""
    known = [c for c in view.components_loaded if any(c.slug in slugs for slugs in _TABLE_PARTS.values())]
    size, loaded = _predicted(known), view.loaded
    if size is None:
        return mib_cell(None), _reported(known)
    own = _calibrated(loaded) if loaded is not None and loaded.maps_read else 0
    return say("cell.at_least", size=mib_cell(size + own)), _reported(known)


def _predicted(found: Sequence[Component]) -> int | None:
    sizes = [component.allocated_bytes for component in found]
    return None if not sizes or None in sizes else sum(size for size in sizes if size is not None)


def _reported(found: Sequence[Component]) -> str:
    printed = [float(text) for component in found for text in component.reported_mib]
    return format_number(sum(printed), 1) if printed else say("none")


def _part_row(view: MemoryView, part: str, slugs: tuple[str, ...]) -> Row:
    found = [component for component in view.components_loaded if component.slug in slugs]
    return row(name_of("part", part), mib_cell(_predicted(found)), _reported(found), _seen(view.loaded, part))


def _is_told(loaded: Attribution, part: str) -> bool:
    """Whether the process's memory tells this part: nothing that bears its name is no measurement of 0."""
    return loaded.maps_read and any(term.slug in PART_TERMS[part] for term in loaded.terms)


def _seen(loaded: Attribution | None, part: str) -> str:
    if loaded is None or not _is_told(loaded, part):
        return say("unknown")
    size = mib_cell(_terms(loaded, part))
    return say("cell.at_most", size=size) if loaded.is_upper_bound(*PART_TERMS[part]) else size
