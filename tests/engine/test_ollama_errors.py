"""What Ollama's errors mean: how long it asks to wait, and answers that no parser should fall over."""

import pytest

from kvscope.engine.http_client import Reply
from kvscope.engine.ollama_errors import error_of
from kvscope.engine.ollama_http import json_object, raise_for_status
from kvscope.errors import EngineReplyError, RateLimited, ServerError


@pytest.mark.parametrize(
    ("stated", "date", "wait_s"),
    [
        ("7", "", 7.0),
        ("1.5", "", 1.5),
        # RFC 9110, 10.2.3: a date, which counts from the server's own.
        ("Fri, 31 Dec 1999 23:59:59 GMT", "Fri, 31 Dec 1999 23:59:29 GMT", 30.0),
        ("²", "", None),
        ("soon", "", None),
    ],
)
def test_how_long_it_asks_to_wait(stated: str, date: str, wait_s: float | None) -> None:
    headers = {"retry-after": stated, "date": date}
    said = "server busy, please try again.  maximum pending requests exceeded"
    error = error_of(said, status=503, body=said.encode(), headers=headers)
    assert isinstance(error, RateLimited)
    assert error.evidence.get("retry_after_s") == wait_s


@pytest.mark.parametrize("body", [b"[" * 200_000, b'{"a":' * 200_000, b'{"a": ' + b"9" * 5000 + b"}"])
def test_what_cannot_be_parsed_is_a_bad_reply_and_no_fault_of_ours(body: bytes) -> None:
    with pytest.raises(EngineReplyError, match="not JSON"):
        json_object(body)
    with pytest.raises(ServerError):
        raise_for_status(Reply(status=500, headers={}, sent_s=0.0, body=body))
    assert isinstance(error_of(body.decode(), status=500, body=body), ServerError)
