"""The first bytes of a file on a web server, by range requests: as few as possible, and no more than asked for.

Only the standard library. Redirects are followed here, not by urllib, so that a token never reaches another host. A
server without ranges sends the whole file: reading stops after what is needed.
"""

import http.client
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from email.message import Message
from time import monotonic
from typing import Any, NoReturn

from kvscope.errors import MalformedFile, ModelError, ModelNotFound

TIMEOUT_S = 20.0  # without a single byte
WHOLE_TIMEOUT_S = 180.0  # for one file's header
MAX_REDIRECTS = 5
_REDIRECTS = (301, 302, 303, 307, 308)
# No file system holds a file of more digits.
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})", re.ASCII)
_LENGTH = re.compile(r"\d{1,18}", re.ASCII)
_CHUNK_BYTES = 256 * 1024


class Unreachable(ModelNotFound):
    """No answer at all: no network, no such host, a time-out. What was read earlier may serve instead."""


class NotThere(ModelNotFound):
    """The server answers, and has no such file (404, 410)."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_args: Any, **_kwargs: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirects)


class RemoteFile:
    """A file at ``url``, read from its first byte on. ``token``: sent to ``token_origin`` only, and never shown.

    ``size`` and ``etag`` are known after the first reading (``size`` None: the server does not say). With
    ``known_etag`` the first reading may end with ``not_modified`` True and no data: what is cached is current.
    """

    def __init__(
        self, url: str, *, token: str | None = None, token_origin: str | None = None, known_etag: str | None = None
    ) -> None:
        self.url = url
        self.shown = without_query(url)
        self.data = bytearray()
        self.size: int | None = None
        self.etag: str | None = None
        self.content_type = ""
        self.not_modified = False
        self._token, self._token_origin = token, token_origin
        self._known_etag = known_etag
        self._stream: Any = None  # the open answer of a server that sends the whole file
        self._deadline = monotonic() + WHOLE_TIMEOUT_S

    def __enter__(self) -> "RemoteFile":
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            self._stream.close()

    def read_up_to(self, end: int) -> bytes:
        """The file's first ``end`` bytes (fewer: the file is shorter)."""
        if self.size is not None:
            end = min(end, self.size)
        if len(self.data) < end and not self.not_modified:
            if self._stream is None:
                self._request_range(end)
            if self._stream is not None:
                self._read_stream(end)
        return bytes(self.data[:end])

    def read_all(self, limit: int) -> bytes:
        """The whole of a small file. Raises ModelError where it is larger than ``limit``."""
        self._guarded(lambda: self._open(None))
        if self.not_modified:
            return b""
        self._read_stream(limit + 1)
        if len(self.data) > limit or (self.size or 0) > limit:
            raise ModelError(f"{self.shown} is larger than {limit} bytes.", hint="This is not the file it should be.")
        if self.size is not None and len(self.data) < self.size:
            raise self._short()
        return bytes(self.data)

    def _request_range(self, end: int) -> None:
        start = len(self.data)
        answer = self._guarded(lambda: self._open((start, end)))
        if answer is None:
            return
        with answer:
            found = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", ""))
            if found is None:
                raise self._malformed("Content-Range", "the server's answer does not say which bytes it holds")
            first, last, size = map(int, found.groups())
            if first != start or last >= min(end, size) or (self.size is not None and size != self.size):
                problem = f"the server sent bytes {first} to {last} of {size}, but {start} to {end - 1} were asked for"
                raise self._malformed("Content-Range", problem)
            self._remember(answer.headers, size)
            self._append(answer, last + 1)
            if len(self.data) < last + 1:
                raise self._short()

    def _open(self, wanted: tuple[int, int] | None) -> Any:
        """The answer with a range's bytes; None where there are none, or where the whole file comes as ``_stream``."""
        for _ in range(MAX_REDIRECTS + 1):
            try:
                answer = _OPENER.open(self._request(wanted), timeout=TIMEOUT_S)
            except urllib.error.HTTPError as error:
                with error:
                    if error.code not in _REDIRECTS:
                        return self._status(error, wanted)
                    self.url = self._redirected(error.headers.get("Location"))
                continue
            try:
                return self._accepted(answer, wanted)
            except BaseException:
                answer.close()
                raise
        raise ModelError(f"{self.shown} leads from one address to the next without end.", hint="Check the address.")

    def _accepted(self, answer: Any, wanted: tuple[int, int] | None) -> Any:
        if answer.headers.get("Content-Encoding", "identity") not in ("", "identity"):
            raise self._malformed("Content-Encoding", "the server packs the file; plain bytes were asked for")
        if answer.status == 206 and wanted is not None:
            return answer
        if wanted is not None and wanted[0] > 0:
            raise self._malformed("the status", f"the server gave ranges before, and now answers {answer.status}")
        length = answer.headers.get("Content-Length", "")
        self._remember(answer.headers, int(length) if _LENGTH.fullmatch(length) else None)
        self._stream = answer
        return None

    def _request(self, wanted: tuple[int, int] | None) -> urllib.request.Request:
        request = urllib.request.Request(self.url, headers={"User-Agent": "kvscope", "Accept-Encoding": "identity"})
        if wanted is not None:
            request.add_header("Range", f"bytes={wanted[0]}-{wanted[1] - 1}")
        if self._known_etag is not None and not self.data:
            request.add_header("If-None-Match", self._known_etag)
        if self._token and self._token_origin is not None and origin(self.url) == self._token_origin:
            request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        return request

    def _redirected(self, location: str | None) -> str:
        if not location:
            raise ModelError(f"{self.shown} leads elsewhere without saying where.", hint="Check the address.")
        target = urllib.parse.urljoin(self.url, location)
        if urllib.parse.urlsplit(target).scheme not in ("http", "https"):
            raise ModelError(f"{self.shown} leads to {without_query(target)}, which is no web address.", hint=None)
        return target

    def _status(self, error: urllib.error.HTTPError, wanted: tuple[int, int] | None) -> None:
        if error.code == 304:
            self.not_modified = True
        elif error.code == 416 and wanted is not None and wanted[0] == 0:
            self.size = 0
        else:
            raise _refusal(self.shown, error.code, bool(self._token))

    def _remember(self, headers: Message, size: int | None) -> None:
        etag = headers.get("ETag")
        if self.data and etag != self.etag:
            raise ModelError(f"{self.shown} changed while it was read.", hint="Try again.")
        self.size, self.etag, self.content_type = size, etag, headers.get("Content-Type", "")

    def _read_stream(self, end: int) -> None:
        self._append(self._stream, end)
        if self.size is not None and len(self.data) < min(end, self.size):
            raise self._short()

    def _append(self, answer: Any, end: int) -> None:
        """Reads until ``end`` bytes are there or the answer ends."""
        while len(self.data) < end:
            chunk = self._guarded(lambda: answer.read1(min(_CHUNK_BYTES, end - len(self.data))))
            if not chunk:
                return
            self.data += chunk

    def _guarded(self, action: Callable[[], Any]) -> Any:
        if monotonic() > self._deadline:
            raise Unreachable(f"{self.shown} came too slowly.", hint="Check the network, or download the file first.")
        try:
            return action()
        except urllib.error.URLError as error:
            self._unreachable(error.reason)
        except http.client.InvalidURL:  # its text repeats the whole address
            self._unreachable("it is no web address")
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._unreachable(error)

    def _unreachable(self, reason: object) -> NoReturn:
        text = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
        raise Unreachable(
            f"{self.shown} could not be read: {text}.",
            hint="Check the network, or download the file and pass its path.",
        ) from None

    def _short(self) -> ModelError:
        return ModelError(
            f"{self.shown}: the answer ended after {len(self.data)} bytes, before what it promised.", hint="Try again."
        )

    def _malformed(self, where: str, problem: str) -> MalformedFile:
        return MalformedFile(self.shown, where, problem, hint="Download the file, and pass its path.")


