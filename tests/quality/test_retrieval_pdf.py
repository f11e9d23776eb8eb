"""PDFs written here byte by byte, so that what stands in them is known: read, scanned, locked, broken, garbled."""

import logging
from collections.abc import Sequence
from pathlib import Path

import pypdf
import pytest

from kvscope.errors import MissingDependency, UsageError
from kvscope.quality.retrieval.reading import read_documents
from kvscope.quality.retrieval.source import Corpus

KOREAN = "부산의 만조는 세 시입니다."
HELVETICA = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"


def pdf(contents: Sequence[bytes], font: bytes = HELVETICA, more: Sequence[bytes] = (), info: bytes = b"") -> bytes:
    """A PDF with a page for each content stream; ``font`` is /F1, ``more`` the objects from number 5 on."""
    first_page = 5 + len(more)
    kids = b" ".join(b"%d 0 R" % (first_page + 2 * at) for at in range(len(contents)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [%s] /Count %d >>" % (kids, len(contents)),
        font,
        b"<< %s >>" % info,
        *more,
    ]
    for at, content in enumerate(contents):
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Resources << /Font << /F1 3 0 R >> >> "
            b"/Contents %d 0 R >>" % (first_page + 2 * at + 1)
        )
        objects.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content))
    out, places = b"%PDF-1.4\n", []
    for number, each in enumerate(objects, start=1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, each)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    size = len(objects) + 1
    out_at = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n%s" % (size, table)
    return out + b"trailer\n<< /Size %d /Root 1 0 R /Info 4 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (size, out_at)


def shown(text: str) -> bytes:
    lines = b" ".join(b"(%s) Tj T*" % line.encode("latin-1") for line in text.split("\n"))
    return b"BT /F1 12 Tf 14 TL 72 700 Td %s ET" % lines


def korean_pdf(encoding: str, codec: str, *, to_unicode: bytes | None = None) -> bytes:
    """A page whose Korean font is not embedded, its codes in one of PDF's own encodings."""
    mapped = b"/ToUnicode 6 0 R" if to_unicode is not None else b""
    font = b"<< /Type /Font /Subtype /Type0 /BaseFont /Batang /Encoding /%s /DescendantFonts [5 0 R] %s >>"
    descendant = (
        b"<< /Type /Font /Subtype /CIDFontType2 /BaseFont /Batang /DW 1000 "
        b"/CIDSystemInfo << /Registry (Adobe) /Ordering (Korea1) /Supplement 1 >> >>"
    )
    more = [descendant]
    if to_unicode is not None:
        more.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(to_unicode), to_unicode))
    content = b"BT /F1 12 Tf 72 700 Td <%s> Tj ET" % KOREAN.encode(codec).hex().encode()
    return pdf([content], font % (encoding.encode(), mapped), more)


def read(tmp_path: Path, data: bytes) -> Corpus:
    (tmp_path / "good.txt").write_text("The rest goes on.")
    (tmp_path / "a.pdf").write_bytes(data)
    corpus = read_documents(tmp_path)
    assert corpus.documents[-1].name == "good.txt"
    return corpus


def test_pages_are_joined_and_known(tmp_path: Path) -> None:
    data = pdf([shown("High water is\nat three."), shown("It goes"), shown("on here.")], info=b"/Title (Tides)")
    document = read(tmp_path, data).documents[0]
    assert (document.kind, document.title, document.problems) == ("pdf", "Tides", ())
    # The first page ends with a sentence, the second within one.
    assert document.text == "High water is\nat three.\n\nIt goes\non here.\n"
    assert [document.text[start:][:4] for start in document.page_starts] == ["High", "It g", "on h"]


