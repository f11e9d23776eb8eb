"""Colours and passing lines: on a real terminal, and nowhere else; off when asked."""

import os
import pty
import subprocess
import sys

import pytest

SAYS = "from kvscope.cli.output import say, say_passing; say_passing('now'); say('× failed\\n- fine\\n≠ differs')"
ASKED = (
    "from kvscope.cli import output; import click; "
    "click.Command('x', params=[output.no_color_option()], callback=lambda: None).main(['--no-color'], "
    f"standalone_mode=False); {SAYS}"
)


def printed(code: str, **environment: str) -> str:
    """What a program prints to a terminal of its own, as the terminal gets it."""
    here, there = pty.openpty()
    known = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TERM")}
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            stdout=there,
            stderr=there,
            env={**known, "TERM": "xterm", **environment},
            check=True,
        )
        assert done.returncode == 0
        return os.read(here, 65_536).decode().replace("\r\n", "\n")
    finally:
        os.close(here)
        os.close(there)


def test_marked_lines_have_colours_in_a_terminal_and_others_have_none() -> None:
    text = printed(SAYS)
    assert "\x1b[31m\x1b[1m× failed\x1b[0m\n- fine\n\x1b[35m\x1b[1m≠ differs\x1b[0m\n" in text
    # The passing line is taken away before anything else is printed.
    assert text.startswith("  now\r\x1b[K")


@pytest.mark.parametrize(
    ("code", "environment"),
    [(SAYS, {"NO_COLOR": "1"}), (SAYS, {"TERM": "dumb"}), (ASKED, {})],
    ids=["NO_COLOR", "dumb", "--no-color"],
)
def test_colours_are_off_when_asked(code: str, environment: dict[str, str]) -> None:
    text = printed(code, **environment)
    assert text.endswith("× failed\n- fine\n≠ differs\n")
    assert "\x1b[3" not in text
    assert ("\x1b" in text) == (environment.get("TERM") != "dumb")  # a passing line is no colour


def test_a_pipe_gets_the_text_alone() -> None:
    done = subprocess.run([sys.executable, "-c", SAYS], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("× failed\n- fine\n≠ differs\n", "")
