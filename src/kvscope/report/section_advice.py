"""What should change first? What binds, each change that helps with its price and its risk, and what was measured and
does not help."""

from collections.abc import Mapping

from kvscope.analysis.advice_command import command_text
from kvscope.analysis.study import Study
from kvscope.report.advice_words import advice_lines as advice_lines
from kvscope.report.advice_words import advice_remarks, advice_text, withheld_text
from kvscope.report.blocks import Block, Bullets, Claim, Link, Paragraph, Section
from kvscope.report.claims import SHOWN_ROWS
from kvscope.report.words import say


def advice_section(study: Study, anchors: Mapping[str, Link]) -> Section:
    """The section; it is there too where nothing is advised, and says so."""
    blocks: list[Block] = [Paragraph(text=_lead(study), kind="lead")]
    if study.is_measured or study.pressure.is_short:
        blocks.append(Paragraph(text=say(f"pressure.{study.pressure.slug}", **study.pressure.values)))
    for advice in study.advice:
        links = _links(advice.evidence, anchors)
        remarks = advice_remarks(advice)
        if len(links) > SHOWN_ROWS:
            remarks = (*remarks, say("evidence.more", shown=SHOWN_ROWS, total=len(links)))
        blocks.append(Claim(text=advice_text(advice), remarks=remarks, evidence=links[:SHOWN_ROWS]))
    if study.withheld:
        blocks.append(Paragraph(text=say("withheld.lead")))
        blocks.append(Bullets(items=tuple(withheld_text(each) for each in study.withheld)))
    if study.look:
        blocks.append(Paragraph(text=say("advice.nothing_compared", command=command_text(study.look))))
    return Section(slug="advice", title=say("title.advice"), blocks=tuple(blocks))


def _lead(study: Study) -> str:
    count = len(study.advice)
    if count:
        return say("advice.lead_one" if count == 1 else "advice.lead", count=count)
    return say("advice.none_free" if study.pressure.is_free else "advice.none")


def _links(evidence: tuple[str, ...], anchors: Mapping[str, Link]) -> tuple[Link, ...]:
    found = (anchors[key] for key in dict.fromkeys(evidence) if key in anchors)
    return tuple(sorted(found, key=lambda link: int(link.text)))
