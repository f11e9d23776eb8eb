"""What Ollama says when something fails, as an error of kvscope's tree.

Words of its own, from its source: server/sched.go ("server busy", by OLLAMA_MAX_QUEUE), llm/server.go until 0.29
("model requires more system memory", "llama runner process has terminated"), runner/ since 0.12.6 ("the input length
exceeds the context length"), llm/llama_server.go since 0.30 ("llama-server process has terminated", and llama-server's
error bodies, passed on as text). The words that all engines share are in ``failure_words.py``.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from kvscope.engine.failure_words import classify_message
from kvscope.engine.http_client import body_evidence, verbatim
from kvscope.engine.server_errors import retry_after_s
from kvscope.errors import (
    ContextOverflow,
    EngineDied,
    EngineError,
    EngineModelError,
    EngineReplyError,
    EngineTimeout,
    InvalidSettings,
    OutOfMemory,
    RateLimited,
    ServerError,
)

_UNITS = {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "TiB": 1024**4}
_SYSTEM_MEMORY = re.compile(r"requires more system memory \((\S+ \w+)\) than is available \((\S+ \w+)\)")
_TERMINATED = re.compile(
    r"(?:llama runner|llama-server) process (?:has terminated|no longer running)|model runner has unexpectedly stopped"
)
_TOO_LONG = (
    "input length exceeds",
    "prompt is longer than the context length",
    "exceeds maximum context length",
    "entire prompt removed by truncation",
)
_NO_MEMORY = re.compile(
    r"reported out-of-memory during startup|requires more system memory than is currently available|"
    r"failed to commit memory for model|memory layout cannot be allocated|unable to load full model on GPU"
)
_SLOW_START = re.compile(r"timed out waiting for (?:llama runner|llama-server) to start")
_TOO_NEW = "may be incompatible with your version of Ollama"
_INCAPABLE = re.compile(r"does not support (?:chat|tools|thinking|completion)")
# As Go names them (syscall).
_SIGNALS = {
    "killed": "SIGKILL",
    "aborted": "SIGABRT",
    "segmentation fault": "SIGSEGV",
    "bus error": "SIGBUS",
    "illegal instruction": "SIGILL",
    "floating point exception": "SIGFPE",
    "terminated": "SIGTERM",
    "hangup": "SIGHUP",
    "interrupt": "SIGINT",
}
LOG_HINT = "Its log says more (`journalctl -u ollama`, or where it was started)."
NOT_OLLAMA_HINT = "Is it Ollama that listens there? What it sent is kept with the trial."


def error_of(
    message: str,
    *,
    status: int,
    body: bytes,
    headers: Mapping[str, str] | None = None,
) -> EngineError:
    """The error that Ollama's ``message`` means. ``status``: 200 where it came in a stream."""
    evidence: dict[str, Any] = {"known_by": "message", "http_status": status, "body": body_evidence(body)}
    wait_s = retry_after_s(headers or {})
    if wait_s is not None:
        evidence["retry_after_s"] = wait_s
    return _too_long(message, evidence) or _by_words(message, evidence) or _by_status(message, status, evidence)


def _too_long(message: str, evidence: dict[str, Any]) -> EngineError | None:
    """A prompt over the context. Since 0.30 the message may be llama-server's whole body."""
    try:
        inner = json.loads(message).get("error", {})
    except (ValueError, RecursionError, AttributeError):
        inner = {}
    if isinstance(inner, dict) and inner.get("type") == "exceed_context_size_error":
        asked, limit = inner.get("n_prompt_tokens"), inner.get("n_ctx")
        refused = ContextOverflow(
            f"The prompt has {asked} tokens; the engine's context holds {limit}.",
            hint=f"Shorten the prompt, or load the model with a context of more than {asked} tokens (num_ctx).",
            evidence=evidence,
        )
        if isinstance(asked, int) and not isinstance(asked, bool) and asked > 0:
            refused.prompt_tokens = asked
        return refused
    if any(words in message.lower() for words in _TOO_LONG):
        return ContextOverflow(
            f"The prompt does not fit the model's context: {message}",
            hint="Shorten the prompt, or load the model with a larger context (num_ctx).",
            evidence=evidence,
        )
    return None


