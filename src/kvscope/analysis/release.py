"""Did the memory come back? A verdict from the growth between conversations and from what stays after the release.

released          it came back: at the engine's own release, or when its process ended (``released_at``)
retained_bounded  it stays, and something says up to where: a limit, a stay, or that the last rounds added nothing
growing           it grows with conversations, and nothing says where that ends
cannot_tell       with the reason
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.attribute import Attribution, attribute
from kvscope.analysis.fit import Estimate
from kvscope.analysis.notes import Note
from kvscope.analysis.prompt_copies import (
    copies_after_clearing,
    copies_carry_checkpoints,
    stated_checkpoints,
    stated_copies,
)
from kvscope.analysis.release_bounds import Bound, dearer_share, host_cache_limit
from kvscope.analysis.release_curve import GROWTH_STEP_BYTES, Conversation, Curve, read_curves
from kvscope.analysis.release_verdict import (
    CANNOT_TELL,
    GROWING,
    RELEASED,
    UNKNOWN,
    Judgement,
    PerToken,
    judge_curve,
    per_token,
    unread,
    worst,
)
from kvscope.record.metrics import last_mark
from kvscope.record.rows import Json, MarkRow, TrialResult
from kvscope.units import MIB

STEPS = ("after_request", "after_quality", "cache_cleared", "unloaded", "exited")
# So far apart the engine's own word on its cache and the prediction are two numbers, not one that was rounded.
STATED_APART_SHARE = 0.01
# Of these failures the process has ended, so that its memory is a question of their exit alone.
ENDED_OUTCOMES = ("engine_died", "out_of_memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of the release. ``given_back_bytes``: less than at the step before; None where one of the two was not
    read. ``remains``: of what the host's memory is made then, over the start, heaps as places at every step alike.
    ``stated``: what the engine says that its copies of prompts and its cache hold then, whether they were found in
    memory or not; without a name it says nothing of."""

    phase: str
    held_bytes: int | None
    given_back_bytes: int | None
    device_bytes: int | None
    remains: Attribution | None
    stated: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """``verdict``: released, retained_bounded, growing or cannot_tell (``reason``). ``released_at``: unload or exit.
    ``cause`` of growth: host_cache, checkpoints (the engine's log accounts for it), prompt_copies (it is as much for
    each token as the cache takes), unknown; none where it did not grow. ``step`` is the slope of the part that grows,
    in bytes from one conversation to the next, the first left out (of the end where it stands still). ``left`` tells of
    what the memory after the engine's own release is made. The sizes are the host's; ``device`` is the same curve of
    what was held on devices."""

    attempt_key: str
    factor: str
    level: Json
    verdict: str
    cause: str
    reason: Note | None
    released_at: str | None
    bounds: tuple[Bound, ...]
    host: Curve
    device: Curve | None
    judged_place: str
    step: Estimate
    same_text_step: Estimate | None
    per_token: PerToken | None
    host_cache_limit_bytes: int | None
    steps: tuple[Step, ...]
    left: Attribution | None
    copies_carry_checkpoints: bool = False

    @property
    def grows_again(self) -> bool:
        """The same text again adds, and different texts add less: the growth is of the repetition."""
        again, step = self.same_text_step, self.step.value
        if self.verdict != GROWING or self.cause != UNKNOWN or again is None or again.value is None or step is None:
            return False
        return step <= GROWTH_STEP_BYTES < again.value

    @property
    def copies_share(self) -> float:
        """By what share memory grew by more than the copies that the log states; 0 where it does not state them."""
        return dearer_share(self.host.different) or 0.0

    @property
    def judged(self) -> Curve:
        """The curve that the verdict is of."""
        return self.device if self.judged_place == "device" and self.device is not None else self.host

    @property
    def conversations(self) -> tuple[Conversation, ...]:
        return self.judged.conversations

    @property
    def launched_bytes(self) -> int | None:
        return self.judged.launched_bytes

    @property
    def loaded_bytes(self) -> int | None:
        return self.judged.loaded_bytes

    @property
    def unloaded_bytes(self) -> int | None:
        return self.judged.unloaded_bytes

    @property
    def exited_bytes(self) -> int | None:
        return self.judged.exited_bytes

    @property
    def last_bytes(self) -> int | None:
        return self.judged.last_bytes

    @property
    def added_bytes(self) -> int | None:
        """What the engine had added since its start, after the last conversation."""
        return self.judged.added_bytes

    @property
    def kept_bytes(self) -> int | None:
        """What stays over the start after the engine's own release."""
        return self.judged.kept_bytes

    @property
    def grown_bytes(self) -> int | None:
        """From the first conversation to the last."""
        return self.judged.grown_bytes


