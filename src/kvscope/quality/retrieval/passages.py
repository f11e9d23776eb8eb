"""Documents cut into passages of at most so many tokens, at ends of sentences; nothing is lost between them.

Counting may be a request to a server, so it is done little: how many characters make a token is learned on the way,
a cut is guessed from that, and the guess is counted. About two counts make a passage.
"""

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kvscope.errors import BadDesign
from kvscope.quality.retrieval.sentences import sentence_ends
from kvscope.quality.retrieval.source import Heading, Remark, SourceDocument

LEAST_PASSAGE_TOKENS = 16
# Of the bundled Korean pages cut by SmolLM2's tokenizer, passages of 33, 50 and 67 characters ended within a sentence
# in 28, 9 and 1 % of the cases.
FEW_CHARACTERS = 60
_FIRST_RATIO = 3.0  # characters of a token, until some were counted
_MOST_RATIO = 32  # no passage is longer than so many characters for each of its tokens, however few they are
_GUESSES = 6  # before halving what is left
_SURE = 1.2  # a sentence that would need so many times the room is not tried


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A stretch of a document. ``document``: its name. ``index``: which passage of that document, from 0. ``text`` is
    the document's text from ``start`` to ``end`` (characters); the passages of a document follow each other without a
    gap. ``tokens``: what ``count`` said of ``text``. ``section``: the headings above its beginning, highest first,
    below the document's title where no heading says it."""

    document: str
    index: int
    text: str
    start: int
    end: int
    tokens: int
    section: tuple[str, ...] = ()


def split(document: SourceDocument, count: Callable[[str], int], passage_tokens: int) -> tuple[Passage, ...]:
    """The document's passages, each of at most ``passage_tokens`` tokens as ``count`` counts a text by itself (no BOS,
    no template). Joined they are the document's text. A heading stays with what follows it. A sentence longer than a
    passage is cut at line ends, else at words, else at characters. Raises BadDesign under LEAST_PASSAGE_TOKENS, and
    what ``count`` raises."""
    if passage_tokens < LEAST_PASSAGE_TOKENS:
        raise BadDesign(
            f"Passages of {passage_tokens} tokens hold no sentence.",
            hint=f"At least {LEAST_PASSAGE_TOKENS} are needed.",
        )
    splitter = _Splitter(document, count, passage_tokens)
    return tuple(
        Passage(
            document=document.name,
            index=index,
            text=document.text[start:end],
            start=start,
            end=end,
            tokens=tokens,
            section=_section(document, start),
        )
        for index, (start, end, tokens) in enumerate(splitter.stretches())
    )


def split_all(
    documents: Sequence[SourceDocument], count: Callable[[str], int], passage_tokens: int
) -> tuple[Passage, ...]:
    """The passages of every document, in order. Raises as ``split``."""
    return tuple(passage for document in documents for passage in split(document, count, passage_tokens))


