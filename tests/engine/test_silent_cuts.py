"""Servers that do with a prompt what no error tells of, measured as any other: a stand-in for each, over real HTTP.

The stand-in counts words, and three tokens of a template: the BOS, and one at each end of the message.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rows_for_tests import design_row, run_row
from scripted_server import END, HEAD, answering, chunk, finish, plain, token

from kvscope.engine.base import Capabilities, ChatRequest, ContextLimit, EngineReport
from kvscope.engine.fake import FakeLaw, FakeMemory
from kvscope.engine.llama_http import LlamaHttp
from kvscope.experiment.design import Condition, Trial
from kvscope.experiment.own_count import OwnCount, OwnCounter
from kvscope.experiment.request_counts import Expected
from kvscope.experiment.trial import run_trial
from kvscope.record.metrics import metrics_of
from kvscope.record.rows import TrialResult, TrialRow
from kvscope.record.store import create_records

WINDOW = 512
BOS = 1


@dataclass(frozen=True, kw_only=True)
class Server:
    """What a stand-in does. ``reads``: tokens of a prompt that it reads, of those that were sent. ``usage``: what it
    states, of those it read."""

    reads: Callable[[int], int] = lambda sent: sent
    usage: Callable[[int], dict[str, Any]] = lambda read: {"prompt_tokens": read, "completion_tokens": 4}

    def answer(self, path: str, body: Any) -> bytes:
        match path:
            case "/apply-template":
                return _json({"prompt": body["messages"][0]["content"]})
            case "/tokenize":
                return _json({"tokens": _ids(body["content"])})
            case "/v1/chat/completions":
                sent = len(_ids(body["messages"][0]["content"]))
                words = b"".join(token(f"w{number} ") for number in range(body["max_tokens"]))
                return HEAD + chunk(words + finish("length", **self.usage(self.reads(sent)))) + END
        return plain("404 Not Found", b"{}")


def _json(value: object) -> bytes:
    return plain("200 OK", json.dumps(value).encode())


def _ids(text: str) -> list[int]:
    return [BOS, 2, *(100 + len(word) for word in text.split()), 3]


class StandIn(LlamaHttp):
    """The adapter of llama.cpp's interface, for a server that is already there."""

    capabilities = Capabilities(
        baseline_before_load=False,
        can_unload=False,
        counts_prompt_tokens=True,
        reports_prompt_tokens=True,
        reports_cached_tokens=False,
        reports_timings=False,
        reports_buffers=False,
        has_pid=False,
    )

    def __init__(self, url: str, limit_tokens: int | None) -> None:
        super().__init__(settings={})
        self._url = url
        self._limit = None if limit_tokens is None else ContextLimit(tokens=limit_tokens, source="said so")

    def memory_probe(self) -> FakeMemory:  # type: ignore[override]  # it runs in no process of its own
        return FakeMemory(FakeLaw(), running=True)

    def launch(self) -> None: ...

    def load(self) -> EngineReport:
        return EngineReport(version="1", build="", buffers=(), effective={}, slots=(), context_limit=self._limit)

    def unload(self) -> None: ...

    def stop(self) -> None: ...


class CountsAsSent(OwnCounter):
    """Our own count, with the ids at hand."""

    def __init__(self, leading_bos: int = 1) -> None:
        super().__init__("unused")
        self._leading_bos = leading_bos

    def count(self, requests: Sequence[ChatRequest]) -> list[OwnCount | None]:
        return [
            OwnCount(tokens=len(_ids(r.messages[0].content)), counted_by="files", leading_bos=self._leading_bos)
            for r in requests
        ]


ROW = TrialRow(
    trial_id="t",
    attempt=1,
    design_id="d",
    run_id="r",
    role="measured",
    levels={},
    level=0,
    repeat=0,
    block=0,
    position=0,
    started_at="2026-01-01T00:00:00.000+00:00",
    settings={},
)


