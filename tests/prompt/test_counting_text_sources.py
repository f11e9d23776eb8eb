"""Texts found and read: every encoding that is certain, and a stated reason for everything that is not counted."""

import io
import os
import socket
import threading
from pathlib import Path

import pytest

from kvscope.prompt.counting import text_sources
from kvscope.prompt.counting.texts import count_texts
from kvscope.prompt.counting.texts_result import TextCounts
from kvscope.prompt.tokenizers.bytes import BytesTokenizer

KOREAN = "모델의 메모리가 늘어나는 까닭을 알아본다. "


class Folder(io.BytesIO):
    """What `kvscope count - < folder` reads."""

    def read(self, size: int | None = -1, /) -> bytes:
        raise IsADirectoryError(21, "Is a directory")


def counted(*paths: Path) -> TextCounts:
    return count_texts(paths, [BytesTokenizer()])


def reasons(found: TextCounts) -> dict[str, str]:
    return {Path(each.path).name: each.reason for each in found.skipped}


def names(found: TextCounts) -> list[str]:
    return [Path(each.path).name for each in found.files]


@pytest.mark.parametrize(
    ("encoding", "mark"),
    [
        ("utf-8", b""),
        ("utf-8", b"\xef\xbb\xbf"),
        ("utf-16-le", b"\xff\xfe"),
        ("utf-16-be", b"\xfe\xff"),
        ("utf-32-le", b"\xff\xfe\0\0"),
        ("utf-32-be", b"\0\0\xfe\xff"),
    ],
)
@pytest.mark.parametrize("repeats", [0, 1, 60_000])
def test_encodings_that_are_certain(encoding: str, mark: bytes, repeats: int, tmp_path: Path) -> None:
    text = "가é😀\r\nz" * repeats
    (tmp_path / "a.txt").write_bytes(mark + text.encode(encoding))
    (file,) = counted(tmp_path).files
    assert (file.characters, file.bytes, file.tokens) == (len(text), len(text.encode()), (len(text.encode()),))


def test_a_character_split_between_two_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_sources, "_BLOCK", 7)
    monkeypatch.setattr(text_sources, "_LOOKED_AT", 3)
    text = "가나다 😀😀 é" * 9
    assert "".join(piece for piece, _ in text_sources.read_stream(io.BytesIO(text.encode()))) == text
    with pytest.raises(text_sources.Unreadable, match="byte 25 is not UTF-8"):
        list(text_sources.read_stream(io.BytesIO("가나다라마바사아".encode() + b"a\xed\xa0\x80")))
    with pytest.raises(text_sources.Unreadable, match="byte 24 is not UTF-8"):
        list(text_sources.read_stream(io.BytesIO("가나다라마바사아".encode() + b"\xea\xb0")))  # cut short


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\x7fELF\0\0\1\2" + bytes(range(256)), "NUL byte"),
        (bytes(range(1, 32)) * 40 + b"\xff", "binary file"),
        (KOREAN.encode("cp949") * 50, "iconv -f CP949 -t UTF-8"),
        ("les élèves français préfèrent".encode("latin-1"), "iconv -f ENCODING -t UTF-8, where ENCODING is"),
        (b"good text\n" * 5000 + b"\xff bad", "byte 50,000 is not UTF-8"),
        (KOREAN.encode() + KOREAN.encode("euc-kr"), f"byte {len(KOREAN.encode()):,} is not UTF-8"),
        (b"\xff\xfea", "byte-order mark says UTF-16-LE"),
        (b"\xff\xfe\x00\xd8a\x00", "byte-order mark says UTF-16-LE"),
    ],
)
def test_what_is_not_certainly_text_is_skipped_and_the_rest_counted(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_bytes(content)
    (tmp_path / "good.txt").write_text("good")
    found = counted(tmp_path)
    assert said in reasons(found)["bad.txt"]
    assert names(found) == ["good.txt"]
    assert found.total.tokens == (4,)


def test_stdin_is_read_alike() -> None:
    found = count_texts([Path("-")], [BytesTokenizer()], stdin=io.BytesIO(KOREAN.encode()))
    assert [(each.path, each.characters) for each in found.files] == [("-", len(KOREAN))]
    broken = count_texts([], [BytesTokenizer()], stdin=io.BytesIO(b"abc\xff"))
    assert broken.files == ()
    assert [each.path for each in broken.skipped] == ["-"]
    assert broken.total.tokens == (0,)


def test_stdin_that_cannot_be_read_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abc")
    found = count_texts([tmp_path / "a.txt"], [BytesTokenizer()], stdin=Folder())
    assert reasons(found) == {"-": "it cannot be read: Is a directory"}
    assert found.total.tokens == (3,)


def test_what_is_no_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "broken").symlink_to(tmp_path / "none")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "up").symlink_to(tmp_path)
    (tmp_path / "a.txt").write_text("a")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "socket"))
        found = counted(tmp_path, Path("/dev/null"), tmp_path / "missing", tmp_path / ("x" * 300), Path("a\0b"))
    said = reasons(found)
    assert "a pipe" in said["pipe"]
    assert "a socket" in said["socket"]
    assert "a device" in said["null"]
    assert "No such file" in said["broken"]
    assert "No such file" in said["missing"]
    assert "symbolic links" in said["loop"]
    assert "not followed" in said["up"]
    assert "too long" in said["x" * 300]
    assert len(found.skipped) == 9
    assert names(found) == ["a.txt"]


