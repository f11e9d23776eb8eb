"""What a probe must do: readings of memory, each with its time, and the reason when there is none."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """``quantity`` ends in its unit (anon_bytes). ``late_s``: how long after its due moment it was taken."""

    probe: str
    quantity: str
    at_s: float
    value_bytes: int
    late_s: float


class Probe(Protocol):
    name: str

    def unavailable(self) -> str | None:
        """None when it works here, otherwise why not, in words for a person."""
        ...

    def read(self) -> Mapping[str, int]:
        """Quantity → value now. Raises ProbeLost when what is watched has gone."""
        ...
