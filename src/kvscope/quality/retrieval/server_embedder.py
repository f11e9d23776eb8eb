"""Embeddings by a server that speaks OpenAI's ``/v1/embeddings``: llama.cpp, Ollama, vLLM, a hosted one."""

import http.client
import json
import os
import re
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from kvscope.errors import (
    ConnectionLost,
    ConnectionRefused,
    ContextOverflow,
    EngineError,
    EngineReplyError,
    RateLimited,
    ServerError,
    UsageError,
)
from kvscope.prompt.tokenizers.base import writable
from kvscope.quality.retrieval.source import Remark

# The environment variable with the key, of whoever asks from the command line.
EMBEDDINGS_KEY = "KVSCOPE_EMBEDDINGS_KEY"
_BATCH = 32  # texts of one request
_TIMEOUT_S = 300.0
_WAITS_S = (1.0, 2.0, 4.0, 8.0)  # before asking again what says that it is busy
_LONGEST_WAIT_S = 60.0
_BUSY = (429, 503)
_NOT_OF_TEXTS = (301, 302, 307, 308, 401, 403, 404, 501)  # the same whatever is sent
_TOO_LONG = ("too large", "too long", "maximum context", "exceed", "batch size")


class ServerEmbedder:
    """See ``index.Embedder``. ``name``: the model asked for, else the one that the server says it used; until it has
    said so, the address."""

    def __init__(self, url: str, *, model: str | None = None, api_key_env: str | None = None) -> None:
        """``url``: with or without the ``/v1`` at its end. ``api_key_env``: the environment variable that holds the
        key. Nothing is sent yet. Raises UsageError."""
        try:
            parts = urlsplit(url)
            self._host, self._port = parts.hostname or "", parts.port
        except ValueError as error:
            raise UsageError(f"{url} is not an address: {error}.", hint="Write http://HOST:PORT.") from None
        if parts.scheme not in ("http", "https") or not self._host:
            raise UsageError("The server of the embeddings has no address.", hint="Write http://HOST:PORT.")
        if "@" in parts.netloc or parts.query or parts.fragment:
            raise UsageError(
                "The address of the embeddings holds a name, a key or the like; addresses are recorded.",
                hint=f"Put the key into the environment variable {EMBEDDINGS_KEY}.",
            )
        self._kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._path = parts.path.rstrip("/").removesuffix("/embeddings").removesuffix("/v1") + "/v1/embeddings"
        self.url = f"{parts.scheme}://{parts.netloc}{self._path}"
        self.name = model or self.url
        self._model = model
        self._key = _read_key(api_key_env)

    def embed(self, texts: Sequence[str], *, are_questions: bool = False) -> Sequence[Sequence[float]]:
        """As ``index.Embedder``, many texts in a request. Raises ConnectionRefused, ConnectionLost, RateLimited,
        ServerError, EngineReplyError, and ContextOverflow for a text that is too long, with its beginning."""
        vectors: list[Sequence[float]] = []
        for at in range(0, len(texts), _BATCH):
            vectors += self._batch([writable(each) for each in texts[at : at + _BATCH]])
        return vectors

    def remarks_on(self, texts: Sequence[str]) -> tuple[Remark, ...]:
        """Nothing: a server does not say what its model knows."""
        return ()

    def _batch(self, texts: list[str]) -> list[Sequence[float]]:
        """A batch that is refused is sent again in halves: some servers limit the whole, and it may be one text."""
        try:
            return self._asked(texts)
        except (ContextOverflow, ServerError) as error:
            if error.evidence.get("http_status") in _NOT_OF_TEXTS:
                raise
            if len(texts) == 1:
                raise _with_beginning(error, texts[0]) from None
            half = len(texts) // 2
            return [*self._batch(texts[:half]), *self._batch(texts[half:])]

    def _asked(self, texts: list[str]) -> list[Sequence[float]]:
        body: dict[str, Any] = {"input": texts, "encoding_format": "float"}
        if self._model is not None:
            body["model"] = self._model
        for wait in (*_WAITS_S, None):
            status, raw, retry_after = self._post(json.dumps(body).encode())
            if status not in _BUSY or wait is None:
                break
            time.sleep(min(retry_after if retry_after is not None else wait, _LONGEST_WAIT_S))
        if status != http.HTTPStatus.OK:
            raise self._refusal(status, raw)
        vectors = self._vectors(raw, len(texts))
        if self._model is None and self.name == self.url:
            self.name = self._stated_model(raw) or self.url
        return vectors

    def _post(self, body: bytes) -> tuple[int, bytes, float | None]:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        server = self._kind(self._host, self._port, timeout=_TIMEOUT_S)
        try:
            server.connect()
        except OSError as error:
            raise ConnectionRefused(
                f"Nothing answers at {self.url}: {error.strerror or error}.",
                hint="Is the server of embeddings running?",
            ) from None
        try:
            server.request("POST", self._path, body, headers)
            reply = server.getresponse()
            return reply.status, reply.read(), _seconds(reply.getheader("Retry-After"))
        except (OSError, http.client.HTTPException) as error:
            raise ConnectionLost(f"The connection to {self.url} broke: {error or type(error).__name__}.") from None
        finally:
            server.close()

    def _refusal(self, status: int, raw: bytes) -> EngineError:
        said = self._readable(raw)
        short = " ".join(said.split())[:300]
        if status in _BUSY:
            return RateLimited(f"{self.url} has too many requests ({status}): {short}", hint="Try again later.")
        if any(words in said.lower() for words in _TOO_LONG):
            return ContextOverflow(
                f"{self.url} refuses the text as too long ({status}): {short}",
                hint="Make passages shorter, or start the server with a larger context and batch (-c, -b, -ub).",
            )
        hints = {
            400: "Does it ask for a model's name? Give it: --embeddings-model NAME.",
            401: f"Put its key into the environment variable {EMBEDDINGS_KEY}.",
            403: f"Put its key into the environment variable {EMBEDDINGS_KEY}.",
            404: "Does this server have /v1/embeddings, and a model of that name (--embeddings-model)?",
            501: "Start llama.cpp's server with --embeddings.",
        }
        return ServerError(
            f"{self.url} answered {status}: {short}", hint=hints.get(status), evidence={"http_status": status}
        )

    def _vectors(self, raw: bytes, wanted: int) -> list[Sequence[float]]:
        """The vectors of a reply, in the order of their ``index``."""
        try:
            entries = json.loads(raw)["data"]
            found = {entry.get("index", at): entry["embedding"] for at, entry in enumerate(entries)}
            vectors = [found[at] for at in range(wanted)]
            is_right = len(entries) == wanted and all(_is_vector(each) for each in vectors)
        except (ValueError, KeyError, TypeError, AttributeError):
            is_right, vectors = False, []
        if not is_right:
            raise EngineReplyError(
                f"{self.url} did not give {wanted} embeddings: {self._readable(raw)[:200]}",
                hint="Is it a model for embeddings, with pooling?",
            )
        return vectors

    def _stated_model(self, raw: bytes) -> str | None:
        """What the reply says of the model; of a path, its last part: where it lies is of one machine only."""
        stated = json.loads(self._readable(raw)).get("model")
        if not isinstance(stated, str) or not stated.strip():
            return None
        return re.split(r"[/\\]", stated)[-1] if re.match(r"[/\\]|[A-Za-z]:\\", stated) else stated

    def _readable(self, raw: bytes) -> str:
        said = raw.decode("utf-8", "replace")
        return said if self._key is None else said.replace(self._key, "(key)")


def _read_key(variable: str | None) -> str | None:
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key or not key.isascii() or not key.isprintable():
        raise UsageError(
            "The environment variable named for the key of the embeddings is not set, or holds no key.",
            hint="Set it, for example: export MY_KEY=...; then name MY_KEY.",
        )
    return key


def _seconds(header: str | None) -> float | None:
    return float(header) if header is not None and header.isdecimal() else None


def _with_beginning(error: EngineError, text: str) -> EngineError:
    return type(error)(f"{error.message} (text: {text[:60]!r}...)", hint=error.hint)


def _is_vector(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, int | float) for each in value)
