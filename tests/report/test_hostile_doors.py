"""Hostile texts as they come in for real: a server's error bodies, study files, names of files, a log. What kvscope
then says in a terminal is text, and what it records is shown as text."""

import json
import re
import unicodedata
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from chromium import Chromium
from click.testing import CliRunner
from hostile_payloads import ENCODABLE
from scripted_server import answering, plain

from kvscope.cli.main import cli, main
from kvscope.record.store import open_records
from kvscope.report.page import write_report


def is_plain(text: str) -> bool:
    return all(c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Cs") for c in text)


def said(capsys: pytest.CaptureFixture[str], *asked: str) -> str:
    """What the program itself says of a command, its errors too."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("sys.argv", ["kvscope", *asked])
        with pytest.raises(SystemExit) as end:
            raise SystemExit(main())
    assert end.value.code in (None, 0, 1, 2, 3, 4)
    found = capsys.readouterr()
    assert "Traceback" not in found.out + found.err
    return found.out + found.err


@pytest.fixture(scope="module")
def refusing() -> Iterator[str]:
    """A server that refuses each request with the next four payloads."""
    short = [text for text in ENCODABLE if len(text) <= 1000]
    left = cycle([" ".join(short[at : at + 4]) for at in range(0, len(short), 4)])

    def answer(path: str, body: Any) -> bytes:
        if path.endswith("/models"):
            return plain("200 OK", json.dumps({"object": "list", "data": [{"id": "m", "object": "model"}]}).encode())
        if not path.endswith("/completions"):
            return plain("404 Not Found", b"")
        text = next(left)
        # Of a page its words are kept, of JSON its message.
        body = json.dumps({"error": {"message": text}}) if len(text) % 4 else text
        return plain("500 Internal Server Error", body.encode())

    with answering(answer) as url:
        yield url


@pytest.mark.browser
def test_error_bodies_of_a_server_are_text_in_the_page(browser: Chromium, refusing: str, tmp_path: Path) -> None:
    records, page = tmp_path / "r.db", tmp_path / "page.html"
    asked = ("measure", "input_length", "--engine", "openai", "--url", refusing, "--levels", "64", "--repeats", "75")
    found = CliRunner().invoke(cli, [*asked, "--records", str(records)], standalone_mode=False)
    assert found.exception is None, found.output
    assert is_plain(found.output.replace("\r", ""))
    with open_records(records) as opened:
        messages = [row.error_message or "" for row in opened.trials()]
    assert len(messages) == 76
    assert len({number for message in messages for number in re.findall(r"owned\((\d+)\)", message)}) > 100
    write_report(records, page)
    browser.open(page, width=360)
    browser.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
    assert (browser.messages, browser.requests, browser.ran()) == ([], [page.as_uri()], [])
    assert browser.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.parametrize("key", ["design", "engine", "text", "key_of_its_own"])
def test_a_study_file_is_refused_in_plain_words(tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str) -> None:
    for number, text in enumerate(ENCODABLE):
        quoted = json.dumps(text[:2000]).replace("\x7f", "\\u007f")
        path = tmp_path / f"{number}.toml"
        name = "design" if key == "key_of_its_own" else key
        lines = {"design": '"input_length"', "engine": '"fake"', name: quoted}
        extra = f"{quoted} = 1\n" if key == "key_of_its_own" else ""
        held = f"[study.held]\ntext = {lines.pop('text')}\n" if "text" in lines else ""
        path.write_text("[study]\n" + "".join(f"{n} = {v}\n" for n, v in lines.items()) + extra + held)
        assert is_plain(said(capsys, "measure", str(path), "--dry-run"))


@pytest.mark.parametrize("command", [("show",), ("predict", "--engine", "logical"), ("report", "--records")])
def test_names_of_files_are_said_in_plain_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    for text in ENCODABLE:
        name = text.replace("/", "∕").replace("\x00", "")[:60].encode()[:200].decode(errors="ignore")
        verb, *rest = command
        path = str(tmp_path / (name or "empty"))
        asked = (verb, *rest, path) if rest == ["--records"] else (verb, path, *rest)
        assert is_plain(said(capsys, *asked))


def test_a_log_is_explained_in_plain_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        f"ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size {2**40} {text} \nerror: {text}"
        for text in ENCODABLE
        if len(text) < 1000
    ]
    path = tmp_path / "server.log"
    path.write_text("\n".join(lines))
    assert is_plain(said(capsys, "explain", path.read_text()[:60_000]))
