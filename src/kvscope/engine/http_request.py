"""A request as bytes of HTTP/1.1, with its body as JSON."""

import json
from collections.abc import Mapping

from kvscope.engine.http_connection import Endpoint
from kvscope.errors import UsageError

_REPLACED = ("host", "content-length", "content-type", "connection", "transfer-encoding", "accept-encoding")


def request_bytes(
    method: str, where: Endpoint, headers: Mapping[str, str], payload: object, *, keeps_alive: bool = False
) -> bytes:
    """Head and body. ``payload`` None: no body. ``keeps_alive``: the connection is to stay open for the next one.
    Raises UsageError for a header that cannot be sent."""
    # Half a character is written as JSON writes it: \ud83d.
    body = b"" if payload is None else json.dumps(payload, ensure_ascii=False).encode(errors="backslashreplace")
    lines = [
        f"{method} {where.target} HTTP/1.1",
        f"Host: {where.host_header}",
        "Connection: keep-alive" if keeps_alive else "Connection: close",
        "Accept: */*",
        "Accept-Encoding: identity",
    ]
    if payload is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    for name, value in headers.items():
        if not name.isascii() or not value.isascii() or not (name + value).isprintable() or not name.strip():
            raise UsageError(
                "A header to be sent holds characters that a header cannot have (it is not shown here).",
                hint="A key is plain letters, digits and signs, without line breaks.",
            )
        if name.lower() in _REPLACED:
            raise UsageError(f"The header {name} is kvscope's own to send.", hint="Leave it out.")
        lines.append(f"{name}: {value}")
    return "\r\n".join([*lines, "", ""]).encode() + body
