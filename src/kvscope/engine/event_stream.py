"""Server-sent events out of the reads of a socket, in bounded memory.

The form is WHATWG's (HTML, 9.2.6): lines end in LF, CR LF or CR; a line that begins with a colon is a comment that
keeps the connection alive; ``data`` lines of one event belong together. One difference: a ``data`` line that is whole
in itself is given at once and not at the blank line after it, which may come with the next read. An event thus has the
time of the read that completed what it says.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from kvscope.engine.http_client import body_evidence, verbatim
from kvscope.errors import EngineReplyError

END = "[DONE]"
REPLY_HINT = "Is it a server with an OpenAI-style chat interface? What it sent is kept with the trial."
MOST_LINE_BYTES = 1024 * 1024
# What is no event stream at all is kept up to this, to be told what it is.
_MOST_FOREIGN_BYTES = 64 * 1024
_MOST_HELD_LINES = 256
_DATA, _BEGIN, _BLANK = b"data: ", b"data: {", b"\n\n"
_decode, _decode_begin = json.JSONDecoder().decode, json.JSONDecoder().raw_decode
_OTHER_FIELDS = (b"event", b"id", b"retry")


@dataclass(slots=True)
class EventStream:
    """``foreign``: what came where no field of an event can be: JSON in one piece, a page, anything. Once there is
    some, all that follows joins it, cut at 64 KiB. ``ended``: [DONE] was read."""

    foreign: bytearray = field(default_factory=bytearray)
    ended: bool = False
    _unfinished: bytes = b""
    _held: str = ""
    _held_lines: int = 0
    _begun: bool = False
    _after_cr: bool = False

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """The events that these bytes complete, one after another: those before a broken one are given. Raises
        EngineReplyError for one that is no JSON object, and for a line or an event of more than 1 MiB."""
        if self.foreign:
            self._add_foreign(data)
            return
        if data.startswith(_BEGIN) and data.endswith(_BLANK) and self._is_between_events and b"\r" not in data:
            self._begun = True
            yield from self._take_whole(data)
        else:
            yield from self._take_lines(data)

    @property
    def _is_between_events(self) -> bool:
        return not (self._unfinished or self._held or self._after_cr)

    def _take_whole(self, data: bytes) -> Iterator[dict[str, Any]]:
        """As ``_take_lines``, of whole events in the form that nearly all have: one line of JSON each, a blank one."""
        for text in data[len(_DATA) : -len(_BLANK)].split(_BLANK + _DATA):
            if not self.foreign and b"\n" not in text and text.startswith(b"{"):
                found = _object_in(str(text, "utf-8", "replace"))
                if found is not None:
                    yield found
                    continue
            yield from self._take_lines(_DATA + text + _BLANK)

    def _take_lines(self, data: bytes) -> Iterator[dict[str, Any]]:
        if self._after_cr and data:  # a line that ended in CR was given at once; this LF may be its end too
            data = data.removeprefix(b"\n")
            self._after_cr = False
        lines = (self._unfinished + data).splitlines(keepends=True)
        self._unfinished = lines.pop() if lines and not lines[-1].endswith((b"\r", b"\n")) else b""
        self._after_cr = bool(lines) and lines[-1].endswith(b"\r") and not self._unfinished
        for line in lines:
            text = line.rstrip(b"\r\n")
            yield from self._take_line(text, ends=line[len(text) :])
        if len(self._unfinished) > MOST_LINE_BYTES:
            raise _too_long(self._unfinished)

    def finish(self) -> list[dict[str, Any]]:
        """The events that the end of the answer completes: some servers leave out the last line's end."""
        last, self._unfinished = self._unfinished, b""
        found = self._take_line(last, ends=b"") if last.strip() else []
        if self._held:
            raise _not_json(self._held)
        return found

    def _take_line(self, line: bytes, *, ends: bytes) -> list[dict[str, Any]]:
        if self.foreign:
            self._add_foreign(line + ends)
            return []
        line = line.removesuffix(b"\r")
        if not self._begun:
            line, self._begun = line.removeprefix(b"\xef\xbb\xbf"), True
        if not line:
            if self._held:
                raise _not_json(self._held)
            return []
        name, _, value = line.partition(b":")
        if not name or name in _OTHER_FIELDS:
            return []
        if name not in (b"data", b"error"):  # llama.cpp once sent its errors in a field of that name
            if line.strip():
                self._add_foreign(line + ends)
            return []
        return self._take_data(value.removeprefix(b" ").decode(errors="replace"))

    def _take_data(self, text: str) -> list[dict[str, Any]]:
        text = f"{self._held}\n{text}" if self._held else text
        if text.strip() == END:
            self.ended = True
            return []
        if not text.strip():
            return []
        try:
            found = _decode(text)
        except RecursionError as error:
            raise _not_json(text) from error
        except ValueError:
            self._hold(text)
            return []
        self._held, self._held_lines = "", 0
        if not isinstance(found, dict):
            raise EngineReplyError(
                f"The server sent JSON of an unexpected form: {verbatim(text)}",
                hint=REPLY_HINT,
                evidence={"known_by": "message", "body": body_evidence(text)},
            )
        return [found]

    def _hold(self, text: str) -> None:
        """Text that is not JSON yet: the next line may complete it."""
        if len(text) > MOST_LINE_BYTES:
            raise _too_long(text.encode(errors="replace"))
        self._held, self._held_lines = text, self._held_lines + 1
        if self._held_lines > _MOST_HELD_LINES:
            raise _not_json(text)

    def _add_foreign(self, data: bytes) -> None:
        self.foreign += data[: max(0, _MOST_FOREIGN_BYTES - len(self.foreign))]


def _object_in(text: str) -> dict[str, Any] | None:
    """The JSON object that all of a text is; None for anything else, blanks around it included."""
    try:
        found, end = _decode_begin(text)
    except (ValueError, RecursionError):
        return None
    return found if end == len(text) and isinstance(found, dict) else None


def _not_json(text: str) -> EngineReplyError:
    return EngineReplyError(
        f"The server sent what is not JSON: {verbatim(text)}",
        hint=REPLY_HINT,
        evidence={"known_by": "message", "body": body_evidence(text)},
    )


def _too_long(line: bytes) -> EngineReplyError:
    return EngineReplyError(
        f"The server sent a line of more than {MOST_LINE_BYTES:,} bytes; reading was stopped: {verbatim(line)}",
        hint=REPLY_HINT,
        evidence={"known_by": "message", "body": body_evidence(line)},
    )
