"""2. Where does the memory go? Components side by side, the identity with its unexplained rest, memory over time."""

from collections.abc import Callable, Mapping, Sequence

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.attribute import Attribution, Resident
from kvscope.analysis.compare import Component
from kvscope.analysis.study import MemoryView, Study
from kvscope.report.blocks import Block, Bullets, Link, Paragraph, Row, Section, Table, columns, row
from kvscope.report.charts_memory import by_context_chart, timeline_chart
from kvscope.report.claims import claims, named_text
from kvscope.report.identity_tables import identity_blocks
from kvscope.report.numbers import mib_cell
from kvscope.report.words import name_of, say, say_note

# The engine's own memory, in the order in which it is shown: named by cause where the record was calibrated, else by
# its place.
OWN_TERMS = (
    *("runtime", "vocabulary", "prompt_growth", "work_buffer", "work_in_use"),
    *("heap", "heap_kept", "arenas", "python_arenas"),
    *("stacks", "library_data", "library_code", "swapped"),
)


def memory_section(study: Study, anchors: Mapping[str, Link]) -> Section:
    """Section 2."""
    blocks: list[Block] = [*claims(study, anchors, "unexplained_", "reported_", "kv_not_resident", "kv_swapped_out")]
    until = study.until_failure
    if study.main is None and until is not None:
        cause = name_of("outcome", str(until.attempt.trial.outcome))
        blocks.append(Paragraph(text=f"{say('memory.until_failure', cause=cause)} {_lead(until)}", kind="lead"))
        blocks += [component_table(until), *_remarks(until)]
    elif study.main is None:
        blocks.append(Paragraph(text=say("memory.not_measured"), kind="lead"))
        blocks += _predicted_only(study)
    else:
        blocks.insert(0, Paragraph(text=_lead(study.main), kind="lead"))
        chart = by_context_chart(study.by_context or (study.main,))
        blocks += [chart] if chart is not None else []
        blocks.append(component_table(study.main))
        blocks += _remarks(study.main)
        blocks += identity_blocks(study, anchors)
        blocks += [timeline_chart(study.timeline)] if study.timeline is not None else []
        blocks.append(_others(study.main.attempt))
    return Section(slug="memory", title=say("title.memory"), blocks=tuple(blocks))


def _lead(view: MemoryView) -> str:
    if view.loaded is None:
        return say("memory.not_read")
    loaded = view.loaded
    total = say(
        "memory.total" if loaded.from_start else "memory.total_whole",
        context_tokens=view.attempt.context_tokens,
        growth_bytes=loaded.growth_bytes,
        anon_bytes=loaded.anon_growth_bytes,
        file_bytes=loaded.file_growth_bytes,
    )
    parts = say(
        "memory.parts" if loaded.maps_read else "memory.parts_not_read",
        named=named_text(
            loaded.seen_bytes,
            loaded.rule_bytes,
            loaded.shared_bytes,
            loaded.measured_bytes if loaded.maps_read else 0,
            loaded.calibrated_bytes,
            loaded.counted_bytes,
            loaded.swapped_bytes,
        ),
        unexplained_bytes=loaded.unexplained_bytes,
    )
    return f"{total} {parts}"


def component_table(view: MemoryView) -> Table:
    """Needed, allocated, engine-reported, resident; then what no file predicts; then the sum and the rest."""
    after = {c.slug: c for c in view.components_after}
    loaded = {c.slug: c for c in view.components_loaded}
    rows = [_component_row(loaded.get(slug), after.get(slug)) for slug in dict.fromkeys([*loaded, *after])]
    rows += [_term_row(term, view.loaded, view.after) for term in OWN_TERMS if _is_term(term, view)]
    rows.append(_sum_row("unexplained", view, lambda a: a.unexplained_bytes, signed=True))
    rows.append(_sum_row("grown", view, lambda a: a.growth_bytes, signed=False))
    titles = ("needed", "allocated", "reported", "agrees", "resident_loaded", "resident_after")
    return Table(
        caption=say("caption.components", context_tokens=view.attempt.context_tokens),
        columns=columns(say("col.component"), *(say(f"col.{t}") for t in titles)),
        rows=tuple(rows),
    )


def _component_row(loaded: Component | None, after: Component | None) -> Row:
    known = loaded or after
    assert known is not None  # the caller lists only components that one of the two has
    return row(
        name_of("component", known.slug),
        mib_cell(known.needed_bytes, 2),
        mib_cell(known.allocated_bytes, 2),
        (after or known).reported_total_mib or say("none"),
        say(f"agrees.{known.agrees}"),
        resident_cell(loaded.resident if loaded else None),
        resident_cell(after.resident if after else None),
    )


