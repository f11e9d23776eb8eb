"""3. Why does it grow? The layers, the formula with its numbers, the measured slope, and the plot that misleads."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.growth import ContextGrowth, loaded_growth_bytes
from kvscope.analysis.price import token_price
from kvscope.analysis.study import Study
from kvscope.language import shown
from kvscope.record.rows import Json
from kvscope.report.blocks import Block, Bullets, Link, Paragraph, Row, Section, Table, columns, row
from kvscope.report.charts_memory import added_chart, context_chart
from kvscope.report.claims import claims
from kvscope.report.layer_words import layer_kind
from kvscope.report.links import failed_levels, rows_behind, with_rows
from kvscope.report.section_asked import length_blocks, reserved_text
from kvscope.report.section_prediction import prediction_blocks, ranges
from kvscope.report.words import say
from kvscope.units import format_count


def growth_section(study: Study, anchors: Mapping[str, Link], prefix: str) -> Section:
    """Section 3. ``prefix`` begins the anchors of the prediction's terms and facts."""
    blocks: list[Block] = [Paragraph(text=why(study), kind="lead")]
    blocks += claims(study, anchors, "slope_", "step_", "window_saves_nothing", "kv_paid_at_load", "weights_unchanged")
    if study.context is not None:
        chart = context_chart(study.context, failed_levels(study, "n_ctx"))
        blocks.append(replace(chart, table=_each_row(chart.table, _behind(study.context, study), anchors)))
    elif study.asked is not None:
        blocks += length_blocks(study)
    else:
        blocks.append(Paragraph(text=say("growth.no_context_design")))
    blocks += _layers(study.prediction)
    blocks += claims(study, anchors, "first_microbatch", "first_microbatch_once", "checkpoints")
    if study.inputs is not None:
        added = added_chart(study.inputs)
        behind = {
            format_count(a.prompt_tokens): [anchors[a.attempt_key]]
            for a in study.inputs.added
            if a.attempt_key in anchors
        }
        blocks += [with_rows(added, behind)] if added is not None else []
    blocks += prediction_blocks(study.prediction, prefix)
    return Section(slug="growth", title=say("title.growth"), blocks=tuple(blocks))


def why(study: Study) -> str:
    """Which part grows with the context, with the formula. What was only predicted is not said to be so."""
    price = token_price(study.prediction)
    if price is None:
        return say("growth.no_prediction")
    formula = formula_line(study)
    if formula is None:
        return say("growth.why_other", bytes_per_token=price.beyond_bytes)
    if reserved_text(study) is not None:
        return say("asked.reserved", engine=study.engine, formula=formula)
    compared = [f.slug for f in study.findings if f.slug.startswith(("slope_", "step_"))]
    is_seen = bool(compared) and all(slug.endswith("_agrees") for slug in compared)
    return say("growth.why" if is_seen else "growth.why_predicted", formula=formula)


def formula_line(study: Study) -> str | None:
    """The product behind one token's bytes, with its numbers; None where the prediction's layers give none."""
    price = token_price(study.prediction)
    formulas, dtypes = _formulas(study.prediction)
    if price is None or not formulas:
        return None
    formula = formulas[0] if len(formulas) == 1 else f"({' + '.join(formulas)})"
    text = say("growth.product", bytes_per_token=price.first_bytes, formula=formula, dtype=" / ".join(dtypes))
    if price.knee_tokens is None:
        return text
    return say("growth.product_knee", product=text, tokens=price.knee_tokens, beyond_bytes=price.beyond_bytes)


