"""What should change first? What helps most with its evidence; then what was measured and is not advised, and the price
list of single changes, which is there whether or not any of them is needed."""

from collections.abc import Mapping

from kvscope.analysis.advice_command import command_text
from kvscope.analysis.advice_kind import Advice
from kvscope.analysis.left_out import trials_left
from kvscope.analysis.study import Study
from kvscope.report.advice_words import advice_lines as advice_lines
from kvscope.report.advice_words import advice_remarks, advice_text, pressure_text, price_text, withheld_text
from kvscope.report.blocks import Block, Bullets, Claim, Column, Link, Paragraph, Section, Table, row
from kvscope.report.claims import SHOWN_ROWS
from kvscope.report.numbers import mib_cell
from kvscope.report.section_asked import what_if_blocks
from kvscope.report.words import say


def advice_section(study: Study, anchors: Mapping[str, Link]) -> Section:
    """The section; it is there too where nothing is advised, and says so."""
    if not study.attempts:
        return Section(slug="advice", title=say("title.advice_predicted"), blocks=tuple(what_if_blocks(study)))
    blocks: list[Block] = [Paragraph(text=_lead(study), kind="lead")]
    is_wait_first = study.pressure.is_free and not study.advice
    blocks += _look(study) if is_wait_first else []
    if study.is_measured or study.pressure.is_short:
        blocks.append(_pressure(study, anchors))
    for advice in study.advice:
        links = _links(advice.evidence, anchors)
        remarks = advice_remarks(advice)
        if len(links) > SHOWN_ROWS:
            remarks = (*remarks, say("evidence.more", shown=SHOWN_ROWS, total=len(links)))
        blocks.append(Claim(text=advice_text(advice), remarks=remarks, evidence=links[:SHOWN_ROWS]))
    if study.withheld:
        blocks.append(Paragraph(text=say("withheld.lead")))
        blocks.append(Bullets(items=tuple(withheld_text(each) for each in study.withheld)))
    blocks += [] if is_wait_first else _look(study)
    blocks += [_price_list(study)] if study.priced else []
    return Section(slug="advice", title=say("title.advice"), blocks=tuple(blocks))


def _pressure(study: Study, anchors: Mapping[str, Link]) -> Claim:
    """Whether memory is short, with the rows that say so, and of how much of the plan that is known."""
    left, planned = trials_left(study)
    remarks = (say("pressure.partly", run=planned - left, planned=planned),) if left else ()
    text = pressure_text(study)
    return Claim(text=text, remarks=remarks, evidence=_links(study.pressure.evidence, anchors)[:SHOWN_ROWS])


def _look(study: Study) -> list[Block]:
    """Commands that would tell what shortens the wait."""
    first, *others = study.look or ((),)
    if not first:
        return []
    told = [say("advice.nothing_compared", command=command_text(first))]
    told += [say("advice.look_too", command=command_text(words)) for words in others]
    return [Paragraph(text=" ".join(told))]


def _price_list(study: Study) -> Table:
    """Every single change that should save memory, with what it may cost; folded, for it is not advice."""
    contexts = {each.values.get("context_tokens") for each in study.priced}
    context = next(iter(contexts)) if len(contexts) == 1 else None
    titles = [Column(title=say("col.priced_change")), Column(title=say("col.priced_saves"), is_number=True)]
    return Table(
        caption=say("caption.priced_alone") if context is None else say("caption.priced", context_tokens=context),
        columns=(*titles, Column(title=say("col.priced_costs"))),
        rows=tuple(row(each.flags, _saves_cell(each), price_text(each)) for each in study.priced),
        summary=say("summary.priced_free" if study.pressure.is_free else "summary.priced"),
    )


def _saves_cell(change: Advice) -> str:
    """What it reserves less; of a buffer of which less was seen in memory, that too."""
    reserved = change.values.get("reserved_bytes")
    held = mib_cell(change.predicted)
    if not isinstance(reserved, float):
        return held
    return say("price.at_most", held=held, reserved=mib_cell(reserved))


def _lead(study: Study) -> str:
    count = len(study.advice)
    if count:
        return say("advice.lead_one" if count == 1 else "advice.lead", count=count)
    if not study.is_measured:
        return say("advice.none_mends" if study.pressure.slug == "ran_out" else "advice.none_failed")
    if study.pressure.growth is not None:
        return say("advice.growing")
    if not study.pressure.is_free:
        return say("advice.none")
    waits = [(a.metrics.ttft_s, a.prompt_tokens) for a in study.attempts if a.is_measured]
    longest = max(((time, tokens) for time, tokens in waits if time is not None and tokens), default=None)
    if not study.look or longest is None:
        return say("advice.none_free")
    return say("advice.lead_wait", time_s=longest[0], tokens=longest[1])


def _links(evidence: tuple[str, ...], anchors: Mapping[str, Link]) -> tuple[Link, ...]:
    found = (anchors[key] for key in dict.fromkeys(evidence) if key in anchors)
    return tuple(sorted(found, key=lambda link: int(link.text)))
