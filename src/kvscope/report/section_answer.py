"""1. The answer: one sentence with its interval, whether to believe it, and where to read on."""

from collections.abc import Mapping
from statistics import median

from kvscope.analysis.attribute import UNEXPLAINED_SHARE, Attribution
from kvscope.analysis.fit import Estimate
from kvscope.analysis.price import token_price
from kvscope.analysis.study import MemoryView, Study
from kvscope.analysis.turns import turn_tables
from kvscope.report.answer_headline import answered_text, intervals_text, is_about_answers
from kvscope.report.blocks import Answer, Badge, Chart, Claim, Link, Row, Table, columns, row
from kvscope.report.charts_memory import PART_TERMS, by_context_chart, context_chart
from kvscope.report.charts_time import ttft_chart
from kvscope.report.claims import claim
from kvscope.report.numbers import mib_cell
from kvscope.report.section_growth import failed_levels
from kvscope.report.section_trust import clipped
from kvscope.report.words import name_of, say
from kvscope.units import MIB, format_number

THOUSAND = 1000
_TABLE_PARTS: Mapping[str, tuple[str, ...]] = {
    "weights": ("weights",),
    "kv_cache": ("kv_cache", "recurrent_state"),
    "buffers": ("compute_buffer", "output_buffer"),
}


def answer(study: Study, anchors: Mapping[str, Link], prefix: str) -> Answer:
    """The first screen."""
    return Answer(
        strip=strip(study),
        headline=headline(study),
        interval=interval_line(study),
        badges=_badges(study, prefix),
        doubts=contradictions(study, anchors),
        table=_table(study),
        chart=_chart(study),
        remarks=remarks(study),
    )


def contradictions(study: Study, anchors: Mapping[str, Link]) -> tuple[Claim, ...]:
    """Findings in which prediction and measurement contradict each other."""
    return tuple(claim(finding, anchors) for finding in study.findings if finding.is_contradiction)


def strip(study: Study) -> tuple[str, ...]:
    """What was measured, on what, when."""
    machine = study.machine
    memory = machine.get("memory_total_bytes")
    facts = [
        study.model_name,
        f"{study.engine} ({study.engine_version})",
        say("strip.machine", cpus=machine.get("usable_cpus"), cpu=machine.get("cpu")),
    ]
    if isinstance(memory, int):
        facts.append(say("strip.memory", size=memory))
    facts += [say("strip.date", date=run.started_at[:10]) for run in study.runs[:1]]
    return tuple(clipped(fact, 120) for fact in facts)


def _memory_slope(study: Study) -> Estimate | None:
    """Bytes per token of context: of the whole line, or of its last step where it is not straight."""
    if study.context is None:
        return None
    slope = study.context.measured.slope if study.context.is_straight else study.context.steps[-1].measured
    return slope if slope.value is not None else None


def _time_slope(study: Study) -> Estimate | None:
    """Seconds to the first token for each prompt token; None where it was not measured or is not seen to grow."""
    return study.ttft.line.slope if study.ttft is not None and study.ttft.trend == "grows" else None


def headline(study: Study) -> str:
    """The answer: what was answered where questions were asked, and as one sentence what was measured besides."""
    answered = answered_text(study)
    if answered and is_answered_first(study):
        return answered
    return f"{_measured(study)} {answered}" if answered else _measured(study)


def is_answered_first(study: Study) -> bool:
    """Whether the head of a study is what was answered alone: nothing else was asked, or measured so that it tells."""
    if is_about_answers(study):
        return bool(answered_text(study))
    tells = _memory_slope(study) is not None or _time_slope(study) is not None or _last_turns(study) is not None
    return not tells and bool(answered_text(study))


