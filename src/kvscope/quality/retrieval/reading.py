"""Documents under a path: Markdown, text, HTML and PDF, each as text; what cannot be one is left out and named."""

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from kvscope.errors import MissingDependency, UsageError
from kvscope.prompt.counting.text_sources import Source, find_sources, unreadable
from kvscope.quality.retrieval.decoding import NoText, decode
from kvscope.quality.retrieval.html_text import read_html
from kvscope.quality.retrieval.markdown_text import read_markdown, without_front_matter
from kvscope.quality.retrieval.pdf_text import read_pdf
from kvscope.quality.retrieval.source import Corpus, Kind, LeftOut, Remark, SourceDocument
from kvscope.units import format_bytes

MOST_BYTES = 64 << 20  # of one file; a larger one is left out
MOST_BYTES_TOGETHER = 1 << 30  # all texts are held in memory
_KINDS: dict[str, Kind] = {
    **dict.fromkeys((".md", ".markdown", ".mdown", ".mkd"), "markdown"),
    **dict.fromkeys((".txt", ".text", ".rst", ".adoc", ""), "text"),
    **dict.fromkeys((".html", ".htm", ".xhtml"), "html"),
    ".pdf": "pdf",
}
_LOOKED_FOR = "Markdown (.md), text (.txt, .rst, no ending), HTML (.html) and PDF (.pdf)"
_MOST_NAMED = 5


def read_documents(path: Path, *, most_bytes: int = MOST_BYTES, without: Sequence[Path] = ()) -> Corpus:
    """Every document under ``path``, a file or a folder, but for the files ``without`` (the questions, say). A file
    that is named itself is read whatever its ending: as text where that says nothing. Raises UsageError where there is
    no document, and says what was found instead; MissingDependency where a package is missing that all of them need."""
    found, skipped = find_sources([path], also=[".pdf"])
    reader = _Reader(path, most_bytes)
    reader.left_out += [_left_out_already(each.path, each.reason) for each in skipped]
    unwanted = {each.resolve() for each in without}
    for source in found:
        if not unwanted or source.path.resolve() not in unwanted:
            reader.take(source)
    if not reader.documents:
        raise _none_found(path, reader)
    return Corpus(documents=tuple(reader.documents), left_out=tuple(reader.left_out), duplicates=reader.duplicates)


class _Reader:
    """Documents in the making. ``missing``: the package that a file could not be read without."""

    def __init__(self, root: Path, most_bytes: int) -> None:
        self.documents: list[SourceDocument] = []
        self.left_out: list[LeftOut] = []
        self.duplicates: dict[str, str] = {}
        self.missing: MissingDependency | None = None
        self._root = root
        self._most_bytes = most_bytes
        self._num_bytes = 0
        self._names_by_text: dict[bytes, str] = {}

    def take(self, source: Source) -> None:
        try:
            document = self._read(source)
        except MissingDependency as error:
            self.missing = error
            self._leave_out(source.path, Remark(slug="missing-dependency", text=f"{error.message} {error.hint}"))
        except NoText as error:
            self._leave_out(source.path, error.remark)
        except (OSError, MemoryError) as error:
            self._leave_out(source.path, Remark(slug="unreadable-file", text=_sentence(unreadable(error))))
        else:
            self._add(document)

    def _leave_out(self, path: Path, remark: Remark) -> None:
        self.left_out.append(LeftOut(path=str(path), remark=remark))

    def _add(self, document: SourceDocument) -> None:
        same = self._names_by_text.setdefault(_fingerprint(document.text), document.name)
        if same != document.name:
            self.duplicates[document.name] = same
            self._leave_out(
                Path(document.path), Remark(slug="duplicate-document", text=f"Its text is that of {same}: used once.")
            )
        else:
            self.documents.append(document)

    def _read(self, source: Source) -> SourceDocument:
        path = source.path
        kind = _KINDS.get(path.suffix.lower(), "text" if path == self._root else None)
        if kind is None:
            raise NoText(
                "not-a-document", f"A name that ends in {path.suffix} is none of {_LOOKED_FOR}; name the file itself."
            )
        if source.num_bytes > self._most_bytes:
            size, most = format_bytes(source.num_bytes), format_bytes(self._most_bytes)
            raise NoText("file-too-large", f"It has {size}; at most {most} are read of one document. Split it.")
        if self._num_bytes + source.num_bytes > MOST_BYTES_TOGETHER:
            most = format_bytes(MOST_BYTES_TOGETHER)
            raise NoText("file-too-large", f"With the documents before it, it would be more than {most}. Name fewer.")
        self._num_bytes += source.num_bytes
        data = path.read_bytes()
        name = path.name if path == self._root else path.relative_to(self._root).as_posix()
        document = _document(writable_name(name), str(path), data, "pdf" if data.startswith(b"%PDF-") else kind)
        if not document.text.strip():
            raise NoText("empty-document", "It is empty." if not data else "There is no text in it.")
        return document


def writable_name(name: str) -> str:
    """A file's name as text; bytes in it that are no UTF-8 are shown as U+FFFD."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _document(name: str, path: str, data: bytes, kind: Kind) -> SourceDocument:
    if kind == "pdf":
        text, title, page_starts, remarks = read_pdf(data)
        return SourceDocument(
            name=name, path=path, text=text, kind=kind, title=title, problems=remarks, page_starts=page_starts
        )
    raw, remark = decode(data, is_html=kind == "html")
    raw = unicodedata.normalize("NFC", raw)  # some systems write Hangul in parts, which no tokenizer likes
    problems = (remark,) if remark is not None else ()
    if kind == "html":
        text, title, headings = read_html(raw)
    elif kind == "markdown":
        text, title, headings = read_markdown(raw)
    else:
        (text, title), headings = without_front_matter(raw), ()
    return SourceDocument(name=name, path=path, text=text, kind=kind, title=title, problems=problems, headings=headings)


def _fingerprint(text: str) -> bytes:
    """Equal for texts that differ in case, width, composition or blanks only."""
    plain = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return hashlib.sha256(plain.encode("utf-8", "surrogatepass")).digest()


def _left_out_already(path: str, reason: str) -> LeftOut:
    slug = "unreadable-file" if reason.startswith("it cannot be read") else "not-a-document"
    return LeftOut(path=path, remark=Remark(slug=slug, text=_sentence(reason)))


def _sentence(reason: str) -> str:
    return f"{reason[:1].upper()}{reason[1:]}."


def _none_found(path: Path, reader: _Reader) -> UsageError:
    """What to say of a path without a single document."""
    others = [each for each in reader.left_out if each.remark.slug != "missing-dependency"]
    if reader.missing is not None and not others:
        return reader.missing
    if not reader.left_out:
        return UsageError(f"There is no document in {path}: the folder is empty.", hint=f"Looked for {_LOOKED_FOR}.")
    if len(reader.left_out) == 1 and reader.left_out[0].path == str(path):
        return UsageError(f"{path} cannot be used: {reader.left_out[0].remark.text}", hint=f"Wanted: {_LOOKED_FOR}.")
    counts = Counter(each.remark.slug for each in reader.left_out)
    named = "; ".join(f"{each.path}: {each.remark.text}" for each in reader.left_out[:_MOST_NAMED])
    found = ", ".join(f"{slug} {number}" for slug, number in counts.most_common())
    return UsageError(
        f"There is no document in {path} that can be used, of {len(reader.left_out)} files ({found}).",
        hint=f"Looked for {_LOOKED_FOR}. {named}",
    )
