"""Whole document against retrieval on one page of a terminal: at most 40 lines of 80 columns."""

from collections.abc import Sequence

from kvscope.analysis.fit import Estimate
from kvscope.analysis.quality_comparison import QualityComparison
from kvscope.analysis.retrieval_even import PASSAGES, WHOLE, Even
from kvscope.analysis.retrieval_panel import Lost, RetrievalPanel, WayRow, lost_by
from kvscope.report.terminal_table import aligned, is_too_wide
from kvscope.report.terminal_text import WIDTH, cut_off, display_width, wrapped
from kvscope.report.words import name_of, say
from kvscope.units import MIB, format_count, format_seconds

MOST_LINES = 40
LEAST_NAME = 8
# Facts named of each way; what there are more is counted.
MOST_FACTS = 4
# What is tried until it fits: (ways, brief, facts by name). Names of what was lost go last of all.
_ROOM = [
    *((2, False, facts) for facts in range(MOST_FACTS, 1, -1)),
    *((1, False, facts) for facts in range(MOST_FACTS, 1, -1)),
    *((1, True, facts) for facts in range(MOST_FACTS, -1, -1)),
]
# Less than this share of what is predicted is none that was seen.
NO_DIFFERENCE = 0.05
_GUESSED = "nothing"
# Reasons of a failure that are explained where there are any.
_EXPLAINED = ("buried", "retrieved_not_used", "partly_right")


def retrieval_lines(panel: RetrievalPanel) -> list[str]:
    """The table of ways, the costs and the break-even, the facts lost. Where there is no room facts are left out, then
    ways; what is left out is said."""
    lines: list[str] = []
    for most_ways, is_brief, most_facts in _ROOM:
        told = panel.evens[:most_ways]
        facts = _facts(panel, told, most_facts, is_brief=is_brief)
        lines = [*_head(panel), *_costs(panel, told), *_verdicts(panel, told), *facts]
        if len(lines) <= MOST_LINES:
            return lines
    cut = len(lines) - MOST_LINES + 1
    return [*lines[: MOST_LINES - 1], say("retrieval.cut", count=cut)]


def _head(panel: RetrievalPanel) -> list[str]:
    trials = max((row.num_trials for row in panel.rows), default=0)
    questions = max((row.num_questions for row in panel.rows), default=0)
    title = "retrieval.title_once" if trials == 1 else "retrieval.title"
    lines = _lines(say(title, questions=_questions(questions), trials=trials))
    measured = [row for row in panel.rows if row.num_trials]
    if measured:
        table = _table(measured, with_interval=True)
        if is_too_wide(table):
            table = _table(measured, with_interval=False)
        lines += ["", *aligned(_with_short_names(table)), ""]
        lines += _lines(legend(panel))
    for row in panel.rows:
        if row.why_not is not None:
            lines += _lines(say("retrieval.not_measured", level=row.level, why=row.why_not))
    guessed = panel.row(_GUESSED)
    if guessed is not None and guessed.num_scored:
        lines += _lines(say("retrieval.guessing", right=_number(guessed.num_right), scored=guessed.num_scored))
    return lines


def evidence_head(rows: Sequence[WayRow]) -> str:
    """What a column of evidence is of: what was given, or only sent where it may have been cut."""
    return "sent" if any(row.is_maybe_cut for row in rows) else "evidence"


def legend(panel: RetrievalPanel) -> str:
    """What the columns are, and why there is no interval where there is none."""
    rows = [row for row in panel.rows if row.num_trials]
    unsure = ", ".join(row.level for row in rows if row.is_maybe_cut)
    reasons = [row.share.reason.slug for row in rows if row.share.reason is not None and row.num_scored]
    why = say("retrieval.one_document") if "one_document" in reasons else ""
    return say(
        "retrieval.legend",
        evidence=say("retrieval.sent", levels=unsure) if unsure else say("retrieval.given"),
        why_no_interval=why,
    )


def failure_lines(panel: RetrievalPanel) -> list[str]:
    """The reasons of a failure that are explained, of those that there are."""
    found = {name for row in panel.rows for name in row.failures}
    texts = {"cut_answer": "cut_answers", "cut": "cut_prompts", "maybe_cut": "maybe_cut_prompts"}
    named = [say(f"retrieval.{text}") for name, text in texts.items() if name in found]
    return [*([say("retrieval.failures")] if found & set(_EXPLAINED) else []), *named]


def _with_short_names(table: Sequence[list[str]]) -> list[list[str]]:
    """Names of ways cut off, and not folded, where the table is too wide: a page has few lines."""
    cut = list(table)
    widest = max(display_width(row[0]) for row in table)
    for columns in range(widest, LEAST_NAME, -1):
        cut = [[cut_off(row[0], columns), *row[1:]] for row in table]
        if not is_too_wide(cut):
            break
    return cut


