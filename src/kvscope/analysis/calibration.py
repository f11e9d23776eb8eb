"""What an engine holds besides a model's weights, caches and buffers, measured beforehand on a tiny model.

    engine's own memory = growth of the process's anonymous memory − buffers − stacks − written pages of libraries
                          − what its allocator keeps

of a tiny model (the engine's fixed run time), and of a tiny model that has the vocabulary and the number of layers of
the measured one (what its vocabulary and its tables take on top). Both were measured in other processes than the one
that is explained: neither is what is left there.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from kvscope.analysis.calibration_record import RECORDED_AS, is_tiny_model
from kvscope.record.rows import QUALITY, Json, MarkRow, TrialResult

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
    python: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyModel:
    """What one tiny model held: after the load, and after one prompt of each of some lengths (in tokens, rising)."""

    loaded: OwnMemory
    after: tuple[tuple[int, OwnMemory], ...]
    facts: Mapping[str, Json]

    def own_bytes(self, phase: str, prompt_tokens: int | None) -> int:
        """The engine's own memory at a moment; after a request, by the length of its prompt: in proportion between two
        that were measured, and as at the nearest outside of them. None: as after the shortest."""
        if phase == "loaded":
            return self.loaded.own
        lengths = [(tokens, each.own) for tokens, each in self.after]
        wanted = lengths[0][0] if prompt_tokens is None else prompt_tokens
        for (low, before), (high, now) in pairwise(lengths):
            if low <= wanted <= high:
                return round(before + (now - before) * (wanted - low) / (high - low))
        return lengths[0][1] if wanted <= lengths[0][0] else lengths[-1][1]

    def at(self, phase: str, prompt_tokens: int | None) -> OwnMemory:
        """What was measured at the nearest moment."""
        if phase == "loaded":
            return self.loaded
        return min(self.after, key=lambda pair: abs(pair[0] - (prompt_tokens or 0)))[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """``fixed``: of the tiny model. ``vocabulary``: of the one with the vocabulary and the number of layers of the
    measured model; None where there is none."""

    fixed: TinyModel
    vocabulary: TinyModel | None

    def fixed_bytes(self, phase: str, prompt_tokens: int | None) -> int:
        """The engine's fixed run time at a moment."""
        return self.fixed.own_bytes(phase, prompt_tokens)

    def vocabulary_bytes(self, phase: str, prompt_tokens: int | None) -> int | None:
        """What the vocabulary and the layers' tables take beyond it; None where it was not measured."""
        if self.vocabulary is None:
            return None
        return self.vocabulary.own_bytes(phase, prompt_tokens) - self.fixed_bytes(phase, prompt_tokens)


def calibration_of(result: TrialResult) -> Calibration | None:
    """The calibration that was recorded with an attempt; None where there is none, or not all of it can be taken."""
    recorded = result.trial.client.get(RECORDED_AS)
    if not isinstance(recorded, Mapping):
        return None
    fixed, vocabulary = tiny_model(recorded.get("fixed")), tiny_model(recorded.get("vocabulary"))
    if fixed is None or (vocabulary is None and recorded.get("vocabulary") is not None):
        return None
    return Calibration(fixed=fixed, vocabulary=vocabulary)


def tiny_model(part: Json) -> TinyModel | None:
    """What was kept of one tiny model; None where that is nothing a release writes."""
    if not is_tiny_model(part):
        return None
    after = [(row["prompt_tokens"], _own_memory(row)) for row in part["moments"]["after_request"]]
    loaded = _own_memory(part["moments"]["loaded"])
    return TinyModel(loaded=loaded, after=tuple(sorted(after, key=lambda pair: pair[0])), facts=part)


def _own_memory(sizes: Mapping[str, Json]) -> OwnMemory:
    return OwnMemory(
        own=sizes["own_bytes"],
        kept=sizes.get("kept_bytes"),
        stacks=sizes.get("stacks_bytes") or 0,
        library_data=sizes.get("library_data_bytes") or 0,
        library_code=sizes.get("library_code_bytes") or 0,
        python=sizes.get("python_bytes"),
    )


def longest_prompt(result: TrialResult, mark: MarkRow) -> int | None:
    """Tokens of the longest prompt that was answered before a mark, by the engine's count or else by ours."""
    counts = [
        request.prompt_tokens_server or request.prompt_tokens_ours
        for request in result.requests
        if request.role != QUALITY and (mark.request_index is None or request.index <= mark.request_index)
    ]
    return max((count for count in counts if count is not None), default=None)


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
