"""Every way in which a server can fail on the wire, in a whole run: a design of two trials against a server that runs
already. The first trial meets the failure, is recorded as what it is with its evidence, and the next one runs.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from scripted_server import END, HEAD, TalkingServer, chunk, event, finish, plain, talking, token

from kvscope.engine.base import ChatRequest, Engine, Generation
from kvscope.engine.openai_server import OpenAIServer
from kvscope.engine.registry import EngineChoice
from kvscope.experiment.design import Condition, make_design
from kvscope.experiment.designs import design_kind
from kvscope.experiment.runner import DesignSummary, run_design, start_run
from kvscope.model.spec import ModelSpec
from kvscope.record.export import export_row
from kvscope.record.metrics import metrics_of
from kvscope.record.rows import DesignRow, TrialResult
from kvscope.record.store import create_records
from kvscope.scenario import SettingValue

# How many tokens a measured request asks for; no other request asks for so many.
MEASURED_TOKENS = 6
TIMEOUT_S, STALL_S = 1.0, 0.3

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Impatient(OpenAIServer):
    """The adapter, with requests that are given tenths of seconds."""

    async def generate_async(self, request: ChatRequest) -> Generation:
        if request.max_output_tokens == MEASURED_TOKENS:
            request = replace(request, timeout_s=TIMEOUT_S, stall_s=STALL_S)
        return await super().generate_async(request)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImpatientChoice(EngineChoice):
    def create(self, model: ModelSpec | None, settings: Mapping[str, SettingValue]) -> Engine:
        return Impatient.of(self)


class Server:
    """Counts words. The first measured request meets ``fault``; all others are answered."""

    def __init__(self, fault: Talk | None) -> None:
        self.fault = fault
        self.here: TalkingServer | None = None
        self.goes_deaf = False

    async def talk(self, path: str, body: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if path == "/v1/models":
            writer.write(plain("200 OK", json.dumps({"data": [{"id": "m"}]}).encode()))
        elif path != "/v1/chat/completions":
            writer.write(plain("404 Not Found", b'{"detail": "Not Found"}'))
        elif body["max_tokens"] == MEASURED_TOKENS and self.fault is not None:
            fault, self.fault = self.fault, None
            await fault(reader, writer)
        else:
            tokens = body["max_tokens"]
            words = 3 + sum(len(message["content"].split()) for message in body["messages"])
            answer = b"".join(token(f"w{number} ") for number in range(tokens))
            usage = {"prompt_tokens": words, "completion_tokens": tokens}
            writer.write(HEAD + chunk(answer + finish("length", **usage)) + END)
            await writer.drain()
            if self.goes_deaf and tokens == 4:  # the warm-up: the next request is the measured one
                self.goes_deaf = False
                assert self.here is not None
                self.here.go_deaf()


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What a run left in its record."""

    summary: DesignSummary
    results: list[TrialResult]
    rows: list[dict[str, Any]]

    @property
    def failed(self) -> TrialResult:
        return self.results[0]


@pytest.fixture(scope="module", autouse=True)
def watched() -> Iterator[None]:
    """A small process, said to be the server's: its memory is read at every mark of a trial."""
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"])
    WATCHED.append(process.pid)
    yield
    process.kill()
    process.wait()


WATCHED: list[int] = []


def ran(tmp_path: Path, fault: Talk | None, *, goes_deaf: bool = False) -> Ran:
    """Two trials of one measured request each, and what is read back from the record."""
    held = Condition(settings={}, prompt_tokens=60, output_tokens=MEASURED_TOKENS)
    design = replace(make_design(design_kind("input_length"), levels=(60,), repeats=2, held=held), warmups=0)
    server = Server(fault)
    server.goes_deaf = goes_deaf
    with talking(server.talk) as here, create_records(tmp_path / "r.db") as recorder:
        server.here = here
        run = start_run(recorder, "test")
        choice = ImpatientChoice(name="openai", url=here.url, pid=WATCHED[-1])
        summary = run_design(
            recorder, run, design, None, choice, listener=lambda _: here.listen(), sleep=lambda _: None
        )
        trials = sorted(recorder.trials(summary.design_id), key=lambda row: row.position)
        results = [recorder.result(row) for row in trials]
        kept: DesignRow = next(row for row in recorder.designs() if row.design_id == summary.design_id)
        rows = [export_row(result, kept, run, None) for result in results]
    return Ran(summary=summary, results=results, rows=rows)


def check_rest(found: Ran) -> None:
    """The next trial ran and is well, and nothing unknown became a 0."""
    second = found.results[1]
    assert (second.trial.outcome, second.trial.error_slug) == ("ok", None)
    ttft_s = metrics_of(second).ttft_s
    assert ttft_s is not None
    assert 0 < ttft_s < TIMEOUT_S
    assert all(row["ttft_s"] != 0 for row in found.rows)


