"""The text of a PDF, page by page, through pypdf; what it cannot give (scans, locked files, fonts without a mapping to
characters) is said."""

import io
import logging
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kvscope.errors import MissingDependency
from kvscope.prompt.tokenizers.base import writable
from kvscope.quality.retrieval.decoding import NoText
from kvscope.quality.retrieval.source import Remark

# Characters that no sentence has: replacement, private use, unassigned, control.
_NONE_OF_TEXT = {"Co", "Cn", "Cc", "Cs"}
_GARBLED_SHARE = 0.02  # more than a few odd bullets, less than any page whose font was misread
_USELESS_SHARE = 0.5
_CONVERT = "Convert it another way (for example with pdftotext), and give the text."


def read_pdf(data: bytes) -> tuple[str, str | None, tuple[int, ...], tuple[Remark, ...]]:
    """The text, the title, where each page begins, and what is doubtful. Raises NoText (no-text, locked-pdf,
    broken-pdf, garbled-text) and MissingDependency."""
    try:
        import pypdf
    except ImportError:
        raise MissingDependency("Reading PDF", "documents", "pypdf") from None
    with _silent("pypdf"):
        try:
            reader = pypdf.PdfReader(io.BytesIO(data))
            if reader.is_encrypted and not reader.decrypt(""):
                raise NoText("locked-pdf", "It is locked with a password: save a copy without one.")
            pages = list(reader.pages)
            title = reader.metadata.title if reader.metadata is not None else None
        except NoText:
            raise
        except pypdf.errors.DependencyError:
            raise NoText("locked-pdf", "It is encrypted; reading it needs: pip install 'pypdf[crypto]'.") from None
        except Exception as error:  # whatever a broken file makes pypdf raise
            raise NoText("broken-pdf", f"It is damaged, or no PDF: {_in_short(error)}.") from None
        return _pages_joined(pages, title)


def _pages_joined(pages: list[Any], title: object) -> tuple[str, str | None, tuple[int, ...], tuple[Remark, ...]]:
    pieces: list[str] = []
    starts, unread, empty, unmapped = [], [], [], set()
    length = 0
    for number, page in enumerate(pages, start=1):
        text, is_read, fonts = _page_text(page)
        unmapped |= fonts
        if not is_read:
            unread.append(number)
        elif not text:
            empty.append(number)
        if pieces and pieces[-1] and text:
            # A sentence goes on over the end of a page; one that ended there does not.
            joint = "\n\n" if pieces[-1].rstrip().endswith((".", "!", "?", ":")) else "\n"
            pieces.append(joint)
            length += len(joint)
        starts.append(length)
        pieces.append(text)
        length += len(text)
        if not text:
            pieces.pop()
    whole = "".join(pieces)
    if not whole.strip():
        raise _nothing_in(len(pages), unread)
    remarks = [*_pages_missing(len(pages), unread, empty), *_garbled(whole, unmapped)]
    return whole + "\n", str(title).strip() or None if title else None, tuple(starts), tuple(remarks)


def _nothing_in(pages: int, unread: list[int]) -> NoText:
    if unread:
        return NoText("broken-pdf", f"None of its {pages} pages can be read: it is damaged.")
    return NoText(
        "no-text", f"Its {pages} pages hold no text: they are pictures (a scan?). Run text recognition (OCR) over it."
    )


def _pages_missing(pages: int, unread: list[int], empty: list[int]) -> Iterator[Remark]:
    if unread:
        yield Remark(slug="broken-pdf", text=f"{len(unread)} of {pages} pages cannot be read: {_listed(unread)}.")
    if empty:
        yield Remark(
            slug="no-text", text=f"{len(empty)} of {pages} pages hold no text (empty, or pictures): {_listed(empty)}."
        )


def _listed(numbers: list[int], most: int = 10) -> str:
    shown = ", ".join(map(str, numbers[:most]))
    return shown if len(numbers) <= most else f"{shown} ..."


def _page_text(page: Any) -> tuple[str, bool, set[str]]:
    """Its text; whether it could be read; the names of its fonts that say nothing about their characters."""
    try:
        text = writable(page.extract_text() or "")
    except Exception:  # whatever a broken page makes pypdf raise
        return "", False, set()
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "�")
    text = unicodedata.normalize("NFC", text)
    return text.strip(), True, _unmapped_fonts(page) if text.strip() else set()


def _unmapped_fonts(page: Any) -> set[str]:
    """Fonts of many characters without a ToUnicode map, in an encoding other than Unicode: pypdf reads their codes as
    if they were Unicode (pypdf 7.1; its own issue 2295)."""
    try:
        fonts = page["/Resources"]["/Font"].values()
        kinds = [(font.get_object(), str(font.get_object().get("/Encoding"))) for font in fonts]
    except Exception:  # no fonts, or a broken page
        return set()
    return {
        str(font.get("/BaseFont", "?")).lstrip("/")
        for font, encoding in kinds
        if font.get("/Subtype") == "/Type0" and "/ToUnicode" not in font
        if "UCS2" not in encoding and "UTF16" not in encoding
    }


def _garbled(text: str, unmapped: set[str]) -> list[Remark]:
    share = _share_of_no_text(text)
    if share >= _USELESS_SHARE:
        raise NoText("garbled-text", f"{share:.0%} of its characters are no text: its fonts cannot be read. {_CONVERT}")
    if unmapped:
        which = f"its fonts ({', '.join(sorted(unmapped)[:3])}) do not say which characters they show"
        return [Remark(slug="garbled-text", text=f"Its text is probably garbled: {which}. {_CONVERT}")]
    if share >= _GARBLED_SHARE:
        return [Remark(slug="garbled-text", text=f"{share:.1%} of its characters are no text. {_CONVERT}")]
    return []


def _share_of_no_text(text: str) -> float:
    letters = [each for each in text if not each.isspace()]
    odd = sum(each == "�" or unicodedata.category(each) in _NONE_OF_TEXT for each in letters)
    return odd / len(letters) if letters else 0.0


def _in_short(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200].rstrip(".")


@contextmanager
def _silent(name: str) -> Iterator[None]:
    """Without the log lines of a library that repeats there what it raises."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)