def remarks_on_size(passages: Sequence[Passage], passage_tokens: int) -> tuple[Remark, ...]:
    """Whether passages of so many tokens hold too few characters for a sentence, in documents whose language costs the
    tokenizer many tokens; with the size that would hold one or two."""
    of_documents: dict[str, list[Passage]] = {}
    for each in passages:
        of_documents.setdefault(each.document, []).append(each)
    held = {name: passage_tokens * _characters_per_token(each) for name, each in of_documents.items()}
    few = sorted(characters for characters in held.values() if characters < FEW_CHARACTERS)
    if not few:
        return ()
    usual = few[len(few) // 2]
    larger = -(-passage_tokens * 2 * FEW_CHARACTERS // (32 * max(1, round(usual)))) * 32
    text = (
        f"Passages of {passage_tokens} tokens hold about {usual:.0f} characters in {len(few)} of {len(held)} "
        "documents: less than many sentences."
    )
    hint = f"Try larger ones: --passage-tokens {larger}, or a level with /size={larger}."
    return (Remark(slug="short-passages", text=text, hint=hint),)


def _characters_per_token(passages: Sequence[Passage]) -> float:
    return sum(len(each.text) for each in passages) / max(1, sum(each.tokens for each in passages))


def headings_above(passage: Passage) -> tuple[str, ...]:
    """Its title and headings, highest first, but those that are in its text anyway."""
    return tuple(each for each in passage.section if each not in passage.text)


def _section(document: SourceDocument, start: int) -> tuple[str, ...]:
    """The title, if it is no heading, and the headings above the first word at or behind ``start``."""
    begins = re.compile(r"\S").search(document.text, start)
    at = begins.start() if begins else start
    above: list[Heading] = []
    for heading in document.headings:
        if heading.start > at:
            break
        above = [each for each in above if each.level < heading.level]
        above.append(heading)
    is_said = document.title is None or any(each.text == document.title for each in document.headings)
    return (*(() if is_said else (document.title,)), *(each.text for each in above))


class _Splitter:
    """``ends``: where a passage may end. ``ratio``: characters of a token, as counted last."""

    def __init__(self, document: SourceDocument, count: Callable[[str], int], limit: int) -> None:
        self._text = document.text
        self._count = count
        self._limit = limit
        self._headings = [each.start for each in document.headings]
        self._ends = _ends_of(document)
        self._ratio = _FIRST_RATIO

    def stretches(self) -> Iterator[tuple[int, int, int]]:
        """(start, end, tokens) of each passage."""
        start = 0
        while start < len(self._text):
            end, tokens = self._fitting(start, self._ends) or self._inside_sentence(start)
            before_heading = self._last_heading(start, end)
            if before_heading is not None:
                end, tokens = before_heading, self._count(self._text[start:before_heading])
            yield start, end, tokens
            start = end

    def _last_heading(self, start: int, end: int) -> int | None:
        """A section that begins in the second half of a passage begins the next one, unless all of it fits."""
        if end == len(self._text):
            return None
        place = bisect_right(self._headings, end - 1) - 1
        if place < 0 or self._headings[place] <= (start + end) // 2:
            return None
        return self._headings[place]

    def _inside_sentence(self, start: int) -> tuple[int, int]:
        """As much of a sentence that is longer than a passage as fits."""
        end = min(self._ends[bisect_right(self._ends, start)], start + self._limit * _MOST_RATIO)
        for places in (_line_ends, _word_ends, _character_ends):
            found = self._fitting(start, places(self._text, start, end))
            if found is not None:
                return found
        # One character of more tokens than a passage may have: it cannot be cut, and goes in whole.
        only = _character_ends(self._text, start, end)[0]
        return only, self._count(self._text[start:only])

    def _fitting(self, start: int, places: Sequence[int]) -> tuple[int, int] | None:
        """The last of ``places`` up to which the text fits, with its tokens; None where not even the first does. The
        last but one or so, where counting once more would not be worth it."""
        first = bisect_right(places, start)
        fits, over, tokens, tries = first - 1, len(places), 0, 0
        while over - fits > 1:
            base = start if fits < first else places[fits]
            room = self._limit - tokens
            if fits >= first and places[fits + 1] - base > room * self._ratio * _SURE:
                break
            guess = bisect_right(places, base + room * self._ratio) - 1 if tries < _GUESSES else (fits + over) // 2
            guess = min(max(guess, fits + 1), over - 1)
            tries += 1
            if places[guess] - start > self._limit * _MOST_RATIO:
                over = guess
                continue
            counted = self._count(self._text[start : places[guess]])
            self._ratio = max((places[guess] - start) / max(counted, 1), 0.1)
            if counted <= self._limit:
                fits, tokens = guess, counted
            else:
                over = guess
        return (places[fits], tokens) if fits >= first else None


def _ends_of(document: SourceDocument) -> list[int]:
    """The ends of sentences, but none between a heading and what follows it, and one before each heading."""
    ends = set(sentence_ends(document.text))
    ordered = sorted(ends)
    for heading in document.headings:
        if heading.start:
            ends.add(heading.start)
        end = ordered[bisect_right(ordered, heading.start)]
        if end < len(document.text) and _is_heading_alone(document.text[heading.start : end]):
            ends.discard(end)
    return sorted(ends)


def _is_heading_alone(text: str) -> bool:
    lines = [line for line in text.splitlines() if line.strip()]
    return len(lines) == 1 or (len(lines) == 2 and not lines[1].strip("=- "))


def _line_ends(text: str, start: int, end: int) -> list[int]:
    return [start + match.end() for match in re.finditer(r"\n+", text[start:end])]


def _word_ends(text: str, start: int, end: int) -> list[int]:
    return [start + match.end() for match in re.finditer(r"\s+", text[start:end])]


def _character_ends(text: str, start: int, end: int) -> list[int]:
    """Behind each character together with the marks that combine with it."""
    return [at for at in range(start + 1, end) if not _continues(text[at])] + [end]


def _continues(character: str) -> bool:
    is_joined = character in "\u200d\ufe0f" or "\u1160" <= character <= "\u11ff"  # Hangul vowels and finals, decomposed
    return is_joined or unicodedata.combining(character) > 0
