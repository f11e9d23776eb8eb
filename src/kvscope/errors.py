"""Every exception and warning of kvscope, as one tree.

    KvscopeError                       slug, hint, exit_code; message = what happened, hint = what to do
    ├── UsageError                     you asked for something that cannot be              exit 2
    │   ├── UnknownName                an engine, design, dtype ... that does not exist; suggests the nearest
    │   ├── BadDesign                  an empty or impossible experiment
    │   ├── BadStudyFile               a study file that cannot be read, or asks what cannot be
    │   ├── PromptLengthUnreachable    no prompt of exactly so many tokens can be built
    │   ├── MissingDependency          names the feature and the extra to install
    │   ├── DeviceBusy                 it is being measured by another kvscope
    │   └── OutputExists               a file would be overwritten
    ├── ModelError                     the files do not tell us what we need               exit 3
    │   ├── ModelNotFound
    │   ├── MalformedFile              path, where in it, what was expected
    │   ├── MissingField               field, every place looked in
    │   ├── ChatTemplateError          it refuses the conversation, cannot be rendered, or was stopped
    │   └── UnsupportedArchitecture    which layers are unknown
    ├── EngineError                    the outside program failed                          recorded as a row
    │   ├── EngineNotFound             the engine is not installed, or its command does not exist
    │   ├── EngineStartFailed          it did not come up
    │   │   ├── InvalidSettings        it refused its settings (a port in use is one)
    │   │   └── EngineModelError       it could not load the model
    │   ├── EngineDied · EngineTimeout · EngineStalled
    │   ├── ConnectionRefused · ConnectionLost · RateLimited · ServerError
    │   ├── EngineReplyError           a reply we do not understand (kept verbatim)
    │   ├── ContextOverflow            prompt + output over the context limit
    │   │   └── PromptDoesNotFit       found before it was sent
    │   ├── InputTruncated             the server cut what it was sent to be counted
    │   └── OutOfMemory                where, and how we know
    │       └── MemorySuspected        it died, and had been predicted to need more than there was
    ├── ProbeError                     the reading failed                                  recorded
    │   ├── ProbeUnavailable           and why, for `doctor`
    │   └── ProbeLost                  the process went away
    └── RecordError                    the store refuses                                   exit 4
        ├── RecordNotFound · RecordBusy · RecordUnwritable
        ├── RecordLost                 deleted, replaced or cut short while it was recorded into
        ├── SchemaMismatch             version found, version expected
        ├── RecordConflict             two files say different things of the same row
        └── DesignMismatch             what differs between two things that cannot be compared

`slug` is stable: it is stored in the record and is an anchor in docs/reference/messages.md.
"""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

# A message quotes names out of files, which may be as long as the file. What is quoted stands before its place.
_LONGEST_MESSAGE, _ITS_END = 2_000, 500


def _shortened(message: str) -> str:
    if len(message) <= _LONGEST_MESSAGE:
        return message
    return f"{message[: _LONGEST_MESSAGE - _ITS_END]} [...] {message[-_ITS_END:]}"


# How an engine's failure is known. ``known_by`` says what decided its class: the engine's own message first, then
# counters (the kernel's, the engine's), then the prediction against free memory, and last an exit code or a signal.
EVIDENCE = (
    "known_by",  # message, counters, prediction or exit
    "http_status",
    "body",  # as it was received, cut at 64 KiB
    "retry_after_s",
    "pieces_received",  # events of the answer until it broke off
    "exit_code",
    "signal",  # its name: SIGKILL
    "log_line",  # the line of the engine's log that decided
    "counters",  # {name: [before, after]}
    "predicted_bytes",
    "available_bytes",
)


class KvscopeError(Exception):
    """Base of all errors. ``str(error)`` is one sentence; ``error.hint`` says what to do about it; ``error.evidence``
    how it is known, by the names of EVIDENCE."""

    slug = "error"
    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None, evidence: Mapping[str, Any] | None = None) -> None:
        message = _shortened(message)
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.evidence: dict[str, Any] = dict(evidence or {})


class UsageError(KvscopeError):
    slug = "usage"
    exit_code = 2


# A longer list of names helps nobody who has the right one already.
_MOST_LISTED = 40


class UnknownName(UsageError):
    slug = "unknown-name"

    def __init__(self, kind: str, name: str, known: Iterable[str], *, where: str | None = None) -> None:
        """``where``: the page that lists all of them."""
        known = sorted(known)
        near = difflib.get_close_matches(name, known, n=1)
        listing = ", ".join(known)
        hint = f"Did you mean {near[0]}? Known: {listing}." if near else f"Known: {listing}."
        if len(known) > _MOST_LISTED:
            all_of_them = f"{len(known)} names are known" + (f"; {where} has them all." if where else ".")
            hint = f"Did you mean {near[0]}? {all_of_them}" if near else f"None is like it. {all_of_them}"
        super().__init__(f"There is no {kind} called {name!r}.", hint=hint)


class BadDesign(UsageError):
    slug = "bad-design"


class BadStudyFile(UsageError):
    slug = "bad-study-file"

    def __init__(self, file: str, line: int | None, what: str, *, hint: str | None = None) -> None:
        """``line``: None where it is not known, or of the whole file."""
        where = file if line is None else f"{file}, line {line}"
        super().__init__(f"{where}: {what}.", hint=hint)


class PromptLengthUnreachable(UsageError):
    slug = "prompt-length-unreachable"


