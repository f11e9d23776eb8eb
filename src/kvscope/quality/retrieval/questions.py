"""A file of questions: JSON lines, CSV or TSV, or one question a line; what a line lacks is said, the rest is used."""

import csv
import io
import json
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvscope.errors import UsageError
from kvscope.quality.retrieval.decoding import NoText, decode
from kvscope.quality.retrieval.source import Remark
from kvscope.quality.retrieval.terms import korean_share

MOST_BYTES = 64 << 20
# What each field may be called in a file.
_FIELDS = {
    "id": ("id", "number"),
    "question": ("question", "query", "text", "질문"),
    "answer": ("answer", "answers", "expected", "정답", "답"),
    "any_answer": ("any_answer", "any_answers"),
    "evidence": ("evidence", "근거"),
    "document": ("document", "source", "file", "문서"),
    "language": ("language", "lang"),
}
_KNOWN = {name for names in _FIELDS.values() for name in names}
_KOREAN_SHARE = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedQuestion:
    """``id``: unique in its file. ``expected``: what a right answer names, all of it, or one of it where ``is_any``;
    empty where the file gives no answer: asked, and not scored. ``evidence``: texts that stand in a document and hold
    the answer, all of them needed. ``document``: the name of the document it is about. ``language``: as the file says,
    else "ko" where it is written in Korean, else None. ``line``: where in the file it stands, from 1."""

    id: str
    text: str
    expected: tuple[str, ...] = ()
    is_any: bool = False
    evidence: tuple[str, ...] = ()
    document: str | None = None
    language: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """What a file of questions holds. ``problems``: the lines that were left out, or lack something."""

    asked: tuple[AskedQuestion, ...]
    problems: tuple[Remark, ...] = ()


class _BadLine(Exception):
    """This line is no question; the message says why. It never leaves this file."""


def read_questions(path: Path) -> Questions:
    """Raises UsageError where the file cannot be read or holds no question."""
    try:
        size = path.stat().st_size
        data = path.read_bytes() if size <= MOST_BYTES else b""
    except OSError as error:
        raise UsageError(f"The questions in {path} cannot be read: {error.strerror or error}.") from None
    if size > MOST_BYTES:
        raise UsageError(f"{path} has {size:,} bytes; a file of questions has at most {MOST_BYTES:,}.")
    try:
        text, remark = decode(data)
    except NoText as error:
        raise UsageError(f"The questions in {path} cannot be read: {error}") from None
    reader = _Reader()
    for line, found in _entries(path, unicodedata.normalize("NFC", text)):
        reader.take(line, found)
    if not reader.asked:
        first = f" {reader.problems[0].text}" if reader.problems else " It is empty."
        raise UsageError(f"There is no question in {path}.{first}", hint=_HOW)
    return Questions(asked=tuple(reader.asked), problems=(*([remark] if remark else []), *reader.remarks()))


_HOW = (
    'One question a line, or JSON lines like {"question": "...", "answer": "...", "evidence": "..."}, or a CSV with '
    "these columns."
)


def _entries(path: Path, text: str) -> Iterator[tuple[int, Mapping[str, Any] | _BadLine]]:
    ending = path.suffix.lower()
    if ending in (".csv", ".tsv"):
        return _from_table(path, text, is_tsv=ending == ".tsv")
    if ending in (".jsonl", ".ndjson", ".json") or text.lstrip()[:1] == "{":
        return _from_list(text) if text.lstrip()[:1] == "[" else _from_json_lines(text)
    return ((line, {"question": each}) for line, each in enumerate(text.split("\n"), start=1) if each.strip())


def _from_json_lines(text: str) -> Iterator[tuple[int, Mapping[str, Any] | _BadLine]]:
    for line, each in enumerate(text.split("\n"), start=1):
        if each.strip():
            try:
                yield line, _object(_parsed(each))
            except json.JSONDecodeError as error:
                yield line, _BadLine(f"no JSON ({error.msg}, column {error.colno})")
            except _BadLine as error:
                yield line, error
            except RecursionError:
                yield line, _BadLine("no question: it is nested too deep")


def _from_list(text: str) -> Iterator[tuple[int, Mapping[str, Any] | _BadLine]]:
    """One JSON list of objects; its entries are numbered in place of lines."""
    try:
        entries = _parsed(text)
    except (json.JSONDecodeError, RecursionError) as error:
        yield getattr(error, "lineno", 1), _BadLine(f"no JSON ({error})")
        return
    for number, each in enumerate(entries, start=1):
        try:
            yield number, _object(each)
        except _BadLine as error:
            yield number, error


