"""A log of requests: which earlier request each one goes on from, and what it reuses of it."""

import contextlib
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvscope.errors import ChatTemplateError
from kvscope.prompt.conversation_file import LoadedRequest
from kvscope.prompt.reuse.compare import Comparison, Reuse
from kvscope.prompt.reuse.text_changes import common_length

SCHEMA = "kvscope.reuse-log/1"
_AT_ONCE = 16  # requests rendered in one process


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One request of a log. ``previous``: the number (from 1) of the request it is compared with, None for one that
    comes first. ``reuse`` None: it comes first, or there is a ``problem``. ``fits``: into the engine's context, None
    where that is not known."""

    number: int
    source: str
    previous: int | None
    prompt_tokens: int | None
    reuse: Reuse | None = None
    problem: str | None = None
    fits: bool | None = None

    @property
    def reusable_tokens(self) -> int | None:
        """None where it is not known."""
        if self.reuse is not None:
            return self.reuse.reusable.tokens
        return 0 if self.previous is None and self.problem is None and self.fits is not False else None

    @property
    def recomputed_tokens(self) -> int | None:
        """None where it is not known."""
        reusable = self.reusable_tokens
        return None if self.prompt_tokens is None or reusable is None else self.prompt_tokens - reusable

    def to_dict(self) -> dict[str, Any]:
        """One row of the JSON."""
        found = self.reuse.to_dict() if self.reuse is not None else {}
        kept = ("common_prefix_tokens", "outcome", "status", "because", "broken_by", "broken_at", "what", "advice")
        return {
            "turn": self.number,
            "source": self.source,
            "previous": self.previous,
            "prompt_tokens": self.prompt_tokens,
            "reusable_tokens": self.reusable_tokens,
            "recomputed_tokens": self.recomputed_tokens,
            "fits": self.fits,
            **{name: found.get(name) for name in kept},
            "notes": found.get("notes", []),
            "problem": self.problem,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LogReuse:
    """``problems``: lines of the file that are no request."""

    engine: str
    engine_version: str | None
    turns: tuple[Turn, ...]
    problems: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The JSON of ``kvscope reuse`` for one file. A total is null where one of its turns is not known."""
        names = ("prompt_tokens", "reusable_tokens", "recomputed_tokens")
        rows = [turn.to_dict() for turn in self.turns]
        return {
            "schema": SCHEMA,
            "engine": self.engine,
            "engine_version": self.engine_version,
            "turns": rows,
            "totals": {name: _total([row[name] for row in rows]) for name in names},
            "broken_by": _counts(rows),
            "problems": list(self.problems),
        }


def _total(numbers: Sequence[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None


def _counts(rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """How often each cause broke a beginning, the most frequent first."""
    causes = [row["broken_by"] for row in rows if row["broken_by"] is not None]
    return dict(sorted(((slug, causes.count(slug)) for slug in set(causes)), key=lambda pair: (-pair[1], pair[0])))


def compare_log(
    requests: Sequence[LoadedRequest],
    comparison: Comparison,
    *,
    by_conversation: bool = False,
    problems: Sequence[str] = (),
    progress: Callable[[int, int], None] | None = None,
) -> LogReuse:
    """Each request against the one before it; or ``by_conversation`` against the earlier one with which it has the
    longest beginning in common, and with all of them sent in order to an engine that was just started.

    A request that cannot be rendered is a turn with a problem; the others go on. ``progress`` is told how many of how
    many were looked at. Raises as ``Comparison.of``."""
    turns: list[Turn] = []
    seen: list[tuple[int, array[int]]] = []
    prompts: dict[int, array[int]] = {}
    for number, request in enumerate(requests, 1):
        if progress is not None:
            progress(number - 1, len(requests))
        try:
            if number % _AT_ONCE == 1:
                with contextlib.suppress(ChatTemplateError):  # told of the request that it is of, below
                    comparison.prepare(requests[number - 1 : number - 1 + _AT_ONCE])
            ids = array("i", comparison.ids(request))
            previous = _previous(ids, seen, by_conversation=by_conversation)
            found = None if previous is None else comparison.of(requests[previous - 1], request)
        except ChatTemplateError as error:
            turns.append(
                Turn(number=number, source=request.source, previous=None, prompt_tokens=None, problem=error.message)
            )
            continue
        fits = comparison.fits(len(ids))
        turns.append(
            Turn(
                number=number,
                source=request.source,
                previous=previous,
                prompt_tokens=len(ids),
                reuse=found,
                fits=fits,
            )
        )
        prompts[number] = ids
        seen = [*seen, (number, ids)] if by_conversation else [(number, ids)]
    if by_conversation:
        turns = _played(turns, requests, prompts, comparison)
    return LogReuse(
        engine=comparison.engine,
        engine_version=comparison.engine_version,
        turns=tuple(turns),
        problems=tuple(problems),
    )


def _played(
    turns: Sequence[Turn],
    requests: Sequence[LoadedRequest],
    prompts: Mapping[int, "array[int]"],
    comparison: Comparison,
) -> list[Turn]:
    """``turns`` with what the engine reuses where all were sent to it in order. One that does not fit is refused, and
    one that cannot be rendered never gets to a slot."""
    answers: dict[int | None, tuple[int, ...]] = {}
    for turn in turns:  # of several requests that go on from the same one, the first that has its answer
        if turn.reuse is not None and turn.reuse.answer_ids:
            answers.setdefault(turn.previous, turn.reuse.answer_ids)
    sent = [turn for turn in turns if turn.number in prompts]
    in_order = comparison.in_order(
        [
            comparison.sent(
                requests[turn.number - 1],
                prompts[turn.number],
                answers.get(turn.number, ()),
                is_answer_sure=False,
            )
            for turn in sent
        ]
    )
    found = {turn.number: reusable for turn, reusable in zip(sent, in_order, strict=True)}
    return [
        replace(turn, reuse=replace(turn.reuse, reusable=found[turn.number]))
        if turn.reuse is not None
        and turn.number in found
        and turn.fits is not False
        and turn.reuse.reusable.tokens is not None
        else turn
        for turn in turns
    ]


def _previous(ids: "array[int]", seen: Sequence[tuple[int, "array[int]"]], *, by_conversation: bool) -> int | None:
    if not seen:
        return None
    if not by_conversation:
        return seen[-1][0]
    lengths = [(common_length(ids, other), number) for number, other in seen]
    longest, number = max(lengths)  # of equal ones the latest: it is the one that is still held
    return number if longest else None
