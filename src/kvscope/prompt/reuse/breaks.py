"""Finds what broke a common beginning: each difference between two requests is taken back, and the two are rendered
again. The one that makes the beginning longer is the cause; with it mended, the next one is looked for."""

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvscope.errors import ChatTemplateError
from kvscope.prompt.conversation import RETRIEVED
from kvscope.prompt.counting.request_spans import HISTORY, TEMPLATE, TOOLS, part_of_message
from kvscope.prompt.prompt_text import PromptIds
from kvscope.prompt.reuse.advice import ADVICE
from kvscope.prompt.reuse.changes import PICTURES_CHANGED, Change, changes_between
from kvscope.prompt.reuse.places import Place, Places
from kvscope.prompt.reuse.render import Pair, Renderer, answer_index
from kvscope.prompt.reuse.template import template_change, unthinking_change
from kvscope.prompt.reuse.text_changes import common_length

_MOST_BREAKS = 7
_EXCERPT = 48  # characters on each side of a break


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """Where a common beginning ends and why. ``token``: how many tokens are the same before it. ``place``: in the
    second request; in the first where only that one has a text there. ``first`` and ``second``: what stands in each.
    ``before``, ``behind_first``, ``behind_second``: excerpts of the prompts around the place."""

    slug: str
    what: str
    token: int
    place: Place
    first: str
    second: str
    before: str
    behind_first: str
    behind_second: str

    def to_dict(self) -> dict[str, Any]:
        """As it stands in the JSON."""
        return {
            "broken_by": self.slug,
            "broken_at": {**self.place.to_dict(), "token": self.token},
            "what": self.what,
            "advice": ADVICE[self.slug],
            "evidence": {"first": self.first, "second": self.second},
            "excerpt": {"before": self.before, "first": self.behind_first, "second": self.behind_second},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mended:
    """A pair without one difference, and how it is told to the renderer. ``answer`` None: as in the history."""

    change: Change
    answer: str | None
    one_clock: bool = False


def find_breaks(renderer: Renderer, pair: Pair, answer: str | None, places: Places) -> Iterator[Break]:
    """The breaks in the order of the text, each found with those before it mended; the first is the one that counts.

    ``answer``: the answer to the first request where it was stated, None where the second request's history has it.
    """
    one_clock = renderer.clocks[0] == renderer.clocks[1]
    for _ in range(_MOST_BREAKS):
        held, prompt = renderer.held_ids(pair), renderer.ids(pair.text)
        common = common_length(held.ids, prompt.ids)
        if common == min(len(held.ids), len(prompt.ids)):
            return
        at = pair.common_characters
        mended: tuple[_Mended, Pair] | None = None
        if at < min(len(pair.held), len(pair.text)):
            mended = _first_that_helps(renderer, pair, answer, one_clock=one_clock)
            change = mended[0].change if mended else _bos_change(pair, held, prompt)
            change = change or template_change(pair, answer_is_stated=answer is not None)
            if change is None:
                return
            if mended is None and answer is not None and at >= len(pair.prompt):
                mended = _with_answer_of_history(renderer, pair, change, one_clock=one_clock)
        else:
            at = min(at, _start_of(prompt, common))
            change = _bos_change(pair, held, prompt) or _boundary_change(pair)
        yield _break(renderer, pair, change, at, common, places)
        if mended is None or mended[1].common_characters <= at:
            return
        pair, answer, one_clock = mended[1], mended[0].answer, one_clock or mended[0].one_clock


def _first_that_helps(
    renderer: Renderer, pair: Pair, answer: str | None, *, one_clock: bool
) -> tuple[_Mended, Pair] | None:
    """The first difference that makes the common beginning longer when it is taken back."""
    tried = [
        _Mended(change=change, answer=answer, one_clock=one_clock)
        for change in changes_between(pair.first, pair.second)
    ]
    if not one_clock:
        tried.append(_Mended(change=_clock_change(pair), answer=answer, one_clock=True))
    thought = unthinking_change(pair, answer)
    if thought is not None:
        tried.append(_Mended(change=thought[0], answer=thought[1], one_clock=one_clock))
    for group in _alike(tried):
        requests = [(each.change.mended_first, each.change.mended_second) for each in group]
        pairs = renderer.pairs(requests, group[0].answer, one_clock=group[0].one_clock)
        for each, made in zip(group, pairs, strict=True):
            if isinstance(made, Pair) and made.common_characters > pair.common_characters:
                return each, made
    return None


def _alike(tried: Sequence[_Mended]) -> Iterator[list[_Mended]]:
    """Neighbours that are rendered in the same way, together."""
    group: list[_Mended] = []
    for each in tried:
        if group and (each.answer, each.one_clock) != (group[0].answer, group[0].one_clock):
            yield group
            group = []
        group.append(each)
    if group:
        yield group


def _clock_change(pair: Pair) -> Change:
    return Change(
        slug="template-clock",
        what="The chat template itself writes the time, so each request begins otherwise.",
        mended_first=pair.first,
        mended_second=pair.second,
    )


def _with_answer_of_history(
    renderer: Renderer, pair: Pair, change: Change, *, one_clock: bool
) -> tuple[_Mended, Pair] | None:
    """The pair as if the model had written what the history has."""
    (made,) = renderer.pairs([(pair.first, pair.second)], None, one_clock=one_clock)
    return None if isinstance(made, ChatTemplateError) else (_Mended(change=change, answer=None), made)


def picture_break(renderer: Renderer, pair: Pair, places: Places) -> Break | None:
    """The first message whose pictures are others than before: no text shows it, and the engine sees it."""
    change = next((each for each in changes_between(pair.first, pair.second) if each.slug == PICTURES_CHANGED), None)
    if change is None:
        return None
    pieces = places.pieces(pair.second, renderer.clocks[1])
    # Where the message cannot be found, nothing is promised to stand before it.
    at = min((piece.start for piece in pieces if piece.message == change.message), default=0)
    if at > pair.common_characters:
        return None  # the text differs before it
    token = bisect.bisect_left(renderer.ids(pair.text).starts, at)
    found = _break(renderer, pair, change, at, token, places)
    index = change.message or 0
    part = part_of_message(pair.second.conversation.messages, index)
    return replace(found, place=Place(part=part, message=index, tool=None, character=0))


def _boundary_change(pair: Pair) -> Change:
    """The texts agree as far as the shorter one goes, and the ids do not."""
    what = "The text is the same, but where it goes on it is cut into tokens otherwise."
    return Change(slug="token-boundary", what=what, mended_first=pair.first, mended_second=pair.second)


def _bos_change(pair: Pair, held: PromptIds, prompt: PromptIds) -> Change | None:
    if not _without_first(held, prompt):
        return None
    what = "One prompt has one BOS token more than the other."
    return Change(slug="bos", what=what, mended_first=pair.first, mended_second=pair.second)


def _without_first(held: PromptIds, prompt: PromptIds) -> bool:
    """One is the other with its first id twice."""
    pairs = ((held.ids, prompt.ids), (prompt.ids, held.ids))
    return any(
        common_length(more[:2], more[:1] * 2) == 2 and common_length(more[1:], less) > common_length(more, less)
        for more, less in pairs
    )


def _start_of(prompt: PromptIds, token: int) -> int:
    return prompt.starts[token] if token < len(prompt.starts) else len(prompt.text)


def _break(renderer: Renderer, pair: Pair, change: Change, at: int, common: int, places: Places) -> Break:
    before = max(0, at - _EXCERPT)
    return Break(
        slug=change.slug,
        what=change.what,
        token=common,
        place=_place(renderer, pair, at, change, places),
        first=change.first,
        second=change.second,
        before=pair.text[before:at],
        behind_first=pair.held[at : at + _EXCERPT],
        behind_second=pair.text[at : at + _EXCERPT],
    )


def _place(renderer: Renderer, pair: Pair, at: int, change: Change, places: Places) -> Place:
    """In the second request, unless only the first has a part of its own there."""
    now, later = renderer.clocks
    place = places.of(pair.second, pair.text, at, later)
    if place.part != TEMPLATE:
        return place
    if at >= len(pair.prompt):
        index = answer_index(pair.first, pair.second)
        return Place(part=HISTORY, message=index, tool=None, character=at - len(pair.prompt))
    if change.slug == "retrieved-first" and change.message is None:
        return replace(place, part=RETRIEVED)
    if change.tool is not None:
        return replace(place, part=TOOLS, tool=change.tool)
    other = places.of(pair.first, pair.prompt, at, now)
    return place if other.part == TEMPLATE else other
