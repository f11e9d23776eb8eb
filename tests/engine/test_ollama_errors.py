"""What Ollama's errors mean: how long it asks to wait, and answers that no parser should fall over."""

import pytest

from kvscope.engine.http_client import Reply
from kvscope.engine.ollama_errors import error_of
from kvscope.engine.ollama_http import json_object, raise_for_status
from kvscope.errors import EngineDied, EngineReplyError, RateLimited, ServerError


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


# Messages in Ollama's source, by tag and file; what stands for a number or a reason is filled in.
SAID = [
    ("llama-server reported out-of-memory during startup: alloc", "out_of_memory"),  # HEAD, llm/llama_server.go
    ("unable to load full model on GPU", "out_of_memory"),  # v0.12.6 and since, llm/server.go: ErrLoadRequiredFull
    ("model requires more system memory than is currently available unable to load full model on GPU", "out_of_memory"),
    ("failed to commit memory for model", "out_of_memory"),  # v0.12.6, v0.20.0, llm/server.go
    ("memory layout cannot be allocated with num_gpu = 99", "out_of_memory"),
    ("failed to allocate memory for model", "out_of_memory"),
    ("timed out waiting for llama runner to start - progress 0.20 - ", "timed_out"),  # v0.5.0 to v0.20.0
    ("timed out waiting for llama-server to start: context canceled", "timed_out"),
    ("input after truncation exceeds maximum context length", "context_overflow"),  # server/routes.go
    ("input exceeds maximum context length and cannot be truncated further", "context_overflow"),
    ("entire prompt removed by truncation", "context_overflow"),  # v0.12.5, runner/ollamarunner/runner.go
    ("x: this model may be incompatible with your version of Ollama.", "model_error"),  # server/sched.go
    ("llama runner process no longer running: 2 error:", "engine_died"),
    ("an illegal memory access was encountered", "server_error"),
]


@pytest.mark.parametrize(("said", "outcome"), SAID)
def test_messages_of_its_source_have_their_class(said: str, outcome: str) -> None:
    assert error_of(said, status=500, body=said.encode()).outcome == outcome


@pytest.mark.parametrize(
    ("said", "evidence"),
    [
        ("llama runner process no longer running: 2 error:", {"exit_code": 2}),
        ("llama runner process no longer running: -1 ", {}),  # Go's code of a process that a signal ended
        ("llama-server process has terminated: exit status 127", {"exit_code": 127}),
        # The words of Go's syscall package for signals.
        ("llama runner process has terminated: signal: bus error (core dumped)", {"signal": "SIGBUS"}),
        ("llama runner process has terminated: signal: illegal instruction", {"signal": "SIGILL"}),
    ],
)
def test_how_a_runner_ended(said: str, evidence: dict[str, object]) -> None:
    error = error_of(said, status=500, body=said.encode())
    assert isinstance(error, EngineDied)
    assert {name: error.evidence[name] for name in ("exit_code", "signal") if name in error.evidence} == evidence


def test_a_model_of_its_cloud_needs_a_login() -> None:
    error = error_of("unauthorized", status=401, body=b"unauthorized")
    assert error.outcome == "invalid_settings"
    assert "ollama signin" in str(error.hint)
