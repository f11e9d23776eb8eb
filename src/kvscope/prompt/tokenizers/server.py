"""The tokenizer of a running llama.cpp server, asked through its ``/tokenize``: exact by construction, and slow."""

import hashlib
import http.client
import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

from kvscope.errors import ConnectionLost, ConnectionRefused, EngineReplyError, ServerError
from kvscope.prompt.tokenizers.base import starts_from_bytes, starts_in, writable

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
        try:
            parts = urlsplit(url)
            self._kind = http.client.HTTPSConnection if parts.scheme.lower() == "https" else http.client.HTTPConnection
            self._path = parts.path.rstrip("/") + "/tokenize"
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

    def encode_with_starts(self, text: str, *, parse_special: bool = False) -> tuple[list[int], list[int]]:
        """The ids of ``encode`` and where each begins, from the text that the server gives with each. Raises as
        ``load_server``, EngineReplyError too where those texts are not the one that was sent."""
        written = writable(text)
        with self._connected() as server:
            body = {"content": written, "add_special": False, "parse_special": parse_special, "with_pieces": True}
            tokens = self._listed(server, body)
        objects = [each for each in tokens if isinstance(each, dict)]
        ids = [each["id"] for each in objects if type(each.get("id")) is int]
        pieces = [_bytes_of(each.get("piece")) for each in objects]
        if len(ids) == len(tokens):
            # SentencePiece writes spaces as U+2581, so one that was in the text comes back as a space.
            for known in dict.fromkeys((written, written.replace("\u2581", " "))):
                byte_starts = _aligned(known.encode(), pieces)
                if byte_starts is not None:
                    return ids, starts_in(text, written, starts_from_bytes(known, byte_starts))
        raise EngineReplyError(
            f"{self.source} does not say which part of a text each token stands for.",
            hint="Use the model's own file: its GGUF or tokenizer.json.",
        )

    def encode_batch(self, texts: Sequence[str], *, parse_special: bool = False) -> list[list[int]]:
        """``encode`` of each text, one request each over one connection."""
        with self._connected() as server:
            return [self._tokens(server, text, parse_special=parse_special) for text in texts]

    def count(self, text: str) -> int:
        """How many ids ``encode(text)`` has."""
        return len(self.encode(text))

    def count_batch(self, texts: Sequence[str]) -> list[int]:
        """``count`` of each text, over one connection."""
        return [len(ids) for ids in self.encode_batch(texts)]

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
        tokens = self._listed(server, body)
        if not all(type(each) is int for each in tokens):
            raise EngineReplyError(f"{self.source}{_REPLY_WITHOUT}", hint=_HINT)
        return tokens

    def _listed(self, server: http.client.HTTPConnection, body: Mapping[str, object]) -> list[Any]:
        reply = self._post(server, json.dumps(body).encode())
        tokens = reply.get("tokens") if isinstance(reply, dict) else None
        if not isinstance(tokens, list):
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
        except (ValueError, RecursionError):
            raise EngineReplyError(f"{self.source}{_REPLY_WITHOUT}", hint=_HINT) from None


def _bytes_of(piece: object) -> bytes:
    """The text of a token as the server gives it: a string, or its bytes as numbers where they are no whole text."""
    if isinstance(piece, str):
        return piece.encode()
    is_bytes = isinstance(piece, list) and all(type(each) is int and 0 <= each < 256 for each in piece)
    return bytes(piece) if is_bytes and isinstance(piece, list) else b""


def _aligned(content: bytes, pieces: Sequence[bytes]) -> list[int] | None:
    """Where each piece begins in ``content``; None where they are not its pieces. A space that the vocabulary puts
    before a text is in a piece and not in ``content``; a byte that the vocabulary lacks is in no piece."""
    present = set().union(*pieces)
    origin = [index for index, byte in enumerate(content) if byte in present]
    known = bytes(content[index] for index in origin)
    starts, at = [], 0
    for piece in pieces:
        starts.append(at)
        own = piece if known.startswith(piece, at) else piece.removeprefix(b" ")
        if not known.startswith(own, at):
            return None
        at += len(own)
    return [origin[start] if start < len(origin) else len(content) for start in starts] if at == len(known) else None
