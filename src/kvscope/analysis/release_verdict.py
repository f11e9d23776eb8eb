"""One curve of memory becomes one of four verdicts, with its bound or its reason."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from kvscope.analysis.attribute import Attribution
from kvscope.analysis.fit import Estimate, scaled
from kvscope.analysis.notes import Note, note
from kvscope.analysis.release_bounds import (
    CHECKPOINTS,
    HOST_CACHE,
    PLATEAU,
    PROMPT_COPIES,
    Bound,
    checkpoint_bound,
    dearer_share,
    host_cache_limit,
    keep_alive_bound,
    kept_bounds,
    rest_without_copies,
    rest_without_kept,
)
from kvscope.analysis.release_curve import (
    FEWEST_CONVERSATIONS,
    GROWTH_STEP_BYTES,
    HOST,
    MANY_CONVERSATIONS,
    STILL_BYTES,
    Conversation,
    Curve,
    Trend,
    trend_of,
)
from kvscope.record.rows import TrialResult
from kvscope.units import MIB

RELEASED, RETAINED, GROWING, CANNOT_TELL = "released", "retained_bounded", "growing", "cannot_tell"
UNKNOWN = "unknown"  # the cause of growth that nothing accounts for
# Of two curves the verdict that asks for more attention counts.
_ATTENTION = (RELEASED, RETAINED, CANNOT_TELL, GROWING)
# Memory counts as back when what stays is at most this share of what had been added, or 1 MiB; and never more than 64.
BACK_SHARE = 0.05
BACK_LEAST_BYTES = MIB
BACK_MOST_BYTES = 64 * MIB
# How close growth for each token must be to the cache's own bytes, to be called copies of prompts.
COPY_SHARE = 0.05
# How much dearer than the log states copies may be, and still be what memory grows by. llama.cpp b9860 with Gemma 3 and
# two slots: 3.00 MiB for each copy of 2.306, 4.82 for each of 4.139.
DEARER_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """As the fields of ``release.Release``, for one curve."""

    verdict: str
    place: str
    slope: Estimate
    cause: str = "none"
    reason: Note | None = None
    released_at: str | None = None
    bounds: tuple[Bound, ...] = ()
    same_slope: Estimate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PerToken:
    """Growth in bytes for each token of a conversation, beside what the cache takes for one by prediction."""

    growth: Estimate
    tokens_per_conversation: float
    predicted_bytes: float | None

    @property
    def is_as_predicted(self) -> bool:
        """Whether growth is the cache's own bytes for each token, to 5 %."""
        value = self.growth.value
        if value is None or self.predicted_bytes is None:
            return False
        return abs(value / self.predicted_bytes - 1) <= COPY_SHARE


def worst(judged: Sequence[Judgement]) -> Judgement:
    """The verdict that asks for the most attention; of equals the first, which is the host's, and a release that only
    the end of the process showed before one that was seen. A device that stood still and was not read after a release
    takes nothing from what the host says of growth."""
    host, *others = judged
    if host.verdict in (RETAINED, GROWING):
        others = [each for each in others if each.reason is None or each.reason.slug != "release_not_read"]
    return max([host, *others], key=lambda each: (_ATTENTION.index(each.verdict), each.released_at == "exit"))


def unread(was_answered: bool) -> Judgement:
    """Memory was not read after any conversation: why, as far as it is known."""
    nothing = Estimate(value=None, reason=note("nothing_measured"))
    slug = "release_no_probe" if was_answered else "release_no_request"
    return Judgement(verdict=CANNOT_TELL, place=HOST, slope=nothing, reason=note(slug))


def per_token(result: TrialResult, judgement: Judgement, predicted: float | None) -> PerToken | None:
    """The slope for each token that a conversation held: its prompt and every output token that was fed back. None
    where the counts are not known or nothing grew."""
    if judgement.cause == "none":
        return None
    return _per_token(result, judgement.slope, predicted)


def _per_token(result: TrialResult, slope: Estimate, predicted: float | None) -> PerToken | None:
    """By the server's count of prompts. Where that is not ours, one of the two is wrong, and it is not known which: by
    ours, if that makes growth the cache's own bytes for each token."""
    found = [
        PerToken(growth=scaled(slope, 1 / tokens), tokens_per_conversation=tokens, predicted_bytes=predicted)
        for is_ours in (False, True)
        if slope.value is not None and (tokens := _mean_tokens(result, is_ours=is_ours)) is not None
    ]
    return next((each for each in found if each.is_as_predicted), found[0] if found else None)


def _mean_tokens(result: TrialResult, *, is_ours: bool) -> float | None:
    counts = [
        prompt + max(0, request.output_tokens - 1)
        for request in result.requests
        if request.role == "measured" and request.output_tokens is not None
        if (prompt := request.prompt_tokens_ours if is_ours else request.prompt_tokens_server)
    ]
    return fmean(counts) if counts else None


