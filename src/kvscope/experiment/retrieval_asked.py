"""What is asked of documents: which, with which questions, given to the model in which way, searched by what."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from kvscope.errors import BadDesign, RecordUnwritable
from kvscope.experiment.embeddings import check_embeddings
from kvscope.experiment.retrieval_ways import WHOLE, Way, way_named
from kvscope.predict.allocation.llama_cpp_cache import CELL_MULTIPLE
from kvscope.predict.growth import round_up
from kvscope.quality.retrieval.index import Method
from kvscope.quality.retrieval.passages import LEAST_PASSAGE_TOKENS
from kvscope.quality.retrieval.questions import AskedQuestion, Questions, read_questions
from kvscope.quality.retrieval.reading import read_documents
from kvscope.quality.retrieval.source import Corpus, Remark, SourceDocument
from kvscope.quality.wiki import STAGES, wiki, write_wiki
from kvscope.scenario import SettingValue

# What a level of this factor sets.
GIVEN = "given"
PASSAGE_TOKENS = 96
# What names the bundled documents, alone (their small stage) or with a stage: wiki:medium.
WIKI = "wiki"
DEFAULT_METHOD: Method = "bigrams"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievalAsked:
    """``given``: the way (see ``retrieval_ways``). ``remarks``: what was left out of the documents or the questions, or
    is doubtful of them. ``longest_tokens``: of each way that was counted, the tokens of its longest prompt, by the
    model's files. ``sets_context``: each way is given the context limit that it needs (llama.cpp). ``is_own``: they are
    a person's own, and not the bundled ones."""

    given: str = WHOLE
    documents: tuple[SourceDocument, ...]
    questions: tuple[AskedQuestion, ...]
    remarks: tuple[Remark, ...] = ()
    method: Method = DEFAULT_METHOD
    passage_tokens: int = PASSAGE_TOKENS
    embeddings: str | None = None
    embeddings_model: str | None = None
    longest_tokens: Mapping[str, int] = field(default_factory=dict)
    sets_context: bool = False
    is_own: bool = False

    @property
    def way(self) -> Way:
        """What is given, taken apart."""
        return way_named(self.given)

    def to_dict(self) -> dict[str, object]:
        """As a design's identity has it: texts by their hashes, so that it is the same wherever they lie."""
        return {
            GIVEN: self.given,
            "documents": len(self.documents),
            "documents_sha256": _digest([[each.name, each.title, each.text] for each in self.documents]),
            "questions": len(self.questions),
            "questions_sha256": _digest([_asked_of(each) for each in self.questions]),
            "retrieval_method": self.method,
            "passage_tokens": self.passage_tokens,
            **({} if self.embeddings is None else {"embeddings": self.embeddings}),
            **({} if self.embeddings_model is None else {"embeddings_model": self.embeddings_model}),
        }

    def context_settings(self, output_tokens: int) -> dict[str, SettingValue]:
        """The context limit that this way needs, where it is to be set and its prompts were counted."""
        longest = self.longest_tokens.get(self.given)
        if not self.sets_context or longest is None:
            return {}
        return {"n_ctx": round_up(longest + output_tokens, CELL_MULTIPLE)}


def _asked_of(question: AskedQuestion) -> dict[str, object]:
    return {name: value for name, value in asdict(question).items() if name != "line"}


def _digest(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, sort_keys=True)
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()[:16]


def with_way(asked: RetrievalAsked | None, level: object) -> RetrievalAsked:
    """The same documents and questions, given in another way; the bundled ones where none were named. Raises
    BadDesign, UnknownName."""
    way = way_named(level)
    return replace(read_material() if asked is None else asked, given=way.name)


