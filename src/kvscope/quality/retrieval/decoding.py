"""The bytes of a document as text: UTF-8, what a byte-order mark or an HTML page says, or Korean CP949."""

import codecs
import io
import re

from kvscope.prompt.counting.text_sources import Unreadable, looks_korean, read_stream
from kvscope.quality.retrieval.source import Remark

# Where a page of HTML says its encoding: within its first 1,024 bytes (HTML Living Standard, 13.2.3.2).
_META = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([\w-]+)", re.IGNORECASE)
_META_WITHIN = 1024
_KOREAN_NAMES = {"euc-kr", "euc_kr", "ks_c_5601-1987", "ksc5601", "ksc_5601"}


class NoText(Exception):
    """These bytes are no text that can be used. It never leaves this package."""

    def __init__(self, slug: str, reason: str) -> None:
        super().__init__(reason)
        self.remark = Remark(slug=slug, text=reason)


def decode(data: bytes, *, is_html: bool = False) -> tuple[str, Remark | None]:
    """The text, its lines ending in ``\\n``; and how it was decoded, where that was not certain. Raises NoText."""
    try:
        text, remark = "".join(piece for piece, _ in read_stream(io.BytesIO(data))), None
    except Unreadable as error:
        text, remark = _otherwise(data, str(error), is_html)
    return text.replace("\r\n", "\n").replace("\r", "\n"), remark


def _otherwise(data: bytes, reason: str, is_html: bool) -> tuple[str, Remark]:
    stated = _META.search(data[:_META_WITHIN]) if is_html else None
    if stated is not None:
        name = stated.group(1).decode("ascii").lower()
        text = _decoded(data, "cp949" if name in _KOREAN_NAMES else name)
        if text is not None:
            return text, Remark(slug="decoded-as", text=f"Not UTF-8; read as {name.upper()}, as the page itself says.")
    if looks_korean(data):
        text = _decoded(data, "cp949")
        if text is not None:
            return text, Remark(
                slug="decoded-as", text="Not UTF-8; read as CP949 (EUC-KR), because it reads as Korean that way."
            )
    slug = "binary-file" if reason.startswith("a binary file") else "unknown-encoding"
    raise NoText(slug, f"{reason[:1].upper()}{reason[1:]}.")


def _decoded(data: bytes, name: str) -> str | None:
    try:
        codec = codecs.lookup(name)
        text, _ = codec.decode(data)
    except (LookupError, ValueError):
        return None
    return text if isinstance(text, str) and "\0" not in text else None