def _parsed(text: str) -> Any:
    """Numbers stay as they were written: "3.50" is an answer too."""
    return json.loads(text, parse_float=str, parse_int=str)


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _BadLine("no JSON object with a question")
    return value


def _from_table(path: Path, text: str, *, is_tsv: bool) -> Iterator[tuple[int, Mapping[str, Any] | _BadLine]]:
    head = text.lstrip("\n").partition("\n")[0]
    delimiter = "\t" if is_tsv else max(",;\t", key=head.count)
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    header: list[str] = []
    with suppress(csv.Error):
        header = [each.strip().lower() for each in next(rows, [])]
    if not set(header) & set(_FIELDS["question"]):
        raise UsageError(
            f"The first line of {path} names no column called question: it says {head[:200]!r}.", hint=_HOW
        )
    while True:
        line = rows.line_num + 1
        try:
            row = next(rows, None)
        except csv.Error as error:
            yield line, _BadLine(f"no row of a table ({error})")
            continue
        if row is None:
            return
        if len(row) > len(header):
            yield line, _BadLine(f"a row of {len(row)} cells under {len(header)} columns (a comma without quotes?)")
        elif any(cell.strip() for cell in row):
            yield line, {name: _cell(cell) for name, cell in zip(header, row, strict=False) if cell.strip()}


def _cell(text: str) -> Any:
    """A cell that is a JSON list is one: ["a", "b"]."""
    if text.lstrip().startswith("["):
        try:
            return _parsed(text)
        except (json.JSONDecodeError, RecursionError):
            return text
    return text


class _Reader:
    def __init__(self) -> None:
        self.asked: list[AskedQuestion] = []
        self.problems: list[Remark] = []
        self._lines_by_id: dict[str, int] = {}
        self._unknown: dict[str, int] = {}

    def take(self, line: int, entry: Mapping[str, Any] | _BadLine) -> None:
        try:
            if isinstance(entry, _BadLine):
                raise entry
            asked = self._question(line, entry)
            earlier = self._lines_by_id.setdefault(asked.id, line)
            if earlier != line:
                raise _BadLine(f"the id {asked.id!r} of line {earlier} again")
        except _BadLine as error:
            self.problems.append(Remark(slug="question-left-out", text=f"Line {line} is left out: {error}."))
        else:
            self.asked.append(asked)
            for name in entry.keys() - _KNOWN:
                self._unknown.setdefault(str(name), line)

    def _question(self, line: int, entry: Mapping[str, Any]) -> AskedQuestion:
        texts = _texts(entry, "question")
        if len(texts) != 1:
            raise _BadLine("no question in it" if not texts else "several questions in it")
        needed, any_of = _texts(entry, "answer"), _texts(entry, "any_answer")
        if needed and any_of:
            raise _BadLine("both answer and any_answer: give one of them")
        return AskedQuestion(
            id=_single(entry, "id") or f"line-{line}",
            text=texts[0],
            expected=needed or any_of,
            is_any=bool(any_of),
            evidence=_texts(entry, "evidence"),
            document=_single(entry, "document"),
            language=_single(entry, "language") or ("ko" if korean_share(texts[0]) >= _KOREAN_SHARE else None),
            line=line,
        )

    def remarks(self) -> list[Remark]:
        """The problems, and what many questions lack."""
        remarks = list(self.problems)
        for name, line in self._unknown.items():
            known = ", ".join(_FIELDS)
            remarks.append(
                Remark(slug="unknown-field", text=f"Line {line}: {name!r} is passed over; fields are {known}.")
            )
        unanswered = sum(not each.expected for each in self.asked)
        if unanswered:
            which = f"{unanswered} of {len(self.asked)} questions have no answer: they are asked, and not scored."
            remarks.append(Remark(slug="questions-without-answers", text=which))
        return remarks


def _texts(entry: Mapping[str, Any], field: str) -> tuple[str, ...]:
    """The texts of a field, under whichever of its names; a list, or one. Raises _BadLine."""
    given = {name: entry[name] for name in _FIELDS[field] if entry.get(name) not in (None, "", [])}
    if len(given) > 1:
        raise _BadLine(f"{' and '.join(given)} mean the same: give one of them")
    found: list[str] = []
    for name, value in given.items():
        for each in value if isinstance(value, list) else [value]:
            if not isinstance(each, str):
                raise _BadLine(f"{name} is {json.dumps(each, ensure_ascii=False)[:60]}, not a text")
            found += [each.strip()] if each.strip() else []
    return tuple(found)


def _single(entry: Mapping[str, Any], field: str) -> str | None:
    texts = _texts(entry, field)
    if len(texts) > 1:
        raise _BadLine(f"several values of {field}")
    return texts[0] if texts else None