def test_hidden_names_inside_a_folder_are_stated_and_named_ones_counted(tmp_path: Path) -> None:
    (tmp_path / ".git" / "deep").mkdir(parents=True)
    (tmp_path / ".git" / "deep" / "a.txt").write_text("a")
    (tmp_path / ".env").write_text("b")
    (tmp_path / "c.txt").write_text("c")
    found = counted(tmp_path)
    assert names(found) == ["c.txt"]
    assert sorted(reasons(found)) == [".env", ".git"]
    assert names(counted(tmp_path / ".git", tmp_path / ".env")) == ["a.txt", ".env"]


def test_documents_of_programs_are_skipped_by_name_and_html_is_counted(tmp_path: Path) -> None:
    (tmp_path / "a.PDF").write_bytes(b"%PDF-1.7 text")
    (tmp_path / "b.docx").write_bytes(b"PK\3\4")
    (tmp_path / "c.html").write_text("<p>text</p>")
    found = counted(tmp_path)
    assert "pdftotext" in reasons(found)["a.PDF"]
    assert "plain text" in reasons(found)["b.docx"]
    assert found.total.tokens == (11,)


def test_a_file_named_twice_is_counted_once(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abc")
    (tmp_path / "link.txt").symlink_to("a.txt")
    found = counted(tmp_path / "a.txt", tmp_path)
    assert found.total.tokens == (3,)
    assert [Path(each.path).name for each in found.skipped] == ["a.txt", "link.txt"]
    assert all("counted once" in each.reason for each in found.skipped)


def test_a_hard_link_is_a_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abc")
    (tmp_path / "b.txt").hardlink_to(tmp_path / "a.txt")
    assert counted(tmp_path).total.tokens == (6,)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_without_permission(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "a.txt").chmod(0)
    assert "Permission denied" in reasons(counted(tmp_path))["a.txt"]


@pytest.mark.parametrize("change", [b"longer", b""])
def test_a_file_that_changes_while_it_is_read(change: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"x" * 1_000_000)
    ((source,), _) = text_sources.find_sources([path])
    pieces = text_sources.read_source(source)
    next(pieces)
    path.write_bytes(change)
    with pytest.raises(text_sources.Unreadable, match="changed while"):
        list(pieces)


def test_a_file_that_grows_while_it_is_read_is_not_followed(tmp_path: Path) -> None:
    """As much is written as was read, each time: reading to the end would not end."""
    path = tmp_path / "a.txt"
    path.write_bytes(b"x" * 600_000)
    ((source,), _) = text_sources.find_sources([path])
    read = [0]

    def read_and_write() -> None:
        with path.open("ab") as file:
            for _, num_bytes in text_sources.read_source(source):
                read.append(read[-1] + num_bytes)
                if read[-1] > 2_000_000:
                    return
                file.write(b"x" * num_bytes)
                file.flush()

    with pytest.raises(text_sources.Unreadable, match="changed while"):
        read_and_write()
    assert 0 < read[-1] <= 600_001


def test_a_file_that_says_it_is_empty_and_is_not() -> None:
    """What the system writes when it is read has no size: it is not counted as nothing."""
    if not Path("/proc/self/status").exists():
        pytest.skip("there is no /proc here")
    ((source,), _) = text_sources.find_sources([Path("/proc/self/status")])
    with pytest.raises(text_sources.Unreadable, match="changed while"):
        list(text_sources.read_source(source))


def test_what_vanishes_between_being_found_and_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "b.txt").write_text("b")
    (tmp_path / "folder").mkdir()
    (tmp_path / "c.txt").write_text("c")
    sources, _ = text_sources.find_sources([tmp_path])
    (tmp_path / "a.txt").unlink()
    (tmp_path / "b.txt").unlink()
    os.mkfifo(tmp_path / "b.txt")
    found = {source.path.name: source for source in sources}
    with pytest.raises(text_sources.Unreadable, match="No such file"):
        list(text_sources.read_source(found["a.txt"]))
    with pytest.raises(text_sources.Unreadable, match="another kind of file"):
        list(text_sources.read_source(found["b.txt"]))
    assert "".join(text for text, _ in text_sources.read_source(found["c.txt"])) == "c"

    real = os.listdir

    def vanished(path: Path) -> list[str]:
        if Path(path).name == "folder":
            raise FileNotFoundError(2, "No such file or directory")
        return real(path)

    monkeypatch.setattr(os, "listdir", vanished)
    assert "No such file" in reasons(counted(tmp_path))["folder"]


def test_folders_deeper_than_python_calls(tmp_path: Path) -> None:
    path = tmp_path
    for _ in range(300):
        path = path / "d"
    path.mkdir(parents=True)
    (path / "a.txt").write_text("abc")
    assert counted(tmp_path).total.tokens == (3,)


def test_a_pipe_that_gives_little_at_a_time() -> None:
    read, write = os.pipe()
    content = (KOREAN * 400).encode()

    def send() -> None:
        with open(write, "wb", buffering=0) as sink:  # noqa: PTH123  a descriptor
            for start in range(0, len(content), 1001):
                sink.write(content[start : start + 1001])

    sender = threading.Thread(target=send)
    sender.start()
    with open(read, "rb", buffering=0) as stream:  # noqa: PTH123  a descriptor
        found = count_texts([], [BytesTokenizer()], stdin=stream)
    sender.join()
    assert found.total.tokens == (len(content),)
    assert found.kinds[0].kind == "korean_prose"
