"""llama.cpp's server: the longest common prefix with what one of its slots holds, less what its cache forgot.

Two requests, the second alone, are played on ``LlamaCppSlots``. Only lengths are known, so ids stand in for the tokens:
the same for what is common, others for the rest.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kvscope.model.spec import ModelSpec
from kvscope.prompt.reuse_engines.base import Reusable, ReuseQuestion, SentPrompt, Status
from kvscope.prompt.reuse_engines.llama_cpp_settings import SOURCE, not_followed, slot_settings, status_of
from kvscope.prompt.reuse_engines.llama_cpp_slots import LlamaCppSlots, Played, SlotSettings
from kvscope.prompt.reuse_engines.llama_cpp_slots import common_prefix as common_prefix
from kvscope.scenario import SettingValue

_CHANGED, _APPENDED = -1, -2
ASSUMED = (
    "What the model wrote is not stated. Its answer is taken to be what the history has; if it wrote or was cut "
    "otherwise, the number is another. Of two requests, state it: --answer FILE."
)


def reusable(question: ReuseQuestion) -> Reusable:
    """The second prompt's tokens that are not computed again. Raises UsageError for a setting that is none."""
    settings = slot_settings(question.model, question.settings)
    reason = not_followed(question.model, question.settings)
    if reason is None and settings.forgets and question.first_prompt_tokens is None:
        reason = "it depends on where the first prompt ended and its answer began, which is not stated"
    if reason is not None:
        return Reusable(tokens=None, status="unknown", because=reason, source=SOURCE)
    first = question.held_tokens if question.first_prompt_tokens is None else question.first_prompt_tokens
    held = list(range(question.held_tokens))
    common = min(question.common_prefix_tokens, question.held_tokens)
    prompt = held[:common] + [_CHANGED] * (question.prompt_tokens - common)
    slots = LlamaCppSlots(settings)
    slots.play(held[:first], [*held[first:], _APPENDED], user_starts=question.user_starts or ())
    played = slots.play(prompt, [_APPENDED], reuse=settings.cache_prompt)
    certainty = _certainty(settings, question.model, question.engine_version, question.user_starts)
    return _answer(certainty, settings, played, question.prompt_tokens)


def reused_in_order(
    prompts: Sequence[SentPrompt],
    *,
    engine_version: str | None,
    model: ModelSpec | None,
    settings: Mapping[str, SettingValue],
) -> list[Reusable]:
    """What each of several prompts reuses, sent one after the other to a server that has just been started. Raises
    UsageError for a setting that is none."""
    effective = slot_settings(model, settings)
    reason = not_followed(model, settings)
    if reason is not None:
        return [Reusable(tokens=None, status="unknown", because=reason, source=SOURCE) for _ in prompts]
    slots = LlamaCppSlots(effective)
    certainty: tuple[Status, str] = "exact", ""
    doubts: list[str] = []
    found = []
    for each in prompts:
        reuse = effective.cache_prompt if each.reuse is None else each.reuse
        played = slots.play(
            each.ids,
            each.answer_ids,
            user_starts=each.user_starts or (),
            reuse=reuse,
            slot_number=each.slot,
            fits=each.fits,
            is_answer_sure=each.is_answer_sure,
        )
        if certainty[0] == "exact":
            certainty = _certainty(effective, model, engine_version, each.user_starts)
        if each.doubt is not None:
            doubts.append(each.doubt)
        notes = (*dict.fromkeys(doubts), *(() if played.is_sure else (ASSUMED,)))
        answer = _answer(certainty, replace(effective, cache_prompt=reuse), played, len(each.ids))
        found.append(with_notes(answer, notes))
    return found


def with_notes(answer: Reusable, notes: tuple[str, ...]) -> Reusable:
    """``answer``, which is not exact where there are notes."""
    status = "estimated" if notes and answer.status == "exact" else answer.status
    return replace(answer, status=status, notes=notes)


def _certainty(
    settings: SlotSettings, model: ModelSpec | None, version: str | None, user_starts: tuple[int, ...] | None
) -> tuple[Status, str]:
    status, doubt = status_of(model, version)
    if status == "exact" and settings.forgets and user_starts is None:
        return "estimated", "; where users' messages start is not stated, and checkpoints are made there"
    return status, doubt


def _answer(certainty: tuple[Status, str], settings: SlotSettings, played: Played, prompt_tokens: int) -> Reusable:
    status, doubt = certainty
    if played.from_copy and status == "exact":
        status, doubt = "estimated", "; it is a copy in the cache of prompts, if that was not full (cache_ram_mib)"
    least = int(settings.slot_prompt_similarity * prompt_tokens) + 1 if settings.n_parallel > 1 else 1
    return Reusable(
        tokens=played.cached,
        status=status,
        because=_because(settings, played, prompt_tokens) + doubt,
        source=SOURCE,
        minimum_prefix_tokens=least,
    )


def _because(settings: SlotSettings, played: Played, prompt_tokens: int) -> str:
    common = played.common
    if not settings.cache_prompt:
        return "cache_prompt is off"
    if common == 0:
        if settings.n_parallel > 1:
            return (
                f"no slot holds more than {settings.slot_prompt_similarity:.0%} of the prompt, so an empty one is used"
            )
        return "the slot holds no prompt that begins with the same token"
    same = f"the first {common:,} tokens are the same as what the slot holds"
    if played.checkpoint is not None:
        kept = "recurrent state" if settings.is_recurrent else "sliding-window cache"
        return f"{same}, but the {kept} can only go back to the checkpoint at token {played.checkpoint:,}"
    if played.was_reset and settings.is_recurrent:
        return f"{same}, but a recurrent state cannot go back, and no checkpoint was made before that point"
    if played.was_reset and settings.forgets:
        return (
            f"{same}, but no checkpoint was made before that point, and the sliding-window cache may have lost "
            f"some of the {settings.window_tokens} tokens before it"
        )
    if common == prompt_tokens:
        return "the whole prompt is held; its last token is computed again, for the answer to begin"
    return same