def judge_release(attempt: Attempt) -> Release | None:
    """The verdict of one attempt. None where the attempt says nothing of a release: it failed and its engine was not
    seen to end, or memory was not read in a design that does not ask for it."""
    result = attempt.result
    curves = read_curves(result)
    left = attribute(result, attempt.prediction, "unloaded")
    if not attempt.is_measured:
        ended = attempt.trial.role == "measured" and attempt.trial.outcome in ENDED_OUTCOMES
        if not ended or curves[0].exited_bytes is None:
            return None
        judged = [judge_curve(result, curve, None, left) for curve in curves]
        if any(judgement.verdict != RELEASED for judgement in judged):
            return None
    elif not curves[0].conversations:
        if attempt.design.name != "release":
            return None
        judged = [unread(attempt.measured_requests != ())]
    else:
        judged = [judge_curve(result, curve, _predicted_bytes_per_token(attempt), left) for curve in curves]
    return _release(attempt, curves, worst(judged), left)


def _release(attempt: Attempt, curves: tuple[Curve, ...], judgement: Judgement, left: Attribution | None) -> Release:
    device = curves[1] if len(curves) > 1 else None
    return Release(
        attempt_key=attempt.key,
        factor=attempt.design.factor,
        level=attempt.trial.level,
        verdict=judgement.verdict,
        cause=judgement.cause,
        reason=judgement.reason if judgement.verdict == CANNOT_TELL else None,
        released_at=judgement.released_at,
        bounds=judgement.bounds,
        host=curves[0],
        device=device,
        judged_place=judgement.place,
        step=judgement.slope,
        same_text_step=judgement.same_slope,
        per_token=per_token(attempt.result, judgement, _predicted_bytes_per_token(attempt)),
        host_cache_limit_bytes=host_cache_limit(attempt.result).num_bytes,
        steps=_steps(attempt, device),
        left=left,
        copies_carry_checkpoints=copies_carry_checkpoints(attempt.result),
    )


def _predicted_bytes_per_token(attempt: Attempt) -> float | None:
    """What one token takes in the cache: as the engine states its own cache where it has one of a single kind, whose
    cells hold a token each; else as predicted."""
    stated = [row for row in attempt.result.reported if row.component == "kv_cache" and row.phase == "loaded"]
    growth: Mapping[str, Json] = (attempt.prediction or {}).get("growth") or {}
    value = growth.get("bytes_per_token")
    if value and len(stated) == 1 and stated[0].cells:
        by_engine = float(stated[0].printed_mib) * MIB / stated[0].cells
        if abs(by_engine / float(value) - 1) > STATED_APART_SHARE:
            return by_engine
    if value is None:  # a server that does not state its context: what the model's shapes say
        value = attempt.trial.client.get("cache_bytes_per_token")
    return float(value) if isinstance(value, int | float) and value > 0 else None


def _steps(attempt: Attempt, device: Curve | None) -> tuple[Step, ...]:
    steps: list[Step] = []
    result: TrialResult = attempt.result
    for phase in STEPS:
        mark = last_mark(result, phase)
        if mark is None:
            continue
        held = mark.anon_bytes + mark.swap_bytes
        before = steps[-1].held_bytes if steps else None
        has_maps = phase not in ("exited", "after_quality")
        remains = attribute(result, attempt.prediction, phase, is_by_place=True) if has_maps else None
        steps.append(
            Step(
                phase=phase,
                held_bytes=held,
                given_back_bytes=None if before is None else before - held,
                device_bytes=None if device is None else mark.device_bytes,
                remains=remains,
                stated=_stated(result, mark),
            )
        )
    return tuple(steps)


def _stated(result: TrialResult, mark: MarkRow) -> Mapping[str, int]:
    stated = {}
    copies = copies_after_clearing(result) if mark.phase == "cache_cleared" else []
    if mark.phase == "after_request":
        copies = [*stated_copies(result, mark.request_index), *stated_checkpoints(result, mark.request_index)]
    if copies:
        stated["copies"] = sum(copy.num_bytes for copy in copies)
    cache = [
        row.value
        for row in result.statistics
        if (row.name, row.phase, row.request_index) == ("cache_storage_bytes", mark.phase, mark.request_index)
    ]
    if cache and str(result.effective.get("device", "cpu")).startswith("cpu"):
        stated["kv_cache"] = round(cache[-1])
    return stated