def sending(*pieces: bytes) -> Talk:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()

    return talk


def hanging(begin: bytes) -> Talk:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(begin)
        await writer.drain()
        await reader.read()  # until the client gives up

    return talk


def resetting(begin: bytes) -> Talk:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(begin)
        await writer.drain()
        await asyncio.sleep(0.05)
        # Linger zero: the kernel sends a reset instead of an orderly end.
        writer.transport.get_extra_info("socket").setsockopt(1, 13, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        writer.transport.abort()

    return talk


def pinging(begin: bytes) -> Talk:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(begin)
        for _ in range(200):
            writer.write(chunk(b": OPENROUTER PROCESSING\n\n"))
            await writer.drain()
            await asyncio.sleep(0.02)

    return talk


async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD)
    while True:
        writer.write(chunk(token("a") * 50))
        await writer.drain()


def error(status: str, value: object, *headers: str) -> Talk:
    return sending(plain(status, value if isinstance(value, bytes) else json.dumps(value).encode(), *headers))


ROLE = event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})
TWO = HEAD + chunk(ROLE + token("a") + token("b"))
PAGE = b"<html><head><title>%s</title></head><body><h1>%s</h1></body></html>"
NOW = datetime(2026, 3, 1, tzinfo=UTC)
BUSY = {"error": {"message": "slow down", "type": "tokens", "code": "rate_limit_exceeded"}}

FAULTS: dict[str, tuple[Talk, str, dict[str, Any]]] = {
    "closed before an answer": (sending(b""), "connection_lost", {"pieces_received": 0}),
    "closed in mid-stream": (sending(TWO), "connection_lost", {"pieces_received": 2, "http_status": 200}),
    "reset in mid-stream": (resetting(TWO), "connection_lost", {"pieces_received": 2, "http_status": 200}),
    "stall in mid-stream": (hanging(TWO), "stalled", {"pieces_received": 2, "http_status": 200}),
    "stall behind comments": (pinging(TWO), "stalled", {"pieces_received": 2, "http_status": 200}),
    "no headers": (hanging(b""), "timed_out", {"pieces_received": 0}),
    "no first token": (hanging(HEAD + chunk(ROLE)), "timed_out", {"pieces_received": 0, "http_status": 200}),
    "429 with seconds": (
        error("429 Too Many Requests", BUSY, "Retry-After: 7"), "rate_limited",
        {"http_status": 429, "retry_after_s": 7.0, "body": json.dumps(BUSY)},
    ),
    "429 with a date": (
        error("429 Too Many Requests", BUSY, f"Date: {format_datetime(NOW, usegmt=True)}",
              f"Retry-After: {format_datetime(NOW + timedelta(seconds=30), usegmt=True)}"), "rate_limited",
        {"http_status": 429, "retry_after_s": 30.0},
    ),
    **{
        f"{status} of a proxy": (
            error(f"{status} Oops", PAGE % (b"Oops", b"Oops"), "Content-Type: text/html"), "server_error",
            {"http_status": status, "body": (PAGE % (b"Oops", b"Oops")).decode(), "pieces_received": 0},
        )
        for status in (500, 502, 503)
    },
    "broken JSON": (
        sending(TWO + chunk(b'data: {"choices": [{"del\n\n') + END), "bad_reply",
        {"http_status": 200, "pieces_received": 2, "body": '{"choices": [{"del'},
    ),
    "broken SSE": (
        sending(TWO + chunk(b"dat: x\n\n") + END), "bad_reply", {"http_status": 200, "pieces_received": 2},
    ),
    "no end": (sending(TWO + END), "bad_reply", {"http_status": 200, "pieces_received": 2}),
    "200 with nothing": (error("200 OK", b""), "bad_reply", {"http_status": 200, "pieces_received": 0}),
    "200 with an error": (
        error("200 OK", {"error": {"message": "CUDA out of memory. Tried to allocate 2.00 GiB"}}), "out_of_memory",
        {"http_status": 200},
    ),
    "not streamed": (error("200 OK", {"choices": [{"message": {"content": "a"}}]}), "bad_reply", {}),
    "no regard for the limit": (endless, "bad_reply", {"http_status": 200}),
    "an error in mid-stream": (
        sending(TWO + chunk(event({"error": {"code": 500, "message": "Compute error."}})) + END), "server_error",
        {"http_status": 200, "pieces_received": 2},
    ),
    "the context": (
        error("400 Bad Request", {"object": "error", "message": "This model's maximum context length is 8 tokens.",
                                  "code": 400}), "context_overflow", {"http_status": 400},
    ),
    "memory": (
        error("500 Oops", {"error": {"code": 500, "message": "failed to allocate buffer"}}), "out_of_memory",
        {"http_status": 500},
    ),
    "an illegal access, which is no lack of memory": (
        error("500 Oops", {"error": "CUDA error: an illegal memory access was encountered"}), "server_error",
        {"http_status": 500},
    ),
    "no key": (error("401 Unauthorized", {"error": "Unauthorized"}), "invalid_settings", {"http_status": 401}),
    "a model that is gone": (
        error("404 Not Found", {"object": "error", "message": "The model `m` does not exist.", "code": 404}),
        "model_error", {"http_status": 404},
    ),
}  # fmt: skip
SLUGS = {
    "connection_lost": "connection-lost",
    "stalled": "stalled",
    "timed_out": "timed-out",
    "rate_limited": "rate-limited",
    "server_error": "server-error",
    "bad_reply": "bad-reply",
    "out_of_memory": "out-of-memory",
    "context_overflow": "context-overflow",
    "invalid_settings": "invalid-settings",
    "model_error": "engine-model-error",
    "connection_refused": "connection-refused",
}


