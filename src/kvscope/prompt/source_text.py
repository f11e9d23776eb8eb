"""The bundled text that prompts are made of: sentences and one key sentence, in English and in Korean.

The sentences lie in ``texts/``, one a line, under CC0-1.0 (``texts/LICENSE.md``).
"""

from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from kvscope.errors import UnknownName

# The one fact that stays the same in every prompt of a language, whatever its length.
KEY_SENTENCES = {
    "en": "The key to the archive room is kept in the blue tin on the third shelf.",
    "ko": "자료실 열쇠는 세 번째 선반의 파란 통 안에 있다.",
}

LANGUAGES = tuple(KEY_SENTENCES)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceText:
    """``sentences`` are distinct and in the file's order; ``key_sentence`` is not among them."""

    language: str
    sentences: tuple[str, ...]
    key_sentence: str


@cache
def load_source_text(language: str) -> SourceText:
    """The bundled text of ``language`` ("en" or "ko"). Raises UnknownName for any other."""
    if language not in KEY_SENTENCES:
        raise UnknownName("language of the bundled text", language, LANGUAGES)
    lines = (files("kvscope.prompt") / "texts" / f"{language}.txt").read_text(encoding="utf-8").splitlines()
    return SourceText(language=language, sentences=tuple(lines), key_sentence=KEY_SENTENCES[language])
