"""A user's own text: how files of every shape come apart, and which are refused."""

import hashlib
import random
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope.errors import MalformedFile, ModelNotFound, UnknownName, UsageError
from kvscope.prompt.conversation import Message
from kvscope.prompt.exact_length.build import build_prompt
from kvscope.prompt.exact_length.own_text import LONGEST_PIECE, read_own_text, split_text

WRAPPED = """A river begins where water can
no longer sink into the ground. It looks
for a way down! Does it find one?

강은 땅속으로 스며들지 못한 물이 내려갈
길을 찾는 곳에서 시작된다. 홍수는 강의 잘못이 아니다.
"""
CODE = "def f(x):\n    if x:\n\n        return 1\n    return 2\n\n\nclass A:\n\tpass\n"


def pieces(text: str, *, is_code: bool = False) -> list[str]:
    return list(split_text(text, is_code=is_code))


def test_prose_is_cut_where_sentences_end_wherever_its_lines_break() -> None:
    assert pieces(WRAPPED) == [
        "A river begins where water can no longer sink into the ground.",
        "It looks for a way down!",
        "Does it find one?",
        "강은 땅속으로 스며들지 못한 물이 내려갈 길을 찾는 곳에서 시작된다.",
        "홍수는 강의 잘못이 아니다.",
    ]
    assert pieces(WRAPPED.replace("\n", "\r\n")) == pieces(WRAPPED)


def test_what_has_no_sentences_is_taken_line_by_line() -> None:
    assert pieces("name;amount\nA;1\n B;2 \n\nC;3") == ["name;amount", "A;1", "B;2", "C;3"]


def test_code_keeps_its_indentation() -> None:
    assert pieces(CODE, is_code=True) == [
        "def f(x):\n    if x:",
        "        return 1\n    return 2",
        "class A:\n\tpass",
    ]


@given(text=st.text(alphabet=st.sampled_from("aB.?! \n\t\r한😀\u00a0")), is_code=st.booleans())
def test_no_piece_is_empty_or_too_long_and_nothing_but_space_is_lost(text: str, is_code: bool) -> None:
    found = pieces(text, is_code=is_code)
    assert all(piece.strip() and piece == piece.rstrip() and len(piece) <= LONGEST_PIECE for piece in found)
    assert re.sub(r"\s", "", "".join(found)) == re.sub(r"\s", "", text)


def byte_count(messages: Sequence[Message]) -> int:
    return len(messages[0].content.encode())


@pytest.mark.parametrize(
    "content",
    [
        pytest.param("word " * 100_000, id="one giant line of words"),
        pytest.param("QUJD" * 100_000, id="one giant word"),
        pytest.param("한국어문장" * 20_000, id="one giant line without spaces"),
        pytest.param("Short.", id="one sentence"),
        pytest.param("Short. Short. Short.", id="one sentence, three times"),
    ],
)
def test_any_text_makes_prompts_of_every_length_that_never_repeat_a_piece(tmp_path: Path, content: str) -> None:
    path = tmp_path / "own.txt"
    path.write_text(content, encoding="utf-8")
    source = read_own_text(path, language="en")
    for prompt_tokens in (1, 2, 60, 500, 501, 502, 20_000):
        prompt = build_prompt(prompt_tokens=prompt_tokens, count=byte_count, source=source, seed=2)
        assert byte_count(prompt.messages) == prompt_tokens
    body = re.split(r"(?=\(\d+\) )", prompt.text)
    assert len(body) == len(set(body))


def test_the_hash_is_that_of_the_file_so_that_sha256sum_finds_it(tmp_path: Path) -> None:
    path = tmp_path / "own.txt"
    path.write_bytes(b"\xef\xbb\xbf" + WRAPPED.encode())
    source = read_own_text(path, language="ko")
    printed = subprocess.run(["sha256sum", str(path)], capture_output=True, text=True, check=True).stdout
    assert source.sha256 == printed.split()[0]
    assert source.name == "own.txt"
    assert source.sentences[0].startswith("A river"), "the byte order mark is no text"


def test_a_folder_is_read_in_the_order_of_its_paths_without_what_is_no_text(tmp_path: Path) -> None:
    contents = {
        "b.txt": b"Second.",
        "a/x.md": b"First.",
        ".git/config": b"No.",
        "c.png": b"\x89PNG\0",
        "d": b"\xff\xfe",
    }
    for name in random.Random(3).sample(sorted(contents), len(contents)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(contents[name])
    source = read_own_text(tmp_path, language="en")
    assert source.sentences == ("First.", "Second.")
    lines = [f"{hashlib.sha256(contents[name]).hexdigest()}  {name}\n" for name in ("a/x.md", "b.txt")]
    assert source.sha256 == hashlib.sha256("".join(lines).encode()).hexdigest()


@pytest.mark.parametrize(
    ("content", "where"),
    [(b"text\0more", "byte 4"), ("한글".encode("cp949"), "byte 0"), ("한".encode("utf-16"), "byte 0")],
)
def test_a_binary_file_is_an_error_that_says_where(tmp_path: Path, content: bytes, where: str) -> None:
    path = tmp_path / "own.txt"
    path.write_bytes(content)
    with pytest.raises(MalformedFile, match=where) as caught:
        read_own_text(path, language="en")
    assert "UTF-8" in str(caught.value.hint)


def test_what_is_not_there_or_empty_is_said(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="No such file"):
        read_own_text(tmp_path / "none.txt", language="en")
    (tmp_path / "empty.txt").write_text(" \n\n\t")
    for place in (tmp_path, tmp_path / "empty.txt"):
        with pytest.raises(UsageError, match="no text"):
            read_own_text(place, language="en")
    with pytest.raises(UnknownName):
        read_own_text(tmp_path, language="de")


def test_too_much_text_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvscope.prompt.exact_length.own_text.MOST_BYTES", 10)
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("Six by")
    with pytest.raises(UsageError, match="more than"):
        read_own_text(tmp_path, language="en")
    (tmp_path / "c.txt").write_text("Eleven byte")
    with pytest.raises(UsageError, match="more than"):
        read_own_text(tmp_path / "c.txt", language="en")
