"""Addresses and connections, TLS with certificates that are made on the spot."""

import asyncio
import ssl
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from scripted_server import END, HEAD, chunk, finish, plain, read_request, token

from kvscope.engine.base import ChatRequest, Message
from kvscope.engine.http_client import Limits, exchange, request
from kvscope.engine.http_connection import endpoint
from kvscope.engine.openai_http import get_text, stream_chat
from kvscope.errors import ConnectionRefused, EngineError, EngineReplyError, EngineTimeout, UsageError

LIMITS = Limits(timeout_s=20, stall_s=20, connect_s=20)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def trusted(authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> trustme.CA:
    """The authority, in what OpenSSL takes for the system's trust."""
    authority.cert_pem.write_to_path(tmp_path / "trust.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "trust.pem"))
    return authority


def server_context(certificate: trustme.LeafCert) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    certificate.configure_cert(context)
    return context


@asynccontextmanager
async def serving(
    context: ssl.SSLContext | None, *, host: str = "127.0.0.1", answer: bytes | None = None
) -> AsyncIterator[tuple[int, list[str]]]:
    """A server's port, and the heads of the requests that it was sent."""
    heads: list[str] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head, _ = await read_request(reader)
            heads.append(head)
            writer.write(plain("200 OK", b'{"a": 1}') if answer is None else answer)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(talk, host, 0, ssl=context)
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # what the server thinks of a client that leaves
    try:
        yield server.sockets[0].getsockname()[1], heads
    finally:
        server.close()


async def ask(url: str) -> bytes:
    return (await request("GET", url, limits=LIMITS)).body


def failing(context: ssl.SSLContext | None, url: str) -> EngineError:
    """What asking ends in; ``url`` with PORT where the port goes."""

    async def go() -> None:
        async with serving(context) as (port, heads):
            try:
                await ask(url.replace("PORT", str(port)))
            finally:
                assert not heads  # nothing was sent, so no key either

    with pytest.raises(EngineError) as caught:
        asyncio.run(go())
    assert caught.value.hint
    assert caught.value.evidence["known_by"] == "message"
    return caught.value


class TestTls:
    def test_a_certificate_that_is_trusted(self, trusted: trustme.CA) -> None:
        async def go() -> bytes:
            async with serving(server_context(trusted.issue_cert("localhost"))) as (port, _):
                return await ask(f"https://localhost:{port}/x")

        assert asyncio.run(go()) == b'{"a": 1}'

    def test_a_streamed_answer_and_a_long_request(self, trusted: trustme.CA) -> None:
        """A request of 8 MB goes out in many pieces, whole."""
        answer = HEAD + chunk(token("a") + token("b") + finish(completion_tokens=2)) + END
        chat = ChatRequest(messages=(Message(role="user", content="x" * 8_000_000),), max_output_tokens=4)

        async def go() -> tuple[list[str], float]:
            async with serving(server_context(trusted.issue_cert("localhost")), answer=answer) as (port, _):
                found = await stream_chat(f"https://localhost:{port}", chat)
                return [event.text for event in found.events], found.events[0].at_s

        texts, at_s = asyncio.run(go())
        assert texts == ["a", "b"]
        assert at_s >= 0

    def test_one_signed_by_itself(self) -> None:
        alone = trustme.CA()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # An authority's own certificate is signed by itself.
        with trustme.Blob(alone.private_key_pem.bytes() + alone.cert_pem.bytes()).tempfile() as pem:
            context.load_cert_chain(pem)
        error = failing(context, "https://localhost:PORT/")
        assert type(error) is ConnectionRefused
        assert "is signed by itself" in error.message
        assert "SSL_CERT_FILE" in str(error.hint)

    def test_one_of_an_authority_that_is_not_known(self) -> None:
        error = failing(server_context(trustme.CA().issue_cert("localhost")), "https://localhost:PORT/")
        assert "an authority that this machine does not know" in error.message

    def test_one_that_has_expired(self, trusted: trustme.CA) -> None:
        now = datetime.now(UTC)
        old = trusted.issue_cert("localhost", not_before=now - timedelta(days=9), not_after=now - timedelta(days=2))
        assert "has expired" in failing(server_context(old), "https://localhost:PORT/").message

    @pytest.mark.parametrize(("host", "what"), [("localhost", "another name"), ("127.0.0.1", "another address")])
    def test_one_for_another_host(self, trusted: trustme.CA, host: str, what: str) -> None:
        other = server_context(trusted.issue_cert("example.org"))
        assert f"is for {what}" in failing(other, f"https://{host}:PORT/").message

    def test_https_spoken_to_an_http_port(self) -> None:
        """A plain server answers the handshake with an HTTP error, as most do."""

        async def go() -> None:
            async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await reader.read(10)
                writer.write(plain("400 Bad Request", b"what?"))
                writer.close()

            server = await asyncio.start_server(talk, "127.0.0.1", 0)
            async with server:
                await ask(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/")

        with pytest.raises(ConnectionRefused, match="does not speak https") as caught:
            asyncio.run(go())
        assert "http://" in str(caught.value.hint)

    def test_http_spoken_to_an_https_port(self, authority: trustme.CA) -> None:
        error = failing(server_context(authority.issue_cert("localhost")), "http://127.0.0.1:PORT/")
        assert "https" in f"{error.message} {error.hint}"

    def test_http_spoken_to_an_https_port_that_answers_with_an_alert(self) -> None:
        """The bytes that OpenSSL's own server sends: alert, TLS 1.0, fatal, unexpected message."""

        async def go() -> None:
            async with serving(None, answer=b"\x15\x03\x01\x00\x02\x02\x0a") as (port, _):
                await ask(f"http://127.0.0.1:{port}/")

        with pytest.raises(EngineReplyError, match="speaks https, and was asked in plain http"):
            asyncio.run(go())

    def test_a_port_that_takes_the_connection_and_says_nothing(self) -> None:
        """As llama.cpp's server without TLS does (build b11549): it waits for the end of the greeting's line."""

        async def go() -> None:
            over = asyncio.Event()

            async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await reader.read()  # until the client gives up
                writer.close()
                over.set()

            server = await asyncio.start_server(listen, "127.0.0.1", 0)
            async with server:
                try:
                    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
                    await request("GET", url, limits=Limits(connect_s=0.2))
                finally:
                    await over.wait()

        with pytest.raises(EngineTimeout, match=r"secure connection within 0\.2 s") as caught:
            asyncio.run(go())
        assert "write http://" in str(caught.value.hint)

    def test_nginx_says_so_itself(self) -> None:
        page = b"<html><head><title>400 The plain HTTP request was sent to HTTPS port</title></head></html>"

        async def go() -> None:
            async with serving(None, answer=plain("400 Bad Request", page)) as (port, _):
                await stream_chat(f"http://127.0.0.1:{port}", ChatRequest(messages=(), max_output_tokens=1))

        with pytest.raises(EngineReplyError) as caught:
            asyncio.run(go())
        assert caught.value.hint == "Write https:// instead of http://."


class TestAddresses:
    @pytest.mark.parametrize(
        ("url", "host", "port", "host_header", "target", "shown"),
        [
            ("http://a.example", "a.example", 80, "a.example", "/", "a.example:80/"),
            ("https://a.example/v2/x?y=1&z", "a.example", 443, "a.example", "/v2/x?y=1&z", "a.example:443/v2/x"),
            ("http://[::1]:8080/x", "::1", 8080, "[::1]:8080", "/x", "[::1]:8080/x"),
            ("http://[fe80::1%25eth0]:1/", "fe80::1%eth0", 1, "[fe80::1]:1", "/", "[fe80::1%eth0]:1/"),
            ("http://me:secret@h:9/", "h", 9, "h:9", "/", "h:9/"),
            ("http://h/a b/ü", "h", 80, "h", "/a%20b/%C3%BC", "h:80/a%20b/%C3%BC"),
            ("http://h/a%20b", "h", 80, "h", "/a%20b", "h:80/a%20b"),
        ],
    )
    def test_their_parts(self, url: str, host: str, port: int, host_header: str, target: str, shown: str) -> None:
        found = endpoint(url)
        assert (found.host, found.port, found.host_header, found.target, found.shown) == (
            host, port, host_header, target, shown,
        )  # fmt: skip
        assert "secret" not in repr(found)

    @pytest.mark.parametrize("url", ["127.0.0.1:8080", "ftp://h/", "http://", "http://h:99999/", "http://h:x/", ""])
    def test_what_is_no_address(self, url: str) -> None:
        with pytest.raises(UsageError, match="address") as caught:
            endpoint(url)
        assert "http://127.0.0.1:8080" in str(caught.value.hint)

    def test_over_ipv6_under_a_path(self) -> None:
        async def go() -> list[str]:
            answer = HEAD + chunk(token("a") + finish()) + END
            async with serving(None, host="::1", answer=answer) as (port, heads):
                chat = ChatRequest(messages=(), max_output_tokens=1)
                await stream_chat(f"http://[::1]:{port}/proxy/llm/", chat)
                assert f"Host: [::1]:{port}\r\n" in heads[0]
                return heads

        try:
            heads = asyncio.run(go())
        except OSError as error:  # a machine without IPv6
            pytest.skip(str(error))
        assert heads[0].startswith("POST /proxy/llm/v1/chat/completions HTTP/1.1\r\n")

    def test_a_name_that_nobody_has(self) -> None:
        with pytest.raises(ConnectionRefused) as caught:
            asyncio.run(ask("http://no-such-machine.invalid/"))  # .invalid never resolves: RFC 6761
        assert "written" in str(caught.value.hint)

    def test_a_machine_that_never_takes_the_connection(self) -> None:
        async def go() -> None:
            # 192.0.2.0/24 is for documents (RFC 5737): packets to it get no answer, or the network says so at once.
            await request("GET", "http://192.0.2.1:9/", limits=Limits(connect_s=0.1))

        with pytest.raises((EngineTimeout, ConnectionRefused)) as caught:
            asyncio.run(go())
        assert "192.0.2.1:9" in caught.value.message


class TestHeaders:
    def test_they_are_sent(self) -> None:
        async def go() -> str:
            async with serving(None) as (port, heads):
                await request("GET", f"http://127.0.0.1:{port}/", headers={"Authorization": "Bearer k-123"})
                return heads[0]

        head = asyncio.run(go())
        assert "\r\nAuthorization: Bearer k-123\r\n" in head
        assert "\r\nAccept-Encoding: identity\r\n" in head

    @pytest.mark.parametrize(
        "headers",
        [
            {"Authorization": "Bearer secret\r\nX-Other: 1"},
            {"Authorization": "Bearer secret\x00"},
            {"Authorization": "Bearer schlüssel-secret"},
            {"secret\r\nX": "1"},
            {"": "secret"},
        ],
    )
    def test_one_that_cannot_be_is_refused_and_not_shown(self, headers: dict[str, str]) -> None:
        with pytest.raises(UsageError) as caught:
            asyncio.run(request("GET", "http://127.0.0.1:9/", headers=headers))
        assert "secret" not in f"{caught.value!r} {caught.value.hint} {caught.value.evidence}"

    @pytest.mark.parametrize("name", ["Host", "content-length", "Accept-Encoding", "Transfer-Encoding"])
    def test_those_of_the_client_itself_cannot_be_replaced(self, name: str) -> None:
        with pytest.raises(UsageError, match=name):
            asyncio.run(request("GET", "http://127.0.0.1:9/", headers={name: "x"}))

    def test_they_are_in_no_message_representation_or_traceback(self) -> None:
        async def go() -> str:
            async with (
                serving(None, answer=plain("500 Oops", b"no")) as (port, _),
                exchange("GET", f"http://127.0.0.1:{port}/", headers={"Authorization": "Bearer k-secret"}) as running,
            ):
                shown = f"{running!r} {running.__dict__!r} {running.reply!r}"
                try:
                    await stream_chat(
                        f"http://127.0.0.1:{port}",
                        ChatRequest(messages=(), max_output_tokens=1),
                        headers={"Authorization": "Bearer k-secret"},
                    )
                except EngineError as error:
                    shown += f"{error!r} {error.evidence} {''.join(traceback.format_exception(error))}"
                return shown

        assert "k-secret" not in asyncio.run(go())

    @pytest.mark.parametrize("name", ["Authorization", "api-key", "X-API-Key"])
    @pytest.mark.parametrize("is_streamed", [True, False])
    def test_a_server_that_quotes_them_does_not_bring_them_into_an_error(self, name: str, is_streamed: bool) -> None:
        """OpenAI and others quote the key that they refuse."""
        key = "k-0123456789-secret"
        headers = {name: f"Bearer {key}" if name == "Authorization" else key}
        said = f'{{"error": {{"message": "Incorrect API key provided: {key}."}}}}'.encode()

        async def go() -> None:
            async with serving(None, answer=plain("401 Unauthorized", said)) as (port, _):
                url = f"http://127.0.0.1:{port}"
                if is_streamed:
                    await stream_chat(url, ChatRequest(messages=(), max_output_tokens=1), headers=headers)
                else:
                    await get_text(url, headers=headers)

        with pytest.raises(EngineError, match="Incorrect API key provided") as caught:
            asyncio.run(go())
        shown = f"{caught.value!r} {caught.value.evidence} {''.join(traceback.format_exception(caught.value))}"
        assert "secret" not in shown
        assert caught.value.evidence["http_status"] == 401
