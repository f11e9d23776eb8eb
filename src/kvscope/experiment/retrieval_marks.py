"""Marks in what a model is given of documents: code words at its head, in its middle and at its tail, which show
whether it arrives whole at a server whose counts do not."""

import re
from random import Random

from kvscope.engine.base import Engine
from kvscope.experiment.quality_cut import STATES_WHAT_IT_READS
from kvscope.quality.markers import PARTS, marker_sentence, marker_wordings
from kvscope.quality.prose import Names

# Where a sentence of its own may stand: between paragraphs, else between lines, else between sentences.
_BREAKS = (re.compile(r"\n\n"), re.compile(r"\n"), re.compile(r"(?<=[.!?。])\s"))
# Nearer to an end than this share of the text, a mark is not in its middle.
_NEAR_AN_END = 0.2


def needs_marks(engine: Engine, *, has_counter: bool) -> bool:
    """Whether no counts will show that this engine was sent more than it read: its own may be of what was sent, or
    there is none to hold them against. ``has_counter``: the model's files count prompts."""
    can = engine.capabilities
    counts = has_counter or (can.counts_prompt_tokens and not can.counts_by_requests)
    return not (counts and engine.name in STATES_WHAT_IT_READS)


def mark_words(seed: int, language: str) -> tuple[str, ...]:
    """The code words of a study, for head, middle and tail."""
    names = Names(language=language, random=Random(f"{seed}/retrieval/marks/{language}"))
    return tuple(names.code_word() for _ in PARTS)


def marked(text: str, words: tuple[str, ...], language: str) -> str:
    """The text with the sentences of these words at its head, in its middle and at its tail, none of which breaks one
    of its sentences. Without a place for it, the middle has none."""
    head, middle, tail = (
        marker_sentence(wording, word, language)
        for wording, word in zip(marker_wordings(0, language), words, strict=True)
    )
    place = _middle(text)
    inner = text if place is None else f"{text[:place].rstrip()}\n\n{middle}\n\n{text[place:].lstrip()}"
    return f"{head}\n\n{inner}\n\n{tail}"


def _middle(text: str) -> int | None:
    half = len(text) / 2
    for each in _BREAKS:
        found = min((match.end() for match in each.finditer(text)), key=lambda end: abs(end - half), default=None)
        if found is not None and abs(found - half) < (0.5 - _NEAR_AN_END) * len(text):
            return found
    return None
