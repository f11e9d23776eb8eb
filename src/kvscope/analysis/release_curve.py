"""What memory did from one conversation to the next: stood still, grew, or neither clearly.

Two curves of an attempt: the processes' own memory (anonymous, swapped out included) and what they hold on devices. The
first conversation is a curve's start and no step of it: it touches buffers for the first time, as the warm-up does.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from kvscope.analysis.fit import Estimate, fit_line
from kvscope.analysis.notes import note
from kvscope.analysis.prompt_copies import host_cache_bytes, stated_checkpoints
from kvscope.record.metrics import held_bytes, last_mark
from kvscope.record.rows import SAME_AGAIN, MarkRow, TrialResult
from kvscope.units import MIB

# What a conversation may add without it being called growth: heap and thread stacks move by some hundred KiB.
GROWTH_STEP_BYTES = MIB // 2
# So much a curve that stands still may move, each reading being off by a step either way.
STILL_BYTES = 2 * GROWTH_STEP_BYTES
# What the last readings of a curve that has ended may rise by: real ones moved by 0.03 MiB (llama.cpp, a full cache).
FLAT_RISE_BYTES = STILL_BYTES // 4
FLAT_SHARE = 0.25
# From so many on, an end is known by fewer than a third of the readings.
MANY_CONVERSATIONS = 12
# A claim about several conversations needs two steps, and so three of them.
FEWEST_CONVERSATIONS = 3
HOST, DEVICE = "host", "device"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Memory after one of several conversations. ``host_cache_bytes`` is what the engine's log states, or None;
    ``checkpoint_bytes`` the context checkpoints it states. ``is_same_text``: it sent the text before it once more.
    ``number``: which of the attempt's conversations it is, from 0."""

    request_index: int
    held_bytes: int
    host_cache_bytes: int | None
    active_requests: int | None
    checkpoint_bytes: int = 0
    is_same_text: bool = False
    number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Bytes held at each moment of an attempt, on ``place``: host or device. None where it was not read."""

    place: str
    launched_bytes: int | None
    loaded_bytes: int | None
    conversations: tuple[Conversation, ...]
    cleared_bytes: int | None
    unloaded_bytes: int | None
    exited_bytes: int | None

    @property
    def different(self) -> tuple[Conversation, ...]:
        """The conversations of different texts."""
        return tuple(c for c in self.conversations if not c.is_same_text)

    @property
    def same(self) -> tuple[Conversation, ...]:
        """The last of them and its repetitions; nothing where it was not repeated."""
        again = tuple(c for c in self.conversations if c.is_same_text)
        return (*self.different[-1:], *again) if again else ()

    @property
    def last_bytes(self) -> int | None:
        return self.conversations[-1].held_bytes if self.conversations else self.loaded_bytes

    @property
    def added_bytes(self) -> int | None:
        """What the engine had added since its start, after the last conversation."""
        if self.last_bytes is None or self.launched_bytes is None:
            return None
        return self.last_bytes - self.launched_bytes

    @property
    def kept_bytes(self) -> int | None:
        """What stays over the start after the engine's own release."""
        if self.unloaded_bytes is None or self.launched_bytes is None:
            return None
        return self.unloaded_bytes - self.launched_bytes

    @property
    def grown_bytes(self) -> int | None:
        """From the first conversation to the last."""
        if len(self.conversations) < 2:
            return None
        return self.conversations[-1].held_bytes - self.conversations[0].held_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """``kind``: still, growing, unclear (it moved, and not steadily), too_few. ``slope``: bytes from one conversation
    to the next: of the part that grows, the first reading left out; of the end where it stands still."""

    kind: str
    slope: Estimate


def read_curves(result: TrialResult) -> tuple[Curve, ...]:
    """The host's curve, and the devices' where any conversation has a reading of them."""
    curves = [_curve(result, HOST)]
    marks = [m for m in result.marks if m.phase == "after_request"]
    if any(m.device_bytes is not None for m in marks):
        curves.append(_curve(result, DEVICE))
    return tuple(curves)


def _curve(result: TrialResult, place: str) -> Curve:
    roles = {request.index: request.role for request in result.requests}
    conversations = []
    for number, mark in enumerate(m for m in result.marks if m.phase == "after_request"):
        held = _held(mark, place)
        if held is None:
            continue  # one reading of a device that failed: the others still say what it did
        index = mark.request_index
        conversations.append(
            Conversation(
                request_index=number if index is None else index,
                number=number,
                held_bytes=held,
                host_cache_bytes=host_cache_bytes(result, index) if place == HOST else None,
                active_requests=mark.active_requests,
                checkpoint_bytes=sum(b.num_bytes for b in stated_checkpoints(result, index)) if place == HOST else 0,
                is_same_text=index is not None and roles.get(index) == SAME_AGAIN,
            )
        )
    return Curve(
        place=place,
        launched_bytes=_held(last_mark(result, "launched"), place),
        loaded_bytes=_held(last_mark(result, "loaded"), place),
        conversations=tuple(conversations),
        cleared_bytes=_held(last_mark(result, "cache_cleared"), place),
        unloaded_bytes=_held(last_mark(result, "unloaded"), place),
        exited_bytes=_held(last_mark(result, "exited"), place),
    )


