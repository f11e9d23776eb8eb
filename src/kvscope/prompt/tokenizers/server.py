"""The tokenizer of a running llama.cpp server, asked through its ``/tokenize``: exact by construction, and slow."""

import hashlib
import http.client
import json
from collections.abc import Sequence
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

from kvscope.errors import ConnectionLost, ConnectionRefused, EngineReplyError, ServerError
from kvscope.prompt.tokenizers.base import writable

_TIMEOUT_S = 60.0
# Texts that vocabularies cut differently; what the server makes of them stands for its vocabulary.
_PROBES = (
    "",
    "The quick brown fox.",
    "모델의 메모리가 늘어난다.",
    "def f(x):\n    return x1234",
    "  \n\n\t",
    "😀\u0000\u1234<s></s>",
)
_REPLY_WITHOUT = " answered /tokenize without a list of tokens."
_HINT = "Is it llama.cpp's server, and is its model loaded?"


def load_server(url: str) -> "ServerTokenizer":
    """The tokenizer of the llama.cpp server at ``url``. Raises ConnectionRefused, ConnectionLost, ServerError,
    EngineReplyError."""
    return ServerTokenizer(url)


class ServerTokenizer:
    """See ``load_server``. ``fingerprint`` is made of the ids of a few texts: two servers with equal ones agree on
    those."""

    kind = "server"

    def __init__(self, url: str) -> None:
        self.source = url
        parts = urlsplit(url)
        self._kind = http.client.HTTPSConnection if parts.scheme.lower() == "https" else http.client.HTTPConnection
        self._path = parts.path.rstrip("/") + "/tokenize"
        try:
            self._host, self._port = parts.hostname or "", parts.port
        except ValueError as error:
            raise ConnectionRefused(f"{url} is not an address: {error}.", hint="Check it.") from None
        with self._connected() as server:
            bare = self._tokens(server, _PROBES[1])
            whole = self._tokens(server, _PROBES[1], add_special=True)
            found = [self._tokens(server, probe, parse_special=flag) for probe in _PROBES for flag in (False, True)]
        self.adds_bos = whole[:1] != bare[:1]
        self.bos_id: int | None = whole[0] if self.adds_bos else None
        self.fingerprint = hashlib.sha256(json.dumps(found).encode()).hexdigest()

    def encode(self, text: str, *, parse_special: bool = False) -> list[int]:
        """The server's ids. Raises as ``load_server``."""
        return self.encode_batch([text], parse_special=parse_special)[0]

    def encode_batch(self, texts: Sequence[str], *, parse_special: bool = False) -> list[list[int]]:
        """``encode`` of each text, one request each over one connection."""
        with self._connected() as server:
            return [self._tokens(server, text, parse_special=parse_special) for text in texts]

    def count(self, text: str) -> int:
        """How many ids ``encode(text)`` has."""
        return len(self.encode(text))

    def _connected(self) -> "closing[http.client.HTTPConnection]":
        """A connection of its own for each call: a kept one may have been closed by the server meanwhile."""
        return closing(self._kind(self._host, self._port, timeout=_TIMEOUT_S))

    def _tokens(
        self,
        server: http.client.HTTPConnection,
        text: str,
        *,
        add_special: bool = False,
        parse_special: bool = False,
    ) -> list[int]:
        body = {"content": writable(text), "add_special": add_special, "parse_special": parse_special}
        reply = self._post(server, json.dumps(body).encode())
        tokens = reply.get("tokens") if isinstance(reply, dict) else None
        if not isinstance(tokens, list) or not all(type(each) is int for each in tokens):
            raise EngineReplyError(f"{self.source}{_REPLY_WITHOUT}", hint=_HINT)
        return tokens

    def _post(self, server: http.client.HTTPConnection, body: bytes) -> Any:
        try:
            server.request("POST", self._path, body, {"Content-Type": "application/json"})
            reply = server.getresponse()
            content = reply.read()
        except ConnectionRefusedError:
            raise ConnectionRefused(f"Nothing answers at {self.source}.", hint="Is the server running?") from None
        except (OSError, http.client.HTTPException) as error:
            raise ConnectionLost(f"{self.source} did not answer: {error}.", hint=_HINT) from None
        if reply.status != 200:
            words = content[:200].decode(errors="replace")
            raise ServerError(f"{self.source} answered /tokenize with status {reply.status}: {words}", hint=_HINT)
        try:
            return json.loads(content)
        except ValueError:
            raise EngineReplyError(f"{self.source}{_REPLY_WITHOUT}", hint=_HINT) from None