def check_failure(found: Ran, outcome: str, evidence: Mapping[str, Any]) -> None:
    trial = found.failed.trial
    assert (trial.outcome, trial.error_slug) == (outcome, SLUGS[outcome])
    assert trial.error_message
    assert trial.error_hint
    assert trial.traceback
    assert trial.evidence["known_by"] == "message"
    assert {name: trial.evidence.get(name) for name in evidence} == evidence
    request = found.failed.requests[-1]
    assert (request.role, request.error_slug) == ("measured", SLUGS[outcome])
    assert (request.completed_s, request.output_tokens, request.finish_reason) == (None, None, None)
    assert metrics_of(found.failed).ttft_s is None
    assert found.rows[0]["ttft_s"] is None
    assert found.rows[0]["evidence"] == dict(trial.evidence)
    assert (found.summary.measured, found.summary.failed) == (1, 1)
    check_rest(found)


@pytest.mark.parametrize("name", FAULTS)
def test_a_failure_is_recorded_and_the_next_trial_runs(name: str, tmp_path: Path) -> None:
    fault, outcome, evidence = FAULTS[name]
    check_failure(ran(tmp_path, fault), outcome, evidence)


def test_nothing_listens_any_more(tmp_path: Path) -> None:
    check_failure(ran(tmp_path, None, goes_deaf=True), "connection_refused", {"pieces_received": 0})


def check_short(found: Ran, *, output_tokens: int | None, finish_reason: str) -> None:
    """An answer that is shorter than asked is measured all the same."""
    trial, request = found.failed.trial, found.failed.requests[-1]
    assert (trial.outcome, trial.error_slug) == ("stopped_early", None)
    assert (request.output_tokens, request.finish_reason, request.error_slug) == (output_tokens, finish_reason, None)
    assert request.completed_s is not None
    assert (found.summary.measured, found.summary.failed) == (2, 0)
    check_rest(found)


@pytest.mark.parametrize("reason", ["stop", "content_filter", "tool_calls"])
def test_an_answer_that_stops_early(reason: str, tmp_path: Path) -> None:
    found = ran(tmp_path, sending(TWO + chunk(finish(reason, completion_tokens=2)) + END))
    check_short(found, output_tokens=2, finish_reason=reason)
    ttft_s = metrics_of(found.failed).ttft_s
    assert ttft_s is not None
    assert ttft_s > 0


def test_an_answer_that_stops_early_and_is_not_counted(tmp_path: Path) -> None:
    """The server states no number of tokens, but that it stopped of itself."""
    check_short(ran(tmp_path, sending(TWO + chunk(finish("stop")) + END)), output_tokens=None, finish_reason="stop")


@pytest.mark.parametrize("usage", [{"completion_tokens": 0}, {}], ids=["0 stated", "none stated"])
def test_an_answer_without_a_token_has_no_first_one(usage: dict[str, int], tmp_path: Path) -> None:
    found = ran(tmp_path, sending(HEAD + chunk(ROLE + finish("stop", **usage)) + END))
    check_short(found, output_tokens=usage.get("completion_tokens"), finish_reason="stop")
    metrics = metrics_of(found.failed)
    assert (metrics.ttft_s, metrics.tpot_s, metrics.itl_p50_s) == (None, None, None)
    assert found.rows[0]["ttft_s"] is None


def test_a_whole_answer_without_a_count_did_not_stop_early(tmp_path: Path) -> None:
    words = b"".join(token(f"w{number}") for number in range(MEASURED_TOKENS))
    found = ran(tmp_path, sending(HEAD + chunk(ROLE + words + finish("length")) + END))
    assert [result.trial.outcome for result in found.results] == ["ok", "ok"]
    assert found.failed.requests[-1].output_tokens is None