def _held(mark: MarkRow | None, place: str) -> int | None:
    """At ``exited`` there is no process left, so that none of them holds anything on a device."""
    if mark is None:
        return None
    if place == HOST:
        return held_bytes(mark)
    return 0 if mark.phase == "exited" and mark.device_bytes is None else mark.device_bytes


def trend_of(levels: Sequence[int], at: Sequence[int] = ()) -> Trend:
    """What a curve does, by its end. ``at``: the number of each reading, where some are missing.

    It stands still if the later half of its steps moves by no more than noise, or if it has ended: its last readings,
    three and a third of all, do not rise, and it was never flat for as long before. It grows if it has not ended, and
    its later half rises beyond noise, with no single step in it that makes all of the rise, above everything before it,
    and steadily: either most steps rise and none falls, or the slope's 95 % interval lies above zero.
    """
    numbers = list(at) or list(range(len(levels)))
    count = len(levels) - 1
    if len(levels) < FEWEST_CONVERSATIONS:
        return Trend(kind="too_few", slope=_slope(levels, numbers))
    last = 1 + max(2, (count + 1) // 2)
    if max(levels[-last:]) - min(levels[-last:]) <= STILL_BYTES:
        return Trend(kind="still", slope=_slope(levels[-last:], numbers[-last:]))
    flat = _flat_end(levels)
    before = _longest_flat(levels[:-flat])
    if _has_ended(len(levels), flat, before):
        # Below where it has been, or as flat before, it may only be between two steps.
        if flat > before and min(levels[-flat:]) >= max(levels[:-flat]) - STILL_BYTES:
            return Trend(kind="still", slope=_slope(levels[-flat:], numbers[-flat:]))
        kind = "unclear"
    else:
        kind = "growing" if _grows(levels, max(min(3, count), (count + 1) // 2)) else "unclear"
    part = growing_part(levels)
    return Trend(kind=kind, slope=_slope(levels[part], numbers[part]))


def growing_part(levels: Sequence[int]) -> slice:
    """Where a curve grows: without its first reading, and without what is flat at its start and at its end for three
    readings or more. All but the first where fewer than three would be left."""
    start = _flat_end([-level for level in reversed(levels)])
    end = _flat_end(levels)
    first = start - 1 if start >= FEWEST_CONVERSATIONS else 1
    last = len(levels) - end + 1 if end >= FEWEST_CONVERSATIONS else len(levels)
    return slice(first, last) if last - first >= FEWEST_CONVERSATIONS else slice(1, None)


def _flat_end(levels: Sequence[int]) -> int:
    """How many of the last readings lie within noise of each other and do not rise, or by far less than as many steps
    before them."""
    low = high = levels[-1]
    flat = 1
    for number in range(2, len(levels) + 1):
        low, high = min(low, levels[-number]), max(high, levels[-number])
        if high - low > STILL_BYTES:
            break
        rise = levels[-1] - levels[-number]
        earlier = levels[-number] - levels[1 - 2 * number] if 2 * number - 1 <= len(levels) else 0
        if rise <= max(FLAT_RISE_BYTES, FLAT_SHARE * earlier):
            flat = number
    return flat


def _longest_flat(levels: Sequence[int]) -> int:
    return max((_flat_end(levels[:end]) for end in range(1, len(levels) + 1)), default=0)


def _has_ended(count: int, flat: int, before: int) -> bool:
    """Of many readings fewer than a third do, if they are twice as many as were ever flat before."""
    third = -(-count // 3)
    if count > MANY_CONVERSATIONS:
        return flat >= max(FEWEST_CONVERSATIONS + 1, min(third, 2 * before))
    return flat >= max(FEWEST_CONVERSATIONS, third)


def _grows(levels: Sequence[int], num_steps: int) -> bool:
    before, end = levels[:-num_steps], levels[-1 - num_steps :]
    steps = [after - earlier for earlier, after in itertools.pairwise(end)]
    rise = end[-1] - end[0]
    if rise <= STILL_BYTES or rise - max(steps) <= STILL_BYTES or max(end) - max(before) <= STILL_BYTES:
        return False
    rising = sum(step > GROWTH_STEP_BYTES for step in steps)
    if 2 * rising > len(steps) and min(steps) >= -GROWTH_STEP_BYTES:
        return True
    low = _slope(end, range(len(end))).low
    return low is not None and low > 0


def _slope(levels: Sequence[int], numbers: Sequence[int]) -> Estimate:
    if len(levels) < 2:
        return Estimate(value=None, num=len(levels), reason=note("one_conversation"))
    points = zip(numbers, levels, strict=True)
    return fit_line([(float(number), float(level)) for number, level in points]).slope
