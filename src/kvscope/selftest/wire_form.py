"""What the truth server in Python reads of a request and writes as an answer: OpenAI's form, as truth_server.c does."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
_MOST_TOKENS = 1_000_000
_MOST_GROUP = 1_000
_MOST_S = 3600.0
_PAIR = re.compile(r"(?<!\w)(id|ttft_s|gap_s|tokens|group)=([\w.:+-]+)", re.ASCII)
_MARK = re.compile(r"\[truth ([^\]]*)\]")
_MARK_OF_BYTES = re.compile(rb"\r\nx-truth:([^\r]*)", re.IGNORECASE)
_LONGEST_ID = 64


@dataclass(slots=True)
class Asked:
    """One request: times in seconds, ``tokens`` events of the answer, ``group`` of them in one write."""

    id: str = ""
    ttft_s: float = 0.05
    gap_s: float = 0.01
    tokens: int = 64
    group: int = 1
    chat: bool = True
    stream: bool = False
    usage: bool = False
    prompt_tokens: int = 1

    def set_from(self, text: str) -> None:
        """Take the ``key=value`` pairs of a text; a value that is no number is left aside."""
        for name, value in _PAIR.findall(text):
            self.set_value(name, value)

    def set_value(self, name: str, value: object) -> None:
        """One of them; out of its range, it is the nearest that is allowed or left aside."""
        if name == "id":
            self.id = str(value)[:_LONGEST_ID]
            return
        try:
            number = float(str(value))
        except ValueError:
            return
        if name in ("ttft_s", "gap_s") and 0 <= number <= _MOST_S:
            setattr(self, name, number)
        elif name in ("tokens", "group") and number >= 1:
            setattr(self, name, int(min(number, _MOST_TOKENS if name == "tokens" else _MOST_GROUP)))


def read_asked(path: str, head: bytes, body: bytes, defaults: Mapping[str, float]) -> Asked:
    """A request: the defaults, over them max_tokens, the query string, the header X-Truth, and the mark in the body."""
    asked = Asked(chat="/chat/completions" in path, prompt_tokens=len(body) // 4 + 1)
    for name, value in defaults.items():
        asked.set_value(name, value)
    wanted = _object(body)
    for name in ("max_tokens", "max_completion_tokens"):  # the newer one goes before the other
        limit = wanted.get(name)
        if isinstance(limit, int | float) and not isinstance(limit, bool):
            asked.set_value("tokens", limit)
    asked.stream = wanted.get("stream") is True
    options = wanted.get("stream_options")
    asked.usage = isinstance(options, dict) and options.get("include_usage") is True
    asked.set_from(path.partition("?")[2])
    if header := _MARK_OF_BYTES.search(b"\r\n" + head):
        asked.set_from(header[1].decode("latin-1"))
    if mark := _MARK.search(body.decode(errors="replace")):
        asked.set_from(mark[1])
    return asked


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def first_events(asked: Asked, count: int) -> bytes:
    """The first ``count`` events; the first one's text is the request's id."""
    delta = {"role": "assistant", "content": asked.id} if asked.chat else asked.id
    return _chunk(_event(asked, delta, None)) + later_event(asked) * (count - 1)


def later_event(asked: Asked) -> bytes:
    """Each of the others."""
    return _chunk(_event(asked, {"content": " tok"} if asked.chat else " tok", None))


def ending(asked: Asked) -> bytes:
    """What follows the last token: why it ended, the usage where it was asked for, [DONE]."""
    end = _chunk(_event(asked, {} if asked.chat else "", "length"))
    if asked.usage:
        end += _chunk({**_begin(asked), "choices": [], "usage": _usage(asked)})
    return end + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


def whole_reply(asked: Asked, closes: bool) -> bytes:
    """The answer in one piece, headers included."""
    text = asked.id + " tok" * (asked.tokens - 1)
    content = {"message": {"role": "assistant", "content": text}} if asked.chat else {"text": text}
    choice = {"index": 0, **content, "finish_reason": "length"}
    kind = "chat.completion" if asked.chat else "text_completion"
    body = json.dumps({**_begin(asked), "object": kind, "choices": [choice], "usage": _usage(asked)}).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + (b"Connection: close\r\n\r\n" if closes else b"\r\n") + body


def _begin(asked: Asked) -> dict[str, Any]:
    kind = "chat.completion.chunk" if asked.chat else "text_completion"
    return {"id": asked.id, "object": kind, "created": 1700000000, "model": "truth"}


def _event(asked: Asked, content: Any, reason: str | None) -> dict[str, Any]:
    name = "delta" if asked.chat else "text"
    return {**_begin(asked), "choices": [{"index": 0, name: content, "finish_reason": reason}]}


def _chunk(event: Mapping[str, Any]) -> bytes:
    data = b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


def _usage(asked: Asked) -> dict[str, int]:
    return {
        "prompt_tokens": asked.prompt_tokens,
        "completion_tokens": asked.tokens,
        "total_tokens": asked.prompt_tokens + asked.tokens,
    }
