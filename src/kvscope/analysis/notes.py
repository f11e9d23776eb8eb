"""A statement as a slug and its values. The sentence itself is written in ``kvscope.report.words``, so that the
analysis holds no wording and another language needs no change here."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """``values`` fill the placeholders of the sentence that ``slug`` names."""

    slug: str
    values: Mapping[str, object] = field(default_factory=dict)


def note(slug: str, /, **values: object) -> Note:
    """Shorthand for a Note."""
    return Note(slug=slug, values=values)
