"""The tokenizer of a running llama.cpp server, asked through its ``/tokenize``: exact by construction, and slow."""

import hashlib
import http.client
import json
from collections.abc import Sequence
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
        kind = http.client.HTTPSConnection if parts.scheme.lower() == "https" else http.client.HTTPConnection
        try:
            self._connection = kind(parts.hostname or "", parts.port, timeout=_TIMEOUT_S)
        except (ValueError, http.client.InvalidURL) as error:
            raise ConnectionRefused(f"{url} is not an address: {error}.", hint="Check it.") from None
        self._path = parts.path.rstrip("/") + "/tokenize"
        bare = self._tokens(_PROBES[1], add_special=False)
        whole = self._tokens(_PROBES[1], add_special=True)
        self.adds_bos = whole[:1] != bare[:1]
        self.bos_id: int | None = whole[0] if self.adds_bos else None
        found = [self._tokens(probe, parse_special=flag) for probe in _PROBES for flag in (False, True)]
        self.fingerprint = hashlib.sha256(json.dumps(found).encode()).hexdigest()

    def encode(self, text: str, *, parse_special: bool = False) -> list[int]:
        """The server's ids. Raises as ``load_server``."""
        return self._tokens(text, parse_special=parse_special)

    def encode_batch(self, texts: Sequence[str], *, parse_special: bool = False) -> list[list[int]]:
        """``encode`` of each text, one request each."""
        return [self.encode(text, parse_special=parse_special) for text in texts]

    def count(self, text: str) -> int:
        """How many ids ``encode(text)`` has."""
        return len(self.encode(text))

    def _tokens(self, text: str, *, add_special: bool = False, parse_special: bool = False) -> list[int]:
        body = {"content": writable(text), "add_special": add_special, "parse_special": parse_special}
        reply = self._post(json.dumps(body).encode())
        tokens = reply.get("tokens") if isinstance(reply, dict) else None
        if not isinstance(tokens, list) or not all(type(each) is int for each in tokens):
            raise EngineReplyError(f"{self.source}{_REPLY_WITHOUT}", hint=_HINT)
        return tokens

    def _post(self, body: bytes) -> Any:
        try:
            self._connection.request("POST", self._path, body, {"Content-Type": "application/json"})
            reply = self._connection.getresponse()
            content = reply.read()
        except ConnectionRefusedError:
            raise ConnectionRefused(f"Nothing answers at {self.source}.", hint="Is the server running?") from None
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise ConnectionLost(f"{self.source} did not answer: {error}.", hint=_HINT) from None
        if reply.status != 200:
            words = content[:200].decode(errors="replace")
            raise ServerError(f"{self.source} answered /tokenize with status {reply.status}: {words}", hint=_HINT)
        try:
            return json.loads(content)
        except ValueError:
            raise EngineReplyError(f"{self.source}{_REPLY_WITHOUT}", hint=_HINT) from None


_REPLY_WITHOUT = " answered /tokenize without a list of tokens."
