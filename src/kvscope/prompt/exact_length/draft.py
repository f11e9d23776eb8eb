"""The text of one prompt, at any number of words: where it begins, in which order its sentences come, how it ends.

    7qXe: The notes below are about everyday things. Read all of them with care.     label and instruction

    <sentence> <sentence> ... <key sentence> ... <sentence> <cut sentence> . . .     body, closed with spaced dots

    Now retell these notes in your own words, at length.                             request

The label comes first and differs from prompt to prompt, so that an engine which keeps what it has read finds nothing
to reuse after its own chat template. The order of the sentences is that of their SHA-256 digests: equal on every
machine and Python version.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, count

from kvscope.prompt.exact_length.source_text import SourceText

LABEL_LENGTH = 4
_LABEL_CHARACTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
NUM_FIRST_CHARACTERS = len(_LABEL_CHARACTERS)
# Shares no factor with the 62 characters, so that seeds map one to one onto labels. The size is of no importance.
_LABEL_STEP = 4_194_301
_SENTENCES_A_PARAGRAPH = 8
# Words with the spaces and line ends before them. What has no spaces, as a long base64 text, is cut all the same.
_WORD = re.compile(r"\s*\S{1,40}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What stands before and after the body. ``name`` is full, short or minimal, which hold the key sentence, or bare:
    a label and text, without one."""

    name: str
    before: str
    after: str
    has_key: bool = True
    label_length: int = LABEL_LENGTH


# For what is too short to ask anything: down to a label of one character, which every tokenizer takes for one token.
_BARE = (
    Frame(name="bare", before=" ", after="", has_key=False),
    Frame(name="bare", before=" ", after="", has_key=False, label_length=1),
)

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
        *_BARE,
    ),
    "ko": (
        Frame(
            name="full",
            before=": 아래는 일상의 여러 일에 관한 글이다. 처음부터 끝까지 주의 깊게 읽는다.\n\n",
            after="\n\n이제 위의 글을 자신의 말로 길게 다시 쓴다.",
        ),
        Frame(name="short", before=": 아래 글을 읽는다.\n\n", after="\n\n다시 쓴다."),
        Frame(name="minimal", before=": ", after="\n계속."),
        *_BARE,
    ),
    "code": (
        Frame(
            name="full",
            before=": The code below is from several programs. Read all of it with care.\n\n",
            after="\n\nNow explain in your own words, at length, what this code does.",
        ),
        Frame(name="short", before=": Read this code.\n\n", after="\n\nExplain it."),
        Frame(name="minimal", before=":\n", after="\nContinue."),
        *_BARE,
    ),
}
# A user's own text may be about anything.
OWN_FRAMES = {
    **FRAMES,
    "en": (
        Frame(
            name="full",
            before=": Read the whole of the text below with care.\n\n",
            after="\n\nNow retell this text in your own words, at length.",
        ),
        *FRAMES["en"][1:],
    ),
    "ko": (
        Frame(
            name="full",
            before=": 아래 글을 처음부터 끝까지 주의 깊게 읽는다.\n\n",
            after="\n\n이제 위의 글을 자신의 말로 길게 다시 쓴다.",
        ),
        *FRAMES["ko"][1:],
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftText:
    """A text of ``num_words`` words of source text, and the places in it (in characters) where its body begins, where
    the key sentence begins and ends (both None without one), and where the body ends."""

    text: str
    num_words: int
    body_begins: int
    key_begins: int | None
    key_ends: int | None
    body_ends: int


class Draft:
    """The text for one seed. ``variant`` is whatever else shall give another text: a salt, a length."""

    def __init__(self, source: SourceText, *, seed: int, variant: str, key_sentence: str | None = None) -> None:
        self._source = source
        self._key = source.key_sentence if key_sentence is None else key_sentence
        self._label = label(seed, variant)
        # A key sentence that is one of the text's own shall not stand there twice.
        pool = tuple(sentence for sentence in source.sentences if self._key not in sentence)
        self._coming = _ordered_sentences(pool, f"{seed}|{variant}", "\n" if source.is_code else " ")
        self._taken: list[list[str]] = []

    def text(
        self, frame: Frame, *, num_words: int, key_place: float = 0.5, num_dots: int = 0, opening: str = ""
    ) -> DraftText:
        """The prompt with ``num_words`` words of source text, closed by ``num_dots`` spaced dots, which cost about a
        token each and read as an ellipsis, behind ``opening`` (one of ``openings``).

        The key sentence stands between two sentences, where ``key_place`` (0 to 1) of the text's characters are
        before it, as nearly as can be."""
        sentences = self._sentences(num_words)
        closing = opening + " ." * num_dots
        head, key = self._label[: frame.label_length] + frame.before, self._key if frame.has_key else ""
        if sentences:
            sentences[-1] += closing
        elif key:
            key += closing
        else:
            head = head.rstrip() + closing
        index = _boundary(sentences, key_place)
        before = self._joined(sentences[:index], 0)
        if key and index:
            before += self._joint(index)
        after = self._joined(sentences[index:], index + bool(key))
        if after and (before or key):
            after = self._joint(index + bool(key)) + after
        text = head + before + key + after + frame.after
        key_begins = len(head) + len(before)
        return DraftText(
            text=text,
            num_words=num_words,
            body_begins=len(head),
            key_begins=key_begins if key else None,
            key_ends=key_begins + len(self._key) if key else None,
            body_ends=len(text) - len(frame.after),
        )

    def single_characters(self) -> Iterator[str]:
        """Every character that a label may begin with, this one's first."""
        first = _LABEL_CHARACTERS.index(self._label[0])
        yield from _LABEL_CHARACTERS[first:] + _LABEL_CHARACTERS[:first]

    def openings(self, frame: Frame) -> tuple[str, ...]:
        """What may stand before the closing dots, and shifts the joint: nothing or a comma; in code, what makes a
        comment of them."""
        return ("\n#", "\n//", "") if self._source.is_code and frame.after else ("", ",")

    def _joint(self, number: int) -> str:
        """What stands before the piece of this number, the key sentence counted among them."""
        return "\n\n" if self._source.is_code or number % _SENTENCES_A_PARAGRAPH == 0 else " "

    def _joined(self, pieces: list[str], first: int) -> str:
        """``pieces``, of which the first has the number ``first``."""
        return "".join(
            piece if not offset else self._joint(first + offset) + piece for offset, piece in enumerate(pieces)
        )

    def _sentences(self, num_words: int) -> list[str]:
        chosen: list[str] = []
        for index in count():
            if num_words <= 0:
                return chosen
            if index == len(self._taken):
                sentence = next(self._coming, None)
                if sentence is None:
                    return chosen
                self._taken.append(_WORD.findall(sentence))
            words = self._taken[index][:num_words]
            chosen.append("".join(words))
            num_words -= len(words)
        raise AssertionError("count() does not end")


def _boundary(sentences: list[str], place: float) -> int:
    """The number of sentences that make up ``place`` of all their characters, as nearly as can be."""
    ends = [0, *accumulate(len(sentence) + 1 for sentence in sentences)]
    wanted = place * ends[-1]
    return min(range(len(ends)), key=lambda index: (abs(ends[index] - wanted), index))


def _ordered_sentences(pool: tuple[str, ...], order: str, after_number: str = " ") -> Iterator[str]:
    """All of the pool, then all of it again in another order, numbered from there on so that nothing is repeated word
    for word."""
    number = 0
    for turn in count() if pool else ():
        for sentence in sorted(pool, key=lambda text: _digest(f"{order}|{turn}|{text}")):
            number += 1
            yield sentence if turn == 0 else f"({number}){after_number}{sentence}"
