"""What the self-test runs: one cell a row of its table, each with the limits it is held against."""

import re
from dataclasses import dataclass
from typing import Literal

from kvscope.engine.base import ChatRequest, Load, Message

# Of a request's answer in the cells below; the shorter gap where more streams would need too many sockets.
_TTFT_S, _GAP_S, _SHORT_GAP_S = 0.050, 0.010, 0.005
_BASIC_TTFT_S, _BASIC_GAP_S, _BASIC_TOKENS = 0.020, 0.005, 24
# Tokens per second that are offered, and the time between tokens of one stream.
_RISING = ((1_000, _GAP_S), (8_000, _GAP_S), (30_000, _GAP_S), (60_000, _SHORT_GAP_S), (100_000, _SHORT_GAP_S))
# Each stream of a rising cell sends so many requests one after the other: a new one meets the others in full flow.
_WAVES = 2
_REQUEST_STREAMS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How far off a client may be and still be believed. On average: ``ttft_s``, the mean error of the time to the
    first token, and ``gap_share``, that of the mean gap between tokens as a share of it. Singly, up or down, so that
    errors that cancel are found too: the middle one and the 99th percentile of all first tokens, and of all gaps."""

    ttft_s: float
    gap_share: float
    ttft_off_p50_s: float
    ttft_off_p99_s: float
    gap_off_p50_s: float
    gap_off_p99_s: float


# A person who compares two settings at one or a few streams looks at differences of a millisecond and of a percent. On
# a quiet machine the 99th percentiles are 0.1 to 0.3 ms, the middle ones 0.01 to 0.1 ms.
BASIC_LIMITS = Limits(
    ttft_s=0.0003,
    gap_share=0.001,
    ttft_off_p50_s=0.0003,
    ttft_off_p99_s=0.001,
    gap_off_p50_s=0.0001,
    gap_off_p99_s=0.001,
)
# 5 ms late one time in a hundred is what the client lets pass before it calls itself limited. A middle gap may be off
# by a twentieth of it.
LOAD_LIMITS = Limits(
    ttft_s=0.001,
    gap_share=0.01,
    ttft_off_p50_s=0.001,
    ttft_off_p99_s=0.005,
    gap_off_p50_s=0.0005,
    gap_off_p99_s=0.005,
)
# A gap has two ends, each of which may be 5 ms late.
HIGH_LIMITS = Limits(
    ttft_s=0.005,
    gap_share=0.02,
    ttft_off_p50_s=0.005,
    ttft_off_p99_s=0.010,
    gap_off_p50_s=0.001,
    gap_off_p99_s=0.010,
)
_HIGH_ABOVE_PER_S = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """``streams`` at once send ``num_requests`` in all, each answered by ``tokens`` tokens at ``ttft_s`` and then every
    ``gap_s``. ``kind``: basic (the exit code hangs on it), rising (more and more tokens a second), requests (as many
    short answers as go through; has no limits)."""

    name: str
    kind: Literal["basic", "rising", "requests"]
    streams: int
    num_requests: int
    ttft_s: float
    gap_s: float
    tokens: int
    limits: Limits | None

    @property
    def offered_tokens_per_s(self) -> float | None:
        """Tokens per second that the schedule gives all streams together; None where it sets no pace."""
        answer_s = self.ttft_s + (self.tokens - 1) * self.gap_s
        return self.streams * self.tokens / answer_s if answer_s > 0 else None

    def request_id(self, number: int) -> str:
        """Of the request at that place in the load; the server writes it into its log and into its answer."""
        return f"{re.sub('[^a-z0-9]+', '-', self.name)}.{number}"

    def load(self) -> Load:
        """Its requests, as kvscope's client sends them. The server reads what is wanted of it in the message."""
        return Load(
            requests=tuple(self._request(number) for number in range(self.num_requests)), concurrency=self.streams
        )

    def _request(self, number: int) -> ChatRequest:
        wanted = f"id={self.request_id(number)} ttft_s={self.ttft_s:.9g} gap_s={self.gap_s:.9g} tokens={self.tokens}"
        message = Message(role="user", content=f"[truth {wanted}]")
        return ChatRequest(messages=(message,), max_output_tokens=self.tokens, timeout_s=60.0, stall_s=20.0)


def warm_up() -> Cell:
    """Runs before all others and is in no table: code is loaded, memory taken, the processor awake."""
    return _basic("warm-up", streams=8, waves=3)


def timed_cells(seconds: float) -> tuple[Cell, ...]:
    """The cells with a schedule, each of about ``seconds`` (the basic ones twice that)."""
    answer_s = _BASIC_TTFT_S + (_BASIC_TOKENS - 1) * _BASIC_GAP_S
    waves = max(2, round(2 * seconds / answer_s))
    basic = (_basic("1 stream", streams=1, waves=waves), _basic("8 streams", streams=8, waves=waves))
    return (*basic, *(_rising(rate, gap_s, seconds) for rate, gap_s in _RISING))


def requests_cell(num_requests: int, *, name: str = "requests") -> Cell:
    """Answers of one token at once, as many as are given: what one request costs."""
    return Cell(
        name=name,
        kind="requests",
        streams=_REQUEST_STREAMS,
        num_requests=num_requests,
        ttft_s=0.0,
        gap_s=0.0,
        tokens=1,
        limits=None,
    )


def _basic(name: str, *, streams: int, waves: int) -> Cell:
    return Cell(
        name=name,
        kind="basic",
        streams=streams,
        num_requests=streams * waves,
        ttft_s=_BASIC_TTFT_S,
        gap_s=_BASIC_GAP_S,
        tokens=_BASIC_TOKENS,
        limits=BASIC_LIMITS,
    )


def _rising(rate: int, gap_s: float, seconds: float) -> Cell:
    tokens = max(2, round((seconds / _WAVES - _TTFT_S) / gap_s))
    streams = round(rate * (_TTFT_S + (tokens - 1) * gap_s) / tokens)
    return Cell(
        name=f"{rate:,} tokens/s",
        kind="rising",
        streams=streams,
        num_requests=streams * _WAVES,
        ttft_s=_TTFT_S,
        gap_s=gap_s,
        tokens=tokens,
        limits=HIGH_LIMITS if rate > _HIGH_ABOVE_PER_S else LOAD_LIMITS,
    )