def judge_curve(result: TrialResult, curve: Curve, predicted: float | None, left: Attribution | None) -> Judgement:
    """The verdict of one curve. ``predicted``: bytes that one token takes in the cache. ``left``: of what the memory
    after the engine's own release is made."""
    trend = _trend(curve.different)
    same = _trend_of_same(curve)
    judge = _Judge(result, curve, trend, same, predicted)
    active = [c.active_requests for c in curve.conversations if c.active_requests]
    if active:
        return judge.cannot_tell("release_requests_active", count=max(active))
    over = judge.over_limit()
    if over is not None:
        return over
    if same is not None and same.kind == "growing":
        return judge.says(GROWING, cause=UNKNOWN)
    if trend.kind in ("growing", "unclear") and judge.is_full():
        return judge.full(left)
    if trend.kind == "growing":
        return judge.growth()
    if same is not None and same.kind == "unclear":
        return judge.unclear()
    if trend.kind == "unclear":
        return judge.unsteady()
    return judge.at_rest(left)


def _trend(conversations: Sequence[Conversation]) -> Trend:
    return trend_of([c.held_bytes for c in conversations], [c.number for c in conversations])


def _trend_of_same(curve: Curve) -> Trend | None:
    """What the same text again did, less what the log says is a copy of it; the slope is of all that is held."""
    if not curve.same:
        return None
    held = _trend(curve.same)
    rest = rest_without_copies(curve.same)
    return held if rest is None else Trend(kind=trend_of(rest).kind, slope=held.slope)


