"""How an attempt of a trial ended, as it is recorded: its outcome, and the error with its traceback and its advice.

Here the prediction against free memory joins what the engine's own end says (``kvscope.engine.failure``): a death
without a word is taken for a lack of memory only where one was predicted.
"""

import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvscope.engine.base import Engine
from kvscope.errors import (
    EngineDied,
    EngineError,
    KvscopeError,
    MemorySuspected,
    ModelError,
    OutOfMemory,
    ProbeLost,
    UsageError,
)
from kvscope.units import MIB

# Ends that a lack of memory can have, as a shell's exit codes too: killed, and what a program does that was refused
# memory and did not look.
_SIGNALS = ("SIGKILL", "SIGSEGV", "SIGABRT", "SIGBUS")
_SIGNAL_EXIT_CODES = (137, 139, 134, 135)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What was known of memory before the engine was started: ``predicted_bytes`` of the trial (None: not predicted),
    and what could be had (None: the machine does not say). ``mapped_bytes`` of what was predicted are pages of the
    model's file, which the kernel takes back where memory is short: they need no room."""

    predicted_bytes: int | None = None
    available_bytes: int | None = None
    mapped_bytes: int = 0

    @property
    def needed_bytes(self) -> int | None:
        """What was predicted and must have room; None where nothing was predicted."""
        return None if self.predicted_bytes is None else self.predicted_bytes - self.mapped_bytes

    @property
    def missing_bytes(self) -> int | None:
        """How much more room was predicted to be needed than there was; None where it was not, or is not known."""
        if self.needed_bytes is None or self.available_bytes is None:
            return None
        return self.needed_bytes - self.available_bytes if self.needed_bytes > self.available_bytes else None

    def evidence(self) -> dict[str, int]:
        both = {"predicted_bytes": self.predicted_bytes, "available_bytes": self.available_bytes}
        return {name: value for name, value in both.items() if value is not None}


INTERRUPTED = Ending(outcome="interrupted", slug="interrupted", message="Stopped by the user while this trial ran.")
UNKNOWN_OUTLOOK = Outlook()


def ending_of(error: BaseException, engine_log_tail: str | None, outlook: Outlook = UNKNOWN_OUTLOOK) -> Ending:
    """An error as a row. One that is not kvscope's own is a bug: slug "internal"."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    trace = "".join(traceback.format_exception(error))
    if isinstance(error, EngineError):
        error = _with_outlook(error, outlook)
    ours = isinstance(error, KvscopeError)
    return Ending(
        outcome=_outcome_of(error),
        slug=error.slug if isinstance(error, KvscopeError) else "internal",
        message=str(error) if ours else f"{type(error).__name__}: {error}",
        hint=error.hint if isinstance(error, KvscopeError) else None,
        traceback=trace,
        engine_log_tail=engine_log_tail,
        evidence=error.evidence if isinstance(error, KvscopeError) else {},
    )


def why_lost(error: ProbeLost, engine: Engine) -> KvscopeError:
    """Why the process went away that was read: as the engine explains it when it is asked for anything, with its log
    and the kernel's counters. The error itself where the engine has nothing to say."""
    try:
        engine.statistics()
    except (EngineDied, OutOfMemory) as death:
        return death
    except Exception:  # what is looked for here is the reason of another error
        return error
    return error


def _with_outlook(error: EngineError, outlook: Outlook) -> EngineError:
    """The error with the prediction beside it: a death that says nothing becomes a suspicion where more was predicted
    than there was, and a lack of memory says that it had been foreseen."""
    evidence = {**outlook.evidence(), **error.evidence}  # an engine that states its own numbers knows better
    missing = outlook.missing_bytes
    if missing is None:
        error.evidence = evidence
        return error
    beside = f" beside {_mib(outlook.mapped_bytes)} MiB of the model's file" if outlook.mapped_bytes else ""
    foreseen = (
        f"{error.message} Predicted and ignored: {_mib(outlook.needed_bytes)} MiB were predicted to be needed{beside} "
        f"and {_mib(outlook.available_bytes)} MiB were available, {_mib(missing)} MiB too few."
    )
    if isinstance(error, OutOfMemory):
        return type(error)(foreseen, hint=error.hint, evidence=evidence)
    if type(error) is EngineDied and _says_nothing(error):
        return MemorySuspected(
            f"{foreseen} The end alone does not prove that memory ran out.",
            hint="Lower n_ctx or use a smaller cache type, and see whether it still dies.",
            evidence={**evidence, "known_by": "prediction"},
        )
    error.evidence = evidence
    return error


def _says_nothing(error: EngineError) -> bool:
    """Whether all that is known of a death is how the process ended, and a lack of memory can end it so. SIGKILL is not
    one of these where the kernel counts what it kills so, and killed nothing."""
    evidence = error.evidence
    kills = evidence.get("counters", {}).get("machine.oom_kill")
    if (evidence.get("signal") == "SIGKILL" or evidence.get("exit_code") == 137) and kills and kills[0] == kills[1]:
        return False
    ended = evidence.get("signal") in _SIGNALS or evidence.get("exit_code") in _SIGNAL_EXIT_CODES
    return evidence.get("known_by") == "exit" and ended


def _mib(num_bytes: int | None) -> str:
    return f"{(num_bytes or 0) / MIB:,.0f}"


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