def _table(rows: Sequence[WayRow], *, with_interval: bool) -> list[list[str]]:
    evidence = evidence_head(rows)
    heads = ["right", *(["interval"] if with_interval else []), evidence, "read", "wait", "peak"]
    table = [["", *(say(f"retrieval_col.{name}") for name in heads)]]
    for row in rows:
        cells = [
            f"{_number(row.num_right)}/{row.num_scored}",
            *([_share(row.share)] if with_interval else []),
            f"{row.with_evidence}/{row.evidence_known}",
            f"{_count(row.first_computed)} + {_count(row.later_computed)}",
            f"{_seconds(row.first_s)} + {_seconds(row.later_s)}",
            "?" if row.peak_bytes is None else f"{format_count(round(row.peak_bytes / MIB))} MiB",
        ]
        table.append([row.level, *cells])
    return table


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value - round(value)) < 0.05 else f"{value:.1f}"


def _share(share: Estimate) -> str:
    return "?" if share.low is None or share.high is None else f"{100 * share.low:.0f}-{100 * share.high:.0f} %"


def _count(value: float | None) -> str:
    return "?" if value is None else format_count(round(value))


def _seconds(value: Estimate) -> str:
    return "?" if value.value is None else format_seconds(value.value)


def _costs(panel: RetrievalPanel, told: Sequence[Even]) -> list[str]:
    if not told:
        return ["", *_lines(say("retrieval.even_unknown", why=say(f"retrieval_why_unknown.{_why_unknown(panel)}")))]
    lines = [line for even in told for line in ("", *_even(panel, even))]
    left = ", ".join(even.level for even in panel.evens[len(told) :])
    return [*lines, *(_lines(say("retrieval.left_out", levels=left)) if left else [])]


def _why_unknown(panel: RetrievalPanel) -> str:
    """Why there is no break-even of any way."""
    whole = panel.row(WHOLE)
    passages = [row for row in panel.rows if row.level.startswith(PASSAGES)]
    measured = [row for row in passages if row.num_trials]
    if whole is None or not passages:
        return "no_whole" if whole is None else "no_passages"
    if not whole.num_trials or not measured:
        return "whole_not_measured" if not whole.num_trials else "passages_not_measured"
    return "one_question" if max(row.num_questions for row in (whole, *measured)) < 2 else "not_all_known"


def _even(panel: RetrievalPanel, even: Even) -> list[str]:
    whole = panel.row(WHOLE)
    sentences = []
    if even.costs is not None and whole is not None:
        costs = even.costs
        sentences.append(
            say(
                "retrieval.whole",
                level=even.level,
                cold_s=costs.cold,
                warm_s=costs.warm,
                each_s=costs.each,
                tokens=whole.first_computed,
            )
        )
    sentences.append(_break_even(even))
    said_before = _known(even, "predicted_on_time", even.predicted_on_time)
    if said_before is None:
        sentences.append(say("retrieval.not_said_before"))
    else:
        law_from = say(f"retrieval_law_from.{even.law_from}")
        sentences.append(say("retrieval.said_before", questions=said_before, law_from=law_from))
    sentences += _tokens(even)
    if even.sizes:
        sizes = [_size(number, size, even.largest_tokens) for number, size in even.sizes.items()]
        sentences.append(say("retrieval.sizes", sizes="; ".join(sizes)))
    sentences += _memory(panel, even)
    return _lines(" ".join(sentences))


def _known(even: Even, name: str, value: float | None) -> str | None:
    """A number of questions as it is said; None where it is not known."""
    if name in even.never:
        return say("retrieval.none")
    return None if value is None else say("retrieval.number", questions=value)


def _tokens(even: Even) -> list[str]:
    stated, before = (
        _known(even, "on_tokens", even.on_tokens),
        _known(even, "predicted_on_tokens", even.predicted_on_tokens),
    )
    if stated is not None and even.on_tokens is not None:
        stated = say("retrieval.number_of_questions", questions=even.on_tokens)
    if before is None:
        return [] if stated is None else [say("retrieval.tokens_stated", questions=stated)]
    return [say("retrieval.tokens", questions=stated or say("retrieval.not_stated"), predicted=before)]


def _break_even(even: Even) -> str:
    found, reason = even.on_time, even.on_time.reason
    if reason is not None and reason.slug == "each_not_told":
        least = "" if found.low is None else say("retrieval.at_least", low=found.low)
        means = "" if found.value is None else say("retrieval.by_means", questions=found.value)
        return say("retrieval.not_told", level=even.level, least=f"{means}{least}")
    if found.value is None:
        return say("retrieval.never" if reason is None else "retrieval.not_told_once", level=even.level)
    interval = say("retrieval.no_interval")
    if found.low is not None and found.high is not None:
        interval = say("retrieval.interval", low=found.low, high=found.high)
        if found.value <= 1:
            interval = say("retrieval.at_most", high=found.high) if found.high > 1 else ""
    return say(
        "retrieval.even" if found.value > 1 else "retrieval.even_at_once", questions=found.value, interval=interval
    )


def _questions(count: int) -> str:
    return say("retrieval.one_question") if count == 1 else say("retrieval.several_questions", count=count)


