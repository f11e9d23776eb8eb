"""Where a number comes from: the record's rows behind it, the term of the prediction, the engine's own lines."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.study import Study
from kvscope.report.blocks import Block, Chart, Link, Row, Section, Table
from kvscope.report.charts import FAILED
from kvscope.report.names_en import NAMES
from kvscope.report.words import name_of, say

# Rows named beside a number; the others are found in the table of every row.
SHOWN_ROWS = 8
# Parts of memory that stand for several components: the first of them.
_PARTS: Mapping[str, str] = {"weights": "weights", "kv_cache": "kv_cache", "buffers": "compute_buffer"}
_PREDICTED = ("col.needed", "col.allocated", "col.predicted", "col.predicted_kv")
_REPORTED = ("col.reported",)

_Shown = TypeVar("_Shown", Table, Chart)


def rows_behind(attempts: Iterable[Attempt], anchors: Mapping[str, Link]) -> tuple[Link, ...]:
    """Links to the rows of these attempts, the first ones by number and then one to all of them."""
    return some_rows(anchors[attempt.key] for attempt in attempts if attempt.key in anchors)


def some_rows(links: Iterable[Link]) -> tuple[Link, ...]:
    """The first of these links to rows, and then one to all of them."""
    found = sorted(set(map(_by_number, links)))
    shown = [Link(text=text, anchor=anchor) for _, text, anchor in found[:SHOWN_ROWS]]
    if len(found) > SHOWN_ROWS:
        shown.append(Link(text="…", anchor=f"{found[0][2].rpartition('row-')[0]}rows"))
    return tuple(shown)


def _by_number(link: Link) -> tuple[int, str, str]:
    return int(link.text), link.text, link.anchor


def with_rows(block: _Shown, behind: Mapping[str, Sequence[Link]]) -> _Shown:
    """A table, or a chart's, with the rows behind each of its rows. ``behind``: a row's first cell → links."""
    if isinstance(block, Chart):
        return replace(block, table=with_rows(block.table, behind))
    rows = tuple(replace(row, evidence=some_rows(behind.get(row.cells[0], ()))) for row in block.rows)
    return replace(block, rows=rows)


def failed_levels(study: Study, factor: str) -> list[int]:
    """Levels of a factor at which an attempt failed, for the × marks."""
    levels = [a.trial.level for d in study.designs if d.design.factor == factor for a in d.attempts if a.is_failure]
    return sorted({level for level in levels if isinstance(level, int)})


def sourced(section: Section, anchors: frozenset[str], prefix: str) -> Section:
    """The section with the source of its tables' numbers: a predicted one leads to its term, one that the engine
    reported to the engine's lines. ``anchors``: those that the page has."""
    return replace(section, blocks=tuple(_block(block, anchors, prefix) for block in section.blocks))


def sourced_table(table: Table, anchors: frozenset[str], prefix: str) -> Table:
    """The same for one table."""
    predicted = {n for n, column in enumerate(table.columns) if column.title in map(say, _PREDICTED)}
    reported = {n for n, column in enumerate(table.columns) if column.title in map(say, _REPORTED)}
    if not predicted and not reported:
        return table
    components = _components()

    def linked(row: Row) -> Row:
        if row.anchor is not None:  # it is such a source itself
            return row
        component = components.get(row.cells[0])
        links = {n: f"{prefix}term-{component}" for n in predicted if component is not None}
        links |= dict.fromkeys(reported, f"{prefix}engine-lines")
        known = {n: a for n, a in links.items() if a in anchors and n < len(row.cells) and _is_number(row.cells[n])}
        return replace(row, links={**known, **row.links})

    return replace(table, rows=tuple(map(linked, table.rows)))


def term_slug(component: str) -> str:
    """A component as part of an anchor."""
    return component.replace("_", "-")


def anchors_in(sections: Iterable[Section]) -> frozenset[str]:
    """Anchors of the tables' rows."""
    tables = [table for section in sections for table in tables_of(section.blocks)]
    return frozenset(row.anchor for table in tables for row in table.rows if row.anchor is not None)


def tables_of(blocks: Iterable[Block]) -> list[Table]:
    """The tables among blocks, charts' tables too."""
    found = [block.table if isinstance(block, Chart) else block for block in blocks]
    return [block for block in found if isinstance(block, Table)]


def _components() -> dict[str, str]:
    """Reader's name of a component, or of a part that stands for one → the component as part of an anchor."""
    slugs = [name.partition(".")[2] for name in NAMES if name.startswith("component.")]
    parts = {name_of("part", part): component for part, component in _PARTS.items()}
    return {name: term_slug(slug) for name, slug in {**parts, **{name_of("component", s): s for s in slugs}}.items()}


def _failures(chart: Chart, prefix: str) -> tuple[Link, ...]:
    """Where a chart's failures are explained; nothing where it marks none."""
    layers = [layer for layer in chart.spec.get("layer", ()) if _colour(layer) == FAILED]
    is_marked = any(layer.get("data", {}).get("values") for layer in layers)
    return (Link(text=say("page.why_failed"), anchor=f"{prefix}failed"),) if is_marked else ()


def _colour(layer: Mapping[str, object]) -> object:
    mark = layer.get("mark")
    return mark.get("color") if isinstance(mark, Mapping) else None


def _is_number(cell: str) -> bool:
    return any(letter.isdigit() for letter in cell)


def _block(block: Block, anchors: frozenset[str], prefix: str) -> Block:
    if isinstance(block, Chart):
        links = (*block.links, *_failures(block, prefix))
        return replace(block, table=sourced_table(block.table, anchors, prefix), links=links)
    return sourced_table(block, anchors, prefix) if isinstance(block, Table) else block
