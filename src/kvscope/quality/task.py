"""What a quality task is: documents made from a seed, and questions about them whose answers are known."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Family = Literal["fidelity", "ability"]
Scoring = Literal["exact", "normalised", "regex", "set", "tool_call"]
# How a question is put: to a model's chat template, or as a text that it goes on with (base models have no template).
Form = Literal["chat", "cue"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One thing asked of a document.

    ``item`` names it: the same for one seed, task, language and size, at every setting. ``text`` is the question as a
    person asks it; ``cue`` the beginning of its answer, which a base model goes on with. ``expected``: what a right
    answer names, all of it; ``rivals``: what else of the document a wrong one would name. ``scoring``: see
    ``quality.reading``. ``chance``: the share right for who guesses. ``evidence``: the sentences of the document that
    hold the answer; ``depth_percent``: how far down the first of them stands. ``continuation``: in place of an answer,
    this text's log-probability behind ``cue`` is wanted. ``tools``: offered with the question, as OpenAI's interface
    writes them."""

    item: str
    text: str
    expected: tuple[str, ...]
    scoring: Scoring
    chance: float
    evidence: tuple[str, ...]
    max_output_tokens: int
    cue: str | None = None
    rivals: tuple[str, ...] = ()
    depth_percent: float | None = None
    continuation: str | None = None
    tools: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A text with planted facts. ``name`` is the same for a document and its twin; the twin (``is_twin``) has other
    sentences of the same kind in place of every fact that is asked for. ``markers``: code words near its head, middle
    and tail, each in a sentence of its own; an empty tuple where there was no room. ``tokens``: the most that a prompt
    of it takes, question included, by the count that it was made with."""

    name: str
    task: str
    language: str
    text: str
    tokens: int
    questions: tuple[Question, ...]
    markers: tuple[str, ...] = ()
    is_twin: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentRequest:
    """``number``: which of the seed's documents. ``prompt_tokens``: the most that a whole prompt may take, chat
    template, document and question together; the document fills it. ``count``: tokens of a prompt with this text as its
    one user message (or as it is, where ``form`` is cue)."""

    seed: int
    number: int
    language: Literal["en", "ko"]
    prompt_tokens: int
    count: Callable[[str], int]
    form: Form = "chat"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """``definition``, ``right``: what is asked and what counts as right, in plain words. ``build`` makes a document and
    its twin (None: the task has none). It raises BadDesign where ``prompt_tokens`` leave no room for one, and says how
    many are needed. ``least_documents``: fewer say nothing."""

    name: str
    family: Family
    definition: str
    right: str
    build: Callable[[DocumentRequest], tuple[Document, Document | None]]
    languages: tuple[str, ...] = ("en", "ko")
    default_documents: int = 10
    least_documents: int = 2


def prompt_text(document: Document, question: Question, form: Form) -> str:
    """What is sent of a question: the document first, so that questions on one document share their beginning."""
    if form == "cue":
        return f"{document.text}\n\n{question.cue or ''}"
    return f"{document.text}\n\n{question.text}"
