"""Which positions of a sequence llama.cpp still has: all of them, a window's, or only the state after the last.

A window's cache is a ring of cells (src/llama-kv-cache.cpp: find_slot, apply_ubatch). A cell whose token no later one
will look at is given to a new token, so more than the window is there for a while: how much more depends on the number
of cells and on the sizes of the microbatches, which is why cells are followed one by one here. A recurrent state
(src/llama-memory-recurrent.cpp) has no past at all.
"""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Span:
    """Positions of one sequence, both ends included."""

    first: int
    last: int


class Memory(Protocol):
    """Positions by sequence. ``span`` None: nothing is there."""

    def span(self, sequence: int) -> Span | None: ...

    def append(self, sequence: int, position: int, num_tokens: int) -> None:
        """One microbatch of one sequence."""
        ...

    def remove_from(self, sequence: int, position: int) -> None: ...

    def saved(self, sequence: int) -> Span:
        """What a copy of the sequence made now would hold of the part that cannot be rolled back."""
        ...

    def restore(self, sequence: int, saved: Span) -> None: ...


class StateMemory:
    """Recurrent layers: the state after the last token."""

    def __init__(self) -> None:
        self._last: dict[int, int] = {}

    def span(self, sequence: int) -> Span | None:
        last = self._last.get(sequence, -1)
        return None if last < 0 else Span(last, last)

    def append(self, sequence: int, position: int, num_tokens: int) -> None:
        self._last[sequence] = position + num_tokens - 1

    def remove_from(self, sequence: int, position: int) -> None:
        if self._last.get(sequence, -1) >= position:
            self._last[sequence] = -1

    def saved(self, sequence: int) -> Span:
        return Span(self._last[sequence], self._last[sequence])

    def restore(self, sequence: int, saved: Span) -> None:
        self._last[sequence] = saved.last


class FullMemory:
    """Full attention: everything since the start."""

    def __init__(self) -> None:
        self._last: dict[int, int] = {}

    def span(self, sequence: int) -> Span | None:
        last = self._last.get(sequence, -1)
        return None if last < 0 else Span(0, last)

    def append(self, sequence: int, position: int, num_tokens: int) -> None:
        self._last[sequence] = position + num_tokens - 1

    def remove_from(self, sequence: int, position: int) -> None:
        self._last[sequence] = min(self._last.get(sequence, -1), position - 1)

    def saved(self, sequence: int) -> Span:
        return Span(0, self._last[sequence])

    def restore(self, sequence: int, saved: Span) -> None:
        self._last[sequence] = saved.last


_Cell = tuple[int, int]  # sequence, position


class _Ring:
    """The cells of one stream."""

    def __init__(self, num_cells: int, window: int) -> None:
        self.cells: list[_Cell | None] = [None] * num_cells
        self.window = window
        self.head = 0
        self.used = 0
        self.spans: dict[int, Span] = {}

    def place(self, sequence: int, position: int, num_tokens: int) -> None:
        """Give one microbatch its cells, and move the head behind them."""
        overwritten: dict[int, int] = {}
        indices = self._find(num_tokens)
        for offset, index in enumerate(indices):
            old = self.cells[index]
            if old is None:
                self.used += 1
            else:
                overwritten[old[0]] = max(old[1], overwritten.get(old[0], -1))
            self.cells[index] = (sequence, position + offset)
        span = self.spans.get(sequence)
        self.spans[sequence] = Span(span.first if span else position, position + num_tokens - 1)
        for other, highest in overwritten.items():
            # What is there of a sequence stays without a gap: what lies below an overwritten position goes too.
            self.remove(other, 0, highest)
        self.head = indices[-1] + 1

    def _find(self, num_tokens: int) -> list[int]:
        found: list[int] = []
        head = self.head
        if head > self.used + 2 * num_tokens:
            head = 0  # enough is free before it
        for _ in range(len(self.cells)):
            index = head if head < len(self.cells) else 0
            head = index + 1
            cell = self.cells[index]
            if cell is None or self.spans[cell[0]].last + 1 - cell[1] >= self.window:
                found.append(index)
                if len(found) == num_tokens:
                    return found
        raise AssertionError("a window's cache has cells for its windows and one microbatch")

    def remove(self, sequence: int, first: int, last: int) -> int | None:
        """Free the cells of these positions; the lowest index of them."""
        lowest = None
        for index, cell in enumerate(self.cells):
            if cell is not None and cell[0] == sequence and first <= cell[1] <= last:
                self.cells[index] = None
                self.used -= 1
                lowest = index if lowest is None else lowest
        span = self.spans.get(sequence)
        if span is not None:
            left = Span(max(span.first, last + 1), span.last) if first <= span.first else Span(span.first, first - 1)
            if left.first <= left.last:
                self.spans[sequence] = left
            else:
                del self.spans[sequence]
        if lowest is not None and lowest < self.head:
            self.head = lowest
        return lowest


_END = 1 << 60


class WindowMemory:
    """Sliding-window layers. ``streams``: 1 where all sequences share the cells."""

    def __init__(self, *, num_cells: int, window: int, streams: int) -> None:
        self._window = window
        self._rings = [_Ring(num_cells, window) for _ in range(streams)]

    def _ring(self, sequence: int) -> _Ring:
        return self._rings[sequence % len(self._rings)]

    def span(self, sequence: int) -> Span | None:
        return self._ring(sequence).spans.get(sequence)

    def append(self, sequence: int, position: int, num_tokens: int) -> None:
        self._ring(sequence).place(sequence, position, num_tokens)

    def remove_from(self, sequence: int, position: int) -> None:
        self._ring(sequence).remove(sequence, position, _END)

    def saved(self, sequence: int) -> Span:
        span = self.span(sequence)
        assert span is not None
        return Span(max(span.first, span.last - self._window + 1), span.last)

    def restore(self, sequence: int, saved: Span) -> None:
        ring = self._ring(sequence)
        ring.remove(sequence, 0, _END)
        ring.place(sequence, saved.first, saved.last - saved.first + 1)
