"""A reader of known errors: what the fake engine answers to a question on a text.

It knows no task. It finds the sentence that tells of what is asked by their words in common, and takes from it the
number, else what is quoted, else the words that the question does not have. That is enough for facts told in one
sentence (needle, keys, markers), and for nothing that needs two. What it gets wrong is then decided by its settings
alone: how often (``answer_right``), which part of the prompt it never sees, whether it names something where the text
says nothing. The same question on the same text has the same answer; ``answer_right`` of two engines with one
``answer_seed`` are wrong on the same items, and the one with the lower share on more.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

NOT_TOLD = "The text does not say."
_SENTENCE = re.compile(r"[^.!?。]+[.!?。]+[’”\"']*|[^.!?。]+$")
_NUMBER = re.compile(r"\d+")
_QUOTED = re.compile(r"[‘“\"]([^’”\"]+)[’”\"]")
_WORD = re.compile(r"[^\W\d_]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """``right``: the share of facts that it gives right, where it finds them. ``seed``: decides which. ``most_words``:
    how many words of the text before the question reach it (None: all), the last ones or (``keeps_head``) the first.
    ``ignores_middle``: it passes over sentences in the middle third of what reaches it. ``guesses``: it names anything
    of the kind that is asked for, and always something."""

    right: float = 1.0
    seed: int = 0
    most_words: int | None = None
    keeps_head: bool = False
    ignores_middle: bool = False
    guesses: bool = False

    def answer(self, prompt: str) -> str:
        """To the last paragraph of a prompt: a question, or the beginning of a sentence to be gone on with."""
        text, _, question = prompt.rpartition("\n\n")
        sentences = self._seen(text)
        near = _most_alike(sentences, question)
        if self.guesses:
            return self._guess(near, sentences, question)
        names = _names(question)
        telling = [sentence for sentence in near if all(name in sentence for name in names)]
        value = _value(telling[0], question) if len(telling) == 1 or (telling and names) else None
        if value is None:
            return NOT_TOLD
        drawn = Random(f"{self.seed}/{question}/{telling[0]}")
        return value if drawn.random() < self.right else _another(value, near, question, drawn)

    def _guess(self, near: Sequence[str], sentences: Sequence[str], question: str) -> str:
        """Any number of the text where a number is asked for; else what any sentence like it tells."""
        values = [value for sentence in near if (value := _value(sentence, question))]
        if any(value.isdigit() for value in values):
            values = [number for sentence in sentences for number in _NUMBER.findall(sentence)]
        return Random(f"{self.seed}/{question}/{' '.join(near)}").choice(values) if values else NOT_TOLD

    def _seen(self, text: str) -> list[str]:
        """The sentences that reach it and that it looks at."""
        kept = text
        if self.most_words is not None:
            words = list(re.finditer(r"\S+", text))
            if len(words) > self.most_words:
                first = words[: self.most_words] if self.keeps_head else words[len(words) - self.most_words :]
                kept = text[first[0].start() : first[-1].end()] if first else ""
        found = [(match.start(), match.group().strip()) for match in _SENTENCE.finditer(kept)]
        if self.ignores_middle:
            third = len(kept) / 3
            found = [(place, sentence) for place, sentence in found if not third <= place < 2 * third]
        return [sentence for _, sentence in found if sentence]


def answer_pieces(answer: str, stop: Sequence[str] = ()) -> tuple[str, ...]:
    """An answer as one text for each token, ended before the first of ``stop``."""
    for each in stop:
        answer = answer.split(each)[0] if each else answer
    return tuple(re.findall(r"\s*\S+", answer))


def _most_alike(sentences: Sequence[str], question: str) -> list[str]:
    """The sentences with the most words of the question, names left aside; none where two words are not shared."""
    asked = {word.lower() for word in _WORD.findall(question)} - {name.lower() for name in _names(question)}
    shared = [len(asked & {word.lower() for word in _WORD.findall(sentence)}) for sentence in sentences]
    most = max(shared, default=0)
    return [sentence for sentence, count in zip(sentences, shared, strict=True) if count == most] if most >= 1 else []


def _names(question: str) -> list[str]:
    """Names in a question: capitalised words that begin no sentence; in Korean, which has no capitals, the first
    word. A label before it ("Question: ") is none."""
    question = re.sub(r"^\w+:\s+", "", question)
    if re.search(r"[가-힣]", question):
        first = question.split()[0]
        return [] if first == "이" else [first]
    inner = re.sub(r"(^|[.!?]\s+)\w+", " ", question)
    return [word for word in _WORD.findall(inner) if word[0].isupper()]


def _value(sentence: str, question: str) -> str | None:
    """What a sentence tells beyond the question."""
    for pattern in (_NUMBER, _QUOTED):
        if found := pattern.findall(sentence):
            return str(found[-1])
    asked = {word.lower() for word in _WORD.findall(question)}
    rest = [word for word in _WORD.findall(sentence) if word.lower() not in asked]
    return " ".join(rest) or None


def _another(value: str, near: Sequence[str], question: str, drawn: Random) -> str:
    """Another value of the same kind in the text, else one that is not in it."""
    others = [other for sentence in near if (other := _value(sentence, question)) and other != value]
    if others:
        return drawn.choice(others)
    if value.isdigit():
        return "".join(str((int(digit) + 1 + drawn.randrange(8)) % 10) for digit in value)
    return value[::-1]
