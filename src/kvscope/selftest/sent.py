"""What the truth server says that it sent, and when: its log, read."""

import json
from dataclasses import dataclass
from itertools import count

from kvscope.errors import EngineReplyError


@dataclass(frozen=True, slots=True, kw_only=True)
class SentAnswer:
    """One answer as the server sent it. Moments are seconds on its own monotonic clock. ``arrived_s``: when the
    request had come in, by the kernel's stamp; None where it gives none. ``received_s``: when the server had read it.
    ``sent_s``: just before each event was written. ``blocked``: writes that had to wait because nobody read."""

    id: str
    ttft_s: float
    gap_s: float
    group: int
    received_s: float
    arrived_s: float | None
    sent_s: tuple[float, ...]
    is_complete: bool
    blocked: int

    @property
    def asked_s(self) -> float:
        """When the request was at the server, whether it had been read yet or not."""
        return self.received_s if self.arrived_s is None else self.arrived_s

    def late_s(self) -> list[float]:
        """How late the server was with each event, against its own schedule."""
        begin_s = self.received_s + self.ttft_s
        return [at_s - begin_s - (k - k % self.group) * self.gap_s for k, at_s in zip(count(), self.sent_s)]


def read_sent(log: str) -> dict[str, SentAnswer]:
    """Id → answer, from the lines of a log. Raises EngineReplyError for what is no such log."""
    found = {}
    for line in log.splitlines():
        try:
            answer = _answer(json.loads(line))
        except (ValueError, KeyError, TypeError) as error:
            raise EngineReplyError(
                f"The truth server's log cannot be read: {line[:200]}",
                hint="Is it the log of a server of another release?",
                evidence={"known_by": "message"},
            ) from error
        found[answer.id] = answer
    return found


def _answer(line: dict[str, object]) -> SentAnswer:
    def number(name: str) -> float:
        return float(str(line[name]))

    sent_s = line["sent_s"]
    if not isinstance(sent_s, list):
        raise TypeError("sent_s")
    return SentAnswer(
        id=str(line["id"]),
        ttft_s=number("ttft_s"),
        gap_s=number("gap_s"),
        group=int(number("group")),
        received_s=number("received_s"),
        arrived_s=None if line["arrived_s"] is None else number("arrived_s"),
        sent_s=tuple(map(float, sent_s)),
        is_complete=line["complete"] is True,
        blocked=int(number("blocked")),
    )
