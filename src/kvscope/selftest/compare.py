"""The client's times held against the server's own log, answer by answer and token by token."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from kvscope.engine.base import Generation
from kvscope.selftest.result import Compared, Spread
from kvscope.selftest.sent import SentAnswer


@dataclass(slots=True)
class _Sums:
    ttft_error_s: list[float] = field(default_factory=list)
    gaps_seen_s: list[float] = field(default_factory=list)
    gaps_true_s: list[float] = field(default_factory=list)
    late_s: list[float] = field(default_factory=list)
    planned_s: float = 0.0
    tokens: int = 0
    coalesced: int = 0
    unmatched: int = 0

    def add(self, seen: Generation, sent: SentAnswer) -> None:
        times_s = [event.at_s for event in seen.events]
        self.ttft_error_s.append(times_s[0] - (sent.sent_s[0] - sent.asked_s))
        self.gaps_seen_s += gaps(times_s)
        self.gaps_true_s += gaps(sent.sent_s)
        last = len(sent.sent_s) - 1
        self.planned_s += (last - last % sent.group) * sent.gap_s
        self.tokens += len(times_s)
        self.coalesced += sum(max(0, read.num_events - 1) for read in seen.reads)


def compare(seen: Mapping[str, Generation], sent: Mapping[str, SentAnswer]) -> Compared:
    """Both by request id. An answer that only one side knows, or that is not the one which was sent, is unmatched."""
    sums = _Sums(unmatched=len(sent.keys() - seen.keys()))
    for name, generation in seen.items():
        answer = sent.get(name)
        if answer is None or not _is_same(generation, answer):
            sums.unmatched += 1
        else:
            sums.add(generation, answer)
    for answer in sent.values():
        sums.late_s += answer.late_s()
    seen_s, true_s = sum(sums.gaps_seen_s), sum(sums.gaps_true_s)
    off_s = [abs(mine - true) for mine, true in zip(sums.gaps_seen_s, sums.gaps_true_s, strict=True)]
    return Compared(
        answers=len(sums.ttft_error_s),
        tokens=sums.tokens,
        unmatched=sums.unmatched,
        ttft_error_s=spread(sums.ttft_error_s),
        ttft_off_s=spread(map(abs, sums.ttft_error_s)),
        gap_error_share=seen_s / true_s - 1 if true_s > 0 else None,
        gap_error_s=spread(off_s),
        gap_seen_s=spread(sums.gaps_seen_s),
        gap_true_s=spread(sums.gaps_true_s),
        coalesced_fraction=sums.coalesced / sums.tokens if sums.tokens else None,
        server_late_s=spread(sums.late_s),
        server_pace=sums.planned_s / true_s if true_s > 0 else None,
        server_blocked=sum(answer.blocked for answer in sent.values()),
        arrivals_known=all(answer.arrived_s is not None for answer in sent.values()),
    )


def gaps(times_s: Sequence[float]) -> list[float]:
    """From each to the next."""
    return [later - earlier for earlier, later in pairwise(times_s)]


def spread(values: Iterable[float]) -> Spread:
    """Percentiles by nearest rank: a value that was there, nothing between two."""
    ordered = sorted(values)
    if not ordered:
        return Spread(mean=None, p50=None, p99=None, max=None)
    return Spread(
        mean=math.fsum(ordered) / len(ordered), p50=_at(ordered, 0.50), p99=_at(ordered, 0.99), max=ordered[-1]
    )


def _at(ordered: Sequence[float], share: float) -> float:
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _is_same(seen: Generation, sent: SentAnswer) -> bool:
    """The first token's text is the request's id."""
    is_whole = sent.is_complete and len(seen.events) == len(sent.sent_s)
    return is_whole and bool(seen.events) and seen.events[0].text == sent.id
