"""Where in the documents the evidence of a question stands, so that it can be seen whether a prompt held it."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from kvscope.quality.retrieval.questions import AskedQuestion
from kvscope.quality.retrieval.sentences import sentence_ends
from kvscope.quality.retrieval.source import SourceDocument

# An answer that stands in more sentences than these does not say which of them is meant.
MOST_PLACES_OF_AN_ANSWER = 5
_BETWEEN_WORDS = r"[\s*_`]+"  # line ends, and the marks of Markdown
_EDGE = r"[*_`]*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where evidence stands: characters ``start`` to ``end`` of the text of ``document`` (its name)."""

    document: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One text that is needed, and every place where it stands; one of them is enough. ``is_stated``: the file of
    questions gives it; else it is the answer, and its places are the sentences that name it."""

    text: str
    places: tuple[Place, ...]
    is_stated: bool


def find_evidence(
    questions: Sequence[AskedQuestion], documents: Sequence[SourceDocument]
) -> Mapping[str, tuple[Evidence, ...]]:
    """By the id of a question, its evidence: that of the file, else its answers where they stand in a document. Found
    exactly, or but for case, line ends and Markdown's marks. Evidence that is nowhere has no places; an answer that is
    nowhere, or in too many sentences, has none either."""
    finder = _Finder(documents)
    return {asked.id: finder.evidence_of(asked) for asked in questions}


class _Finder:
    def __init__(self, documents: Sequence[SourceDocument]) -> None:
        self._documents = tuple(documents)
        self._ends = lru_cache(maxsize=64)(sentence_ends)

    def evidence_of(self, asked: AskedQuestion) -> tuple[Evidence, ...]:
        where = self._about(asked.document)
        if asked.evidence:
            return tuple(Evidence(text=each, places=_places(each, where), is_stated=True) for each in asked.evidence)
        answers = [Evidence(text=each, places=self._sentences(each, where), is_stated=False) for each in asked.expected]
        if not asked.is_any:
            return tuple(answers)
        places = tuple(dict.fromkeys(place for each in answers for place in each.places))
        return (Evidence(text=" / ".join(asked.expected), places=places, is_stated=False),)

    def _about(self, name: str | None) -> tuple[SourceDocument, ...]:
        """The document of that name, or of that name without its folder or ending; all where none is named."""
        if name is None:
            return self._documents
        exact = tuple(each for each in self._documents if each.name == name)
        return exact or tuple(
            each for each in self._documents if name in (_file(each.name), _file(each.name).rpartition(".")[0])
        )

    def _sentences(self, answer: str, documents: Sequence[SourceDocument]) -> tuple[Place, ...]:
        """The sentences that name an answer."""
        whole = f"{_not_inside_before(answer)}{_pattern(answer)}{_not_inside_behind(answer)}"
        pattern = re.compile(whole, re.IGNORECASE)
        found: dict[Place, None] = {}
        for document in documents:
            for match in pattern.finditer(document.text):
                found[self._sentence(document, match.start(), match.end())] = None
                if len(found) > MOST_PLACES_OF_AN_ANSWER:
                    return ()
        return tuple(found)

    def _sentence(self, document: SourceDocument, start: int, end: int) -> Place:
        ends = self._ends(document.text)
        before = bisect_right(ends, start) - 1
        first = ends[before] if before >= 0 else 0
        last = ends[bisect_left(ends, end)]
        stretch = document.text[first:last]
        blanks = len(stretch) - len(stretch.lstrip())
        return Place(document=document.name, start=first + blanks, end=first + len(stretch.rstrip()))


def _places(text: str, documents: Sequence[SourceDocument]) -> tuple[Place, ...]:
    """Every place of a text: exactly, else but for case and blanks."""
    exact = re.compile(re.escape(text))
    loose = re.compile(_pattern(text), re.IGNORECASE)
    for pattern in (exact, loose):
        found = tuple(
            Place(document=document.name, start=match.start(), end=match.end())
            for document in documents
            for match in pattern.finditer(document.text)
        )
        if found:
            return found
    return ()


def _pattern(text: str) -> str:
    return _BETWEEN_WORDS.join(f"{_EDGE}{re.escape(word)}" for word in text.split())


def _not_inside_before(text: str) -> str:
    """An answer begins where a word does: 3 is not in 13, 부산 not in 동부산."""
    return r"(?<![\w.,])" if text[0].isdigit() else r"(?<!\w)" if text[0].isalpha() else ""


def _not_inside_behind(text: str) -> str:
    """3 is not in 35 nor in 3.5, tide not in tides; a Korean word may have a particle behind it."""
    if text[-1].isdigit():
        return r"(?!\d|[.,]\d)"
    return r"(?![A-Za-z0-9])" if text[-1].isascii() and text[-1].isalpha() else ""


def _file(name: str) -> str:
    return name.rpartition("/")[2]
