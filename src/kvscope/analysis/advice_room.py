"""A context limit that does not suit what is sent or what the model can use: too short for a prompt and its answer, or
longer than the model was trained for. The one ends a request however much memory is free, the other only costs memory.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvscope.analysis.advice_command import repeat_command
from kvscope.analysis.advice_flags import CONTEXT_SETTINGS, flags_of
from kvscope.analysis.advice_kind import Advice, Quality
from kvscope.analysis.price import CELLS_BLOCK, token_price

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvscope.analysis.attempts import Attempt
    from kvscope.analysis.study import Study
    from kvscope.record.rows import Json

_OVERFLOW = "context-overflow"


def room_advice(study: Study) -> list[Advice]:
    """At most one: more room where a trial ended for lack of it (of a design that varies the limit only where every
    trial did), a shorter prompt where the model has none to give, or a limit that is no longer than the model was
    trained for."""
    name = CONTEXT_SETTINGS.get(study.engine)
    if name is None:
        return []
    short = [a for a in study.trials if a.trial.error_slug == _OVERFLOW and _need(a) is not None]
    if study.is_measured:
        short = [a for a in short if a.design.factor != "n_ctx"]
    if short:
        return [_longer(study, short, name)]
    beyond = [a for a in study.trials if a.design.factor != name and _is_beyond_trained(a)]
    return [_trained(study, beyond, name)] if beyond else []


def _longer(study: Study, short: list[Attempt], name: str) -> Advice:
    attempt = max(short, key=lambda a: _need(a) or 0)
    need, limit, trained = _need(attempt) or 0, _limit(attempt), _trained_tokens(attempt)
    values: dict[str, object] = {"need_tokens": need, "limit_tokens": limit, "trained_tokens": trained}
    if trained is not None and need > trained:
        return _advice(study, "prompt_shorter", short, values=values)
    most = trained or need + CELLS_BLOCK
    tokens = min(-(-need // CELLS_BLOCK) * CELLS_BLOCK, most) * _streams(attempt)
    now = attempt.context_tokens
    more = None if now is None else _reserved_more(attempt, now, tokens)
    change: dict[str, Json] = {name: tokens}
    found = _advice(study, "context_longer", short, change=change, values={**values, "more_bytes": more})
    return replace(found, check=_again(attempt, change))


def _trained(study: Study, beyond: list[Attempt], name: str) -> Advice:
    attempt = max(beyond, key=lambda a: a.context_tokens or 0)
    now, trained = attempt.context_tokens or 0, _trained_tokens(attempt) or 0
    tokens = trained * _streams(attempt)
    values = {"limit_tokens": now // _streams(attempt), "trained_tokens": trained}
    change: dict[str, Json] = {name: tokens}
    found = _advice(study, "context_trained", beyond, change=change, values=values)
    saved = _reserved_more(attempt, tokens, now)
    return replace(found, predicted=saved, is_estimate=True, check=_again(attempt, change))


def _reserved_more(attempt: Attempt, fewer: int, more: int) -> float | None:
    """Bytes that the longer of two limits reserves beyond the shorter; None where no price is known."""
    price, streams = token_price(attempt.prediction), _streams(attempt)
    if price is None:
        return None
    return float(price.reserved_bytes(more, streams=streams) - price.reserved_bytes(fewer, streams=streams))


def _advice(
    study: Study,
    slug: str,
    behind: list[Attempt],
    *,
    change: Mapping[str, Json] | None = None,
    values: Mapping[str, object],
) -> Advice:
    return Advice(
        slug=slug,
        axis="context",
        helps="running",
        harm=0,
        metric="memory_bytes",
        change=change or {},
        flags=flags_of(study.engine, change or {}),
        quality=Quality(slug="not_touched"),
        evidence=tuple(a.key for a in behind),
        values=values,
    )


def _again(attempt: Attempt, change: Mapping[str, Json]) -> tuple[str, ...]:
    """The same design under the changed limit."""
    design = attempt.design
    asked = replace(design, settings={**design.settings, **change})
    return repeat_command(asked, attempt, design.levels)


def _need(attempt: Attempt) -> int | None:
    """Tokens of the prompt and its whole answer: one more than are held when the last one has come."""
    tokens = ((attempt.prediction or {}).get("scenario") or {}).get("tokens")
    return tokens + 1 if isinstance(tokens, int) else None


def _limit(attempt: Attempt) -> int | None:
    """What one conversation may hold."""
    effective = (attempt.prediction or {}).get("effective") or {}
    return effective.get("slot_limit_tokens") or effective.get("context_per_sequence_tokens") or attempt.context_tokens


def _trained_tokens(attempt: Attempt) -> int | None:
    found = ((attempt.prediction or {}).get("model") or {}).get("trained_context_tokens")
    return found if isinstance(found, int) else None


def _streams(attempt: Attempt) -> int:
    """Conversations that share the limit out among them."""
    return int(((attempt.prediction or {}).get("effective") or {}).get("streams") or 1)


def _is_beyond_trained(attempt: Attempt) -> bool:
    """Whether each conversation is given more room than the engine lets it use, because the model was trained for
    less."""
    trained, limit, room = _trained_tokens(attempt), _limit(attempt), attempt.context_tokens
    if trained is None or room is None or limit is None:
        return False
    return limit <= trained < room // _streams(attempt)
