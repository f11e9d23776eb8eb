"""The memory that the fake engine says it holds, as its law has it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvscope.engine.fake_law import FakeLaw
from kvscope.errors import ProbeLost

_IN_HEAP = ("process", "fixed", "kept", "leaked")


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeMapping:
    """One mapping of the fake process, with the fields of ``kvscope.probe.base.MemoryMapping``."""

    kind: str
    name: str
    size_bytes: int
    resident_bytes: int
    anonymous_bytes: int
    count: int = 1


@dataclass(slots=True)
class FakeMemory:
    """What the fake process holds. A probe of itself: the engine's ``memory_probe``."""

    law: FakeLaw
    name: str = "fake engine"
    running: bool = False
    loaded: bool = False
    noise_bytes: int = 0
    kept_bytes: int = 0
    computed_tokens: int = 0
    num_requests: int = 0
    copies: list[int] = field(default_factory=list)
    peak_bytes: int = 0

    def unavailable(self) -> str | None:
        """None: it can always be read."""
        return None

    def parts(self) -> dict[str, int]:
        """Anonymous bytes by part."""
        if not self.running:
            return {}
        leaked = self.law.leak_bytes * self.num_requests
        if not self.loaded:
            return {"process": self.law.process_bytes, "kept": self.kept_bytes, "leaked": leaked}
        filled = min(self.computed_tokens, self.law.n_ubatch)
        return {
            "process": self.law.process_bytes,
            "fixed": max(0, self.law.fixed_bytes + self.noise_bytes + self._heap_noise()),
            "leaked": leaked,
            "kv_cache": self.law.bytes_per_token * self.law.n_ctx,
            "compute_buffer": self.law.compute_bytes * filled // self.law.n_ubatch,
            "host_cache": sum(self.copies),
        }

    def read(self) -> Mapping[str, int]:
        """Bytes now. Raises ProbeLost when the fake process has ended."""
        if not self.running:
            raise ProbeLost("The fake engine is not running.", hint="Launch it first.")
        self.note_peak()
        swapped = self._swapped_bytes()
        return {
            "anon_bytes": sum(self.parts().values()) - swapped,
            "swap_bytes": swapped,
            "file_bytes": self._file_bytes(),
            "shmem_bytes": 0,
            "peak_bytes": self.peak_bytes,
        }

    def note_peak(self) -> None:
        self.peak_bytes = max(self.peak_bytes, sum(self.parts().values()) + self._file_bytes())

    def reset_peak(self) -> str | None:
        """Start a new peak here."""
        self.peak_bytes = 0
        self.note_peak()
        return None

    def maps(self) -> tuple[FakeMapping, ...]:
        """One mapping per part, and the model's file."""
        if not self.running:
            raise ProbeLost("The fake engine is not running.", hint="Launch it first.")
        held = self.parts()
        sizes = {**held, "compute_buffer": self.law.compute_bytes} if self.loaded else held
        if self.loaded:
            held["kv_cache"] -= self._swapped_bytes()
        found = [
            FakeMapping(
                kind="heap" if part in _IN_HEAP else "anonymous",
                name="",
                size_bytes=size,
                resident_bytes=held[part],
                anonymous_bytes=held[part],
            )
            for part, size in sizes.items()
            if size
        ]
        if self.loaded:
            size = self.law.weights_bytes
            found.append(
                FakeMapping(kind="file", name="fake.gguf", size_bytes=size, resident_bytes=size, anonymous_bytes=0)
            )
        return tuple(found)

    def _heap_noise(self) -> int:
        return self.law.noise().heap_bytes(self.noise_bytes, self.num_requests)

    def _swapped_bytes(self) -> int:
        if not self.loaded or self.num_requests < self.law.swaps_at_request:
            return 0
        return min(self.law.swapped_bytes, self.law.bytes_per_token * self.law.n_ctx)

    def _file_bytes(self) -> int:
        return self.law.weights_bytes if self.loaded else 0