def test_a_name_that_says_otherwise_is_no_matter(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(pdf([shown("High water.")]))
    assert read_documents(tmp_path).documents[0].kind == "pdf"


def test_a_scan_is_left_out_as_one(tmp_path: Path) -> None:
    corpus = read(tmp_path, pdf([b"q 100 0 0 100 0 0 cm Q", b""]))
    (left_out,) = corpus.left_out
    assert left_out.remark.slug == "no-text"
    assert "OCR" in left_out.remark.text


def test_pages_without_text_are_told(tmp_path: Path) -> None:
    document = read(tmp_path, pdf([shown("Words."), b"", shown("More.")])).documents[0]
    (problem,) = document.problems
    assert problem.slug == "no-text"
    assert "1 of 3 pages" in problem.text
    assert document.text == "Words.\n\nMore.\n"
    assert [document.text[start:][:5] for start in document.page_starts] == ["Words", "\n\nMor", "More."]


@pytest.mark.parametrize("encoding", ["UniKS-UCS2-H", "UniKS-UTF16-H"])
def test_korean_in_unicode_codes_is_read(tmp_path: Path, encoding: str) -> None:
    document = read(tmp_path, korean_pdf(encoding, "utf-16-be")).documents[0]
    assert (document.text, document.problems) == (KOREAN + "\n", ())


@pytest.mark.parametrize(("encoding", "codec"), [("KSC-EUC-H", "euc-kr"), ("KSCms-UHC-H", "cp949")])
def test_korean_in_other_codes_is_known_to_be_garbled(tmp_path: Path, encoding: str, codec: str) -> None:
    """pypdf reads them as UTF-16 (its issue 2295)."""
    document = read(tmp_path, korean_pdf(encoding, codec)).documents[0]
    assert "부산" not in document.text
    (problem,) = document.problems
    assert problem.slug == "garbled-text"
    assert "Batang" in problem.text
    assert "pdftotext" in problem.text


def test_a_font_with_a_map_to_characters_is_no_problem(tmp_path: Path) -> None:
    pairs = b"".join(
        b"<%s> <%s>\n" % (each.encode("cp949").rjust(2, b"\0").hex().encode(), each.encode("utf-16-be").hex().encode())
        for each in sorted(set(KOREAN))
        if len(each.encode("cp949")) == 2
    )
    count = pairs.count(b"\n")
    cmap = (
        b"/CIDInit /ProcSet findresource begin begincmap\n1 begincodespacerange\n<0000> <FFFF>\nendcodespacerange\n"
        b"%d beginbfchar\n%sendbfchar\nendcmap end" % (count, pairs)
    )
    hangul = KOREAN.replace(" ", "").replace(".", "")
    content = b"BT /F1 12 Tf 72 700 Td <%s> Tj ET" % hangul.encode("cp949").hex().encode()
    font = (
        b"<< /Type /Font /Subtype /Type0 /BaseFont /Batang /Encoding /Identity-H /DescendantFonts [5 0 R] "
        b"/ToUnicode 6 0 R >>"
    )
    descendant = (
        b"<< /Type /Font /Subtype /CIDFontType2 /BaseFont /Batang /DW 1000 "
        b"/CIDSystemInfo << /Registry (Adobe) /Ordering (Identity) /Supplement 0 >> >>"
    )
    more = [descendant, b"<< /Length %d >>\nstream\n%s\nendstream" % (len(cmap), cmap)]
    document = read(tmp_path, pdf([content], font, more)).documents[0]
    assert (document.text, document.problems) == (hangul + "\n", ())


def test_text_that_is_mostly_none_is_left_out(tmp_path: Path) -> None:
    """Codes that the font's own map sends to the private use area, as fonts of symbols do."""
    cmap = (
        b"/CIDInit /ProcSet findresource begin begincmap\n1 begincodespacerange\n<0000> <FFFF>\nendcodespacerange\n"
        b"1 beginbfrange\n<0000> <00FF> <E000>\nendbfrange\nendcmap end"
    )
    font = (
        b"<< /Type /Font /Subtype /Type0 /BaseFont /Odd /Encoding /Identity-H /DescendantFonts [5 0 R] "
        b"/ToUnicode 6 0 R >>"
    )
    descendant = b"<< /Type /Font /Subtype /CIDFontType2 /BaseFont /Odd /DW 1000 >>"
    more = [descendant, b"<< /Length %d >>\nstream\n%s\nendstream" % (len(cmap), cmap)]
    content = b"BT /F1 12 Tf 72 700 Td <%s> Tj ET" % b"".join(b"%04x" % code for code in range(64))
    (left_out,) = read(tmp_path, pdf([content], font, more)).left_out
    assert left_out.remark.slug == "garbled-text"


def test_a_locked_file_is_left_out_and_one_without_a_password_is_read(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_bytes(pdf([shown("High water.")]))
    for password, name in (("secret", "locked.pdf"), ("", "open.pdf")):
        writer = pypdf.PdfWriter(clone_from=plain)
        writer.encrypt(user_password=password, owner_password="other", algorithm="RC4-128")
        writer.write(tmp_path / name)
    plain.unlink()
    corpus = read_documents(tmp_path)
    assert [(each.name, each.text) for each in corpus.documents] == [("open.pdf", "High water.\n")]
    assert [each.remark.slug for each in corpus.left_out] == ["locked-pdf"]


@pytest.mark.parametrize(
    "data",
    [
        b"%PDF-1.7\n",
        b"%PDF-1.4\n%%EOF",
        b"%PDF-" + bytes(range(256)) * 50,
        pdf([shown("High water.")])[:200],
        b"no PDF at all",
    ],
    ids=["head", "nothing", "noise", "cut", "text"],
)
def test_a_broken_file_is_left_out_in_silence(tmp_path: Path, data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    (left_out,) = read(tmp_path, data).left_out
    assert left_out.remark.slug in ("broken-pdf", "no-text")
    assert caplog.records == []
    assert logging.getLogger("pypdf").level == logging.NOTSET


def test_every_cut_of_a_file_is_a_document_or_a_reason(tmp_path: Path) -> None:
    data = pdf([shown("High water is at three."), shown("Low water at nine.")])
    for end in range(9, len(data), 37):
        corpus = read(tmp_path, data[:end])
        assert len(corpus.documents) + len(corpus.left_out) == 2


def test_pdf_without_its_package_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pypdf", None)
    (tmp_path / "a.pdf").write_bytes(pdf([shown("High water.")]))
    with pytest.raises(MissingDependency, match="pypdf"):
        read_documents(tmp_path)


def test_a_folder_of_scans_is_an_error_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(pdf([b""]))
    with pytest.raises(UsageError, match="no-text 1") as caught:
        read_documents(tmp_path)
    assert "OCR" in str(caught.value.hint)
