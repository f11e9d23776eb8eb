"""A calibration as it is written, in the cache folder or in a record: what of it can be taken, and why none was made.

Either file may be damaged, or come from somebody else. A number that is none, or that no engine can hold, would explain
memory that it knows nothing of; so all of a tiny model is taken, or nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kvscope.record.rows import DesignRow, Json, TrialResult

# Under which name an attempt's calibration is among what is recorded of our side.
RECORDED_AS = "calibration"
# In its place, where there is none: why.
NOT_CALIBRATED = "not_calibrated"
# Why there is none, as recorded: it was switched off, the engine is none that tiny models are run on, a server that ran
# already, a program of one's own; the tiny model did not run, or its memory was not read.
SWITCHED_OFF, OTHER_ENGINE, ATTACHED, OWN_COMMAND = "switched_off", "other_engine", "attached", "own_command"
NOT_RUN, NOT_READ = "tiny_model_not_run", "tiny_model_not_read"
REASONS = (SWITCHED_OFF, OTHER_ENGINE, ATTACHED, OWN_COMMAND, NOT_RUN, NOT_READ)
# Why there is none, as read: nothing was recorded, it cannot be taken, or it is of another engine or machine.
NOT_RECORDED, UNREADABLE, OF_ANOTHER = "not_recorded", "unreadable", "of_another_engine"

GIB = 1024**3
# What an engine can hold of its own. Below zero by as much as its allocator's count and the kernel's are apart.
LEAST_BYTES, MOST_BYTES = -64 * 1024**2, 64 * GIB
MOST_TOKENS = 2**24
MOST_PROMPTS = 64
MOST_TEXT = 400
_TEXTS = ("engine", "engine_version", "engine_build", "machine_id", "measured_at")
_COUNTS = ("version", "layers", "vocabulary_tokens")
_SIZES = ("kept_bytes", "stacks_bytes", "library_data_bytes", "library_code_bytes", "python_bytes")
_OF_DESIGN = ("engine", "engine_version", "engine_build", "machine_id")


def is_tiny_model(part: Json) -> bool:
    """Whether all that is written of one tiny model is of the kind and the size that it can be. A fact that is absent
    is none; a size that is absent was not read."""
    moments = part.get("moments") if isinstance(part, Mapping) else None
    if not isinstance(moments, Mapping):
        return False
    after = moments.get("after_request")
    if not isinstance(after, Sequence) or isinstance(after, str) or not 1 <= len(after) <= MOST_PROMPTS:
        return False
    lengths = [row.get("prompt_tokens") if isinstance(row, Mapping) else None for row in after]
    if not all(_is_between(each, 1, MOST_TOKENS) for each in lengths) or len(set(lengths)) < len(lengths):
        return False
    texts = (part.get(name) for name in _TEXTS)
    counts = (part.get(name) for name in _COUNTS)
    return (
        all(_is_own_memory(row) for row in (moments.get("loaded"), *after))
        and all(text is None or (isinstance(text, str) and len(text) <= MOST_TEXT) for text in texts)
        and all(count is None or _is_between(count, 1, MOST_TOKENS) for count in counts)
    )


def _is_own_memory(sizes: Json) -> bool:
    if not isinstance(sizes, Mapping) or not _is_between(sizes.get("own_bytes"), LEAST_BYTES, MOST_BYTES):
        return False
    others = [sizes.get(name) for name in _SIZES]
    return all(size is None or _is_between(size, -MOST_BYTES, MOST_BYTES) for size in others)


def _is_between(value: Json, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def why_not_calibrated(result: TrialResult) -> str:
    """Of an attempt without a calibration that can be taken: the reason that is recorded, else what is wrong."""
    recorded = result.trial.client.get(RECORDED_AS)
    if recorded is None:
        return NOT_RECORDED
    reason = recorded.get(NOT_CALIBRATED) if isinstance(recorded, Mapping) else None
    return reason if isinstance(reason, str) and reason in (*REASONS, OF_ANOTHER) else UNREADABLE


def of_its_design(result: TrialResult, design: DesignRow) -> TrialResult:
    """The attempt, without its calibration where that is of another engine, build or machine than its design's."""
    recorded = result.trial.client.get(RECORDED_AS)
    parts = [recorded.get(name) for name in ("fixed", "vocabulary")] if isinstance(recorded, Mapping) else []
    stated = [part for part in parts if isinstance(part, Mapping)]
    if all(part.get(name) in (None, getattr(design, name)) for part in stated for name in _OF_DESIGN):
        return result
    client = {**result.trial.client, RECORDED_AS: {NOT_CALIBRATED: OF_ANOTHER}}
    return replace(result, trial=replace(result.trial, client=client))
