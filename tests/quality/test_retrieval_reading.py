"""Documents as they lie in people's folders: encodings, broken and empty ones, copies, what is no document."""

import os
from pathlib import Path

import pytest

from kvscope.errors import MissingDependency, UsageError
from kvscope.quality.retrieval import html_text, reading
from kvscope.quality.retrieval.reading import read_documents
from kvscope.quality.retrieval.source import Corpus

KOREAN = "부산의 만조는 오후 세 시입니다. 배는 네 시에 떠납니다. 표는 4만 5천 원입니다.\n"


def slugs(corpus: Corpus) -> dict[str, str]:
    return {Path(each.path).name: each.remark.slug for each in corpus.left_out}


def test_every_kind_is_read_in_the_order_of_names(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "page.html").write_text("<title>Tides</title><h1>High</h1><p>At three.")
    (tmp_path / "a.md").write_text("# Ports\n\nBusan is one.\n")
    (tmp_path / "c.txt").write_text("Plain.")
    (tmp_path / "README").write_text("No ending.")
    corpus = read_documents(tmp_path)
    assert [(each.name, each.kind, each.title) for each in corpus.documents] == [
        ("README", "text", None),
        ("a.md", "markdown", "Ports"),
        ("b/page.html", "html", "Tides"),
        ("c.txt", "text", None),
    ]
    assert corpus.documents[0].path == str(tmp_path / "README")
    assert corpus.left_out == ()


@pytest.mark.parametrize(
    ("encoding", "is_remarked"),
    [("utf-8", False), ("utf-8-sig", False), ("utf-16", False), ("cp949", True), ("euc-kr", True)],
)
def test_korean_in_whatever_encoding_is_the_same_text(tmp_path: Path, encoding: str, is_remarked: bool) -> None:
    path = tmp_path / "ko.txt"
    path.write_bytes((KOREAN * 3).encode(encoding))
    (document,) = read_documents(path).documents
    assert document.text == KOREAN * 3
    assert [each.slug for each in document.problems] == (["decoded-as"] if is_remarked else [])


def test_a_page_that_says_its_encoding_is_believed(tmp_path: Path) -> None:
    # Mostly English: the bytes alone do not look Korean enough to be taken for it.
    page = '<meta charset="euc-kr"><p>' + "Tide table of the café. " * 20 + "부산</p>"
    (tmp_path / "page.html").write_bytes(page.replace("é", "e").encode("euc-kr"))
    latin = '<meta http-equiv="Content-Type" content="text/html; charset=windows-1252"><p>Café</p>'
    (tmp_path / "latin.html").write_bytes(latin.encode("cp1252"))
    latin_page, korean_page = read_documents(tmp_path).documents
    assert korean_page.text.endswith("부산\n")
    assert latin_page.text == "Café\n"


def test_an_unknown_encoding_is_left_out_and_the_rest_goes_on(tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes("Café à la crème".encode("latin-1"))
    (tmp_path / "lies.html").write_bytes('<meta charset="no-such-thing"><p>Caf\xe9'.encode("latin-1"))
    (tmp_path / "good.txt").write_text("Good.")
    corpus = read_documents(tmp_path)
    assert [each.name for each in corpus.documents] == ["good.txt"]
    assert slugs(corpus) == {"latin.txt": "unknown-encoding", "lies.html": "unknown-encoding"}
    assert "iconv" in corpus.left_out[0].remark.text


def test_hangul_written_in_parts_is_composed(tmp_path: Path) -> None:
    import unicodedata

    (tmp_path / "mac.txt").write_text(unicodedata.normalize("NFD", KOREAN))
    assert read_documents(tmp_path).documents[0].text == KOREAN


def test_what_is_no_document_is_left_out_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "good.txt").write_text("Good.")
    (tmp_path / ".hidden.md").write_text("# Hidden")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config.txt").write_text("x")
    (tmp_path / "picture.txt").write_bytes(b"\x89PNG\r\n\0\0\0" + bytes(range(256)))
    (tmp_path / "table.json").write_text("{}")
    (tmp_path / "report.docx").write_bytes(b"PK\x03\x04")
    (tmp_path / "empty.md").write_text("")
    (tmp_path / "blank.txt").write_text(" \n\n\t ")
    (tmp_path / "only.md").write_text("---\ntitle: Nothing\n---\n")
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nowhere.txt")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "self.txt").symlink_to(tmp_path / "self.txt")
    corpus = read_documents(tmp_path)
    assert [each.name for each in corpus.documents] == ["good.txt"]
    assert slugs(corpus) == {
        ".hidden.md": "not-a-document",
        ".git": "not-a-document",
        "picture.txt": "binary-file",
        "table.json": "not-a-document",
        "report.docx": "not-a-document",
        "empty.md": "empty-document",
        "blank.txt": "empty-document",
        "only.md": "empty-document",
        "pipe.txt": "not-a-document",
        "gone.txt": "unreadable-file",
        "loop": "not-a-document",
        "self.txt": "unreadable-file",
    }
    assert all(each.remark.text.endswith(".") and each.remark.text[0].isupper() for each in corpus.left_out)


