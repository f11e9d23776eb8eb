"""Facts planted among filler, and the document sized to a number of prompt tokens; its twin beside it.

A document: its first marker, filler with the facts at places drawn for this document alone, a marker in the middle, and
its last marker. The twin is the same text with other sentences of the same kind where the facts stood that are asked
for. Both, with the longest of their questions, fit the prompt tokens that were asked for.
"""

from dataclasses import dataclass, field, replace
from itertools import islice
from random import Random

from kvscope.errors import BadDesign
from kvscope.quality.markers import marker_asked, marker_sentence, marker_wordings
from kvscope.quality.prose import Names, filler
from kvscope.quality.task import Document, DocumentRequest, Question, prompt_text

# A search for the number of filler sentences ends after so many counts at the latest.
_MOST_COUNTS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A sentence of the document. ``twin``: what stands there in the twin; None: the same. ``place``: where among the
    filler it stands, from 0 to 1; facts of one place keep their order."""

    sentence: str
    place: float
    twin: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a task wants of a document. ``extra_tokens``: what a prompt takes beside its text (tools)."""

    task: str
    facts: tuple[Fact, ...]
    questions: tuple[Question, ...]
    has_markers: bool = True
    extra_tokens: int = 0


def seeded(request: DocumentRequest, task: str) -> Random:
    """The chance of one document: the same for one seed, task, language, size and number, on every machine."""
    return Random(f"{request.seed}/{task}/{request.language}/{request.prompt_tokens}/{request.number}")


def document_name(request: DocumentRequest, task: str) -> str:
    """Its name in the record: "keys-en-1024-3"."""
    return f"{task}-{request.language}-{request.prompt_tokens}-{request.number}"


def planted(request: DocumentRequest, plan: Plan, random: Random, names: Names) -> tuple[Document, Document]:
    """The document and its twin. ``names``: those of the task, so that markers take none of them. Raises BadDesign
    where the facts alone are more than the prompt tokens."""
    markers = tuple(names.code_word() for _ in range(3)) if plan.has_markers else ()
    layout = _Layout(request=request, plan=plan, markers=markers, filler=_Filler(request.language, random))
    num_filler = _most_filler(request, layout)
    while num_filler and layout.tokens(num_filler, is_twin=True) > request.prompt_tokens:
        num_filler -= 1
    texts = [layout.text(num_filler, is_twin=is_twin) for is_twin in (False, True)]
    document = Document(
        name=document_name(request, plan.task),
        task=plan.task,
        language=request.language,
        text=texts[0],
        tokens=max(layout.tokens(num_filler), layout.tokens(num_filler, is_twin=True)),
        questions=tuple(_at_depth(question, texts[0]) for question in plan.questions),
        markers=markers,
    )
    return document, replace(document, text=texts[1], questions=plan.questions, is_twin=True)


def _at_depth(question: Question, text: str) -> Question:
    place = min((text.index(sentence) for sentence in question.evidence), default=None)
    return question if place is None else replace(question, depth_percent=100 * place / len(text))


class _Filler:
    """Filler as a list that grows when more of it is wanted."""

    def __init__(self, language: str, random: Random) -> None:
        self._more, self._told = filler(language, random), list[str]()

    def first(self, number: int) -> list[str]:
        self._told += islice(self._more, max(0, number - len(self._told)))
        return self._told[:number]


@dataclass(slots=True, kw_only=True)
class _Layout:
    """Puts texts together, and counts them: a count may be a request to a server, so none is made twice."""

    request: DocumentRequest
    plan: Plan
    markers: tuple[str, ...]
    filler: _Filler
    counted: dict[tuple[int, bool], int] = field(default_factory=dict)
    longest: str | None = None

    def text(self, num_filler: int, *, is_twin: bool) -> str:
        sentences = self.filler.first(num_filler)
        rows = [(index + 1.0, sentence) for index, sentence in enumerate(sentences)]
        rows += [(fact.place * (num_filler + 1), self._told(fact, is_twin)) for fact in self.plan.facts]
        body = [sentence for _, sentence in sorted(rows, key=lambda row: row[0])]
        if self.markers:
            wordings = marker_wordings(self.request.number, self.request.language)
            head, middle, tail = (
                marker_sentence(wording, word, self.request.language)
                for wording, word in zip(wordings, self.markers, strict=True)
            )
            half = len(body) // 2
            body = [head, *body[:half], middle, *body[half:], tail]
        return " ".join(body)

    def _told(self, fact: Fact, is_twin: bool) -> str:
        return fact.twin if is_twin and fact.twin is not None else fact.sentence

    def tokens(self, num_filler: int, *, is_twin: bool = False) -> int:
        """The most that a prompt takes, whichever its question."""
        key = num_filler, is_twin
        if key not in self.counted:
            self.counted[key] = self.plan.extra_tokens + self._count(self.text(num_filler, is_twin=is_twin))
        return self.counted[key]

    def _count(self, text: str) -> int:
        if self.longest is None:
            self.longest = self._longest_asked()
        return self.request.count(f"{text}\n\n{self.longest}")

    def _longest_asked(self) -> str:
        """By tokens, where there are several, those for the markers included: behind the same text, the one that alone
        takes most."""
        bare = Document(name="", task="", language="", text="", tokens=0, questions=())
        asked = [prompt_text(bare, question, self.request.form).strip() for question in self.plan.questions]
        if self.markers:
            wordings = marker_wordings(self.request.number, self.request.language)
            of_markers = [marker_asked(wording, self.request.language) for wording in wordings]
            asked += [cue if self.request.form == "cue" else text for text, cue in of_markers]
        return asked[0] if len(asked) == 1 else max(asked, key=self.request.count)


def _most_filler(request: DocumentRequest, layout: _Layout) -> int:
    """The most filler sentences with which the document fits; found in a few counts, by what a sentence took."""
    limit, least = request.prompt_tokens, layout.tokens(0)
    needed = max(least, layout.tokens(0, is_twin=True))
    if needed > limit:
        raise BadDesign(
            f"A document of the task {layout.plan.task} takes {needed:,} tokens with its question; "
            f"{limit:,} were given to it.",
            hint=f"Give it at least {needed:,} prompt tokens, or leave this task out at this length.",
        )
    fits, fits_tokens, too_many = 0, least, None
    per_sentence = 20.0
    for _ in range(_MOST_COUNTS):
        guess = fits + max(1, int((limit - fits_tokens) / per_sentence))
        if too_many is not None:
            guess = min(guess, too_many - 1)
        if guess == fits:
            break
        tokens = layout.tokens(guess)
        per_sentence = max(1.0, (tokens - least) / guess)
        if tokens <= limit:
            fits, fits_tokens = guess, tokens
        else:
            too_many = guess
    return fits
