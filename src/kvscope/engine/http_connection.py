"""One connection to an HTTP server, plain or TLS, whose every read is stamped before anything else happens to it.

What was read and not taken yet stays below 2 MiB: a server that sends faster is made to wait. A certificate is checked
against the system's trust; there is no way to turn that off.
"""

import asyncio
import errno
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

from kvscope.engine.open_files import most_open_files
from kvscope.errors import ConnectionRefused, EngineError, EngineReplyError, EngineTimeout, UsageError

_MOST_HELD_BYTES = 1024 * 1024
# asyncio's TLS takes all it is given at once and has 64 KiB on the way. In pieces of this size, the moment at which a
# request has been sent is known to within those 64 KiB.
_TLS_PIECE_BYTES = 16 * 1024

# X509_V_ERR_ of OpenSSL's x509_vfy.h, and what is to be done about each.
_MISTRUSTED = {
    9: ("is not valid yet", "Check the clocks of both machines."),
    10: ("has expired", "Renew the server's certificate, or check this machine's clock."),
    18: (
        "is signed by itself",
        "Add it to this machine's trust (SSL_CERT_FILE=its .pem), or use http on this machine.",
    ),
    19: ("is signed by an authority that this machine does not know", "Add that authority to this machine's trust."),
    20: ("is signed by an authority that this machine does not know", "Add that authority to this machine's trust."),
    62: ("is for another name", "Use the name that the certificate is for."),
    64: ("is for another address", "Use the name that the certificate is for instead of the address."),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a request goes. ``shown`` is what messages call it: never with a user, a password or a query."""

    host: str
    port: int
    is_tls: bool
    host_header: str
    target: str

    @property
    def address(self) -> str:
        """Host and port, as they are written in an address."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def shown(self) -> str:
        """Host, port and path."""
        return self.address + self.target.partition("?")[0]


@lru_cache(maxsize=64)
def endpoint(url: str) -> Endpoint:
    """The parts of an address. Raises UsageError for one that is not http or https, or names no host."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"The server's address cannot be read: {error}.", hint=_ADDRESS_HINT) from None
    host = (parts.hostname or "").replace("%25", "%")
    if parts.scheme not in ("http", "https") or not host or port == 0:
        raise UsageError("The server's address has no http:// or https:// and host.", hint=_ADDRESS_HINT)
    is_tls = parts.scheme == "https"
    named = f"[{host.partition('%')[0]}]" if ":" in host else host
    return Endpoint(
        host=host,
        port=port or (443 if is_tls else 80),
        is_tls=is_tls,
        host_header=named if port is None else f"{named}:{port}",
        target=quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._")
        + (f"?{quote(parts.query, safe='/%:@!$&()*+,;=~-._?')}" if parts.query else ""),
    )


_ADDRESS_HINT = "Write it like http://127.0.0.1:8080 or https://example.org/prefix."


class Wire(asyncio.Protocol):
    """Stamps and keeps; nothing else happens in these callbacks."""

    def __init__(self) -> None:
        self.reads: deque[tuple[float, bytes]] = deque()
        self.num_received = 0
        self.sent_s: float | None = None
        self.closed = False
        self.failure: Exception | None = None
        self._held = 0
        self._transport: Any = None
        self._paused = False
        self._unsent = memoryview(b"")
        self._piece_bytes = 0
        self._waiter: asyncio.Future[None] | None = None
        self._blocked = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        self.reads.append((now, data))
        self._held += len(data)
        if self._held > _MOST_HELD_BYTES and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def take(self) -> tuple[float, bytes]:
        """The first read that was not taken yet, and its moment."""
        at_s, data = self.reads.popleft()
        self.num_received += len(data)
        self._held -= len(data)
        if self._paused and not self._held:
            self._paused = False
            self._transport.resume_reading()
        return at_s, data

    def pause_writing(self) -> None:
        self._blocked = True

    def resume_writing(self) -> None:
        now = time.perf_counter()
        self._blocked = False
        self._send_more(now)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self.failure = exc
        self._wake()

    def send(self, request: bytes, *, is_tls: bool) -> None:
        """Write; ``sent_s`` is set now, or when the rest of a long request has left our buffer."""
        # Tell us as soon as anything is held back, and when nothing is. (asyncio's TLS counts from the limit itself on:
        # with 0 it would hold back for good.)
        self._transport.set_write_buffer_limits(high=1 if is_tls else 0)
        self._unsent = memoryview(request)
        self._piece_bytes = _TLS_PIECE_BYTES if is_tls else len(request)
        self._send_more(None)

    def _send_more(self, now: float | None) -> None:
        while self._unsent and not self._blocked and not self.closed:
            piece, self._unsent = self._unsent[: self._piece_bytes], self._unsent[self._piece_bytes :]
            self._transport.write(piece)
            now = None
        if not self._unsent and not self._blocked and self.sent_s is None:
            self.sent_s = time.perf_counter() if now is None else now
            self._wake()

    async def wait(self, timeout_s: float) -> None:
        """Until something happens, or that time has passed."""
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = loop.call_later(timeout_s, self._wake)
        try:
            await self._waiter
        finally:
            timer.cancel()
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


W = TypeVar("W", bound=Wire)


async def connect(where: Endpoint, timeout_s: float, kind: Callable[[], W]) -> tuple[asyncio.Transport, W]:
    """A connection whose bytes are kept by a wire that ``kind`` makes. Raises ConnectionRefused, with the reason and
    what to do, or EngineTimeout."""
    loop = asyncio.get_running_loop()
    context = ssl.create_default_context() if where.is_tls else None
    try:
        async with asyncio.timeout(timeout_s):
            transport, wire = await loop.create_connection(kind, where.host, where.port, ssl=context)
    except TimeoutError as error:
        # A plain llama.cpp server says nothing at all to a TLS greeting: it waits for the line to end.
        secure, doubt = ("secure ", "Does it speak https there? If not, write http://. ") if where.is_tls else ("", "")
        raise EngineTimeout(
            f"{where.address} did not accept a {secure}connection within {timeout_s:g} s.",
            hint=f"{doubt}Check the address, and whether the machine can be reached.",
            evidence={"known_by": "message"},
        ) from error
    except ssl.SSLError as error:
        raise _tls_error(where, error) from error
    except (ConnectionError, OSError, UnicodeError) as error:
        raise _no_connection(where, error) from error
    return transport, wire


def _no_connection(where: Endpoint, error: Exception) -> EngineError:
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return ConnectionRefused(
            f"kvscope could open no further connection to {where.address}: {_too_many_files(error)}.",
            hint="Send fewer requests at once, or allow more open files (ulimit -n). The server is not to blame.",
            evidence={"known_by": "message"},
        )
    why = str(getattr(error, "strerror", None) or error or type(error).__name__)
    hint = "Start the engine, or check its address and port."
    if isinstance(error, socket.gaierror | UnicodeError):
        hint = "Check how the machine's name is written, and whether this machine can resolve it."
    elif where.is_tls and isinstance(error, ConnectionError) and not isinstance(error, ConnectionRefusedError):
        hint = "Does it speak https there? Try http://, or another port."
    return ConnectionRefused(
        f"Nothing answers at {where.address} ({why}).", hint=hint, evidence={"known_by": "message"}
    )


def _too_many_files(error: OSError) -> str:
    if error.errno == errno.ENFILE:
        return "this machine has as many files open as it may"
    return f"a process may have {most_open_files()} files open here, connections included"


def _tls_error(where: Endpoint, error: ssl.SSLError) -> EngineError:
    """A certificate that is not to be trusted, or no TLS at all."""
    evidence = {"known_by": "message"}
    if isinstance(error, ssl.SSLCertVerificationError):
        code, said = error.verify_code, error.verify_message
        what, hint = _MISTRUSTED.get(code, ("cannot be trusted", "Check the server's certificate."))
        return ConnectionRefused(
            f"The certificate of {where.address} {what} ({said}). Nothing was sent.", hint=hint, evidence=evidence
        )
    if error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL"):
        return ConnectionRefused(
            f"{where.address} does not speak https: it answered something else. Nothing was sent.",
            hint="Write http:// instead of https://, or use the server's https port.",
            evidence=evidence,
        )
    return ConnectionRefused(
        f"No secure connection to {where.address} came about ({error.reason or error}). Nothing was sent.",
        hint="Check the server's TLS settings; versions before TLS 1.2 are refused.",
        evidence=evidence,
    )


def speaks_tls(data: bytes) -> bool:
    """Whether what came as an answer is TLS (RFC 8446, 5.1: an alert or a handshake, of version 3.x)."""
    return data[:1] in (b"\x15", b"\x16") and data[1:2] == b"\x03"


def not_plain(where: Endpoint) -> EngineReplyError:
    """The error for http spoken to an https port."""
    return EngineReplyError(
        f"{where.address} speaks https, and was asked in plain http.",
        hint="Write https:// instead of http://.",
        evidence={"known_by": "message"},
    )
