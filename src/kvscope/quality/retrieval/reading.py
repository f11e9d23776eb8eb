"""Documents under a path: Markdown, text, HTML and PDF, each as text; what cannot be one is left out and named."""

from pathlib import Path

from kvscope.quality.retrieval.source import Corpus

MOST_BYTES = 64 << 20  # of one file; a larger one is left out


def read_documents(path: Path, *, most_bytes: int = MOST_BYTES) -> Corpus:
    """Every document under ``path``, a file or a folder. Raises UsageError where there is none, and says what was
    found instead; MissingDependency where a package is missing that all of them need."""
    raise NotImplementedError
