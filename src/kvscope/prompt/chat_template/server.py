"""The chat template of a running llama.cpp server, read from its ``/props``: the one it uses, wherever it is from."""

import http.client
import json
from collections.abc import Mapping
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

from kvscope.errors import ConnectionLost, ConnectionRefused, EngineReplyError, ServerError

_TIMEOUT_S = 60.0
_MOST_BYTES = 16 * 1024**2
_HINT = "Only llama.cpp's server tells its template. Is it one, and is its model loaded? Else pass the model's files."


def read_props(url: str) -> dict[str, Any]:
    """What the server at ``url`` says of itself. Raises ConnectionRefused, ConnectionLost, ServerError,
    EngineReplyError where there is no chat template in it."""
    try:
        parts = urlsplit(url)
        kind = http.client.HTTPSConnection if parts.scheme.lower() == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=_TIMEOUT_S)
    except (ValueError, http.client.InvalidURL) as error:
        raise ConnectionRefused(f"{url} is not an address: {error}.", hint="Check it.") from None
    with closing(connection) as server:
        status, content = _get(server, parts.path.rstrip("/").removesuffix("/v1") + "/props", url)
    if status != 200:
        words = content[:200].decode(errors="replace")
        raise ServerError(f"{url} answered /props with status {status}: {words}", hint=_HINT)
    try:
        props = json.loads(content)
    except (ValueError, RecursionError):
        props = None
    if not isinstance(props, dict) or not isinstance(props.get("chat_template"), str) or not props["chat_template"]:
        raise EngineReplyError(f"{url} answered /props without a chat template.", hint=_HINT)
    return props


def special_tokens(props: Mapping[str, Any]) -> dict[str, str]:
    """The texts of BOS and EOS, where the server says them."""
    names = ("bos_token", "eos_token")
    return {name: props[name] for name in names if isinstance(props.get(name), str) and props[name]}


def _get(server: http.client.HTTPConnection, path: str, url: str) -> tuple[int, bytes]:
    try:
        server.request("GET", path)
        reply = server.getresponse()
        return reply.status, reply.read(_MOST_BYTES)
    except ConnectionRefusedError:
        raise ConnectionRefused(f"Nothing answers at {url}.", hint="Is the server running?") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise ConnectionLost(f"{url} did not answer: {error}.", hint=_HINT) from None
