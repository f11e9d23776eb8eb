"""The text that prompts are made of: bundled English, Korean and code, each with one key sentence.

The bundled text lies in ``texts/`` under CC0-1.0 (``texts/LICENSE.md``): sentences one a line, code in short pieces
between lines of ``%%``. A user's own text is read by ``own_text.py`` into the same form.
"""

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from kvscope.errors import UnknownName

CODE = "code"
# The one fact that stays the same in every prompt of a language, whatever its length.
KEY_SENTENCES = {
    "en": "The key to the archive room is kept in the blue tin on the third shelf.",
    "ko": "자료실 열쇠는 세 번째 선반의 파란 통 안에 있다.",
    CODE: 'ARCHIVE_ROOM_KEY = "in the blue tin on the third shelf"',
}

LANGUAGES = tuple(KEY_SENTENCES)
_BETWEEN_CODE = "\n%%\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceText:
    """``sentences`` are distinct and in the order of the file; of code they are pieces of a few lines.

    ``key_sentence`` is the language's own. ``name`` is the file or folder, None for the bundled text, and ``sha256``
    that of its content."""

    language: str
    sentences: tuple[str, ...]
    key_sentence: str
    sha256: str
    name: str | None = None

    @property
    def is_code(self) -> bool:
        """Whether the pieces are code, which stand on lines of their own."""
        return self.language == CODE


@cache
def load_source_text(language: str) -> SourceText:
    """The bundled text of ``language`` ("en", "ko" or "code"). Raises UnknownName for any other."""
    check_language(language)
    text = (files("kvscope.prompt") / "texts" / f"{language}.txt").read_text(encoding="utf-8")
    pieces = text.strip("\n").split(_BETWEEN_CODE) if language == CODE else text.splitlines()
    return SourceText(
        language=language,
        sentences=tuple(pieces),
        key_sentence=KEY_SENTENCES[language],
        sha256=hashlib.sha256(text.encode()).hexdigest(),
    )


def check_language(language: str) -> None:
    """Raises UnknownName for a language without bundled text."""
    if language not in KEY_SENTENCES:
        raise UnknownName("language of the bundled text", language, LANGUAGES)
