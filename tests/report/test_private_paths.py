"""What a page that is mailed does not say: whose machine it was, and where on it things lay."""

import pytest

from kvscope.report.private_paths import last_line, without_home, without_places

# The home of the one user whose folder is not among the others'.
ADMINISTRATOR = "/" + "root"

TRACE = """Traceback (most recent call last):
  File "/home/ann/code/kvscope/src/kvscope/engine/prepared.py", line 56, in ask
    answer = await read()
  File "/home/ann/.pyenv/versions/3.11.7/lib/python3.11/asyncio/runners.py", line 118, in run
  File "/data/ann/venv/lib/python3.12/site-packages/httpx/_client.py", line 7, in send
  File "C:\\Users\\ann\\study.py", line 1, in <module>
  File "uvloop/loop.pyx", line 1515, in run
  File "<frozen runpy>", line 2, in _run
    raise error
kvscope.errors.ContextOverflow: no room for /home/ann/m.gguf.
The second line of what it says.
"""


def test_files_of_a_traceback_are_named_from_their_package_on() -> None:
    files = [line.split('"')[1] for line in without_places(TRACE).splitlines() if line.startswith("  File")]
    assert files == [
        "…/kvscope/engine/prepared.py", "…/asyncio/runners.py", "…/httpx/_client.py", "…/study.py", "…/loop.pyx",
        "<frozen runpy>",
    ]  # fmt: skip
    assert "ann" not in without_places(TRACE)


def test_the_last_line_is_the_error_with_what_it_says_first() -> None:
    assert last_line(without_places(TRACE)) == "kvscope.errors.ContextOverflow: no room for ~/m.gguf."
    assert (last_line("KeyboardInterrupt\n"), last_line("no error"), last_line("")) == (
        "KeyboardInterrupt",
        "no error",
        "",
    )


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("kvscope lab --model /home/ann/m.gguf --out /Users/ann", "kvscope lab --model ~/m.gguf --out ~"),
        (f"open '{ADMINISTRATOR}/m.gguf'", "open '~/m.gguf'"),
        (r"C:\Users\ann\m.gguf", r"~\m.gguf"),
        ("/rooted/m and /opt/home/ann and x/home/ann", "/rooted/m and /opt/home/ann and x/home/ann"),
    ],
)
def test_a_persons_own_folder_is_a_tilde(text: str, wanted: str) -> None:
    assert without_home(text) == wanted
