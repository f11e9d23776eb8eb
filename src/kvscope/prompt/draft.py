"""The text of one prompt, at any number of words: where it begins, in which order its sentences come, how it ends.

    7qXe: The notes below are about everyday things. Read all of them with care.     label and instruction

    <sentence> <sentence> ... <key sentence> ... <sentence> <cut sentence> . . .     body, closed with spaced dots

    Now retell these notes in your own words, at length.                             request

The label comes first and differs from prompt to prompt, so that an engine which keeps what it has read finds nothing
to reuse after its own chat template. The order of the sentences is that of their SHA-256 digests: equal on every
machine and Python version.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from kvscope.prompt.source_text import SourceText

LABEL_LENGTH = 4
_LABEL_CHARACTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
# Shares no factor with the 62 characters, so that seeds map one to one onto labels. The size is of no importance.
_LABEL_STEP = 4_194_301
_SENTENCES_A_PARAGRAPH = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What stands before and after the body. ``name`` is full, short or minimal."""

    name: str
    before: str
    after: str


# The longest that fits is used. Below about a hundred tokens an instruction of full length would leave no room.
FRAMES = {
    "en": (
        Frame(
            name="full",
            before=": The notes below are about everyday things. Read all of them with care.\n\n",
            after="\n\nNow retell these notes in your own words, at length.",
        ),
        Frame(name="short", before=": Read these notes.\n\n", after="\n\nRetell them."),
        Frame(name="minimal", before=": ", after="\nContinue."),
    ),
    "ko": (
        Frame(
            name="full",
            before=": 아래는 일상의 여러 일에 관한 글이다. 처음부터 끝까지 주의 깊게 읽는다.\n\n",
            after="\n\n이제 위의 글을 자신의 말로 길게 다시 쓴다.",
        ),
        Frame(name="short", before=": 아래 글을 읽는다.\n\n", after="\n\n다시 쓴다."),
        Frame(name="minimal", before=": ", after="\n계속."),
    ),
}


def label(seed: int, variant: str) -> str:
    """Four characters. Two seeds of one ``variant`` get different labels (62⁴ of them), and different first characters
    unless the seeds differ by a multiple of 62."""
    value = seed * _LABEL_STEP + int.from_bytes(_digest(variant)[:8], "big")
    characters = []
    for _ in range(LABEL_LENGTH):
        value, index = divmod(value, len(_LABEL_CHARACTERS))
        characters.append(_LABEL_CHARACTERS[index])
    return "".join(characters)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


class Draft:
    """The text for one seed. ``variant`` is whatever else shall give another text: a salt, a length."""

    def __init__(self, source: SourceText, *, seed: int, variant: str) -> None:
        self._source = source
        self._label = label(seed, variant)
        self._coming = _ordered_sentences(source.sentences, f"{seed}|{variant}")
        self._taken: list[list[str]] = []

    def text(self, frame: Frame, *, num_words: int, num_dots: int = 0, comma: bool = False) -> str:
        """The prompt with ``num_words`` words of source text around the key sentence, closed by ``num_dots`` spaced
        dots, which cost about a token each and read as an ellipsis; a comma before them shifts the joint."""
        sentences = self._sentences(num_words)
        sentences.insert(len(sentences) // 2, self._source.key_sentence)
        paragraphs = (
            " ".join(sentences[start : start + _SENTENCES_A_PARAGRAPH])
            for start in range(0, len(sentences), _SENTENCES_A_PARAGRAPH)
        )
        closing = ("," if comma else "") + " ." * num_dots
        return self._label + frame.before + "\n\n".join(paragraphs) + closing + frame.after

    def _sentences(self, num_words: int) -> list[str]:
        chosen: list[str] = []
        for index in count():
            if num_words <= 0:
                return chosen
            if index == len(self._taken):
                self._taken.append(next(self._coming).split(" "))
            words = self._taken[index][:num_words]
            chosen.append(" ".join(words))
            num_words -= len(words)
        raise AssertionError("count() does not end")


def _ordered_sentences(pool: tuple[str, ...], order: str) -> Iterator[str]:
    """All of the pool, then all of it again in another order, numbered from there on so that nothing is repeated word
    for word."""
    number = 0
    for turn in count():
        for sentence in sorted(pool, key=lambda text: _digest(f"{order}|{turn}|{text}")):
            number += 1
            yield sentence if turn == 0 else f"({number}) {sentence}"