def _measured(study: Study) -> str:
    memory, time = _memory_slope(study), _time_slope(study)
    time_s = None if time is None or time.value is None else time.value * THOUSAND
    if memory is not None and memory.value is not None:
        values = {"size_bytes": memory.value * THOUSAND, "time_s": time_s}
        if study.context is not None and not study.context.is_straight:
            slug = "headline.memory_beyond" if time is None else "headline.both_beyond"
            return say(slug, **values, tokens=study.context.steps[-1].from_tokens)
        return say("headline.memory" if time is None else "headline.both", **values)
    price = token_price(study.prediction)
    if time is not None and price is None:
        return say("headline.time", time_s=time_s)
    if time is not None:
        return say("headline.predicted_time", price=price_text(study), time_s=time_s)
    if study.failures and not study.is_measured:
        group = study.failures[0]
        cause = name_of("outcome", group.outcome)
        return say("headline.failed", failed=study.num_failed, total=len(study.trials), cause=cause)
    turns = _last_turns(study)
    if turns is not None:
        return turns
    if price is not None:
        return say("headline.measured_other" if study.is_measured else "headline.predicted", price=price_text(study))
    return _measured_alone(study) if study.is_measured else say("headline.nothing")


def _measured_alone(study: Study) -> str:
    """What was measured where nothing was predicted and nothing is seen to grow, as with a server that runs already."""
    measured = [a for a in study.attempts if a.is_measured]
    times = [a.metrics.ttft_s for a in measured if a.metrics.ttft_s is not None]
    tokens = {a.prompt_tokens for a in measured}
    if times and len(tokens) == 1 and (prompt := tokens.pop()) is not None:
        return say("headline.measured_time", time_s=median(times), tokens=prompt)
    return say("headline.measured_alone", count=len(measured))


def _last_turns(study: Study) -> str | None:
    """How the last turn of a conversation differs from the first; None where none was played far enough to tell."""
    tables = [table for design in study.designs for table in turn_tables(design.attempts)]
    answered = [turn for turn in tables[-1].turns if turn.conversations] if tables else []
    if len(answered) < 2:
        return None
    first, last = answered[0], answered[-1]
    return say(
        "headline.turns",
        turn=last.turn,
        time_s=last.ttft_s,
        computed=last.computed_tokens,
        tokens=last.prompt_tokens,
        first_s=first.ttft_s,
    )


def price_text(study: Study) -> str | None:
    """What 1,000 tokens of context should add, and beyond which length; None where nothing tells."""
    price = token_price(study.prediction)
    if price is None:
        return None
    first, beyond = price.first_bytes * THOUSAND, price.beyond_bytes * THOUSAND
    if price.knee_tokens is None:
        return say("price.one", size_bytes=first)
    return say("price.beyond", size_bytes=first, beyond_bytes=beyond, tokens=price.knee_tokens)


def interval_line(study: Study) -> str:
    """The intervals of the headline, and on how much they rest."""
    if is_answered_first(study):
        return intervals_text(study)
    memory, time = _memory_slope(study), _time_slope(study)
    parts = []
    if memory is not None and memory.low is not None and memory.high is not None:
        low, high = (format_number(x * THOUSAND / MIB, 2) for x in (memory.low, memory.high))
        parts.append(say("interval.memory", low=low, high=high))
    if time is not None and time.low is not None and time.high is not None:
        parts.append(say("interval.time", low_s=time.low * THOUSAND, high_s=time.high * THOUSAND))
    if not parts:
        return say("interval.none") if study.is_measured else say("interval.predicted")
    counts = [
        level.num_measured
        for d in study.designs
        if d.design.factor in ("n_ctx", "prompt_tokens")
        for level in d.levels
        if level.num_measured
    ]
    parts.append(say("interval.repeats", fewest=min(counts)))
    if memory is not None and study.context is not None:
        parts.append(say("interval.contexts", count=study.context.measured.num_levels))
    if time is not None and study.ttft is not None:
        parts.append(say("interval.inputs", count=study.ttft.line.num_levels))
    return say("interval.line", parts=" · ".join(parts))


