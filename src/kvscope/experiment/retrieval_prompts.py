"""The prompts of questions on documents, one for each question, in the way that they are given; and what of the
evidence is in each."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kvscope.experiment.retrieval_asked import RetrievalAsked
from kvscope.experiment.retrieval_marks import mark_words, marked
from kvscope.experiment.retrieval_ways import Way
from kvscope.prompt.conversation import Message
from kvscope.quality.retrieval.evidence import Evidence, find_evidence
from kvscope.quality.retrieval.index import Embedder, Index, make_index
from kvscope.quality.retrieval.passages import Passage, headings_above, remarks_on_size, split_all
from kvscope.quality.retrieval.questions import AskedQuestion
from kvscope.quality.retrieval.recall import holds
from kvscope.quality.retrieval.source import Remark, SourceDocument

# How far down the passages that a search finds the evidence's place is looked for.
SEARCHED_PASSAGES = 100
_HANGUL = re.compile("[가-힣]")
_LETTER = re.compile(r"[^\W\d_]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """What stands around documents and question, in one language: before the text, behind it, and where there is no
    text. What to do is told behind the text, near the question. Seven forms were tried with SmolLM2 on 20 questions:
    too few to tell one from another."""

    before: str
    behind: str
    closed: str
    question: str


_WORDS: Mapping[str, Words] = {
    "en": Words(
        before="Read this text.",
        behind="Answer the question from the text above, in a few words.",
        closed="Answer the question in a few words.",
        question="Question",
    ),
    "ko": Words(
        before="이 글을 읽으세요.",
        behind="위의 글에서 찾아 질문에 짧게 답하세요.",
        closed="질문에 짧게 답하세요.",
        question="질문",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedPrompt:
    """One question as it is sent. ``given``: the text that it is asked about. ``passages``: those of it, in the order
    of the documents; empty where all or nothing is given. ``rank``: how many passages, from the nearest, hold the
    evidence together; None where it was not searched for or not found. ``has_evidence``: whether the evidence is in
    the prompt; None: where it stands is not known. ``evidence``: its texts; ``evidence_documents``: the documents that
    they stand in first. ``embedder``: the model whose vectors found the passages."""

    question: AskedQuestion
    messages: tuple[Message, ...]
    given: str
    passages: tuple[Passage, ...]
    rank: int | None
    has_evidence: bool | None
    evidence: tuple[str, ...]
    evidence_documents: tuple[str, ...] = ()
    embedder: str | None = None


@dataclass(slots=True)
class RetrievalPrompts:
    """Makes the prompts of a study. ``count``: tokens of a text by itself, by the model in use. ``salt``: what all
    prompts begin with, so that no other trial's begin alike; empty where nothing of another trial can be left.
    ``marks_seed``: where marks are to be planted (``retrieval_marks``), of what they are drawn; ``marks``: their words,
    in ``language``, that of what stands around the documents."""

    asked: RetrievalAsked
    count: Callable[[str], int]
    salt: str = ""
    embedder: Embedder | None = None
    remarks: list[Remark] = field(default_factory=list)
    marks_seed: int | None = None
    marks: tuple[str, ...] = field(init=False, default=())
    _split: dict[int, tuple[Passage, ...]] = field(default_factory=dict)
    _indexes: dict[int, Index] = field(default_factory=dict)
    _evidence: Mapping[str, tuple[Evidence, ...]] | None = None
    _titles: Mapping[str, str] = field(init=False)
    _whole: str = field(init=False)

    def __post_init__(self) -> None:
        self._titles = {document.name: document.title or document.name for document in self.asked.documents}
        self.marks = () if self.marks_seed is None else mark_words(self.marks_seed, self.language)
        whole = "\n\n".join(f"{_heading(each)}{each.text.strip()}" for each in self.asked.documents)
        self._whole = self._marked(whole)

    def of_way(self, way: Way) -> tuple[AskedPrompt, ...]:
        """One prompt for each question; where the evidence alone is given, for each whose place is known. Raises as
        ``split_all`` and ``make_index``."""
        prompts = tuple(self._prompt(way, question) for question in self.asked.questions)
        return prompts if way.gives != "evidence" else tuple(each for each in prompts if each.has_evidence is not None)

    def _prompt(self, way: Way, question: AskedQuestion) -> AskedPrompt:
        needed = self._evidence_of(question)
        is_known = bool(needed) and all(each.places for each in needed)
        passages, rank = self._passages(way, question, needed if is_known else ())
        given, has_evidence = self._given(way, passages), None
        if way.gives == "nothing":
            has_evidence = False
        elif is_known:
            has_evidence = way.gives == "whole" or holds(passages, needed)
        return AskedPrompt(
            question=question,
            messages=(Message(role="user", content=self._text(way, given, question)),),
            given=given,
            passages=passages,
            rank=rank,
            has_evidence=has_evidence,
            evidence=tuple(each.text for each in needed),
            evidence_documents=tuple(each.places[0].document for each in needed if each.places),
            embedder=None if self.embedder is None else self.embedder.name,
        )

    def _evidence_of(self, question: AskedQuestion) -> tuple[Evidence, ...]:
        if self._evidence is None:
            self._evidence = find_evidence(self.asked.questions, self.asked.documents)
        return self._evidence.get(question.id, ())

    def _passages(
        self, way: Way, question: AskedQuestion, needed: Sequence[Evidence]
    ) -> tuple[tuple[Passage, ...], int | None]:
        """What is given, in the order of the documents, and how far down the search the evidence is complete."""
        size = way.passage_tokens or self.asked.passage_tokens
        if way.gives == "evidence":
            return self._in_order(size, _holding(self._all(size), needed)), None
        if way.gives != "passages":
            return (), None
        found = [hit.passage for hit in self._index(size).search(question.text, max(way.passages, SEARCHED_PASSAGES))]
        ranks = range(1, len(found) + 1)
        rank = next((number for number in ranks if holds(found[:number], needed)), None) if needed else None
        return self._in_order(size, found[: way.passages]), rank

    def _all(self, size: int) -> tuple[Passage, ...]:
        if size not in self._split:
            self._split[size] = split_all(self.asked.documents, self.count, size)
            self.remarks += remarks_on_size(self._split[size], size)
        return self._split[size]

    def _index(self, size: int) -> Index:
        if size not in self._indexes:
            index = make_index(self._all(size), self.asked.method, embedder=self.embedder)
            self._indexes[size] = index
            self.remarks += index.remarks
        return self._indexes[size]

    def _in_order(self, size: int, passages: Sequence[Passage]) -> tuple[Passage, ...]:
        wanted = {(each.document, each.index) for each in passages}
        return tuple(each for each in self._all(size) if (each.document, each.index) in wanted)

    def _given(self, way: Way, passages: Sequence[Passage]) -> str:
        """The text that a question is asked about: documents below their titles, or passages behind theirs."""
        if way.gives == "whole":
            return self._whole
        return self._marked("\n\n".join(self._shown(each) for each in passages))

    def _marked(self, text: str) -> str:
        return marked(text, self.marks, self.language) if text and self.marks else text

    def _shown(self, passage: Passage) -> str:
        """A passage behind its document's title and the headings that it is searched with: a row of a log says
        little without its day."""
        title = self._titles[passage.document]
        label = " > ".join([title, *(each for each in headings_above(passage) if each != title)])
        return f"[{label}] {passage.text.strip()}"

    def most_given_tokens(self, way: Way) -> int:
        """The most tokens that the passages of a way can have as they are shown, whichever are found, each counted by
        itself. Raises as ``split_all``."""
        shown = [self.count(self._shown(each)) for each in self._all(way.passage_tokens or self.asked.passage_tokens)]
        return sum(sorted(shown, reverse=True)[: way.passages])

    def _text(self, way: Way, given: str, question: AskedQuestion) -> str:
        """What is the same for all questions first, unless the way says otherwise."""
        asked = f"{_WORDS[question_language(question)].question}: {question.text}"
        words = _WORDS[self.language]
        if not given:  # nothing is to be given, or nothing was found
            parts = [words.closed, asked]
        elif not way.is_volatile_first:
            parts = [words.before, given, words.behind, asked]
        elif way.gives == "whole":
            parts = [asked, words.before, given, words.behind]
        else:
            parts = [given, asked, words.before, words.behind]
        return "\n\n".join(part for part in (self.salt, *parts) if part)

    @property
    def language(self) -> str:
        """Of what stands around them: that of most questions, and the same for all, so that it can be shared."""
        languages = [question_language(question) for question in self.asked.questions]
        return max(sorted(set(languages)), key=languages.count)


def question_language(question: AskedQuestion) -> str:
    """As its file says, else by its letters."""
    stated = question.language
    return stated if stated is not None and stated in _WORDS else language_of(question.text)


def language_of(text: str) -> str:
    """``ko`` where most letters are Hangul, else ``en``."""
    letters = len(_LETTER.findall(text))
    return "ko" if letters and len(_HANGUL.findall(text)) > letters / 2 else "en"


def _heading(document: SourceDocument) -> str:
    """A title of its own, unless the text begins with it."""
    title = document.title or document.name
    start = document.text.lstrip("# \n")[: len(title)]
    return "" if start == title else f"# {title}\n\n"


def _holding(passages: Sequence[Passage], needed: Sequence[Evidence]) -> list[Passage]:
    """The passages that each evidence stands in, where it stands first."""
    found = []
    for place in (each.places[0] for each in needed):
        found += [
            each
            for each in passages
            if each.document == place.document and each.start < place.end and each.end > place.start
        ]
    return found