def test_a_file_that_may_not_be_read_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root every file may be read, so the system's answer is stood in for."""
    (tmp_path / "good.txt").write_text("Good.")
    (tmp_path / "locked.txt").write_text("Locked.")
    real = Path.read_bytes

    def read_bytes(self: Path) -> bytes:
        if self.name == "locked.txt":
            raise PermissionError(13, "Permission denied")
        return real(self)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    corpus = read_documents(tmp_path)
    assert [each.name for each in corpus.documents] == ["good.txt"]
    assert corpus.left_out[0].remark.slug == "unreadable-file"
    assert "Permission denied" in corpus.left_out[0].remark.text


def test_a_file_over_the_limit_is_never_opened(tmp_path: Path) -> None:
    with (tmp_path / "huge.txt").open("wb") as file:
        file.truncate(50 << 30)  # 50 GiB that take no place on the disk
    (tmp_path / "good.txt").write_text("Good.")
    corpus = read_documents(tmp_path)
    assert slugs(corpus) == {"huge.txt": "file-too-large"}
    assert "50.0 GiB" in corpus.left_out[0].remark.text
    assert read_documents(tmp_path / "good.txt", most_bytes=5).documents
    with pytest.raises(UsageError, match="at most"):
        read_documents(tmp_path / "good.txt", most_bytes=4)


def test_more_than_fits_into_memory_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_BYTES_TOGETHER", 10)
    for number in range(4):
        (tmp_path / f"{number}.txt").write_text(f"Text{number}")
    corpus = read_documents(tmp_path)
    assert [each.name for each in corpus.documents] == ["0.txt", "1.txt"]
    assert slugs(corpus) == {"2.txt": "file-too-large", "3.txt": "file-too-large"}


