"""1. The answer: one sentence with its interval, whether to believe it, and where to read on."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from statistics import median

from kvscope.analysis.failures import FailureGroup
from kvscope.analysis.fit import Estimate
from kvscope.analysis.latency import TimeLaw
from kvscope.analysis.price import token_price
from kvscope.analysis.study import Study
from kvscope.analysis.turns import turn_tables
from kvscope.language import shown
from kvscope.report.advice_words import advice_lines
from kvscope.report.answer_headline import answered_text, intervals_text, is_about_answers
from kvscope.report.answer_parts import answer_table, badges
from kvscope.report.blocks import Answer, Chart, Claim, Link
from kvscope.report.charts_answer import answer_chart
from kvscope.report.charts_memory import by_context_chart
from kvscope.report.charts_time import ttft_chart
from kvscope.report.claims import claim
from kvscope.report.left_out_text import left_out_text
from kvscope.report.links import failed_levels, rows_behind, with_rows
from kvscope.report.section_asked import length_chart, reach_texts
from kvscope.report.section_growth import by_context
from kvscope.report.section_trust import clipped
from kvscope.report.words import has_words, name_of, say
from kvscope.units import MIB, format_number

THOUSAND = 1000
# Failures explained where nothing was measured.
MOST_FAILURES = 3
# Changes named on the first screen.
MOST_ADVICE = 3


def answer(study: Study, anchors: Mapping[str, Link], prefix: str, sections: Collection[str]) -> Answer:
    """The first screen. ``sections``: those that the page has, so that nothing leads to one that it has not."""
    return Answer(
        strip=strip(study),
        headline=headline(study),
        interval=interval_line(study),
        badges=badges(study, prefix, sections),
        doubts=contradictions(study, anchors),
        table=answer_table(study, anchors),
        chart=_chart(study, anchors, prefix),
        remarks=(*remarks(study), *(() if study.attempts else (say("page.more_measured"),))),
        evidence=_evidence(study, anchors),
        advice=advice_lines(study)[:MOST_ADVICE] if "advice" in sections else (),
    )


def _evidence(study: Study, anchors: Mapping[str, Link]) -> tuple[Link, ...]:
    """The rows behind the headline: of the designs whose slopes it gives, else of all that was measured."""
    factors = [
        name for name, slope in (("n_ctx", _memory_slope(study)), ("prompt_tokens", _first_token(study))) if slope
    ]
    behind = [d for d in study.designs if d.design.factor in factors] or list(study.designs)
    return rows_behind((a for d in behind for a in d.attempts if a.is_measured), anchors)


def contradictions(study: Study, anchors: Mapping[str, Link]) -> tuple[Claim, ...]:
    """Findings in which prediction and measurement contradict each other."""
    return tuple(claim(finding, anchors) for finding in study.findings if finding.is_contradiction)


def strip(study: Study) -> tuple[str, ...]:
    """What was measured, on what, when."""
    machine = study.machine
    memory = machine.get("memory_total_bytes")
    facts = [study.model_name, f"{study.engine} ({study.engine_version})"]
    if machine:
        facts.append(say("strip.machine", cpus=machine.get("usable_cpus"), cpu=machine.get("cpu")))
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


def _first_token(study: Study) -> TimeLaw | None:
    """Time to the first token against the prompt; None where it was not measured or is not seen to grow."""
    return study.ttft if study.ttft is not None and study.ttft.trend == "grows" else None


def _ends(law: TimeLaw) -> str:
    """The first and the last length measured, of times that are not seen to lie on a line."""
    (first, start), (last, end) = law.levels[0], law.levels[-1]
    return say("headline.ends", first=first, first_s=start.value, last=last, last_s=end.value)


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
    tells = _memory_slope(study) is not None or _first_token(study) is not None or _last_turns(study) is not None
    return not tells and bool(answered_text(study))


def _measured(study: Study) -> str:
    law = _first_token(study)
    if law is not None and not law.is_line:
        before = _without_time(study)
        return f"{before} {_ends(law)}" if before else _ends(law)
    memory, time = _memory_slope(study), None if law is None else law.line.slope
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
        slug = "headline.failed" if study.until_failure is None else "headline.failed_late"
        return say(slug, failed=study.num_failed, total=len(study.trials), cause=cause)
    turns = _last_turns(study)
    if turns is not None:
        return turns
    if price is not None:
        return say("headline.measured_other" if study.is_measured else "headline.predicted", price=price_text(study))
    return _measured_alone(study) if study.is_measured else say("headline.nothing")


def _without_time(study: Study) -> str:
    """What a token of context costs, measured or else predicted; empty where nothing tells."""
    memory, context, price = _memory_slope(study), study.context, price_text(study)
    if memory is not None and memory.value is not None and context is not None:
        slug = "headline.memory" if context.is_straight else "headline.memory_beyond"
        return say(slug, size_bytes=memory.value * THOUSAND, tokens=context.steps[-1].from_tokens)
    return "" if price is None else say("headline.predicted_context", price=price)


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
    memory, law = _memory_slope(study), _first_token(study)
    parts = []
    if memory is not None and memory.low is not None and memory.high is not None:
        low, high = _as_closely(memory.value or 0.0, memory.low, memory.high)
        parts.append(say("interval.memory", low=low, high=high))
    if law is not None:
        parts += _time_intervals(law)
    if not parts:
        if study.is_measured:
            return say("interval.none")
        if study.until_failure is not None:
            return say("interval.failed_late")
        if study.failures:
            return say("interval.failed")
        if study.attempts:
            return say("interval.not_ended")
        return say("interval.predicted" if study.prediction else "interval.nothing")
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
    if law is not None:
        parts.append(say("interval.inputs", count=law.line.num_levels))
    return say("interval.line", parts=" · ".join(parts))


def _as_closely(value: float, low: float, high: float) -> tuple[str, str]:
    """Both ends in MiB for each 1,000 tokens: with two decimals, or, where the headline's one decimal would then lie
    outside them, with one."""
    told, least, most = (each * THOUSAND / MIB for each in (value, low, high))
    digits = 2 if round(least, 2) <= round(told, 1) <= round(most, 2) else 1
    return format_number(least, digits), format_number(most, digits)


def _time_intervals(law: TimeLaw) -> list[str]:
    """The interval of the price, or those of both ends where the headline has these."""
    slope = law.line.slope
    if law.is_line and slope.low is not None and slope.high is not None:
        return [say("interval.time", low_s=slope.low * THOUSAND, high_s=slope.high * THOUSAND)]
    ends = (law.levels[0], law.levels[-1])
    told = [
        say("interval.end", tokens=tokens, low_s=each.low, high_s=each.high)
        if each.has_interval
        else say("interval.end_alone", tokens=tokens)
        for tokens, each in ends
    ]
    told = told if any(each.has_interval for _, each in ends) else [say("interval.ends_alone")]
    return [*told, say("interval.no_line")] if len(law.levels) > 2 else told


def _chart(study: Study, anchors: Mapping[str, Link], prefix: str) -> Chart | None:
    """Memory against the context limit, else time against the input, else the parts of one attempt's memory."""
    chart, failed = None, failed_levels(study, "n_ctx")
    if study.context is not None:
        behind = set(study.context.evidence)
        measured = [a for a in study.attempts if a.key in behind]
        chart = answer_chart(measured, failed)
        chart = chart and with_rows(chart, by_context(measured, anchors))
    if chart is None and study.ttft is not None and study.ttft.line.num_levels > 1:
        failed = failed_levels(study, "prompt_tokens")
        chart = ttft_chart(study.ttft, failed)
    if chart is None and study.main is not None:
        chart, failed = by_context_chart((study.main,)), []
    if chart is None and study.asked is not None:
        chart = length_chart(study.asked)
    links = (Link(text=say("page.why_failed"), anchor=f"{prefix}failed"),) if failed else ()
    return chart and replace(chart, links=links)


