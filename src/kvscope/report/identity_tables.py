"""The identity as tables: of the trial that is shown, of every row, and between rows."""

from collections.abc import Mapping, Sequence

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.attribution import Attribution
from kvscope.analysis.calibration import TinyModel
from kvscope.analysis.identity import PEAK, Between, Moment, RowIdentity, between, worst_between
from kvscope.analysis.identity_lines import Line, identity_lines
from kvscope.analysis.levels import at_level
from kvscope.analysis.study import Study
from kvscope.report.blocks import Block, Bullets, Column, Link, Paragraph, Row, Table, row
from kvscope.report.claims import row_anchors
from kvscope.report.links import SHOWN_ROWS
from kvscope.report.numbers import mib_cell
from kvscope.report.section_time import level_text
from kvscope.report.words import name_of, say
from kvscope.units import format_percent

# Column of a row's table → terms of the identity.
PARTS: Mapping[str, tuple[str, ...]] = {
    "weights": ("weights", "model_file"),
    "cache": ("kv_cache", "recurrent_state"),
    "work": ("compute_buffer", "output_buffer", "working_buffers", "work_buffer", "work_in_use"),
    "kept_copies": ("host_cache", "checkpoint"),
    "own": ("runtime", "vocabulary", "prompt_growth", "heap", "heap_kept", "arenas", "python_arenas", "swapped"),
    "library": ("stacks", "library_data", "library_code"),
}
_MOMENTS = {"loaded": "col.at_load", "after_request": "col.at_after", PEAK: "col.at_peak"}
# A page has room for so many rows; the record and --json have them all.
MOST_ROWS = 100
_OF_COMPONENTS = (
    "weights",
    "kv_cache",
    "recurrent_state",
    "compute_buffer",
    "output_buffer",
    "host_cache",
    "checkpoint",
)


def identity_blocks(study: Study, anchors: Mapping[str, Link]) -> list[Block]:
    """What section 2 says of the identity; nothing where no row's memory was read with its mappings."""
    if not study.identities:
        return []
    blocks: list[Block] = [*_worst(study)]
    shown = _shown(study)
    if shown is not None:
        attempt, identity = shown
        blocks += [_moments_table(attempt, identity), Bullets(items=_remarks(study, identity))]
    blocks += _rows_table(study, anchors)
    return blocks + _between_table(study)


def _shown(study: Study) -> tuple[Attempt, RowIdentity] | None:
    """The trial whose memory the first screen shows, else the first one."""
    main = None if study.main is None else study.main.attempt
    found = {identity.key: identity for identity in study.identities}
    if main is not None and main.key in found:
        return main, found[main.key]
    return next(((a, found[a.key]) for a in study.attempts if a.key in found), None)


def _worst(study: Study) -> list[Paragraph]:
    """What has no name in the row that has most of it, and which rows have more than their readings can be off."""
    rows = row_anchors(study, "")
    last = {identity.key: identity.peak or identity.moments[-1] for identity in study.identities}
    shares = {key: moment.unexplained_share for key, moment in last.items() if moment.unexplained_share is not None}
    said = []
    if shares:
        key = max(shares, key=lambda each: shares[each])
        left = last[key].unexplained_bytes
        said.append(
            say("identity.lead", share=shares[key], rows=len(shares), unexplained_bytes=left, row=rows[key].text)
        )
    beyond = sorted((rows[key].text for key, moment in last.items() if _is_beyond(moment)), key=int)
    if beyond:
        more = ("…",) if len(beyond) > SHOWN_ROWS else ()
        said.append(say("identity.beyond", count=len(beyond), rows=(*beyond[:SHOWN_ROWS], *more)))
    pairs = [pair for pair in worst_between(study.identities) if pair.unexplained_share is not None]
    worst = max(pairs, key=lambda pair: pair.unexplained_share or 0.0, default=None)
    if worst is not None:
        ends = {"first": rows[worst.first].text, "second": rows[worst.second].text}
        size = worst.unexplained_bytes
        said.append(say("identity.between", share=worst.unexplained_share, unexplained_bytes=size, **ends))
    return [Paragraph(text=text) for text in said]


def _is_beyond(moment: Moment) -> bool:
    bound = moment.bound.total_bytes
    return bound is not None and abs(moment.unexplained_bytes) > bound


def _moments_table(attempt: Attempt, identity: RowIdentity) -> Table:
    """Term by term at each moment, with how it is known; then the rest and the sum."""
    moments = identity.moments
    lines = identity_lines(attempt, identity)
    rows = [
        row(
            line_name(line),
            basis_text(line),
            *(mib_cell(line.resident[m.phase], 2) if m.phase in line.resident else say("unknown") for m in moments),
        )
        for line in lines
        if line.resident
    ]
    rest = [mib_cell(each.unexplained_bytes, 2, signed=True) for each in moments]
    share = ["" if each.unexplained_share is None else format_percent(each.unexplained_share, 2) for each in moments]
    rows.append(row(say("row.unexplained"), "", *rest, kind="total"))
    rows.append(row(say("col.rest_share"), "", *share))
    rows.append(row(say("row.grown"), "", *(mib_cell(each.growth_bytes, 2) for each in moments), kind="total"))
    titles = [Column(title=say("col.term")), Column(title=say("col.basis"))]
    titles += [Column(title=say(_MOMENTS[each.phase]), is_number=True) for each in moments]
    return Table(caption=say("caption.identity"), columns=tuple(titles), rows=tuple(rows))


def line_name(line: Line) -> str:
    """The name of a line of the identity in the reader's language."""
    return name_of("component" if line.slug in _OF_COMPONENTS else "term", line.slug)


