"""Of section 3: every term of the prediction with the rule it follows, and where each fact about the model was read."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from kvscope.language import shown
from kvscope.record.rows import Json
from kvscope.report.blocks import Block, Bullets, Column, Row, Table, columns, row
from kvscope.report.links import term_slug
from kvscope.report.numbers import mib_cell
from kvscope.report.section_trust import clipped
from kvscope.report.words import has_words, name_of, say

# Rules named for one component; layers that differ may have one each.
MOST_RULES = 6
# A model with unlike layers may have thousands of facts.
MOST_FACTS = 400
_LAYERS = "layers[]"
_OF_LAYER = re.compile(r"^layers\[(\d+)\]")


def prediction_blocks(prediction: Mapping[str, Json] | None, prefix: str) -> list[Block]:
    """The terms, the facts they were computed from, and what is not known."""
    if prediction is None:
        return []
    items: Sequence[Mapping[str, Any]] = prediction.get("items") or ()
    blocks: list[Block] = [_terms(prediction, items, prefix)] if items else []
    sources = (prediction.get("model") or {}).get("sources") or {}
    blocks += [_facts(prediction, sources)] if sources else []
    unknown = tuple(
        say("growth.unknown", what=shown(str(each["what"])), why=shown(str(each["why"])))
        for each in prediction.get("unknown") or ()
    )
    return [*blocks, *([Bullets(items=unknown)] if unknown else [])]


def _terms(prediction: Mapping[str, Json], items: Sequence[Mapping[str, Any]], prefix: str) -> Table:
    by_component: dict[str, list[Mapping[str, Any]]] = {}
    for item in items:
        by_component.setdefault(str(item["component"]), []).append(item)
    scenario = prediction.get("scenario") or {}
    return Table(
        caption=say(
            "caption.terms",
            engine=clipped(str(scenario.get("engine")), 80),
            version=clipped(str(scenario.get("engine_version") or say("unknown")), 80),
            context_tokens=(prediction.get("effective") or {}).get("context_tokens"),
        ),
        columns=(
            *columns(say("col.component"), say("col.needed"), say("col.allocated")),
            Column(title=say("col.how_sure")),
            Column(title=say("col.by_rule")),
        ),
        rows=tuple(_term(component, found, prefix) for component, found in by_component.items()),
    )


def _term(component: str, items: Sequence[Mapping[str, Any]], prefix: str) -> Row:
    rules = list(dict.fromkeys(str(item["because"]) for item in items if item.get("because")))
    told = [clipped(shown(rule)) for rule in rules[:MOST_RULES]]
    if len(rules) > MOST_RULES:
        told.append(say("term.more_rules", count=len(rules) - MOST_RULES))
    sure = dict.fromkeys(_sure(str(item.get("status"))) for item in items)
    return row(
        name_of("component", component),
        mib_cell(_sum(items, "needed_bytes"), 2),
        mib_cell(_sum(items, "allocated_bytes"), 2),
        ", ".join(sure),
        "\n".join(told) or say("unknown"),
        anchor=f"{prefix}term-{_safe(component)}",
    )


def _sure(status: str) -> str:
    return say(f"sure.{status}") if has_words(f"sure.{status}") else clipped(status, 40)


def _safe(component: str) -> str:
    """A component as part of an anchor: nothing that was recorded gets into an address as it is."""
    return re.sub(r"[^a-z0-9-]", "-", term_slug(component).lower())[:40]


def _sum(items: Sequence[Mapping[str, Any]], field: str) -> int | None:
    sizes = [item.get(field) for item in items]
    known = [size for size in sizes if isinstance(size, int)]
    return sum(known) if len(known) == len(sizes) else None


def _facts(prediction: Mapping[str, Json], sources: Mapping[str, str]) -> Table:
    """Where each fact was read: a key of the file, a class default, a rule. Layers that say the same share a row."""
    alike: dict[tuple[str, str], list[int]] = {}
    for field, where in sources.items():
        layer = _OF_LAYER.match(field)
        of_layers = alike.setdefault((f"{_LAYERS}{field[layer.end() :]}" if layer else field, str(where)), [])
        of_layers += [int(layer[1])] if layer else []
    rows = [
        row(clipped(_field(field, layers), 120), clipped(shown(where)))
        for (field, where), layers in list(alike.items())[:MOST_FACTS]
    ]
    model = prediction.get("model") or {}
    return Table(
        caption=say("caption.model_facts", model=clipped(str(model.get("name")), 80)),
        columns=(Column(title=say("col.fact")), Column(title=say("col.read_from"))),
        rows=tuple(rows),
        summary=say("summary.sources", count=len(sources)),
    )


def _field(field: str, layers: Sequence[int]) -> str:
    return field.replace(_LAYERS, f"layers[{ranges(layers)}]", 1) if layers else field


def ranges(numbers: Sequence[int]) -> str:
    """``0–4, 6`` of 0, 1, 2, 3, 4, 6."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(str(p[0]) if len(p) == 1 else f"{p[0]}–{p[-1]}" for p in parts)