def test_the_same_text_is_used_once(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# Tides\n\nHigh water at three.\n")
    (tmp_path / "b.txt").write_text("#  TIDES\r\nHigh\twater at three.")
    (tmp_path / "c.txt").write_text("High water at four.")
    corpus = read_documents(tmp_path)
    assert [each.name for each in corpus.documents] == ["a.md", "c.txt"]
    assert corpus.duplicates == {"b.txt": "a.md"}
    assert slugs(corpus) == {"b.txt": "duplicate-document"}


def test_front_matter_is_no_text_and_gives_the_title(tmp_path: Path) -> None:
    (tmp_path / "yaml.md").write_text('---\ntitle: "High water"\ntags: [a]\n---\n\n## Busan\n\nAt three.\n')
    (tmp_path / "toml.md").write_text('+++\ntitle = "Low"\n+++\nAt nine.\n')
    (tmp_path / "rule.md").write_text("---\n\nA rule begins this text, of no fields.\n\n---\n\nMore.\n")
    rule, toml, yaml = sorted(read_documents(tmp_path).documents, key=lambda each: each.name)
    assert (yaml.text, yaml.title) == ("## Busan\n\nAt three.\n", "High water")
    assert (toml.text, toml.title) == ("At nine.\n", "Low")
    assert rule.text.startswith("---\n\nA rule")


def test_headings_are_those_of_the_document_not_of_its_code(tmp_path: Path) -> None:
    text = "# One *two*\n\n```sh\n# no heading\n```\n\nSet\next\n===\n\n> ## Quoted `x`\n\nEnd.\n"
    (tmp_path / "a.md").write_text(text)
    (document,) = read_documents(tmp_path).documents
    assert [(each.level, each.text) for each in document.headings] == [
        (1, "One two"),
        (1, "Set ext"),
        (2, "Quoted x"),
    ]
    assert [text[each.start :].split("\n")[0] for each in document.headings] == [
        "# One *two*",
        "Set",
        "> ## Quoted `x`",
    ]


def test_a_page_is_read_block_by_block() -> None:
    page = """<!doctype html><html><head><title> Tide
      table</title><style>p{}</style></head><body><nav><a href=/>Home</a></nav><script>let a = "<p>no</p>";</script>
    <h1>Tides of <em>Busan</em></h1><p>High water is at 3.5&nbsp;m<br>on Monday.<p>Un<b>closed <i>both</b> after</i>.
    <ul><li>One<li><p>Two</p></ul><table><tr><th>Port</th><th>Depth</th></tr><tr><td>Busan</td><td>12.5 m</td></tr>
    </table><pre>  keep
      this</pre><p hidden>Not shown.</p><h2></h2><p>만조는 <b>세</b> 시&amp;반.</p></body></html>"""
    text, title, headings = html_text.read_html(page)
    assert title == "Tide table"
    assert text == (
        "Tides of Busan\n\nHigh water is at 3.5\xa0m\non Monday.\n\nUnclosed both after.\n\n- One\n\n- Two\n\n"
        "Port | Depth\nBusan | 12.5 m\n\n  keep\n      this\n\n만조는 세 시&반.\n"
    )
    assert [(text[each.start : each.start + 5], each.level, each.text) for each in headings] == [
        ("Tides", 1, "Tides of Busan")
    ]


def test_a_heading_in_a_cell_begins_behind_the_mark_of_the_cell() -> None:
    text, _, headings = html_text.read_html("<table><tr><td>A<td><h2>B c</h2></table><ul><li><h3>D</h3></ul>")
    assert [(text[each.start : each.start + len(each.text)], each.text) for each in headings] == [
        ("B c", "B c"),
        ("D", "D"),
    ]


def test_a_page_nested_deeper_than_python_calls_is_read() -> None:
    text, _, _ = html_text.read_html("<div>" * 3000 + "deep" + "</div>" * 3000)
    assert text == "deep\n"


def test_html_without_its_package_is_left_out_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "selectolax.lexbor", None)
    (tmp_path / "page.html").write_text("<p>Hello")
    with pytest.raises(MissingDependency, match="selectolax") as caught:
        read_documents(tmp_path)
    assert "kvscope[documents]" in str(caught.value.hint)
    (tmp_path / "good.txt").write_text("Good.")
    corpus = read_documents(tmp_path)
    assert [each.name for each in corpus.documents] == ["good.txt"]
    assert "kvscope[documents]" in corpus.left_out[0].remark.text


def test_an_empty_folder_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the folder is empty") as caught:
        read_documents(tmp_path)
    assert "Markdown" in str(caught.value.hint)
    (tmp_path / "a.json").write_text("{}")
    (tmp_path / "b.csv").write_text("a,b")
    with pytest.raises(UsageError, match=r"of 2 files \(not-a-document 2\)") as caught:
        read_documents(tmp_path)
    assert "a.json" in str(caught.value.hint)
    with pytest.raises(UsageError, match="cannot be used"):
        read_documents(tmp_path / "nowhere")


def test_a_file_named_itself_is_read_whatever_its_ending(tmp_path: Path) -> None:
    (tmp_path / "notes.log").write_text("Read me.")
    (document,) = read_documents(tmp_path / "notes.log").documents
    assert (document.name, document.kind, document.text) == ("notes.log", "text", "Read me.")


def test_the_questions_among_the_documents_are_no_document(tmp_path: Path) -> None:
    """They hold the answers."""
    (tmp_path / "a.txt").write_text("Good.")
    (tmp_path / "questions.txt").write_text("What?")
    corpus = read_documents(tmp_path, without=[tmp_path / "questions.txt"])
    assert [each.name for each in corpus.documents] == ["a.txt"]


def test_five_thousand_files(tmp_path: Path) -> None:
    for number in range(5_000):
        folder = tmp_path / f"{number // 500}"
        folder.mkdir(exist_ok=True)
        (folder / f"{number}.md").write_text(f"# Page {number}\n\nText {number}.\n")
    corpus = read_documents(tmp_path)
    assert len(corpus.documents) == 5_000
    assert len({each.name for each in corpus.documents}) == 5_000
    assert corpus.left_out == ()


def test_a_name_that_is_no_utf_8_can_be_printed(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"caf\xe9.txt")).write_text("Good.")
    (document,) = read_documents(tmp_path).documents
    document.name.encode()
    assert reading.writable_name("plain.txt") == "plain.txt"
