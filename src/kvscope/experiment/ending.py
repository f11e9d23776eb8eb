"""How an attempt of a trial ended, as it is recorded: its outcome, and the error with its traceback and its advice."""

import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvscope.errors import EngineError, KvscopeError, ModelError, ProbeLost, UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """``engine_log_tail``: the engine's last words, where the attempt failed. ``evidence``: see ``errors.EVIDENCE``."""

    outcome: str
    slug: str | None = None
    message: str | None = None
    hint: str | None = None
    traceback: str | None = None
    engine_log_tail: str | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)


INTERRUPTED = Ending(outcome="interrupted", slug="interrupted", message="Stopped by the user while this trial ran.")


def ending_of(error: BaseException, engine_log_tail: str | None) -> Ending:
    """An error as a row. One that is not kvscope's own is a bug: slug "internal"."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    ours = isinstance(error, KvscopeError)
    return Ending(
        outcome=_outcome_of(error),
        slug=error.slug if isinstance(error, KvscopeError) else "internal",
        message=str(error) if ours else f"{type(error).__name__}: {error}",
        hint=error.hint if isinstance(error, KvscopeError) else None,
        traceback="".join(traceback.format_exception(error)),
        engine_log_tail=engine_log_tail,
        evidence=error.evidence if isinstance(error, KvscopeError) else {},
    )


def _outcome_of(error: BaseException) -> str:
    match error:
        case EngineError():
            return error.outcome
        case ProbeLost():  # the engine's process ended between two requests
            return "engine_died"
        case UsageError():  # what was asked cannot be, such as a prompt too short for its own template
            return "invalid_settings"
        case ModelError():
            return "model_error"
        case _:
            return "internal"
