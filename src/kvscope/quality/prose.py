"""Sentences that documents are filled with, and invented names and numbers, all drawn from a seed.

Filler names nobody and holds no digit: every proper name and every number of a document was planted by its task. People
are "a neighbour" or "the twins", never a trade, so that a question about a trade has one answer. Two documents share
no more than a sentence by chance: each slot is drawn on its own.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from kvscope.errors import BadDesign, UnknownName
from kvscope.quality.korean import syllable
from kvscope.quality.prose_en import english_sentence
from kvscope.quality.prose_ko import korean_sentence
from kvscope.quality.real_words import REAL_WORDS

LANGUAGES = ("en", "ko")
_DENSITY = {"en": 1.0, "ko": 0.5}
_SENTENCES = {"en": english_sentence, "ko": korean_sentence}

_FIRST_LETTERS = "BDFGHKLMNPRSTVZ"
_VOWELS, _JOINTS, _ENDS = "aeiou", ("l", "lv", "r", "rd", "rk", "n", "nd", "m", "st", "v"), "lmnrsth"
_KO_FIRST, _KO_INITIALS, _KO_VOWELS = "ㄱㄴㄷㄹㅁㅂㅅㅇㅈㅊㅋㅌㅍㅎ", "ㄱㄴㄷㄹㅁㅂㅌㅍ", "ㅏㅓㅗㅜㅣㅔ"
_KO_FINALS = ("", "", "ㄴ", "ㄹ", "ㅁ", "ㅇ", "ㄱ")
# So many that are taken or words, one after another, say that no more are left.
_MOST_DRAWS = 2_000


def filler(language: str, random: Random) -> Iterator[str]:
    """Sentences without end, no two alike, each with its full stop. Raises UnknownName for a language."""
    draw = _SENTENCES.get(language)
    if draw is None:
        raise UnknownName("language of quality tasks", language, LANGUAGES)
    told: set[str] = set()
    while True:
        sentence = draw(random)
        if sentence not in told:
            told.add(sentence)
            yield sentence


@dataclass(slots=True)
class Names:
    """Invented names of one document, no two alike, none a part of another and none a word (``REAL_WORDS``); their
    first letters go round, so that the first dozen differ in them. ``taken``: those given so far."""

    language: str
    random: Random
    taken: set[str] = field(default_factory=set)
    _letters: list[str] = field(default_factory=list)
    _whole: set[str] = field(default_factory=set)
    _parts: set[str] = field(default_factory=set)

    def draw(self) -> str:
        """A name: "Torvan", "타루빈". Raises BadDesign where there are no more."""
        return self._new(lambda first: self._english(first) if self.language == "en" else self._korean(first, 3))

    def code_word(self) -> str:
        """A word of the same making that is no name: without a capital ("torvan"), or longer ("타루비단")."""
        if self.language == "en":
            return self._new(lambda first: self._english(first).lower())
        return self._new(lambda first: self._korean(first, 4))

    def _new(self, make: Callable[[str], str]) -> str:
        for _ in range(_MOST_DRAWS):
            name = make(self._first_letter())
            parts = _parts(name)
            if name.lower() not in self._parts and not parts & self._whole and not parts & REAL_WORDS[self.language]:
                self.taken.add(name)
                self._whole.add(name.lower())
                self._parts |= parts
                return name
        raise BadDesign(
            f"There are no more invented names than the {len(self.taken):,} of this document.",
            hint="Ask about shorter documents (--input-tokens).",
        )

    def _first_letter(self) -> str:
        if not self._letters:
            self._letters = list(_FIRST_LETTERS if self.language == "en" else _KO_FIRST)
            self.random.shuffle(self._letters)
        return self._letters.pop()

    def _english(self, first: str) -> str:
        pick = self.random.choice
        return first + pick(_VOWELS) + pick(_JOINTS) + pick(_VOWELS) + pick(_ENDS)

    def _korean(self, first: str, length: int) -> str:
        pick = self.random.choice
        middle = "".join(syllable(pick(_KO_INITIALS), pick(_KO_VOWELS)) for _ in range(length - 2))
        last = syllable(pick(_KO_INITIALS), pick(_KO_VOWELS), pick(_KO_FINALS))
        return syllable(first, pick(_KO_VOWELS)) + middle + last


def _parts(name: str) -> set[str]:
    """Everything that stands in a name, the name itself too."""
    low = name.lower()
    return {low[begin:end] for begin in range(len(low)) for end in range(begin + 1, len(low) + 1)}


@dataclass(slots=True)
class Numbers:
    """Numbers of one document, as digits, no two alike. Their first digits go round, so that the first nine differ in
    them: in their first token, or in the one behind a blank where a tokenizer takes that by itself."""

    random: Random
    num_digits: int = 5
    taken: set[str] = field(default_factory=set)
    _digits: list[str] = field(default_factory=list)

    def draw(self) -> str:
        """A number: "48213"."""
        while True:
            if not self._digits:
                self._digits = self.random.sample("123456789", 9)
            first = self._digits.pop()
            number = first + "".join(self.random.choices("0123456789", k=self.num_digits - 1))
            if number not in self.taken:
                self.taken.add(number)
                return number


def num_facts(
    prompt_tokens: int, *, per_thousand: float, least: int, most: int | None = None, language: str = "en"
) -> int:
    """How many facts a document of this size holds: so many to a thousand tokens, so that a longer document is not a
    thinner one; ``least`` and ``most`` bound it. Half as many in Korean, whose sentences take up to three times the
    tokens where a vocabulary has few of its syllables."""
    wanted = max(least, round(per_thousand * _DENSITY[language] * prompt_tokens / 1000))
    return wanted if most is None else min(wanted, most)


def recalled(begin: str, language: str) -> str:
    """The beginning of an answer for a model that goes on with a text, tied to the text above it: without that, a
    small model tells something new ("the number is 1000")."""
    if language == "ko":
        return f"위 글에 따르면 {begin}"
    return f"As the text above says, {begin[0].lower()}{begin[1:]}"


def listed(words: Sequence[str], language: str) -> str:
    """Words in a row, as a sentence has them: "a, b and c"."""
    if language == "ko" or len(words) < 2:
        return ", ".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"
