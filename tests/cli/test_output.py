"""A terminal obeys control characters; what comes from files, engines and records must not reach it raw."""

import pytest

from kvscope.cli.output import printable


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