def _formulas(prediction: Mapping[str, Json] | None) -> tuple[list[str], list[str]]:
    """The product behind each kind of equal layers, from their tensors' shapes [streams, heads, cells, width]; and the
    formats in which their elements are kept."""
    groups: dict[tuple[str, ...], int] = {}
    dtypes: dict[str, None] = {}
    for layer in (prediction or {}).get("layers") or ():
        tensors = {t["name"]: t for t in layer.get("tensors") or () if len(t["shape"]) == 4}
        if "keys" not in tensors or "values" not in tensors:
            continue
        keys, values = tensors["keys"], tensors["values"]
        widths = (keys["shape"][1], keys["shape"][3], values["shape"][1], values["shape"][3])
        key = (layer_kind(str(layer["kind"])), *map(str, widths))
        groups[key] = groups.get(key, 0) + 1
        dtypes |= dict.fromkeys((str(keys["dtype"]), str(values["dtype"])))
    formulas = [
        say("growth.formula", layers=n, kind=k[0], heads_k=k[1], dim_k=k[2], heads_v=k[3], dim_v=k[4])
        for k, n in groups.items()
    ]
    return formulas, list(dtypes)


def _each_row(table: Table, behind: Sequence[Attempt], anchors: Mapping[str, Link]) -> Table:
    """A table of single trials with the row of each, trials that agree in one row; where it has means instead, with the
    rows of each level."""
    if len(table.rows) != len(behind):
        return with_rows(table, by_context(behind, anchors))
    points = sorted(behind, key=lambda a: (a.context_tokens or 0, loaded_growth_bytes(a) or 0))
    alike: dict[Row, list[Attempt]] = {}
    for found, each in zip(table.rows, points, strict=True):
        alike.setdefault(found, []).append(each)
    return replace(table, rows=tuple(replace(r, evidence=rows_behind(each, anchors)) for r, each in alike.items()))


def _behind(growth: ContextGrowth, study: Study) -> list[Attempt]:
    keys = set(growth.evidence)
    return [attempt for attempt in study.attempts if attempt.key in keys]


def by_context(attempts: Sequence[Attempt], anchors: Mapping[str, Link]) -> dict[str, list[Link]]:
    """The rows behind each context limit of these attempts, by the limit as a table writes it."""
    found: dict[str, list[Link]] = {}
    for attempt in attempts:
        if attempt.key in anchors and attempt.context_tokens is not None:
            found.setdefault(format_count(attempt.context_tokens), []).append(anchors[attempt.key])
    return found


def _groups(prediction: Mapping[str, Json] | None) -> dict[str, list[Mapping[str, Json]]]:
    """The cache's items by their formula: layers with the same one belong together."""
    groups: dict[str, list[Mapping[str, Json]]] = {}
    for item in (prediction or {}).get("items") or ():
        if item.get("layer_index") is not None and item.get("component") != "weights":
            groups.setdefault(str(item.get("because") or ""), []).append(item)
    return groups


def _layers(prediction: Mapping[str, Json] | None) -> list[Block]:
    """Layers grouped by kind and size, with what each keeps for one token; knees under it."""
    groups: dict[tuple[str, int], list[int]] = {}
    for layer in (prediction or {}).get("layers") or ():
        groups.setdefault((str(layer["kind"]), int(layer["cache_bytes"])), []).append(int(layer["index"]))
    if not groups:
        return []
    because = {int(i["layer_index"]): str(i["because"]) for g in _groups(prediction).values() for i in g}
    rows = [
        row(
            layer_kind(kind),
            str(len(indices)),
            ranges(indices),
            format_count(size),
            format_count(size * len(indices)),
            shown(because[indices[0]]) if indices[0] in because else say("none"),
        )
        for (kind, size), indices in groups.items()
    ]
    effective = (prediction or {}).get("effective") or {}
    titles = columns(say("col.kind"), say("col.layers"), say("col.which"), say("col.each"), say("col.all"))
    table = Table(
        caption=say("caption.layers", context_tokens=effective.get("context_tokens")),
        columns=(*titles, *columns(say("col.formula"))),
        rows=tuple(rows),
    )
    knees = ((prediction or {}).get("growth") or {}).get("knees") or ()
    bullets = [say("growth.knee", tokens=knee["tokens"], why=shown(str(knee["why"]))) for knee in knees]
    return [table, *([Bullets(items=tuple(bullets))] if bullets else [])]