def measured(
    server: Server, *, prompt: int = 700, requests: int = 1, limit: int | None = WINDOW, counter: bool = True
) -> TrialResult:
    """One trial against the stand-in, what does not fit included."""
    condition = Condition(settings={}, prompt_tokens=prompt, output_tokens=4, requests=requests)
    trial = Trial(trial_id="t", role="measured", levels={}, level=0, repeat=0, block=0, position=0, condition=condition)
    expected = Expected(counter=CountsAsSent() if counter else None, try_anyway=True)
    with answering(server.answer) as url:
        return run_trial(lambda: StandIn(url, limit), trial, ROW, seed=1, expected=expected, sleep=lambda _: None)


def doubts(result: TrialResult) -> list[str]:
    # The server of this test sends its answers in one piece.
    others = ("probe-unavailable", "late-samples", "client-limited", "tokens-together")
    return [warning.slug for warning in result.warnings if warning.slug not in others]


@pytest.mark.parametrize("counter", [True, False], ids=["ours from files", "asked before"])
def test_an_honest_server(counter: bool) -> None:
    result = measured(Server(), prompt=400, requests=3, counter=counter)
    assert (result.trial.outcome, doubts(result)) == ("ok", [])
    assert [(r.prompt_tokens_ours, r.prompt_tokens_server) for r in result.requests] == [(4, 4), *[(400, 400)] * 3]
    assert {r.prompt_tokens_ours_from for r in result.requests} == {"files" if counter else "engine"}


def cut_result(server: Server, **more: Any) -> TrialResult:
    result = measured(server, **more)
    assert (result.trial.outcome, result.trial.error_slug) == ("truncated_input", "truncated-input")
    assert doubts(result) == []
    assert result.requests[0].error_slug is None  # the warm-up is short
    for request in result.requests[1:]:
        assert request.error_slug == "truncated-input"
        assert request.output_tokens == 4  # it did answer, and the numbers are kept
        assert request.completed_s is not None
    return result


def test_one_that_cuts_to_half_its_window_and_two() -> None:
    # Ollama keeps 4 tokens and half of the others: 4 + (512 - 4) / 2 is 258.
    result = cut_result(Server(reads=lambda sent: sent if sent <= WINDOW else 258), requests=2)
    assert "258 of 700 tokens: about half of its window of 512" in str(result.trial.error_message)