def _badges(study: Study, prefix: str) -> tuple[Badge, ...]:
    badges = []
    share = None if study.main is None or study.main.loaded is None else study.main.loaded.unexplained_share
    if share is not None:
        text = say("badge.explained", share=1 - share)
        kind = "good" if share <= UNEXPLAINED_SHARE else "bad"
        badges.append(Badge(mark="=" if kind == "good" else "≠", text=text, kind=kind, anchor=f"{prefix}memory"))
    failed, total = study.num_failed, len(study.trials)
    text = say("badge.failed", failed=failed, total=total) if failed else say("badge.no_failures", total=total)
    mark, kind = ("×", "bad") if failed else ("=", "good")
    badges.append(Badge(mark=mark, text=text, kind=kind, anchor=f"{prefix}failed"))
    doubts = [c for c in study.checks if c.passed is False and c.slug != "failures"]
    if doubts:
        names = ", ".join(dict.fromkeys(say(f"check_short.{c.slug}") for c in doubts))
        text = say("badge.doubts", names=names)
        badges.append(Badge(mark="!", text=text, kind="doubt", anchor=f"{prefix}trust"))
    else:
        badges.append(Badge(mark="=", text=say("badge.no_doubts"), kind="good", anchor=f"{prefix}trust"))
    return tuple(badges)


def _table(study: Study) -> Table | None:
    """MiB of the main attempt after load: predicted, engine-reported, in memory."""
    view = study.main
    if view is None:
        return None
    rows = [_part_row(view, part, slugs) for part, slugs in _TABLE_PARTS.items()]
    loaded = view.loaded
    if loaded is not None and loaded.maps_read:
        runtime = sum(loaded.term_bytes(t) for p in ("runtime", "libraries") for t in PART_TERMS[p])
        rows.append(row(say("row.runtime"), say("unknown"), say("none"), mib_cell(runtime)))
    if loaded is not None:
        left = mib_cell(loaded.unexplained_bytes, signed=True)
        rows.append(row(say("row.unexplained"), say("none"), say("none"), left, kind="total"))
        rows.append(row(say("row.grown"), say("none"), say("none"), mib_cell(loaded.growth_bytes), kind="total"))
    return Table(
        caption=say("caption.answer", context_tokens=view.attempt.context_tokens),
        columns=columns(say("col.mib"), say("col.predicted"), say("col.reported"), say("col.resident")),
        rows=tuple(rows),
    )


def _part_row(view: MemoryView, part: str, slugs: tuple[str, ...]) -> Row:
    found = [c for c in view.components_loaded if c.slug in slugs]
    sizes = [c.allocated_bytes for c in found]
    predicted = None if not sizes or None in sizes else sum(s for s in sizes if s is not None)
    printed = [float(text) for c in found for text in c.reported_mib]
    reported = format_number(sum(printed), 1) if printed else say("none")
    return row(name_of("part", part), mib_cell(predicted), reported, _seen(view.loaded, part))


def _seen(loaded: Attribution | None, part: str) -> str:
    if loaded is None or not loaded.maps_read:
        return say("unknown")
    size = mib_cell(sum(loaded.term_bytes(term) for term in PART_TERMS[part]))
    return say("cell.at_most", size=size) if loaded.is_upper_bound(*PART_TERMS[part]) else size


def _chart(study: Study) -> Chart | None:
    if study.context is not None and study.context.measured.num_levels > 1:
        return context_chart(study.context, failed_levels(study, "n_ctx"))
    if study.ttft is not None and study.ttft.line.num_levels > 1:
        return ttft_chart(study.ttft, failed_levels(study, "prompt_tokens"))
    return None if study.main is None else by_context_chart((study.main,))


def remarks(study: Study) -> tuple[str, ...]:
    """What the headline leaves out: when the memory is taken, how far this machine goes, what was not asked."""
    items = []
    if study.context is not None and any(a.kv_cache_bytes == 0 for a in (study.inputs.added if study.inputs else ())):
        items.append(say("remark.at_load", engine=study.engine))
    if study.limit is not None:
        items.append(
            say(
                f"remark.limit_{study.limit.binds}",
                tokens=study.limit.tokens,
                available_bytes=study.limit.available_bytes,
            )
        )
    if not study.is_measured:
        items.append(say("remark.not_measured"))
    if not study.has_answers:
        items.append(say("remark.quality"))
    return tuple(items)