def basis_text(line: Line) -> str:
    """How a line's terms are known, and what a tiny model had of it."""
    words = [
        say(f"calibrated.{line.calibrated_on}")
        if basis == "calibrated" and line.calibrated_on
        else say(f"basis.{basis}")
        for basis in line.bases
    ]
    text = "; ".join(words)
    if line.calibrated_bytes is None or not text:
        return text
    return say("identity.compared", basis=text, size_bytes=line.calibrated_bytes)


def _remarks(study: Study, identity: RowIdentity) -> tuple[str, ...]:
    if identity.calibration is None:
        told = [say("identity.not_calibrated"), say(f"not_calibrated.{identity.why_not_calibrated}")]
    else:
        told = [_calibrated(study, identity.calibration.fixed, "identity.on")]
        if identity.calibration.vocabulary is not None:
            told.append(_calibrated(study, identity.calibration.vocabulary, "identity.on_vocabulary"))
        told.append(say("remark.own"))
    return (*told, *_readings(identity.peak or identity.moments[-1]))


def _calibrated(study: Study, tiny: TinyModel, slug: str) -> str:
    return say(
        slug,
        engine=study.engine,
        version=tiny.facts.get("engine_version"),
        measured_at=str(tiny.facts.get("measured_at") or "")[:10],
        layers=tiny.facts.get("layers"),
        tokens=tiny.facts.get("vocabulary_tokens"),
    )


def _readings(moment: Moment) -> list[str]:
    bound = moment.bound
    if bound.total_bytes is None:
        told = [say("identity.bound_unknown")]
    else:
        told = [
            say(
                "identity.bound",
                total_bytes=bound.total_bytes,
                counters_bytes=bound.counters_bytes,
                pages_bytes=bound.pages_bytes,
                time_bytes=bound.time_bytes,
                digits_bytes=bound.digits_bytes,
            )
        ]
    if bound.seen_apart_bytes is not None:
        told.append(say("identity.seen_apart", seen_apart_bytes=bound.seen_apart_bytes))
    return told


def _rows_table(study: Study, anchors: Mapping[str, Link]) -> list[Table]:
    rows = [each for each in study.identities if each.key in anchors and each.peak is not None][:MOST_ROWS]
    if not rows:
        return []
    titles = [Column(title=say("col.row"), is_number=True), Column(title=say("col.design"))]
    titles.append(Column(title=say("col.level")))
    numbers = [*(f"col.{part}" for part in PARTS), "row.unexplained", "col.rest_share", "col.off_by", "row.grown"]
    titles += [Column(title=say(name), is_number=True) for name in numbers]
    table = Table(
        caption=say("caption.identity_rows"),
        columns=tuple(titles),
        rows=tuple(_identity_row(each, each.peak, anchors[each.key]) for each in rows if each.peak is not None),
        summary=say("summary.identity_rows", count=len(rows)),
    )
    return [table]


def _identity_row(identity: RowIdentity, peak: Moment, link: Link) -> Row:
    share, bound = peak.unexplained_share, peak.bound.total_bytes
    return row(
        link.text,
        identity.design,
        level_text(identity.level),
        *_part_cells(peak.attribution),
        mib_cell(peak.unexplained_bytes, 2, signed=True),
        say("unknown") if share is None else format_percent(share, 2),
        mib_cell(bound, 2),
        mib_cell(peak.growth_bytes, 2),
        evidence=(link,),
    )


def _part_cells(found: Attribution) -> list[str]:
    held = {term.slug for term in found.terms}
    return [
        mib_cell(sum(map(found.term_bytes, terms)), 2) if held & set(terms) else say("none") for terms in PARTS.values()
    ]


def _between_table(study: Study) -> list[Table]:
    pairs = _level_pairs(study)[:MOST_ROWS]
    if not pairs:
        return []
    titles = [Column(title=say("col.between"))]
    numbers = [*(f"col.{part}" for part in PARTS), "row.unexplained", "col.rest_share", "row.grown"]
    titles += [Column(title=say(name), is_number=True) for name in numbers]
    table = Table(
        caption=say("caption.identity_between"),
        columns=tuple(titles),
        rows=tuple(_between_row(name, pair) for name, pair in pairs),
        summary=say("summary.identity_between", count=len(pairs)),
    )
    return [table]


def _level_pairs(study: Study) -> list[tuple[str, Between]]:
    """Of each design, the first row of its baseline against the first one of each other level."""
    found = {identity.key: identity for identity in study.identities}
    pairs = []
    for each in study.designs:
        firsts = [(level, _first(each.attempts, level, found)) for level in each.design.levels]
        base = _first(each.attempts, each.design.baseline_level, found)
        for level, other in firsts:
            if base is None or other is None or other.key == base.key:
                continue
            pair = between(base, other)
            if pair is not None:
                named = {"first": level_text(each.design.baseline_level), "second": level_text(level)}
                pairs.append((say("identity.pair", design=each.design.name, **named), pair))
    return pairs


def _first(attempts: Sequence[Attempt], level: object, found: Mapping[str, RowIdentity]) -> RowIdentity | None:
    return next((found[a.key] for a in at_level(attempts, level) if a.key in found), None)


def _between_row(name: str, pair: Between) -> Row:
    parts = [sum(pair.terms.get(term, 0) for term in terms) for terms in PARTS.values()]
    return row(
        name,
        *(mib_cell(size, 2, signed=True) for size in parts),
        mib_cell(pair.unexplained_bytes, 2, signed=True),
        say("unknown") if pair.unexplained_share is None else format_percent(pair.unexplained_share, 2),
        mib_cell(pair.growth_bytes, 2, signed=True),
    )
