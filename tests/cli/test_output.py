"""A terminal obeys control characters; what comes from files, engines and records must not reach it raw."""

import json

import pytest

from kvscope.cli.output import printable, say_json


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain 한국어 ± – µ", "plain 한국어 ± – µ"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("\x1b[2J\x1b[31mred", "\\x1b[2J\\x1b[31mred"),
        ("\u202eright to left", "\\u202eright to left"),
        ("\r\x07\x00", "\\r\\x07\\x00"),
    ],
)
def test_control_characters_are_written_out(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_json_is_the_same_value_and_obeyed_by_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"name": "\x1b[31m \x7f\x9b \u202e \ud800 한국어 é \U0001f600\U000e0001", "list": [1, None, True, "a\tb\n"]}
    say_json(value)
    text = capsys.readouterr().out
    assert json.loads(text) == value
    assert "한국어 é \U0001f600" in text
    assert not set("\x1b\x7f\x9b\u202e\ud800\U000e0001") & set(text)
    text.encode()


def test_half_a_character_can_be_printed() -> None:
    assert printable("a\ud800b") == "a\\ud800b"