def _size(questions: int, tokens: float | None, largest: int | None) -> str:
    """``largest``: tokens that the model's window holds."""
    asked = _questions(questions)
    if largest is not None and (tokens is None or tokens > largest):
        return say("retrieval.size_window", questions=asked, tokens=largest)
    if tokens is not None and tokens < 1:
        return say("retrieval.size_none", questions=asked)
    if tokens is None:
        return say("retrieval.size_any", questions=asked)
    return say("retrieval.size", questions=asked, tokens=tokens)


def _memory(panel: RetrievalPanel, even: Even) -> list[str]:
    whole, here = panel.row(WHOLE), panel.row(even.level)
    if whole is None or here is None or whole.peak_bytes is None or here.peak_bytes is None:
        return []
    difference, cache = whole.peak_bytes - here.peak_bytes, (whole.cache_bytes or 0) - (here.cache_bytes or 0)
    if cache <= 0:
        return [say("retrieval.memory", level=even.level, difference=-difference)]
    if abs(difference) < NO_DIFFERENCE * cache:
        return [say("retrieval.memory_alike", level=even.level, cache=cache)]
    slug = "retrieval.memory_less" if difference >= 0 else "retrieval.memory_more"
    return [say(slug, level=even.level, difference=abs(difference), cache=cache)]


def _verdicts(panel: RetrievalPanel, told: Sequence[Even]) -> list[str]:
    """Whether passages answer less, on the same questions."""
    lines = []
    levels = [even.level for even in told]
    for each in panel.comparisons:
        if each.level in levels and each.difference.value is not None:
            lines += _lines(_verdict(each))
    return ["", *lines] if lines else []


def _verdict(found: QualityComparison) -> str:
    difference, judged = found.difference, found.judged
    reason = "one_document" if judged.reason == "too_few" and found.num_documents == 1 else judged.reason
    interval = ""
    if difference.low is not None and difference.high is not None:
        interval = say("retrieval.answers_interval", low=_points(difference.low), high=_points(difference.high))
    needed = "" if found.needed is None else say("retrieval.needed", items=found.needed.items)
    verdict = say(
        f"retrieval_verdict.{judged.verdict}",
        bound=None if judged.bound is None else f"{100 * judged.bound:.0f}",
        reason=say(f"retrieval_because.{reason}") if reason is not None else "",
        needed=needed if reason == "too_few" else "",
    )
    return say(
        "retrieval.answers",
        level=str(found.level),
        items=_questions(found.num_items),
        difference=_points(difference.value or 0.0),
        interval=interval,
        verdict=verdict,
    )


def _points(share: float) -> str:
    return f"{100 * share:+.0f}"


def _facts(panel: RetrievalPanel, told: Sequence[Even], most: int, *, is_brief: bool) -> list[str]:
    """What each way of passages lost, and what the whole document lost against it, by name: ``most`` of each.
    ``is_brief``: of the latter the number alone, and the kinds of failure unexplained."""
    lines: list[str] = []
    for even in told:
        lost = lost_by(panel, even.level)
        if not lost:
            lines += ["", *_lines(say(_lost_none(panel), level=even.level))]
        else:
            slug = "retrieval.lost" if most else "retrieval.lost_number"
            lines += ["", *_lines(say(slug, level=even.level, count=len(lost))), *_named(lost, most)]
        gained = lost_by(panel, WHOLE, even.level)
        if gained:
            slug = "retrieval.gained_number" if is_brief else "retrieval.gained"
            lines += _lines(say(slug, level=even.level, count=len(gained)))
            lines += [] if is_brief else _named(gained, most)
    for row in panel.rows:
        if row.failures and row.level != _GUESSED:
            reasons = [say("retrieval.reason", count=n, failure=name_of("failure", f)) for f, n in row.failures.items()]
            lines += _lines(say("retrieval.reasons", level=row.level, reasons=", ".join(reasons)))
    return lines if is_brief else [*lines, *(line for text in failure_lines(panel) for line in _lines(text))]


def _lost_none(panel: RetrievalPanel) -> str:
    """What to say where passages lost nothing: which is little where there was nothing to lose."""
    whole = panel.row(WHOLE)
    if whole is None or not whole.num_scored:
        return "retrieval.lost_none_unread"
    return "retrieval.lost_none" if whole.num_right else "retrieval.lost_none_of_none"


def _named(lost: Sequence[Lost], most: int) -> list[str]:
    """Each fact on a line of its own: the question, its answer, and why it was lost."""
    lines = []
    for each in lost[:most]:
        failure = name_of("failure", each.failure or "")
        rest = say("retrieval.fact", question="", expected=cut_off(each.expected or "?", 24), failure=failure)
        lines.append(f"  {cut_off(each.question, WIDTH - display_width(rest) - 2)}{rest}")
    left = len(lost) - most
    more = "  " + say("retrieval.more", count=left)
    return [*lines, *([more] if left > 0 and most else [])]


def _lines(text: str) -> list[str]:
    return wrapped(text, later="")
