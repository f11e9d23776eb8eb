"""The identity of memory at one moment: its terms, what is known of each component, and what stays unexplained."""

from collections.abc import Mapping
from dataclasses import dataclass

from kvscope.analysis.notes import Note
from kvscope.record.rows import MapRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One line of the identity. ``basis``: predicted (the size was predicted, the memory was seen), reported (the
    engine states the size, the memory was seen), rule (not seen, resident by the engine's rule), shared (at most so
    much: memory seen in a mapping that is larger than its known buffers, so that some of it may be something else),
    measured (seen, and predicted nowhere), calibrated (measured beforehand on another model, see ``calibrated_on``, and
    not seen apart from the rest here), counted (the allocator's own count, not seen), computed (the allocator's own
    count, no more of it than follows from the model's widths)."""

    slug: str
    backing: str
    num_bytes: int
    basis: str
    calibrated_on: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """What is in memory of a component. ``how``: seen, together (only the sum with others is seen; ``num_bytes`` is
    None and the note has the sum), at_most (only an upper bound is seen; ``num_bytes`` is None and the note has the
    bound), rule, unknown."""

    num_bytes: int | None
    how: str
    note: Note | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """The identity of one attempt at one moment. ``from_start`` is False where memory could not be read before the
    load: then the growth is all that the process holds. ``shared_growth_bytes``: memory shared with other processes
    (the kernel's RssShmem), of which no engine here is known to need any: no term covers it. ``leftovers`` are new
    anonymous mappings, kept one by one, in which no buffer was found: part of what is unexplained, and where to look
    for it."""

    phase: str
    request_index: int | None
    from_start: bool
    maps_read: bool
    anon_growth_bytes: int
    file_growth_bytes: int
    terms: tuple[Term, ...]
    residents: Mapping[str, Resident]
    leftovers: tuple[MapRow, ...] = ()
    shared_growth_bytes: int = 0

    def term_bytes(self, slug: str) -> int:
        """Sum of the terms of that name; 0 where the identity has none."""
        return sum(t.num_bytes for t in self.terms if t.slug == slug)

    def _of_basis(self, *bases: str) -> int:
        return sum(t.num_bytes for t in self.terms if t.basis in bases)

    @property
    def measured_bytes(self) -> int:
        """Terms that were seen and that nothing predicts: the engine's run time."""
        return self._of_basis("measured") - self.swapped_bytes

    @property
    def swapped_bytes(self) -> int:
        """What is swapped out: held, and not seen in any mapping."""
        return self.term_bytes("swapped")

    @property
    def seen_bytes(self) -> int:
        """Terms whose size was known before (predicted, or stated by the engine) and that were seen."""
        return self._of_basis("predicted", "reported")

    @property
    def rule_bytes(self) -> int:
        """Terms that were not seen: resident by the engine's rule."""
        return self._of_basis("rule")

    @property
    def calibrated_bytes(self) -> int:
        """Terms that were measured on another model beforehand."""
        return self._of_basis("calibrated")

    @property
    def counted_bytes(self) -> int:
        """What the allocator counts itself: blocks that were freed and that it keeps."""
        return self._of_basis("counted")

    @property
    def is_calibrated(self) -> bool:
        """Whether the engine's own memory is held against what was measured on a tiny model."""
        return any(t.basis == "calibrated" for t in self.terms)

    @property
    def shared_bytes(self) -> int:
        """Terms that are upper bounds: the resident rest of mappings that may hold other memory too."""
        return self._of_basis("shared")

    def is_upper_bound(self, *slugs: str) -> bool:
        """Whether a term of these names is only an upper bound."""
        return any(t.basis == "shared" and t.num_bytes for t in self.terms if t.slug in slugs)

    def _left(self, backing: str, growth: int) -> int:
        return growth - sum(t.num_bytes for t in self.terms if t.backing == backing)

    @property
    def growth_bytes(self) -> int:
        return self.anon_growth_bytes + self.file_growth_bytes + self.shared_growth_bytes

    @property
    def unexplained_anon_bytes(self) -> int:
        return self._left("anonymous", self.anon_growth_bytes)

    @property
    def unexplained_file_bytes(self) -> int:
        return self._left("file", self.file_growth_bytes)

    @property
    def unexplained_bytes(self) -> int:
        return self.unexplained_anon_bytes + self.unexplained_file_bytes + self.shared_growth_bytes

    @property
    def unexplained_share(self) -> float | None:
        """Share of the growth; the rests of the kinds count without sign, so that they cannot cancel."""
        if self.growth_bytes <= 0:
            return None
        rests = (self.unexplained_anon_bytes, self.unexplained_file_bytes, self.shared_growth_bytes)
        return sum(map(abs, rests)) / self.growth_bytes
