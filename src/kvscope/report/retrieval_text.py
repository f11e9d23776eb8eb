"""Whole document against retrieval on one page of a terminal: at most 40 lines of 80 columns."""

import re
import textwrap
from collections.abc import Sequence

from kvscope.analysis.fit import Estimate
from kvscope.analysis.quality_comparison import QualityComparison
from kvscope.analysis.retrieval_panel import WHOLE, Even, Lost, RetrievalPanel, WayRow, lost_by
from kvscope.report.prediction_text import aligned
from kvscope.report.words import NO_BREAK, name_of, say
from kvscope.units import MIB, format_count, format_seconds

WIDTH = 80
MOST_LINES = 40
# Facts named of each way; what there are more is counted.
MOST_FACTS = 4
_GUESSED = "nothing"


def retrieval_lines(panel: RetrievalPanel) -> list[str]:
    """The table of ways, the costs and the break-even, the facts lost. Facts are left out where there is no room."""
    for most_facts in range(MOST_FACTS, -1, -1):
        lines = [*_head(panel), *_costs(panel), *_verdicts(panel), *_facts(panel, most_facts)]
        if len(lines) <= MOST_LINES:
            break
    return lines[:MOST_LINES]


def _head(panel: RetrievalPanel) -> list[str]:
    trials = max((row.num_trials for row in panel.rows), default=0)
    questions = max((row.num_questions for row in panel.rows), default=0)
    title = "retrieval.title_once" if trials == 1 else "retrieval.title"
    lines = _wrapped(say(title, questions=questions, trials=trials))
    measured = [row for row in panel.rows if row.num_trials]
    if measured:
        table = _table(measured, with_interval=True)
        if max(map(len, table)) > WIDTH:
            table = _table(measured, with_interval=False)
        too_wide = max(map(len, table)) - WIDTH
        if too_wide > 0:
            table = _table(measured, with_interval=False, most=max(len(row.level) for row in measured) - too_wide)
        lines += ["", *table, ""]
        lines += _wrapped(say("retrieval.legend"))
    for row in panel.rows:
        if row.why_not is not None:
            lines += _wrapped(say("retrieval.not_measured", level=row.level, why=row.why_not))
    guessed = panel.row(_GUESSED)
    if guessed is not None and guessed.num_scored:
        lines += _wrapped(say("retrieval.guessing", right=_number(guessed.num_right), scored=guessed.num_scored))
    return lines


def _table(rows: Sequence[WayRow], *, with_interval: bool, most: int = WIDTH) -> list[str]:
    """``most``: characters of a way's name."""
    heads = ["right", *(["interval"] if with_interval else []), "evidence", "read", "wait", "peak"]
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
        table.append([_short(row.level, most), *cells])
    return aligned(table)


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value - round(value)) < 0.05 else f"{value:.1f}"


def _share(share: Estimate) -> str:
    return "?" if share.low is None or share.high is None else f"{100 * share.low:.0f}-{100 * share.high:.0f} %"


def _count(value: float | None) -> str:
    return "?" if value is None else format_count(round(value))


def _seconds(value: Estimate) -> str:
    return "?" if value.value is None else format_seconds(value.value)


def _costs(panel: RetrievalPanel) -> list[str]:
    lines: list[str] = []
    for even in panel.evens[:2]:
        lines += ["", *_even(panel, even)]
    return lines


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
    if even.predicted_on_time is None:
        sentences.append(say("retrieval.not_said_before"))
    else:
        law_from = say(f"retrieval_law_from.{even.law_from}")
        sentences.append(say("retrieval.said_before", questions=even.predicted_on_time, law_from=law_from))
    if even.predicted_on_tokens is None and even.on_tokens is not None:
        sentences.append(say("retrieval.tokens_stated", questions=even.on_tokens))
    elif even.predicted_on_tokens is not None:
        sentences.append(say("retrieval.tokens", questions=even.on_tokens, predicted=even.predicted_on_tokens))
    if even.sizes:
        sentences.append(say("retrieval.sizes", sizes="; ".join(_size(n, size) for n, size in even.sizes.items())))
    sentences += _memory(panel, even)
    return _wrapped(" ".join(sentences))