class MissingDependency(UsageError):
    slug = "missing-dependency"

    def __init__(self, feature: str, extra: str | None, package: str) -> None:
        """``extra``: kvscope's own, which brings the package; None where none does."""
        alone = f"pip install {package}"
        hint = (
            f"Install it: {alone}." if extra is None else f"Install it: pip install 'kvscope[{extra}]' (or: {alone})."
        )
        super().__init__(f"{feature} needs the package {package}, which is not installed.", hint=hint)


class DeviceBusy(UsageError):
    """A device is being measured by another kvscope, and was for as long as it was to be waited for."""

    slug = "device-busy"


class OutputExists(UsageError):
    slug = "output-exists"


class ModelError(KvscopeError):
    slug = "model-error"
    exit_code = 3


class ModelNotFound(ModelError):
    slug = "model-not-found"


class MalformedFile(ModelError):
    """``where`` is a byte offset ("byte 24") or a key of the file."""

    slug = "malformed-file"

    def __init__(self, path: object, where: str, problem: str, *, hint: str | None = None) -> None:
        super().__init__(
            f"{path}: {problem} (at {where}).",
            hint=hint or "The file is damaged, incomplete or not what its name says. Download or copy it again.",
        )
        self.path = str(path)
        self.where = where


class MissingField(ModelError):
    slug = "missing-field"

    def __init__(self, field: str, looked_in: Iterable[str]) -> None:
        places = ", ".join(looked_in)
        super().__init__(
            f"The model's files do not say {field}; looked in: {places}.",
            hint="Use a file that holds the whole model description (the original config.json, or the GGUF).",
        )
        self.field = field


class UnsupportedArchitecture(ModelError):
    slug = "unsupported-architecture"


class ChatTemplateError(ModelError):
    """``kind``: refused (the template says so itself), broken (it cannot be rendered), or stopped (it went over a
    limit, or reached for what is none of its business)."""

    slug = "chat-template-error"

    def __init__(self, message: str, *, kind: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.kind = kind


class EngineError(KvscopeError):
    """``outcome`` is the contract's outcome of a trial that ends in this error."""

    slug = "engine-error"
    outcome = "server_error"


class EngineNotFound(EngineError):
    slug = "engine-not-found"
    exit_code = 2
    outcome = "invalid_settings"


class EngineStartFailed(EngineError):
    slug = "engine-start-failed"
    outcome = "engine_died"


class InvalidSettings(EngineStartFailed):
    slug = "invalid-settings"
    outcome = "invalid_settings"


class EngineModelError(EngineStartFailed):
    slug = "engine-model-error"
    outcome = "model_error"


class EngineDied(EngineError):
    slug = "engine-died"
    outcome = "engine_died"


class EngineTimeout(EngineError):
    slug = "timed-out"
    outcome = "timed_out"


class EngineStalled(EngineError):
    slug = "stalled"
    outcome = "stalled"


class ConnectionRefused(EngineError):
    slug = "connection-refused"
    outcome = "connection_refused"


class ConnectionLost(EngineError):
    slug = "connection-lost"
    outcome = "connection_lost"


class RateLimited(EngineError):
    slug = "rate-limited"
    outcome = "rate_limited"


class ServerError(EngineError):
    slug = "server-error"
    outcome = "server_error"


class EngineReplyError(EngineError):
    slug = "bad-reply"
    outcome = "bad_reply"


class ContextOverflow(EngineError):
    slug = "context-overflow"
    outcome = "context_overflow"
    prompt_tokens: int | None = None  # of the prompt that was refused, where the engine states it


class InputTruncated(EngineError):
    """The server cut what it was sent to be counted, without a word: no prompt of the asked length can be made. One
    that is cut when it is measured has its answer kept, and is no exception."""

    slug = "truncated-input"
    outcome = "truncated_input"


class PromptDoesNotFit(ContextOverflow):
    """Prompt and reserved output are more than the engine's limit, as it was read back; nothing was sent."""

    slug = "prompt-does-not-fit"

    def __init__(self, *, prompt_tokens: int, output_tokens: int, limit_tokens: int, limit_from: str) -> None:
        needed = prompt_tokens + output_tokens
        super().__init__(
            f"{prompt_tokens:,} prompt tokens and {output_tokens:,} reserved for the answer are {needed:,}; one "
            f"sequence may hold {limit_tokens:,} ({limit_from}). Not sent.",
            hint=f"Shorten the prompt or the answer by {needed - limit_tokens:,} tokens, load the model with a larger "
            "context (slots divide it), or add --try-anyway to see what the engine does.",
        )


class OutOfMemory(EngineError):
    slug = "out-of-memory"
    outcome = "out_of_memory"


class MemorySuspected(OutOfMemory):
    slug = "memory-suspected"


class ProbeError(KvscopeError):
    slug = "probe-error"


class ProbeUnavailable(ProbeError):
    slug = "probe-unavailable"


class ProbeLost(ProbeError):
    slug = "probe-lost"


class RecordError(KvscopeError):
    slug = "record-error"
    exit_code = 4


class RecordNotFound(RecordError):
    slug = "record-not-found"


class RecordBusy(RecordError):
    slug = "record-busy"


class RecordUnwritable(RecordError):
    """The disk is full, the folder read-only, or the file damaged. What was committed before stays."""

    slug = "record-unwritable"


class RecordLost(RecordError):
    """The file was deleted, replaced or cut short while it was recorded into."""

    slug = "record-lost"


class SchemaMismatch(RecordError):
    slug = "schema-mismatch"


class RecordConflict(RecordError):
    """Two records say different things of the same sitting, design or attempt: they are not merged."""

    slug = "record-conflict"


class DesignMismatch(RecordError):
    slug = "design-mismatch"