def read_material(
    documents: str | None = None,
    questions: str | None = None,
    *,
    method: Method = DEFAULT_METHOD,
    passage_tokens: int = PASSAGE_TOKENS,
    embeddings: str | None = None,
    embeddings_model: str | None = None,
    most_questions: int | None = None,
    language: str = "en",
) -> RetrievalAsked:
    """Documents and questions as they are read from a path, or of the bundled wiki (None, or one of its names) in
    ``language``, with all that was doubtful of them. ``most_questions``: only the first so many are asked. Raises
    BadDesign where only one of the two is there or a value cannot be, UsageError and MissingDependency as the readers
    do."""
    _check(documents, questions, passage_tokens)
    check_embeddings(method, embeddings, embeddings_model)
    corpus, asked = _bundled(documents, language) if questions is None else _own(documents or "", questions)
    return RetrievalAsked(
        documents=corpus.documents,
        questions=asked.asked[:most_questions],
        remarks=_remarks(corpus, asked),
        method=method,
        passage_tokens=passage_tokens,
        embeddings=embeddings,
        embeddings_model=embeddings_model,
        is_own=questions is not None,
    )


def _check(documents: str | None, questions: str | None, passage_tokens: int) -> None:
    if documents is not None and questions is None and not is_bundled(documents):
        read_documents(Path(documents))  # where there are none, that comes first
        raise BadDesign("These documents have no questions.", hint="Give a file with them: --questions FILE.")
    if questions is not None and (documents is None or is_bundled(documents)):
        raise BadDesign("Which documents the questions are about is not said.", hint="Name them: --documents DIR.")
    if passage_tokens < LEAST_PASSAGE_TOKENS:
        raise BadDesign(
            f"Passages of {passage_tokens} tokens are too short to hold a sentence.",
            hint=f"Use --passage-tokens {LEAST_PASSAGE_TOKENS} or more.",
        )


def _own(documents: str, questions: str) -> tuple[Corpus, Questions]:
    return read_documents(Path(documents), without=[Path(questions)]), read_questions(Path(questions))


def is_bundled(documents: str) -> bool:
    """Whether this names the bundled wiki, or a stage of it, and no path: ``wiki``, ``wiki:medium``."""
    return documents == WIKI or documents.startswith(f"{WIKI}:")


def _bundled(name: str | None, language: str) -> tuple[Corpus, Questions]:
    """Raises UnknownName."""
    found = wiki(_stage(name), language)
    return found.corpus, found.questions


def _stage(name: str | None) -> str:
    return (name or WIKI).partition(":")[2] or STAGES[0]


def write_bundled(folder: str, documents: str | None, language: str) -> tuple[Path, Path]:
    """The bundled pages and questions that are asked where ``documents`` names them (None: the small stage), as files
    below ``folder``: the folder of pages and the file of questions. Raises BadDesign for documents of one's own,
    UnknownName, OutputExists, and RecordUnwritable."""
    if documents is not None and not is_bundled(documents):
        raise BadDesign(
            f"{documents} is no part of the bundled wiki, and only that is written.",
            hint="Name one of its stages: --documents wiki:small, wiki:medium, wiki:large.",
        )
    try:
        return write_wiki(Path(folder), _stage(documents), language)
    except OSError as error:
        raise RecordUnwritable(
            f"Cannot write {error.filename or folder}: {error.strerror or error}.",
            hint="Name a folder that can be made and written to.",
        ) from error


def _remarks(corpus: Corpus, questions: Questions) -> tuple[Remark, ...]:
    """What must be known of the material, each kind of trouble once with all that it is about."""
    found = [_of(Path(each.path).name, each.remark) for each in corpus.left_out]
    found += [_of(document.name, remark) for document in corpus.documents for remark in document.problems]
    return _one_each((*found, *questions.problems))


def _of(name: str, remark: Remark) -> Remark:
    return Remark(slug=remark.slug, text=f"{name}: {remark.text}")


def _one_each(remarks: Sequence[Remark]) -> tuple[Remark, ...]:
    texts: dict[str, list[str]] = {}
    for remark in remarks:
        texts.setdefault(remark.slug, []).append(remark.text)
    return tuple(Remark(slug=slug, text=_joined(each)) for slug, each in texts.items())


def _joined(texts: Sequence[str], most: int = 5) -> str:
    rest = len(texts) - most
    return " ".join(texts[:most]) + (f" And {rest} more." if rest > 0 else "")
