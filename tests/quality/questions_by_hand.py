"""Questions made by hand, for tests of scoring and reading."""

from typing import Any

from kvscope.quality.task import Question, Scoring


def question(expected: str | tuple[str, ...], *rivals: str, scoring: Scoring = "normalised", **other: Any) -> Question:
    """``rivals``: other values of its text."""
    return Question(
        item="by-hand",
        text=other.pop("text", "What is asked?"),
        expected=(expected,) if isinstance(expected, str) else expected,
        rivals=rivals,
        scoring=scoring,
        chance=0.0,
        evidence=other.pop("evidence", ()),
        max_output_tokens=16,
        **other,
    )
