"""What each further conversation left in the host prompt cache, against the KV bytes of its tokens, and where it
stopped.

Three numbers for one copy: the KV bytes of its tokens by prediction; its size by the engine's log; and the memory that
each further conversation added, as measured. llama.cpp writes a place and a sequence (12 bytes) beside each token's
keys and values, and a few bytes for each layer: that much more a copy may be.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.finding import Finding
from kvscope.analysis.fit import Estimate, mean
from kvscope.analysis.levels import at_level
from kvscope.analysis.price import TokenPrice, token_price
from kvscope.analysis.release_bounds import host_cache_limit
from kvscope.record.metrics import held_bytes
from kvscope.record.rows import DesignRow, Json, ReportedBufferRow
from kvscope.units import MIB

_COPY = re.compile(r"- prompt 0x[0-9a-f]+: +(\d+) tokens, checkpoints: +(\d+), +([\d.]+) MiB")
# What llama.cpp may write into a copy beside keys and values: at most so much for each token and for all of it.
_BESIDE_TOKEN_BYTES = 16
_BESIDE_BYTES = 8192
# Two conversations that differ by less than this in memory have added nothing: an allocator's own steps.
_STILL_BYTES = MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """One line of the engine's list of copies. ``printed_mib`` keeps its digits."""

    tokens: int
    checkpoints: int
    printed_mib: str

    @property
    def num_bytes(self) -> float:
        return float(self.printed_mib) * MIB

    def exceeds_by(self, price: TokenPrice) -> float:
        """Bytes by the log beyond the KV bytes of its tokens."""
        return self.num_bytes - price.bytes_at(self.tokens)

    def is_predicted(self, price: TokenPrice) -> bool:
        """Whether it is the KV bytes of its tokens and what is written beside them, to the last digit of the log."""
        digit = MIB / 2 / 10.0 ** len(self.printed_mib.partition(".")[2])
        return -digit <= self.exceeds_by(price) <= digit + _BESIDE_TOKEN_BYTES * self.tokens + _BESIDE_BYTES


def claims(design: DesignRow, attempts: Sequence[Attempt]) -> tuple[Finding, ...]:
    """One finding for each level, and one where copies are not the bytes predicted."""
    found = []
    for level in design.levels:
        measured = [a for a in at_level(attempts, level) if a.is_measured]
        if measured:
            found += _of_level(design, level, measured)
    return tuple(found)


def _of_level(design: DesignRow, level: Json, measured: Sequence[Attempt]) -> list[Finding]:
    last = measured[-1]
    copies, price = listed_copies(last), token_price(last.prediction)
    limit = host_cache_limit(last.result).num_bytes
    is_full = 0 < len(copies) < len(last.measured_requests) - 1
    growth = growth_of(measured, last_half=is_full)
    values = {
        "factor": design.factor,
        "level": level,
        "conversations": len(last.measured_requests),
        "copies": len(copies),
        "held_bytes": round(sum(copy.num_bytes for copy in copies)),
        "limit_bytes": limit,
        "growth_bytes": growth.value,
        **_of_copies(copies, price),
    }
    keys = tuple(a.key for a in measured)
    slug = _slug(copies, price, limit, growth, len(last.measured_requests))
    if slug is None:
        return []
    return [
        Finding(
            slug=f"host_cache_{slug}",
            is_contradiction=slug in ("differs", "over_limit"),
            values=values,
            evidence=keys,
            size=growth,
            also_possible=("checkpoints_in_copies",) if any(c.checkpoints for c in copies) else (),
            how_to_check="engine_lines",
        )
    ]


def _slug(
    copies: Sequence[Copy], price: TokenPrice | None, limit: int | None, growth: Estimate, conversations: int
) -> str | None:
    if not copies:
        return "none_kept" if limit == 0 else "nothing_listed" if growth.value is not None else None
    held = sum(copy.num_bytes for copy in copies)
    if limit is not None and held > limit and len(copies) > 1:
        return "over_limit"
    if price is None:
        return "listed_only"
    plain = [copy for copy in copies if not copy.checkpoints]
    if any(not copy.is_predicted(price) for copy in plain):
        return "differs"
    # The last conversation is in the engine's own cache: a copy more than the others is of the warm-up request.
    if len(copies) < conversations - 1:
        return "bounded"
    if not plain:
        return "with_checkpoints"
    return "as_predicted" if len(copies) < conversations else "as_predicted_with_warmup"


def _of_copies(copies: Sequence[Copy], price: TokenPrice | None) -> dict[str, object]:
    """Of the largest copy: what it is, and what it should be."""
    if not copies:
        return {"tokens": None, "copy_bytes": None, "kv_bytes": None, "beside_bytes": None}
    copy = max(copies, key=lambda each: each.tokens)
    return {
        "tokens": copy.tokens,
        "copy_bytes": round(copy.num_bytes),
        "kv_bytes": None if price is None else price.bytes_at(copy.tokens),
        "beside_bytes": None if price is None else copy.exceeds_by(price) / copy.tokens,
    }


def listed_copies(attempt: Attempt) -> list[Copy]:
    """The copies that the engine listed after the last conversation."""
    last = attempt.measured_requests[-1].index if attempt.measured_requests else None
    rows = [r for r in attempt.result.reported if r.component == "host_cache" and r.request_index == last]
    return _copies(rows[-1]) if rows else []


def _copies(row: ReportedBufferRow) -> list[Copy]:
    return [
        Copy(tokens=int(tokens), checkpoints=int(count), printed_mib=mib)
        for tokens, count, mib in _COPY.findall(row.line)
    ]


def growth_of(attempts: Sequence[Attempt], *, last_half: bool = False) -> Estimate:
    """Memory that each further conversation added, in bytes: of each attempt the middle step from the second
    conversation on (the first touches buffers), of the last half of them alone where the copies have come to their
    limit; over several attempts their mean with its interval, of one the mean of its steps."""
    all_steps = [found for attempt in attempts if (found := _steps(attempt))]
    steps = [each[len(each) // 2 :] if last_half else each for each in all_steps]
    if len(steps) == 1:
        return mean(steps[0])
    return mean([median(each) for each in steps])


def _steps(attempt: Attempt) -> list[float]:
    """From the second conversation to the third, and so on."""
    wanted = [request.index for request in attempt.measured_requests]
    held = {m.request_index: held_bytes(m) for m in attempt.result.marks if m.phase == "after_request"}
    sizes = [held[index] for index in wanted[1:] if index in held]
    return [float(after - before) for before, after in pairwise(sizes)]