class _Judge:
    def __init__(
        self, result: TrialResult, curve: Curve, trend: Trend, same: Trend | None, predicted: float | None
    ) -> None:
        self.result, self.curve, self.trend, self.same, self.predicted = result, curve, trend, same, predicted

    def says(
        self, verdict: str, *, cause: str = "none", bounds: tuple[Bound, ...] = (), reason: Note | None = None,
        released_at: str | None = None,
    ) -> Judgement:  # fmt: skip
        return Judgement(
            verdict=verdict,
            place=self.curve.place,
            slope=self.trend.slope,
            cause=cause,
            reason=reason,
            released_at=released_at,
            bounds=bounds,
            same_slope=None if self.same is None else self.same.slope,
        )

    def cannot_tell(self, slug: str, **values: object) -> Judgement:
        return self.says(CANNOT_TELL, reason=note(slug, **values))

    def unclear(self) -> Judgement:
        count = len(self.curve.different)
        more = max(MANY_CONVERSATIONS, 2 * count)
        return self.cannot_tell("release_noise", conversations=len(self.curve.conversations), more=more)

    def over_limit(self) -> Judgement | None:
        """A host prompt cache that grows and holds more than its limit, or has none: it keeps one copy however large
        that is, so that the limit is no bound."""
        stated = [c.host_cache_bytes for c in self.curve.conversations if c.host_cache_bytes]
        if not stated or self.trend.kind != "growing":
            return None
        limit = host_cache_limit(self.result)
        over = limit.num_bytes is not None and stated[-1] > limit.num_bytes
        if not over and not limit.is_unlimited:
            return None
        return self.says(
            GROWING,
            cause=HOST_CACHE,
            bounds=(Bound(holder=HOST_CACHE, held_bytes=stated[-1], limit_bytes=limit.num_bytes),),
        )

    def is_full(self) -> bool:
        """Whether the log says that the host prompt cache took its last text in place of an older one: it did not grow,
        and what is left of its limit is less than one copy. Nor did memory."""
        stated = [c.host_cache_bytes for c in self.curve.different]
        limit = host_cache_limit(self.result).num_bytes
        if limit is None or self._explained()[0] != HOST_CACHE:
            return False
        steps = [now - before for before, now in pairwise(stated) if now is not None and before is not None]
        last = self.curve.different[-1].held_bytes - self.curve.different[-2].held_bytes
        if not steps or steps[-1] > 0 or last > GROWTH_STEP_BYTES:
            return False
        return limit - max(steps) < (stated[-1] or 0) <= limit

    def full(self, left: Attribution | None) -> Judgement:
        """Bounded by what it holds; the slope is that of the last conversation, which took another's place."""
        self.trend = _trend(self.curve.different[-2:])
        return self.says(RETAINED, bounds=(*self._stays(), *kept_bounds(self.result, self.curve, left)))

    def growth(self) -> Judgement:
        """It grows. Bounded where the engine's log, or the bytes for each token, say by what, and a limit is known."""
        conversations = self.curve.different
        rests = [rest for rest in (rest_without_copies(conversations), rest_without_kept(conversations)) if rest]
        kinds = [trend_of(rest).kind for rest in rests]
        if "unclear" in kinds and "still" not in kinds and not self._dearer():
            # Less what the log accounts for, it moved, and not steadily.
            return self.unclear()
        cause, bound = self._explained()
        bounds = () if bound is None else (bound,)
        if bound is None or bound.limit_bytes is None or (bound.held_bytes or 0) > bound.limit_bytes + STILL_BYTES:
            return self.says(GROWING, cause=cause, bounds=bounds)
        return self.says(RETAINED, cause=cause, bounds=bounds)

    def unsteady(self) -> Judgement:
        """It moved, and not steadily: that may be what the engine says it keeps, which fills up, is dropped and
        replaced. Otherwise nothing can be told."""
        cause, bound = self._explained()
        is_within = bound is not None and bound.limit_bytes is not None and (bound.held_bytes or 0) <= bound.limit_bytes
        if cause in (HOST_CACHE, CHECKPOINTS) and bound is not None and is_within:
            return self.says(RETAINED, cause=cause, bounds=(bound,))
        return self.unclear()

    def _explained(self) -> tuple[str, Bound | None]:
        conversations, last = self.curve.different, self.curve.conversations[-1]
        limit = host_cache_limit(self.result).num_bytes
        copies, kept = rest_without_copies(conversations), rest_without_kept(conversations)
        if copies is not None and (trend_of(copies).kind == "still" or self._dearer()):
            return HOST_CACHE, Bound(holder=HOST_CACHE, held_bytes=last.host_cache_bytes, limit_bytes=limit)
        if kept is not None and trend_of(kept).kind == "still":
            return CHECKPOINTS, checkpoint_bound(self.result, last)
        each = _per_token(self.result, self.trend.slope, self.predicted)
        # Without a prediction the texts tell: different ones add, the same one again does not.
        by_text = self.same is not None and self.same.kind == "still" and (each is None or each.predicted_bytes is None)
        if copies is None and (by_text or (each is not None and each.is_as_predicted)):
            return PROMPT_COPIES, Bound(holder=PROMPT_COPIES, held_bytes=self.curve.grown_bytes, limit_bytes=limit)
        return UNKNOWN, None

    def _dearer(self) -> bool:
        """Whether memory follows the copies that the log states, each by the same share dearer than stated, and the
        same text again, of which there is no copy to make, adds nothing."""
        if self.same is None or self.same.kind != "still":
            return False
        conversations = self.curve.different
        share = dearer_share(conversations)
        if share is None or not 0 < share <= DEARER_SHARE:
            return False
        rest = [c.held_bytes - (1 + share) * (c.host_cache_bytes or 0) for c in conversations[1:]]
        return max(rest) - min(rest) <= STILL_BYTES

    def at_rest(self, left: Attribution | None) -> Judgement:
        """It did not grow, or there were too few conversations to tell: did it come back?"""
        curve = self.curve
        is_still = self.trend.kind == "still"
        if curve.launched_bytes is not None and curve.unloaded_bytes is not None:
            if curve.unloaded_bytes - curve.launched_bytes <= back_bytes(curve):
                return self.says(RELEASED, released_at="unload")
            if is_still:
                return self.says(RETAINED, bounds=(*self._stays(), *kept_bounds(self.result, curve, left)))
            return self._too_few()
        if curve.unloaded_bytes is None and curve.exited_bytes is not None:
            if curve.exited_bytes <= back_bytes(curve):
                return self.says(RELEASED, released_at="exit")
            return self.cannot_tell("release_left_after_exit", left_bytes=curve.exited_bytes)
        if curve.unloaded_bytes is not None:
            return self.cannot_tell("release_no_baseline")
        if not is_still:
            return self._too_few()
        stays = self._stays()
        if stays:
            return self.says(RETAINED, bounds=stays)
        return self.cannot_tell("release_not_read", conversations=len(curve.conversations))

    def _stays(self) -> tuple[Bound, ...]:
        """Who keeps memory while the model is loaded, of a curve that stands still: the host prompt cache, as far as it
        is filled; the model itself, for as long as the server keeps it; or somebody who has stopped adding to it."""
        found = []
        copies = [c.host_cache_bytes for c in self.curve.conversations if c.host_cache_bytes]
        if copies:
            limit = host_cache_limit(self.result).num_bytes
            found.append(Bound(holder=HOST_CACHE, held_bytes=copies[-1], limit_bytes=limit))
        if self.curve.unloaded_bytes is None:
            stays = keep_alive_bound(self.result, self.curve)
            found += [stays] if stays is not None else []
            grown = self.curve.grown_bytes or 0
            if not found and grown > STILL_BYTES:
                found.append(Bound(holder=PLATEAU, held_bytes=grown))
        return tuple(found)

    def _too_few(self) -> Judgement:
        count = len(self.curve.different)
        slug = "release_one_conversation" if count == 1 else "release_too_few"
        return self.cannot_tell(slug, conversations=count, fewest=FEWEST_CONVERSATIONS)


def back_bytes(curve: Curve) -> float:
    """How much may stay of what had been added, and still count as nothing."""
    added = curve.added_bytes
    share = 0.0 if added is None else BACK_SHARE * added
    return min(max(share, BACK_LEAST_BYTES), BACK_MOST_BYTES)