def test_one_that_takes_out_blocks_of_half_its_window() -> None:
    # llama.cpp with context shift and n_keep 0: blocks of 256; of 700, (700 - 256) // 256 = 1 block is taken out.
    result = cut_result(Server(reads=lambda sent: sent if sent <= WINDOW else sent - (sent - 256) // 256 * 256))
    assert "444 of 700 tokens: it took out blocks of 256" in str(result.trial.error_message)


def test_one_that_reads_no_more_than_a_number_of_its_own() -> None:
    result = cut_result(Server(reads=lambda sent: min(sent, 300)), limit=None)
    assert "300 of 700" in str(result.trial.error_message)


def test_one_that_keeps_its_window_less_the_output() -> None:
    result = cut_result(Server(reads=lambda sent: min(sent, WINDOW - 4)))
    assert "508 of 700 tokens: what its window of 512 holds" in str(result.trial.error_message)


def test_one_that_cuts_by_a_single_token() -> None:
    # 509 + 4 is one more than the window: a count that differs by 1, and yet another prompt.
    result = cut_result(Server(reads=lambda sent: min(sent, WINDOW - 4)), prompt=509)
    assert result.trial.outcome == "truncated_input"
    assert "508 of 509 tokens" in str(result.trial.error_message)


def test_one_that_reads_the_bos_twice() -> None:
    result = measured(Server(reads=lambda sent: sent + 1), prompt=400)
    assert (result.trial.outcome, doubts(result)) == ("ok", ["doubled-bos"])


def test_one_that_adds_a_system_prompt() -> None:
    result = measured(Server(reads=lambda sent: sent + 21), prompt=400)
    assert (result.trial.outcome, doubts(result)) == ("ok", ["token-count-mismatch"])
    doubt = next(warning for warning in result.warnings if warning.slug == "token-count-mismatch")
    assert "+21 tokens at 2 lengths" in doubt.message
    assert "system prompt" in doubt.hint


def test_one_with_another_tokenizer() -> None:
    result = measured(Server(reads=lambda sent: sent + sent // 4), prompt=400)
    assert (result.trial.outcome, doubts(result)) == ("ok", ["token-count-mismatch"])


@pytest.mark.parametrize("usage", [{}, {"prompt_tokens": None, "completion_tokens": 4}], ids=["none", "null"])
def test_one_that_states_no_count(usage: dict[str, Any]) -> None:
    result = measured(Server(usage=lambda _: usage), prompt=400)
    assert (result.trial.outcome, doubts(result)) == ("ok", [])
    assert {request.prompt_tokens_server for request in result.requests} == {None}
    assert {request.prompt_tokens_server_from for request in result.requests} == {None}


def test_one_that_states_what_it_read_anew() -> None:
    def usage(read: int) -> Mapping[str, Any]:
        cached = read * 3 // 4
        return {
            "prompt_tokens": read - cached,
            "completion_tokens": 4,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    result = measured(Server(usage=lambda read: dict(usage(read))), prompt=400)
    assert result.trial.outcome == "ok"
    assert "token-count-mismatch" in doubts(result)
    assert any("300 reused" in warning.message for warning in result.warnings)


def test_a_cut_on_the_way_to_a_failure_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def reads(sent: int) -> int:
        calls.append(sent)
        if len(calls) == 3:
            raise ConnectionError("the server hangs up")
        return min(sent, 258)

    result = measured(Server(reads=reads), requests=3)
    assert result.trial.outcome == "connection_lost"
    assert [request.error_slug for request in result.requests] == [None, "truncated-input", "connection-lost"]


@pytest.mark.parametrize(
    ("usage", "number"),
    [
        ({"prompt_tokens": 2**63}, 2**63),
        ({"prompt_tokens": 400, "completion_tokens": 2**80}, 2**80),
        ({"prompt_tokens": 400, "prompt_tokens_details": {"cached_tokens": 2**64}}, 2**64),
    ],
    ids=["prompt", "output", "cached"],
)
def test_counts_of_more_than_63_bits_are_a_bad_reply_that_a_record_can_hold(
    tmp_path: Path, usage: dict[str, Any], number: int
) -> None:
    result = measured(Server(usage=lambda read: usage))
    assert result.trial.outcome == "bad_reply"
    assert str(number) in str(result.trial.error_message)
    with create_records(tmp_path / "r.db") as recorder:
        recorder.add_run(run_row(run_id=ROW.run_id))
        recorder.add_design(design_row(design_id=ROW.design_id))
        recorder.start_trial(ROW, None)
        recorder.finish_trial(result)
        assert recorder.result(ROW).requests == result.requests


@pytest.mark.parametrize("read_anew", [None, 100], ids=["all of the prompt", "cached left out"])
def test_one_that_states_more_cached_than_there_was(read_anew: int | None) -> None:
    def usage(read: int) -> dict[str, Any]:
        return {
            "prompt_tokens": read if read_anew is None else min(read, read_anew),
            "completion_tokens": 4,
            "prompt_tokens_details": {"cached_tokens": 450 if read > 100 else 0},
        }

    result = measured(Server(usage=usage), prompt=400)
    assert result.trial.outcome == ("ok" if read_anew is None else "truncated_input")
    assert "cached-over-prompt" in doubts(result)
    message = next(warning.message for warning in result.warnings if warning.slug == "cached-over-prompt")
    assert "450" in message
    assert str(read_anew or 400) in message
    metrics = metrics_of(result)
    assert metrics.ttft_s is not None
    assert metrics.prefill_tokens_per_s is None