def _break_even(even: Even) -> str:
    found = even.on_time
    if found.value is None:
        return say("retrieval.never", level=even.level)
    interval = say("retrieval.no_interval")
    if found.has_interval:
        interval = say("retrieval.interval", low=found.low, high=found.high)
    return say(
        "retrieval.even" if found.value > 1 else "retrieval.even_at_once", questions=found.value, interval=interval
    )


def _size(questions: int, tokens: float | None) -> str:
    one = say("retrieval.one_question")
    asked = one if questions == 1 else say("retrieval.several_questions", count=questions)
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
    slug = "retrieval.memory_less" if difference >= 0 else "retrieval.memory_more"
    return [say(slug, level=even.level, difference=abs(difference), cache=cache)]


def _verdicts(panel: RetrievalPanel) -> list[str]:
    """Whether passages answer less, on the same questions."""
    lines = []
    told = [even.level for even in panel.evens[:2]]
    for each in panel.comparisons:
        if each.level in told and each.difference.value is not None:
            lines += _wrapped(_verdict(each))
    return ["", *lines] if lines else []


def _verdict(found: QualityComparison) -> str:
    difference, judged = found.difference, found.judged
    interval = ""
    if difference.low is not None and difference.high is not None:
        interval = say("retrieval.answers_interval", low=_points(difference.low), high=_points(difference.high))
    needed = "" if found.needed is None else say("retrieval.needed", items=found.needed.items)
    verdict = say(
        f"retrieval_verdict.{judged.verdict}",
        bound=None if judged.bound is None else f"{100 * judged.bound:.0f}",
        reason=say(f"retrieval_because.{judged.reason}") if judged.reason is not None else "",
        needed=needed if judged.reason == "too_few" else "",
    )
    return say(
        "retrieval.answers",
        level=str(found.level),
        difference=_points(difference.value or 0.0),
        interval=interval,
        verdict=verdict,
    )


def _points(share: float) -> str:
    return f"{100 * share:+.0f}"


def _facts(panel: RetrievalPanel, most: int) -> list[str]:
    """What each way of passages lost, and what the whole document lost against it, by name."""
    lines: list[str] = []
    whole = panel.row(WHOLE)
    for even in panel.evens[:2]:
        lost = lost_by(panel, even.level)
        if not lost:
            lines += ["", *_wrapped(say("retrieval.lost_none", level=even.level))]
        else:
            lines += ["", *_wrapped(say("retrieval.lost", level=even.level, count=len(lost))), *_named(lost, most)]
        gained = lost_by(panel, WHOLE, even.level)
        if gained:
            lines += _wrapped(say("retrieval.gained", level=even.level, count=len(gained))) + _named(gained, most)
    for row in panel.rows:
        is_told = row.level.startswith("passages=") or row is whole
        if is_told and row.failures:
            reasons = [say("retrieval.reason", count=n, failure=name_of("failure", f)) for f, n in row.failures.items()]
            lines += _wrapped(say("retrieval.reasons", level=row.level, reasons=", ".join(reasons)))
    if any(name in row.failures for row in panel.rows for name in ("buried", "retrieved_not_used")):
        lines += _wrapped(say("retrieval.failures"))
    return lines


def _named(lost: Sequence[Lost], most: int) -> list[str]:
    """Each fact on a line of its own: the question, its answer, and why it was lost."""
    lines = []
    for each in lost[:most]:
        failure = name_of("failure", each.failure or "")
        rest = say("retrieval.fact", question="", expected=_short(each.expected or "?", 24), failure=failure)
        lines.append(f"  {_short(each.question, WIDTH - len(rest) - 2)}{rest}")
    left = len(lost) - most
    more = "  " + say("retrieval.more", count=left)
    return [*lines, *([more] if left > 0 and most else [])]


def _short(text: str, width: int) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= width else f"{plain[: max(1, width - 1)]}…"


def _wrapped(text: str) -> list[str]:
    plain = re.sub(r"[ \n]+", " ", text.replace(NO_BREAK, " "))
    return textwrap.wrap(plain, WIDTH, break_on_hyphens=False)
