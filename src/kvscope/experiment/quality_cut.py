"""Whether questions' prompts reached the model whole, by what it found of them: for servers that cut in silence and
state no count of what they read.

Concluded only where chance, or a model that is merely weaker at one end, gives so much in less than 1 % of trials, and
never against counts that are known to be of what was read: then a lost end is the model's own.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from kvscope.analysis.quality_depth import FALSE_ALARMS, fewer_by_chance
from kvscope.experiment.attempt_rows import AttemptRows
from kvscope.quality.markers import PARTS
from kvscope.record.rows import QUALITY, AnswerRow, RequestRow

End = Literal["head", "tail"]
# The server's numbers that are of what was read, by their names in the record; a ``usage`` may be of what was sent.
_OF_WHAT_WAS_READ = ("timings: prompt_n + cache_n", "prompt_eval_count", "the ids that transformers was given")
# Engines that count, in their ``usage`` too, the ids that they read.
STATES_WHAT_IT_READS = ("llama.cpp", "vllm", "sglang", "transformers")
# The marks alone, and all items by their places, are two looks at the same: each has half of the false alarms. The
# marks have four splits: without the head, without head and middle, and the same from the tail.
_ALLOWED = FALSE_ALARMS / 2
_SPLITS: tuple[tuple[End, tuple[str, ...]], ...] = (
    ("head", ("head",)),
    ("head", ("head", "middle")),
    ("tail", ("tail",)),
    ("tail", ("middle", "tail")),
)
# For a doubt: so many marks at one end, all asked for in vain, and most of another place found.
_LEAST_MARKED, _MOSTLY = 2, 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class LostEnd:
    """``end``: of which the model found nothing. ``is_sure``: chance gives that in less than 1 % of trials."""

    end: End
    is_sure: bool


def without_lost_end(read: list[AnswerRow], rows: AttemptRows, *, engine: str) -> list[AnswerRow]:
    """The rows. Where an end was surely lost, none of them is right or wrong, and a warning says so; where that may
    be, a warning alone. Where counts show that prompts were whole, their facts say ``prompt_whole``: what is not found
    is the model's. ``engine``: its name."""
    if counts_what_it_read(rows.requests, engine):
        return [replace(row, facts={**row.facts, "prompt_whole": True}) for row in read]
    lost = lost_end(read)
    if lost is None:
        return read
    hint = "Load the model with a larger context, or ask about shorter documents (--input-tokens)."
    if not lost.is_sure:
        rows.warn(
            "quality-maybe-cut",
            f"It cannot be told whether prompts of questions reached the model whole: of none was the mark at its "
            f"{lost.end} found, others were, and no count of the server's is known to be of what it read.",
            f"{hint} More documents (--quality-documents) tell more.",
        )
        return read
    rows.warn(
        "quality-cut-by-markers",
        f"The {lost.end} of the prompts seems not to reach the model: what stands there is never found, and the rest "
        "is (by chance in less than 1 % of trials). No count of the server's is known to be of what it read. The "
        "answers are left out of the score.",
        hint,
    )
    return [
        replace(row, reading="truncated_input", score=None, facts={**row.facts, "lost_part": lost.end})
        if row.reading in ("right", "wrong")
        else row
        for row in read
    ]


def counts_what_it_read(requests: Iterable[RequestRow], engine: str, *, role: str = QUALITY) -> bool:
    """Whether the server counted a prompt of this role as we did, by a number that is known to be of what it read: then
    it cuts nothing without its counts showing it."""
    return any(
        row.role == role
        and row.prompt_tokens_server is not None
        and row.prompt_tokens_server == row.prompt_tokens_ours
        and (engine in STATES_WHAT_IT_READS or row.prompt_tokens_server_from in _OF_WHAT_WAS_READ)
        for row in requests
    )


def lost_end(read: Sequence[AnswerRow]) -> LostEnd | None:
    """The end of which nothing was found, by the rows that were read right or wrong; None where nothing shows one."""
    own = [row for row in read if not row.is_twin and row.reading in ("right", "wrong")]
    found = {part: [row.reading == "right" for row in own if row.item.endswith(f"/marker-{part}")] for part in PARTS}
    for end, parts in _SPLITS:
        lost = [is_right for part in parts for is_right in found[part]]
        rest = [is_right for part in PARTS if part not in parts for is_right in found[part]]
        if _is_lost(lost, rest, num_splits=len(_SPLITS)):
            return LostEnd(end=end, is_sure=True)
    placed = sorted((row.depth_percent, row.reading == "right") for row in own if row.depth_percent is not None)
    by_place = [is_right for _, is_right in placed]
    ends: tuple[tuple[End, list[bool]], ...] = (("head", by_place), ("tail", by_place[::-1]))
    for end, outwards in ends:
        num_lost = outwards.index(True) if True in outwards else 0
        if _is_lost(outwards[:num_lost], outwards[num_lost:], num_splits=2 * len(outwards)):
            return LostEnd(end=end, is_sure=True)
    return _doubtful(found)


def _is_lost(lost: Sequence[bool], rest: Sequence[bool], *, num_splits: int) -> bool:
    """Whether none of these was found, which is unlikely by chance (Fisher's exact test, over all splits), and also of
    a model that finds them half as often as the rest."""
    if not lost or any(lost) or not any(rest):
        return False
    by_chance = fewer_by_chance(0, len(lost), sum(rest), len(lost) + len(rest))
    if_half = (1 - sum(rest) / len(rest) / 2) ** len(lost)
    return max(num_splits * by_chance, if_half) <= _ALLOWED


def _doubtful(found: dict[str, list[bool]]) -> LostEnd | None:
    ends: tuple[End, ...] = ("head", "tail")
    most = max((sum(each) / len(each) for each in found.values() if each), default=0.0)
    missing = [end for end in ends if len(found[end]) >= _LEAST_MARKED and not any(found[end])]
    return LostEnd(end=missing[0], is_sure=False) if len(missing) == 1 and most > _MOSTLY else None