def _refusal(url: str, status: int, with_token: bool) -> ModelError:
    if status in (404, 410):
        return NotThere(f"{url} does not exist (the server answers {status}).", hint="Check the name and the revision.")
    if status in (401, 403):
        hint = (
            "Accept the model's terms on its page with the account of this token."
            if with_token
            else "Accept the model's terms on its page, then set the environment variable HF_TOKEN to an access token."
        )
        also = "" if with_token else "; a model that does not exist is answered so too"
        return ModelNotFound(f"{url} may not be read (the server answers {status}{also}).", hint=hint)
    if status == 429:
        hint = "Wait a few minutes; with HF_TOKEN set, more is allowed."
        return Unreachable(f"{url}: the server asks for fewer requests (429).", hint=hint)
    if status >= 500:
        return Unreachable(f"{url}: the server failed ({status}).", hint="Try again later.")
    return ModelNotFound(f"{url} could not be read: the server answers {status}.", hint="Check the address.")


def origin(url: str) -> str:
    """Scheme, host and port: what a token is bound to."""
    parts = urllib.parse.urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return f"{parts.scheme}://{parts.hostname}:{port}"


def without_query(url: str) -> str:
    """A web address as it may be shown and recorded: a query may hold a signature."""
    parts = urllib.parse.urlsplit(url)
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
