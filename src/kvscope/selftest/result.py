"""What the self-test found, as it is shown and printed as JSON (``kvscope.selftest/1``)."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

SCHEMA = "kvscope.selftest/1"
# Why a row is not to be believed, most telling first; the report has the words.
FAILED, UNMATCHED, TTFT, TTFT_SINGLE, GAPS, GAPS_SINGLE, LIMITED, SERVER_BEHIND = (
    "failed",
    "unmatched",
    "ttft",
    "ttft_single",
    "gaps",
    "gaps_single",
    "client_limited",
    "server_behind",
)
_OFF = frozenset((TTFT, TTFT_SINGLE, GAPS, GAPS_SINGLE))
# An idle machine gives the client its processor at once, and wakes the server within some 20 µs.
_DISTURBED_SHARE, _DISTURBED_LATE_S = 0.01, 0.0005


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Of several values: their mean, the middle one, and the one that 99 % of them do not pass. None of no values."""

    mean: float | None
    p50: float | None
    p99: float | None
    max: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What the client said, held against what the server sent. Times in seconds.

    ``ttft_error_s``: the client's time to the first token less the true one, request by request; ``ttft_off_s``: how
    far off each was, up or down. ``gap_error_share``: the mean gap that the client saw ÷ the true mean gap − 1.
    ``gap_error_s``: how far off each gap was, up or down.
    ``gap_seen_s`` and ``gap_true_s``: the gaps themselves. ``server_late_s``: how late the server was against its
    schedule; ``server_pace``: its schedule's time between first and last tokens ÷ the time it took; ``server_blocked``:
    its writes that had to wait until the client read. ``arrivals_known``: it knows by the kernel's stamps when each
    request came in; otherwise a request that it read late counts as if it had been sent late. ``unmatched``: answers
    that the other side does not know, or has with another text or number of tokens. ``coalesced_fraction``: tokens that
    the client found in one read with the token before, of all; the server sent each alone."""

    answers: int
    tokens: int
    unmatched: int
    ttft_error_s: Spread
    ttft_off_s: Spread
    gap_error_share: float | None
    gap_error_s: Spread
    gap_seen_s: Spread
    gap_true_s: Spread
    coalesced_fraction: float | None
    server_late_s: Spread
    server_pace: float | None
    server_blocked: int
    arrivals_known: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One cell, as it went. ``limits``: see ``cells.Limits``; None: not judged. ``failed``: requests that ended in an
    error, ``first_error`` the first of them. ``cpu_s``: of the client's process. ``waited_share``: how much of the time
    the client was ready to run and had no processor; None where the system does not say. ``why_not``: why it is not to
    be believed; empty: within the limits. ``limited_by``: the client's own limits that it passed in this cell;
    ``limited_answers``: those that say so of themselves. ``tries``: a basic cell that others disturbed is run again;
    ``unmarked_tries``: so many of those before were off, and not client_limited."""

    cell: str
    kind: str
    streams: int
    requests: int
    offered_tokens_per_s: float | None
    wall_s: float
    failed: int
    first_error: str | None
    compared: Compared
    cpu_s: float
    waited_share: float | None
    loop_lag_p99_s: float | None
    limited_by: tuple[str, ...]
    limited_answers: int
    limits: Mapping[str, float] | None
    why_not: tuple[str, ...]
    tries: int = 1
    unmarked_tries: int = 0

    @property
    def is_unmarked(self) -> bool:
        """Whether its times are off and its client did not say so: in a record, nothing would warn of it."""
        return LIMITED not in self.why_not and not _OFF.isdisjoint(self.why_not)

    @property
    def is_disturbed(self) -> bool:
        """Whether other programs took the processors meanwhile: the client waited for one; or the server, which has
        little to do in a basic cell, was late against its schedule."""
        late_s = self.compared.server_late_s.p99 if self.kind == "basic" else None
        return (self.waited_share or 0.0) > _DISTURBED_SHARE or (late_s or 0.0) > _DISTURBED_LATE_S

    @property
    def tokens_per_s(self) -> float:
        """Tokens that the client got, a second of the whole cell."""
        return self.compared.tokens / self.wall_s

    def to_dict(self) -> dict[str, Any]:
        """One of ``rows``."""
        compared = asdict(self.compared)
        own = {name: value for name, value in asdict(self).items() if name != "compared"}
        return {
            **own,
            "limited_by": list(self.limited_by),
            "why_not": list(self.why_not),
            **compared,
            "tokens_per_s": self.tokens_per_s,
            "requests_per_s": self.compared.answers / self.wall_s,
            "cpu_s_per_1000_tokens": _per(self.cpu_s * 1000, self.compared.tokens),
            "cpu_s_per_request": _per(self.cpu_s, self.compared.answers),
            "client_limited": bool(self.limited_by),
            "within": not self.why_not,
            "disturbed": self.is_disturbed,
            "unmarked": self.is_unmarked,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """``kind``: native or python, ``why``: the reason for Python. ``core``: the processor it was kept on, and
    ``client_cores`` those that were left to the client; None and ``why_not_apart`` where they were not kept apart."""

    kind: str
    why: str | None
    core: int | None
    client_cores: tuple[int, ...] | None
    why_not_apart: str | None
    kernel_stamps: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Selftest:
    """The whole table. ``believed_up_to_tokens_per_s``: of the rising cells, the highest that was within its limits and
    not client_limited, with all below it; None: not even the lowest. ``believed_up_to_cell``: its name."""

    rows: tuple[Row, ...]
    server: ServerFacts
    machine: Mapping[str, Any]
    seconds: float

    @property
    def basic_within(self) -> bool:
        """Whether one stream and few are within the limits: what the exit code says."""
        return all(not row.why_not for row in self.rows if row.kind == "basic")

    def believed(self) -> Row | None:
        """The last rising cell before the first that is not to be believed."""
        last = None
        for row in self.rows:
            if row.kind != "rising":
                continue
            if row.why_not:
                return last
            last = row
        return last

    def to_dict(self) -> dict[str, Any]:
        """As ``kvscope selftest --json`` prints it."""
        believed = self.believed()
        server = asdict(self.server)
        return {
            "schema": SCHEMA,
            "machine": dict(self.machine),
            "server": {
                **server,
                "client_cores": None if self.server.client_cores is None else [*self.server.client_cores],
            },
            "rows": [row.to_dict() for row in self.rows],
            "basic_within": self.basic_within,
            "believed_up_to_cell": None if believed is None else believed.cell,
            "believed_up_to_tokens_per_s": None if believed is None else believed.tokens_per_s,
            "requests_per_s": next((r.compared.answers / r.wall_s for r in self.rows if r.kind == "requests"), None),
            "seconds": self.seconds,
        }


def _per(value: float, number: int) -> float | None:
    return value / number if number else None