def resident_cell(resident: Resident | None) -> str:
    """Resident MiB, or how far it is known."""
    if resident is None:
        return say("none")
    if resident.how == "together" and resident.note is not None:
        return say("resident.together", size=mib_cell(_number(resident.note.values.get("size_bytes")), 2))
    if resident.how == "at_most" and resident.note is not None:
        size = mib_cell(_number(resident.note.values.get("size_bytes")), 2)
        return say("resident.at_most_together" if resident.note.values.get("others") else "resident.at_most", size=size)
    if resident.how == "rule":
        return say("resident.rule", size=mib_cell(resident.num_bytes, 2))
    return mib_cell(resident.num_bytes, 2)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _is_term(slug: str, view: MemoryView) -> bool:
    """Whether the identity has it; of one whose mappings were not read, whether it might."""
    read = [each for each in (view.loaded, view.after) if each is not None and each.maps_read]
    if not read:
        return slug in ("heap", "arenas", "stacks", "library_data", "library_code")
    return any(term.slug == slug for each in read for term in each.terms)


def _term_cell(slug: str, found: Attribution | None) -> str:
    if found is None or not found.maps_read:
        return say("unknown")
    size = mib_cell(found.term_bytes(slug), 2)
    basis = next((term.basis for term in found.terms if term.slug == slug), None)
    return say(f"resident.{basis}", size=size) if basis in ("calibrated", "counted") else size


def _term_row(term: str, loaded: Attribution | None, after: Attribution | None) -> Row:
    cells = [_term_cell(term, found) for found in (loaded, after)]
    return row(name_of("term", term), say("none"), say("unknown"), say("none"), say("none"), *cells)


def _sum_row(name: str, view: MemoryView, pick: Callable[[Attribution], int], *, signed: bool) -> Row:
    cells = [say("unknown") if a is None else mib_cell(pick(a), 2, signed=signed) for a in (view.loaded, view.after)]
    return row(say(f"row.{name}"), *[say("none")] * 4, *cells, kind="total")


def _remarks(view: MemoryView) -> list[Block]:
    """What the table cannot say in a cell: how each resident number is known, and where the unexplained rest may be."""
    items = []
    together = False
    for component in view.components_loaded:
        if component.resident.note is not None and not (together and component.resident.note.values.get("others")):
            together = together or bool(component.resident.note.values.get("others"))
            text = say_note(component.resident.note)
            items.append(say("remark.component", component=name_of("component", component.slug), text=text))
    if view.loaded is None or not view.loaded.is_calibrated:
        items.append(say("remark.runtime"))
    if view.loaded is not None:
        if view.loaded.leftovers and not view.loaded.is_calibrated:
            sizes = [mib_cell(m.anonymous_bytes, 2) for m in view.loaded.leftovers]
            items.append(say("remark.leftovers", sizes=sizes))
        if not view.loaded.maps_read:
            items.append(say("note.maps_not_read"))
        if not view.loaded.from_start:
            items.append(say("remark.no_start"))
    return [Bullets(items=tuple(items))]


def _predicted_only(study: Study) -> list[Block]:
    """Without a measurement: what was predicted, by component."""
    if study.prediction is None:
        return [Paragraph(text=say("memory.no_prediction"))]
    items = study.prediction.get("items") or ()
    sums: dict[str, list[int | None]] = {}
    for item in items:
        sums.setdefault(str(item["component"]), []).append(item.get("allocated_bytes"))
    rows = [row(name_of("component", slug), mib_cell(_sum(values), 2)) for slug, values in sums.items()]
    total = (study.prediction.get("totals") or {}).get("total_bytes")
    rows.append(row(say("row.predicted_total"), mib_cell(total, 2), kind="total"))
    caption = say("caption.predicted", context_tokens=(study.prediction.get("effective") or {}).get("context_tokens"))
    return [Table(caption=caption, columns=columns(say("col.component"), say("col.allocated")), rows=tuple(rows))]


def _sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _others(attempt: Attempt) -> Block:
    """Other programs' memory before the engine and after the last request: none of it is in any figure of the
    engine's. One that was among the largest at one of the two moments only is not known at the other."""
    if not attempt.result.occupants:
        return Paragraph(text=say("memory.no_occupants"))
    found: dict[tuple[str | None, int, str], dict[str, int]] = {}
    for each in attempt.result.occupants:
        found.setdefault((each.device, each.pid, each.name), {})[each.phase] = each.resident_bytes
    machine = say("memory.of_the_machine")
    return Table(
        caption=say("caption.occupants"),
        columns=columns(*(say(f"col.{title}") for title in ("program", "pid", "where", "before_mib", "after_mib"))),
        rows=tuple(
            row(name, str(pid), device or machine, mib_cell(held.get("before")), mib_cell(held.get("after")))
            for (device, pid, name), held in found.items()
        ),
        summary=say("summary.occupants"),
    )
