"""A load against a server that answers two requests at a time and refuses the others: over the wire, with the client
that is used for every load. The server is the test's own."""

import asyncio
import json
from pathlib import Path
from typing import Any

from scripted_server import END, HEAD, chunk, finish, plain, talking, token

from kvscope.experiment.measure import measure
from kvscope.record.rows import RequestRow, TrialResult
from kvscope.record.store import open_records

# No other request asks for so many.
MEASURED_TOKENS = 6


class Busy:
    """Counts words, takes requests of the load only two at a time, and answers them when it
    has refused one, whatever this machine does meanwhile."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.here = 0
        self.refused = 0

    async def talk(self, path: str, body: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if path == "/v1/models":
            writer.write(plain("200 OK", json.dumps({"data": [{"id": "m"}]}).encode()))
        elif path != "/v1/chat/completions":
            writer.write(plain("404 Not Found", b'{"detail": "Not Found"}'))
        elif body["max_tokens"] == MEASURED_TOKENS and self.here >= self.most:
            self.refused += 1
            said = {"error": {"message": "Too many requests at once.", "type": "rate_limit_error"}}
            writer.write(plain("429 Too Many Requests", json.dumps(said).encode(), "Retry-After: 1"))
        else:
            await self._answer(body, writer)

    async def _answer(self, body: Any, writer: asyncio.StreamWriter) -> None:
        tokens = body["max_tokens"]
        is_measured = tokens == MEASURED_TOKENS
        self.here += is_measured
        if not is_measured:
            self.refused = 0  # a warm-up: the next load begins
        while is_measured and self.most < 4 and not self.refused:
            await asyncio.sleep(0.005)
        words = 3 + sum(len(message["content"].split()) for message in body["messages"])
        answer = b"".join(token(f"w{number} ") for number in range(tokens))
        usage = {"prompt_tokens": words, "completion_tokens": tokens}
        writer.write(HEAD + chunk(answer + finish("length", **usage)) + END)
        await writer.drain()
        self.here -= is_measured


def measured(path: Path) -> tuple[TrialResult, list[RequestRow]]:
    with open_records(path) as records:
        (row,) = [row for row in records.trials() if row.role == "measured"]
        result = records.result(row)
    return result, [request for request in result.requests if request.role == "measured"]


def ask(path: Path, url: str) -> None:
    measure(
        "concurrency",
        engine="openai",
        url=url,
        levels=[4],
        repeats=1,
        requests=4,
        input_tokens=40,
        output_tokens=MEASURED_TOKENS,
        records=path,
    )


def test_requests_beyond_what_the_server_takes_are_rows_that_were_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    with talking(Busy(most=2).talk) as server:
        ask(path, server.url)
    result, rows = measured(path)
    assert (result.trial.outcome, result.trial.error_slug) == ("rate_limited", "rate-limited")
    assert len(rows) == 4
    slugs = [row.error_slug for row in rows]
    assert slugs.count("rate-limited") >= 1
    assert slugs.count(None) >= 1
    for row in rows:
        assert (row.completed_s is None) == (row.error_slug is not None)
        assert row.stream is not None
    warning = next(w for w in result.warnings if w.slug == "requests-failed")
    number = slugs.count("rate-limited")
    assert warning.message == f"{number} of 4 requests of the load failed: {number} × rate-limited."
    assert result.trial.evidence["http_status"] == 429


def test_a_server_that_takes_them_all_refuses_none(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    with talking(Busy(most=4).talk) as server:
        ask(path, server.url)
    result, rows = measured(path)
    assert result.trial.outcome == "ok"
    assert [row.error_slug for row in rows] == [None] * 4
    assert {row.stream for row in rows} == {0, 1, 2, 3}
