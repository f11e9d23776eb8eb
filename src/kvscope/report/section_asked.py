"""Of a prediction's page: the lengths that were asked for, how far it goes, and what single changes would save."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvscope.analysis.asked_prediction import AskedPrediction
from kvscope.analysis.study import Study
from kvscope.language import shown
from kvscope.predict.curve import growth_curve
from kvscope.report.blocks import Block, Bullets, Chart, Column, Paragraph, Table, columns, row
from kvscope.report.numbers import mib_cell
from kvscope.report.prediction_chart import prediction_chart
from kvscope.report.prediction_text import change_words, length_rows, of_sequences
from kvscope.report.words import say


def length_chart(asked: AskedPrediction) -> Chart | None:
    """What a sequence needs up to the longest length asked for; None where no length grows anything."""
    tokens = [each.scenario.workload.tokens for each in asked.lengths]
    return prediction_chart(asked.longest, tokens) if max(tokens, default=0) > 0 else None


def length_blocks(study: Study) -> list[Block]:
    """The lengths asked for in a table; the first screen has their chart."""
    asked = study.asked
    if asked is None:
        return []
    head, *rows = length_rows(sorted(asked.found, key=lambda each: int(each["scenario"]["tokens"])))
    return [
        Table(
            caption=say("asked.lengths", engine=study.engine),
            columns=columns(*head),
            rows=tuple(row(*cells) for cells in rows),
        ),
    ]


def reserved_text(study: Study) -> str | None:
    """That the engine reserves the whole cache at load; None where it does not, or nothing was asked."""
    if study.asked is None or not growth_curve(study.asked.longest).is_reserved:
        return None
    return say("predict.cache_reserved", engine=study.engine)


def reach_texts(study: Study) -> tuple[str, ...]:
    """When the memory is taken, and how far it goes: with these settings, and in this machine's memory."""
    asked = study.asked
    if asked is None:
        return ()
    limit = growth_curve(asked.longest).limit_tokens
    reserved = reserved_text(study)
    told = [] if reserved is None else [reserved]
    told += [] if limit is None else [say("predict.ends", tokens=limit)]
    fits = asked.fits
    if fits is None:
        return tuple(told)
    values = {"budget": fits["budget_bytes"], "tokens": fits["largest_context_tokens"]}
    kind = "endless" if values["tokens"] is None else "memory" if fits["beyond_total_bytes"] else "trained"
    return (*told, say(f"asked.fits_{kind}", **values))


def what_if_blocks(study: Study) -> list[Block]:
    """Each single change with what it saves and costs, refused ones with the reason."""
    found: Mapping[str, Any] = study.prediction or {}
    changes: Sequence[Mapping[str, Any]] = found.get("what_if") or ()
    scenario = found.get("scenario") or {}
    possible = [each for each in changes if each["refused"] is None]
    total = (found.get("totals") or {}).get("total_bytes")
    head = of_sequences(
        "what_if.head", scenario, total=total, tokens=scenario.get("tokens"), engine=scenario.get("engine")
    )
    blocks: list[Block] = [Paragraph(text=say("asked.what_if_lead"), kind="lead")]
    titles = [Column(title=say("col.priced_change"))]
    titles += [Column(title=say(f"col.{name}"), is_number=True) for name in ("priced_saves", "priced_total")]
    blocks.append(
        Table(
            caption=head.removesuffix(":"),
            columns=(*titles, Column(title=say("col.priced_costs"))),
            rows=tuple(
                row(
                    change_words(each["change"]),
                    mib_cell(each["saved_bytes"]),
                    say("unknown") if each["unknown"] else mib_cell(each["total_bytes"]),
                    shown(each["cost"]),
                )
                for each in possible
            ),
        )
        if possible
        else Paragraph(text=say("what_if.none"))
    )
    refused = [
        say("what_if.refused_one", change=change_words(each["change"]), why=shown(each["refused"]))
        for each in changes
        if each["refused"] is not None
    ]
    return [*blocks, Paragraph(text=say("what_if.refused")), Bullets(items=tuple(refused))] if refused else blocks
