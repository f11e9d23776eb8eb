"""The bundled sentences: enough of them, distinct, clean, and fit to be shuffled."""

import re
import unicodedata
from importlib.resources import files

import pytest

from kvscope.errors import UnknownName
from kvscope.prompt.exact_length.source_text import CODE, LANGUAGES, load_source_text

PROSE = [language for language in LANGUAGES if language != CODE]
HANGUL = re.compile(r"[가-힣]")
LATIN = re.compile(r"[A-Za-z]")


@pytest.mark.parametrize("language", PROSE)
def test_there_are_at_least_400_sentences_and_none_twice(language: str) -> None:
    sentences = load_source_text(language).sentences
    assert len(sentences) >= 400
    # Compared without case, spaces and punctuation, so that a near copy counts as a copy.
    bare = [re.sub(r"\W", "", sentence).casefold() for sentence in sentences]
    assert len(set(bare)) == len(bare)


@pytest.mark.parametrize("language", PROSE)
def test_no_two_sentences_begin_with_the_same_three_words_more_than_twice(language: str) -> None:
    beginnings: dict[tuple[str, ...], int] = {}
    for sentence in load_source_text(language).sentences:
        beginning = tuple(sentence.split()[:3])
        beginnings[beginning] = beginnings.get(beginning, 0) + 1
    assert {beginning: times for beginning, times in beginnings.items() if times > 2} == {}


@pytest.mark.parametrize("language", PROSE)
def test_every_line_is_one_clean_sentence(language: str) -> None:
    text = load_source_text(language)
    for sentence in (*text.sentences, text.key_sentence):
        assert sentence == sentence.strip()
        assert "  " not in sentence
        assert unicodedata.is_normalized("NFC", sentence)
        assert not any(unicodedata.category(character).startswith("C") for character in sentence), sentence
        assert re.search(r"[.!?]$", sentence), sentence
        assert not re.search(r"[.!?]\s", sentence), f"two sentences on one line: {sentence}"
        assert 4 <= len(sentence.split()) <= 40, sentence


def test_the_code_is_of_many_languages_in_short_distinct_pieces() -> None:
    text = load_source_text(CODE)
    assert len(set(text.sentences)) == len(text.sentences) >= 50
    signs = ["def ", "function ", "SELECT ", "static ", "fn ", "#!/bin/sh", "func ", '"name":', "<form", "class "]
    assert [sign for sign in signs if not any(sign in piece for piece in text.sentences)] == []
    for piece in (*text.sentences, text.key_sentence):
        assert piece == piece.rstrip()
        assert 1 <= len(piece.split("\n")) <= 13
        assert max(map(len, piece.split("\n"))) <= 120
        assert "\n\n\n" not in piece
        assert "%%" not in piece.split("\n")
        assert unicodedata.is_normalized("NFC", piece)
    assert "\n\tif len(q.jobs) == 0 {" in "\n".join(text.sentences), "indentation is kept"


def test_python_code_among_it_is_valid_python() -> None:
    pieces = [
        piece for piece in load_source_text(CODE).sentences if re.match(r"(def|class|async def) \w+.*:$", piece, re.M)
    ]
    assert len(pieces) >= 5
    for piece in pieces:
        compile(piece, "code.txt", "exec")


def test_each_language_is_written_in_its_own_script() -> None:
    for sentence in load_source_text("en").sentences:
        assert not HANGUL.search(sentence), sentence
    for sentence in load_source_text("ko").sentences:
        assert not LATIN.search(sentence), sentence
        assert HANGUL.search(sentence), sentence
        assert sentence.endswith("다."), f"not in the plain written style of the others: {sentence}"


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_key_sentence_is_nowhere_in_the_pool(language: str) -> None:
    text = load_source_text(language)
    assert text.key_sentence not in "\n".join(text.sentences)


def test_what_the_key_sentence_says_is_said_by_no_other_sentence() -> None:
    assert not any(
        "archive room" in sentence or "blue tin" in sentence for sentence in load_source_text("en").sentences
    )
    assert not any("ARCHIVE" in piece or "blue tin" in piece for piece in load_source_text(CODE).sentences)
    assert not any("자료실 열쇠" in sentence or "파란 통" in sentence for sentence in load_source_text("ko").sentences)


def test_the_texts_come_with_their_licence() -> None:
    assert "CC0-1.0" in (files("kvscope.prompt") / "texts" / "LICENSE.md").read_text(encoding="utf-8")


def test_another_language_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownName) as caught:
        load_source_text("kr")
    assert "ko" in str(caught.value.hint)
