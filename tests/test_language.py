"""Which language is spoken, and that recorded English is found again by its template."""

import threading

import pytest

from kvscope import language
from kvscope.errors import UnknownName
from kvscope.language import _Templates, current, of_environment, speaking, translated


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "en"),
        ({"LANG": "ko_KR.UTF-8"}, "ko"),
        ({"LANG": "ko"}, "ko"),
        ({"LANG": "en_US.UTF-8", "LC_ALL": "ko_KR"}, "ko"),
        ({"LANG": "ko_KR.UTF-8", "LC_MESSAGES": "en_GB.UTF-8"}, "en"),
        # As gettext has it: LANGUAGE goes before the locale, but not before a locale that is "C".
        ({"LANG": "en_US.UTF-8", "LANGUAGE": "ko:en"}, "ko"),
        ({"LANG": "C.UTF-8", "LANGUAGE": "ko"}, "en"),
        ({"LC_ALL": "POSIX", "LANG": "ko_KR.UTF-8"}, "en"),
        ({"LANG": "fr_FR.UTF-8"}, "en"),
        ({"LANG": "fr_FR.UTF-8", "LANGUAGE": "fr:ko"}, "ko"),
        ({"LANG": "kok_IN"}, "en"),
    ],
)
def test_the_locale_chooses_as_gettext_does(environment: dict[str, str], expected: str) -> None:
    assert of_environment(environment) == expected


def test_a_block_speaks_and_what_was_spoken_before_comes_back() -> None:
    assert current() == "en"
    with speaking("ko"):
        assert current() == "ko"
        with speaking("en"):
            assert translated("unknown", "unknown") == "unknown"
        assert translated("unknown", "unknown") == "알 수 없음"
        heard = list[str]()
        thread = threading.Thread(target=lambda: heard.append(current()))
        thread.start()
        thread.join()
        assert heard == ["en"], "a block is its own thread's"
    assert current() == "en"


def test_a_language_that_is_not_spoken() -> None:
    with pytest.raises(UnknownName, match="language"), speaking("xx"):
        pass


def test_what_has_no_translation_stays_english() -> None:
    with speaking("ko"):
        assert translated("No such sentence anywhere.") == "No such sentence anywhere."


TEMPLATES = _Templates(
    {
        "There is no {kind} called {name!r}.": "{name} {kind} 없음.",
        "There is no {kind} called {name!r} here.": "여기에 {name} {kind} 없음.",
        "design": "설계",
        "{count:,} of {total} failed.": "{total}회 중 {count}회 실패.",
        "Name another folder, or add --force.": "다른 폴더를 지정하세요.",
        "{a}{b} glued": "붙음 {b}{a}",
        'Write {{"a": {value}}} instead.': '{{"a": {value}}} 형식으로 쓰세요.',
    }
)


@pytest.mark.parametrize(
    ("english", "korean"),
    [
        ("There is no design called 'x'.", "'x' 설계 없음."),
        # Of two templates that fit the one with more fixed text.
        ("There is no engine called 'x' here.", "여기에 'x' engine 없음."),
        ("1,234 of 2000 failed.", "2000회 중 1,234회 실패."),
        ('Write {"a": 7} instead.', '{"a": 7} 형식으로 쓰세요.'),
        ("xy glued", "붙음 yx"),
        ("Nothing of this is known.", None),
        ("", None),
        # A value may hold the fixed text itself.
        ("There is no design called 'a called b.c.'.", "'a called b.c.' 설계 없음."),
    ],
)
def test_a_text_is_found_by_its_template(english: str, korean: str | None) -> None:
    found = TEMPLATES.said(english)
    assert (found and found[1]) == korean


def test_sentences_that_are_known_are_said_among_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "_templates", lambda _: TEMPLATES)
    with speaking("ko"):
        text = "There is no design called 'x'. It exploded. Name another folder, or add --force."
        assert language.shown(text) == "'x' 설계 없음. It exploded. 다른 폴더를 지정하세요."
    assert language.shown(text) == text


def test_values_are_messages_of_their_own_and_halves_are_joined_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    known = _Templates(
        {
            "{name}: {because}; {version}, with AVX2": "{name}: {because}; AVX2가 있는 {version}",
            "bytes {first} to {last}": "{first}–{last}바이트",
            "of which {base} B": "그중 {base} B",
        }
    )
    monkeypatch.setattr(language, "_templates", lambda _: known)
    with speaking("ko"):
        assert language.shown("map: bytes 1 to 9; b7, with AVX2") == "map: 1–9바이트; AVX2가 있는 b7"
        assert language.shown("bytes 1 to 9; of which 4 B; b7") == "1–9바이트; 그중 4 B; b7"


def test_a_long_hostile_text_is_held_against_templates_in_one_pass() -> None:
    """Places of values are searched forward only: a text made to have a million ways of splitting costs no more."""
    text = "There is no " + " called ." * 200_000 + "x"
    assert TEMPLATES.said(text) is None
