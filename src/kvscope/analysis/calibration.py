"""What an engine holds besides a model's weights, caches and buffers, measured beforehand on a tiny model.

    engine's own memory = growth of the process's anonymous memory − buffers − stacks − written pages of libraries
                          − what its allocator keeps

of a tiny model (the engine's fixed run time), and of a tiny model that has the vocabulary and the number of layers of
the measured one (what its vocabulary and its tables take on top). Both were measured in other processes than the one
that is explained: neither is what is left there.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kvscope.record.rows import Json, MarkRow, TrialResult

# Under which name an attempt's calibration is among what is recorded of our side.
RECORDED_AS = "calibration"
FIXED, VOCABULARY = "tiny_model", "tiny_model_same_vocabulary"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnMemory:
    """Of one tiny model at one moment, in bytes above the start: the engine's own memory (see the module), and kinds
    of memory that every trial sees for itself, to compare. ``kept``: by the allocator's own count, None: not stated."""

    own: int
    kept: int | None
    stacks: int
    library_data: int
    library_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Moment → what a tiny model held then. ``vocabulary`` is of the one with the model's own vocabulary; empty where
    there is none. ``facts``: on what, when and where it was measured, as recorded."""

    fixed: Mapping[str, OwnMemory]
    vocabulary: Mapping[str, OwnMemory]
    facts: Mapping[str, Json]

    def fixed_bytes(self, phase: str) -> int | None:
        """The engine's fixed run time at a moment; None where that moment was not measured."""
        found = self.fixed.get(phase)
        return None if found is None else found.own

    def vocabulary_bytes(self, phase: str) -> int | None:
        """What the vocabulary and the layers' tables take beyond it; None where it was not measured."""
        fixed, found = self.fixed.get(phase), self.vocabulary.get(phase)
        return None if fixed is None or found is None else found.own - fixed.own


def calibration_of(result: TrialResult) -> Calibration | None:
    """The calibration that was recorded with an attempt; None where there is none, or it cannot be read."""
    recorded = result.trial.client.get(RECORDED_AS)
    if not isinstance(recorded, Mapping):
        return None
    fixed = _moments(recorded.get("fixed"))
    if not fixed:
        return None
    return Calibration(fixed=fixed, vocabulary=_moments(recorded.get("vocabulary")), facts=recorded)


def _moments(part: Json) -> dict[str, OwnMemory]:
    stated = part.get("moments") if isinstance(part, Mapping) else None
    if not isinstance(stated, Mapping):
        return {}
    found = {}
    for phase, sizes in stated.items():
        if isinstance(sizes, Mapping) and isinstance(sizes.get("own_bytes"), int):
            found[str(phase)] = OwnMemory(
                own=int(sizes["own_bytes"]),
                kept=sizes.get("kept_bytes"),
                stacks=int(sizes.get("stacks_bytes") or 0),
                library_data=int(sizes.get("library_data_bytes") or 0),
                library_code=int(sizes.get("library_code_bytes") or 0),
            )
    return found


def calibrated_phase(phase: str) -> str:
    """The moment of a calibration that a trial's moment is held against: those after requests are like one another."""
    return "loaded" if phase == "loaded" else "after_request"


def counted(result: TrialResult, mark: MarkRow, *names: str) -> int | None:
    """Sum of the engine's own counters at a mark; None where it does not state them all."""
    stated = {
        row.name: row.value
        for row in result.statistics
        if row.phase == mark.phase and row.request_index == mark.request_index
    }
    return round(sum(stated[name] for name in names)) if all(name in stated for name in names) else None


def kept_growth(result: TrialResult, start: MarkRow | None, mark: MarkRow) -> int | None:
    """By how much the allocator's own count of what it was given back and keeps grew between two marks."""
    if start is None:
        return None
    before, now = (counted(result, each, "heap_free_bytes") for each in (start, mark))
    return None if before is None or now is None else now - before