def _by_words(message: str, evidence: dict[str, Any]) -> EngineError | None:
    if (memory := _SYSTEM_MEMORY.search(message)) is not None:
        stated = {"predicted_bytes": _bytes_of(memory[1]), "available_bytes": _bytes_of(memory[2])}
        return OutOfMemory(
            f"Ollama does not load the model for want of memory: it reckons with {memory[1]}, and {memory[2]} are "
            "available (its own numbers, as it rounds them).",
            hint="Use a smaller num_ctx or a smaller model, or free memory.",
            evidence={**evidence, **{name: value for name, value in stated.items() if value is not None}},
        )
    if _INCAPABLE.search(message) is not None:
        return InvalidSettings(
            f"Ollama refuses: {message}", hint="`ollama show NAME` lists what a model can do.", evidence=evidence
        )
    kind, line = classify_message(message)
    if _NO_MEMORY.search(message) is not None:
        kind, line = "out_of_memory", verbatim(message)
    elif kind is None and _TOO_NEW in message:
        kind, line = "model_error", verbatim(message)
    match kind:
        case "out_of_memory":
            hint = "Use a smaller num_ctx, or fewer layers on the GPU (num_gpu)."
            return OutOfMemory(f"Ollama ran out of memory: {line}", hint=hint, evidence=evidence)
        case "context_overflow":
            hint = "Load the model with a larger context (num_ctx), or send fewer requests at once."
            return ContextOverflow(f"The context was full: {line}", hint=hint, evidence=evidence)
        case "invalid_settings":
            hint = "What concerns its cache and flash attention is set where the server is started."
            return InvalidSettings(f"Ollama cannot run with these settings: {line}", hint=hint, evidence=evidence)
        case "model_error":
            hint = "`ollama list` shows what it has, `ollama pull` gets a model; a release may not know a new one."
            return EngineModelError(f"Ollama cannot load the model: {line}", hint=hint, evidence=evidence)
        case "rate_limited":
            hint = "Wait, or send fewer requests at once (OLLAMA_MAX_QUEUE)."
            return RateLimited(f"Ollama's queue is full: {line}", hint=hint, evidence=evidence)
        case None if _SLOW_START.search(message) is not None:
            hint = "Free memory, or give it more time (OLLAMA_LOAD_TIMEOUT, where the server is started)."
            return EngineTimeout(
                f"Ollama gave up waiting for the model to load: {message}", hint=hint, evidence=evidence
            )
        case _:
            return _death(message, evidence)


def _death(message: str, evidence: dict[str, Any]) -> EngineError | None:
    if _TERMINATED.search(message) is None:
        return None
    signal = re.search("signal: (" + "|".join(_SIGNALS) + ")", message.lower())
    code = re.search(r"(?:exit status|no longer running:(?: exit status)?) (\d+)", message)
    if signal is not None:
        evidence = {**evidence, "signal": _SIGNALS[signal[1]]}
    if code is not None:
        evidence = {**evidence, "exit_code": int(code[1])}
    return EngineDied(f"Ollama's runner of the model ended: {message}", hint=LOG_HINT, evidence=evidence)


def _by_status(message: str, status: int, evidence: dict[str, Any]) -> EngineError:
    if status == 429:
        hint = "Wait, or send fewer requests at once."
        return RateLimited(f"The server refuses for now (429): {message}", hint=hint, evidence=evidence)
    if status in (401, 403):
        return InvalidSettings(
            f"Ollama does not let kvscope in ({status}): {message}",
            hint="A model of Ollama's cloud needs a login of the server: ollama signin.",
            evidence=evidence,
        )
    if status >= 500 or status == 200:
        where = "in mid-answer" if status == 200 else f"({status})"
        return ServerError(f"Ollama failed {where}: {message}", hint=LOG_HINT, evidence=evidence)
    return EngineReplyError(
        f"The server refused the request ({status}): {message}", hint=NOT_OLLAMA_HINT, evidence=evidence
    )


def _bytes_of(text: str) -> int | None:
    """Bytes of "8.0 GiB", as Ollama prints sizes (one digit after the point at most, so it is a rounded number)."""
    number, _, unit = text.partition(" ")
    try:
        return int(float(number) * _UNITS[unit])
    except (ValueError, KeyError):
        return None