def _failure(group: FailureGroup) -> str:
    """Where nothing was measured the failure is the answer: its cause, what was said of it, what to do."""
    cause = name_of("outcome", group.outcome)
    message = clipped(shown(group.message or "") or say("unknown"))
    known = f"advice.{group.outcome}"
    hint = shown(group.hint or "") or (say(known) if has_words(known) else "")
    if not hint:
        return say("remark.failure_alone", cause=cause, message=message)
    return say("remark.failure", cause=cause, message=message, hint=clipped(hint))


def limit_text(study: Study) -> str | None:
    """How far this machine goes; None where that is not known."""
    if study.limit is None:
        return None
    return say(
        f"remark.limit_{study.limit.binds}",
        tokens=study.limit.tokens,
        available_bytes=study.limit.available_bytes,
    )


def remarks(study: Study) -> tuple[str, ...]:
    """What the headline leaves out: when the memory is taken, how far this machine goes, what was not asked."""
    items = []
    if study.context is not None and any(a.kv_cache_bytes == 0 for a in (study.inputs.added if study.inputs else ())):
        items.append(say("remark.at_load", engine=study.engine))
    if (far := limit_text(study)) is not None:
        items.append(far)
    if (missing := left_out_text(study)) is not None:
        items.append(missing)
    items += reach_texts(study)
    if not study.is_measured:
        items += [_failure(group) for group in study.failures[:MOST_FAILURES]]
    if not study.has_answers and (study.is_measured or (study.prediction and not study.failures)):
        items.append(say("remark.quality"))
    return tuple(items)
