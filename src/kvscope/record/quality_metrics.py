"""What the answers of one attempt come to, in a few numbers. Which differences between settings are real, the analysis
says: it pairs the same items and knows which of them share a document."""

import math
from collections.abc import Sequence
from typing import TypedDict

from kvscope.record.rows import AnswerRow

QUALITY_DEFINITIONS = {
    "quality_score": "Mean score of the task's items that could be read: 1 right, 0 wrong, between them where a part "
    "is right. Of what is scored and not answered, the mean in nats: of fidelity the divergence from the baseline, of "
    "copy gain the log-probability of the text per token. Not known where no item could be read. Items whose prompt "
    "was cut, whose answer was cut or never came are left out: they say nothing of the model.",
    "quality_low": "Lower end of the 95 % interval of quality_score by Wilson, each item for itself. It is too narrow "
    "where items share documents; the panel of a design (kvscope measure, kvscope report) minds that, and its interval "
    "is wider. Only of tasks whose answers are right or wrong.",
    "quality_high": "Upper end of the same interval.",
    "quality_items": "How many items quality_score is the mean of.",
    "quality_twin_score": "The same mean over the twins: documents without the fact that is asked for, where a right "
    "answer is a guess.",
    "quality_truncated": "Items, twins included, whose prompt did not reach the model whole.",
    "quality_unread": "Items, twins included, that cannot be read for another reason: the answer ran into its limit, "
    "none came, or the request failed.",
}
# Readings that have a score.
_READ = ("right", "wrong", "scored")
# Fact of rows that are measured for the noise of the method alone.
_FLOOR = "floor"
_Z_95 = 1.959963984540054


class QualityMetrics(TypedDict):
    """See QUALITY_DEFINITIONS."""

    quality_score: float | None
    quality_low: float | None
    quality_high: float | None
    quality_items: int | None
    quality_twin_score: float | None
    quality_truncated: int | None
    quality_unread: int | None
    quality_task: str | None


def quality_metrics(answers: Sequence[AnswerRow]) -> QualityMetrics:
    """Of the answers of one attempt; all None where nothing was asked. Several tasks are never put into one number:
    then the score is that of the first one asked."""
    task = answers[0].task if answers else None
    mine = [row for row in answers if row.task == task and _FLOOR not in row.facts]
    read = [row for row in mine if row.reading in _READ and row.score is not None]
    own = [row for row in read if not row.is_twin]
    is_share = bool(own) and all(row.reading != "scored" for row in mine)
    low, high = wilson(sum(row.score or 0.0 for row in own), len(own)) if is_share else (None, None)
    return QualityMetrics(
        quality_task=task,
        quality_score=_mean(own),
        quality_low=low,
        quality_high=high,
        quality_items=len(own) if answers else None,
        quality_twin_score=_mean([row for row in read if row.is_twin]),
        quality_truncated=sum(row.reading == "truncated_input" for row in mine) if answers else None,
        quality_unread=sum(row.reading not in (*_READ, "truncated_input", "unscored") for row in mine)
        if answers
        else None,
    )


def _mean(rows: Sequence[AnswerRow]) -> float | None:
    """Of answers, over all of them. Of scored texts, over documents of each one's mean, in which a text counts by its
    positions: that is what the analysis makes its interval of."""
    groups: dict[str, list[tuple[float, int]]] = {}
    for row in rows:
        is_scored = row.reading == "scored"
        positions = int(row.facts.get("num_positions", 1)) if is_scored else 1
        groups.setdefault(row.document if is_scored else "", []).append((row.score or 0.0, positions))
    means = [sum(score * n for score, n in each) / sum(n for _, n in each) for each in groups.values()]
    return sum(means) / len(means) if means else None


def wilson(right: float, items: int) -> tuple[float, float]:
    """The 95 % interval of a share by Wilson (1927): ``right`` of ``items``, which may be a sum of parts. It holds 0 of
    none right and 1 of all right exactly, whatever rounding does."""
    return wilson_limits(right, items, _Z_95)


def wilson_limits(right: float, num: float, width: float) -> tuple[float, float]:
    """Wilson's limits at ``width`` standard errors: the shares p with |right ÷ num − p| ≤ width · √(p(1 − p) ÷ num)."""
    share, squared = right / num, width * width
    center = (share + squared / (2 * num)) / (1 + squared / num)
    half = width / (1 + squared / num) * math.sqrt(max(0.0, share * (1 - share) / num + squared / (4 * num * num)))
    # Exact where the share is: rounding must not leave 100 % out of the interval of 30 of 30.
    return (0.0 if share <= 0 else max(0.0, center - half)), (1.0 if share >= 1 else min(1.0, center + half))
