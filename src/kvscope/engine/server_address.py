"""A server that runs already: its address as a person writes it, and questions to it that change nothing."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from urllib.parse import urlsplit

from kvscope.engine.api_key import ApiKey
from kvscope.engine.http_client import Limits, Reply, request
from kvscope.engine.openai_http import body_text, json_object
from kvscope.errors import ConnectionLost, ConnectionRefused, EngineError, EngineStalled, EngineTimeout, UsageError

_QUESTION = Limits(timeout_s=20.0, stall_s=20.0)
# A question that most servers do not know, so that one which does not answer it is no fault.
_GUESS = Limits(timeout_s=5.0, stall_s=5.0)
_EXAMPLE = "Write it like http://127.0.0.1:8080."


def server_url(text: str) -> str:
    """The address without a slash or /v1 at its end. Raises UsageError for one that is none, or that holds what must
    not be recorded."""
    try:
        parts = urlsplit(text.strip())
        port = parts.port
    except ValueError as error:
        raise UsageError(f"The address of the server cannot be read: {error}.", hint=_EXAMPLE) from None
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise UsageError(
            "The address of the server holds more than a host, a port and a path (it is not shown here).",
            hint="Addresses are recorded. Name the environment variable that holds the key with --api-key-env instead.",
        )
    if parts.scheme.lower() not in ("http", "https") or not parts.hostname or port == 0:
        raise UsageError(f"{text!r} is not the address of a server.", hint=_EXAMPLE)
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return f"{parts.scheme.lower()}://{parts.netloc}{path}"


class ServerAddress:
    """Where a server is, and the key it is asked with, where it was given one."""

    def __init__(self, url: str, key: ApiKey | None = None) -> None:
        self.url = server_url(url)
        parts = urlsplit(self.url)
        self.host = parts.hostname or ""
        self.port = parts.port or (443 if parts.scheme == "https" else 80)
        self._key = key

    @property
    def headers(self) -> Mapping[str, str]:
        """What every request carries."""
        return {} if self._key is None else self._key.headers()

    def hidden_in_errors(self) -> AbstractContextManager[None]:
        """See ``ApiKey.hidden_in_errors``."""
        return nullcontext() if self._key is None else self._key.hidden_in_errors()

    def hide(self, found: Any) -> Any:
        """See ``ApiKey.hide``."""
        return found if self._key is None else self._key.hide(found)

    async def ask(self, method: str, path: str, payload: object = None, *, limits: Limits = _QUESTION) -> Reply:
        """One request, whatever its status. Raises as ``http_client.request``."""
        with self.hidden_in_errors():
            return await request(method, self.url + path, payload, limits=limits, headers=self.headers)

    async def json(self, method: str, path: str, payload: object = None, *, limits: Limits = _QUESTION) -> Any:
        """The JSON object of a 200. Raises an EngineError for any other outcome."""
        return self.read_json(await self.ask(method, path, payload, limits=limits))

    def read_json(self, reply: Reply) -> Any:
        """The JSON object of a reply. Raises an EngineError where it is another status than 200, or no such object."""
        with self.hidden_in_errors():
            found = json_object(body_text(reply))
        return self.hide(found)

    async def json_if_any(self, path: str, *, may_hang: bool = False) -> Any:
        """The JSON value that GET ``path`` gives; None where the server has none there, or, where it ``may_hang``, does
        not answer in a few seconds. Raises an EngineError only where the server itself cannot be reached any more."""
        import json

        try:
            reply = await self.ask("GET", path, limits=_GUESS if may_hang else _QUESTION)
            return self.hide(json.loads(reply.body)) if reply.status == 200 else None
        except (EngineStalled, EngineTimeout):
            if may_hang:
                return None
            raise
        except (ConnectionLost, ConnectionRefused):
            raise
        except (EngineError, ValueError, RecursionError):  # the last: nested deeper than can be read
            return None
