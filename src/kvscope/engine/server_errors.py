"""What a server's error means: its body, in each engine's own form, and its status, as an error of kvscope's tree.

| who | the form of its body |
|---|---|
| OpenAI, llama.cpp, vLLM since 0.10, LM Studio, Ollama's /v1, most others | {"error": {"message", "type", "code"}} |
| vLLM before 0.10, SGLang | {"object": "error", "message", "type", "code"} |
| Text Generation Inference | {"error": "message", "error_type"} |
| Ollama; since 0.34 with llama-server's whole body as the text | {"error": "message"} |
| OpenRouter | as OpenAI, the provider's own words in error.metadata.raw |
| FastAPI, and what is built on it | {"detail": "message"} or {"detail": [{"loc", "msg"}]} |

Read from the projects' sources, documents and reports as of 2025 and 2026. The message decides before the status does:
engines send 400, 500 and 200 for the same things. Only the message is searched for words, for some servers send the
request back in their errors.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, NoReturn

from kvscope.engine.failure_words import classify_message
from kvscope.engine.http_client import Reply, body_evidence, verbatim
from kvscope.errors import (
    ContextOverflow,
    EngineError,
    EngineModelError,
    EngineReplyError,
    EngineTimeout,
    InvalidSettings,
    OutOfMemory,
    RateLimited,
    ServerError,
)

REPLY_HINT = "Is it a server with an OpenAI-style chat interface? What it sent is kept with the trial."
_NO_SUCH_MODEL = re.compile(r"\bmodel\b[^\n]{0,300}\b(?:not found|not exist|unknown|unavailable)", re.IGNORECASE)
_WRONG_SCHEME = re.compile(r"plain HTTP request was sent to (?:an? )?HTTPS port|HTTP request to an HTTPS server", re.I)
_MARKUP = re.compile(r"<(?:script|style)\b.*?</(?:script|style)>|<[^>]{0,2000}>", re.IGNORECASE | re.DOTALL)
_MOST_NESTED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorWords:
    """What a body says: its message, and the names it gives the error (type, code). ``numbers``: llama.cpp's
    n_prompt_tokens and n_ctx. ``code``: a status of its own, where it states one."""

    message: str
    names: tuple[str, ...] = ()
    numbers: Mapping[str, int] | None = None
    code: int | None = None


def raise_for_status(reply: Reply) -> NoReturn:
    """Raise what a status other than 200 means."""
    raise reply_error(reply.status, reply.body, reply.headers)


def reply_error(status: int, body: bytes, headers: Mapping[str, str] | None = None) -> EngineError:
    """The error that a reply is. Its evidence: the status, the body (whole up to 64 KiB), and how long to wait."""
    headers = headers or {}
    evidence: dict[str, Any] = {"known_by": "message", "http_status": status, "body": body_evidence(body)}
    wait_s = retry_after_s(headers)
    if wait_s is not None:
        evidence["retry_after_s"] = wait_s
    if 300 <= status < 400:
        return _redirected(status, headers, evidence)
    return _error(read_words(body), status, evidence)


def event_error(event: Mapping[str, Any], status: int = 200) -> EngineError:
    """The error that an event of a stream is, or the body of a reply that said 200."""
    text = json.dumps(event, ensure_ascii=False)
    evidence: dict[str, Any] = {"known_by": "message", "http_status": status, "body": body_evidence(text)}
    return _error(words_of(event), status, evidence)


def is_error(value: Mapping[str, Any]) -> bool:
    """Whether an object is an error's body. ``error: null`` beside an answer is none."""
    code = value.get("code")
    is_failing = isinstance(code, int) and not isinstance(code, bool) and code >= 400 and not value.get("choices")
    return bool(value.get("error")) or value.get("object") == "error" or is_failing


def read_words(body: bytes) -> ErrorWords:
    """What a body says, whatever its form."""
    text = body[: 1024 * 1024].decode(errors="replace").strip()
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return ErrorWords(message=_without_markup(text))
    return words_of(found)


def words_of(found: Any, nested: int = 0) -> ErrorWords:
    """As ``read_words``, of the parsed body."""
    if isinstance(found, str):
        return _words_in_text(found, nested)
    if isinstance(found, list) and found and isinstance(found[0], dict) and nested < _MOST_NESTED:
        return words_of(found[0], nested + 1)  # Google's interface sends a list of one
    if not isinstance(found, dict):
        return ErrorWords(message=json.dumps(found))
    inner = found.get("error")
    if isinstance(inner, dict | str) and inner and nested < _MOST_NESTED:
        words = words_of(inner, nested + 1)
        kind = found.get("error_type")
        return words if not isinstance(kind, str) else _with_name(words, kind)
    message = next((text for name in ("message", "detail", "msg") if (text := _text(found.get(name), nested))), None)
    raw = metadata.get("raw") if isinstance(metadata := found.get("metadata"), dict) else None
    if isinstance(raw, str) and raw:
        message = f"{message or ''} {raw}".strip()
    code = found.get("code")
    numbers = {name: found[name] for name in ("n_prompt_tokens", "n_ctx") if isinstance(found.get(name), int)}
    return ErrorWords(
        message=message or json.dumps(found, ensure_ascii=False),
        names=tuple(name for name in (found.get("type"), code) if isinstance(name, str)),
        numbers=numbers if len(numbers) == 2 else None,
        code=code if isinstance(code, int) and not isinstance(code, bool) else None,
    )


def _words_in_text(text: str, nested: int) -> ErrorWords:
    """A text may be another server's whole body, handed on."""
    if text.lstrip().startswith("{") and nested < _MOST_NESTED:
        try:
            return words_of(json.loads(text), nested + 1)
        except (ValueError, RecursionError):
            pass
    return ErrorWords(message=text)


def _with_name(words: ErrorWords, name: str) -> ErrorWords:
    return ErrorWords(message=words.message, names=(*words.names, name), numbers=words.numbers, code=words.code)


def _text(value: Any, nested: int) -> str | None:
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and value and nested < _MOST_NESTED:  # Mistral's, around pydantic's
        return words_of(value, nested + 1).message
    if isinstance(value, list):  # pydantic's: what is wrong, and where
        said = [f"{'.'.join(map(str, each.get('loc', ())))}: {each.get('msg')}" for each in value if _is_said(each)]
        return "; ".join(said) or None
    return None


def _is_said(each: Any) -> bool:
    return isinstance(each, dict) and isinstance(each.get("msg"), str) and isinstance(each.get("loc", []), list)


def _without_markup(text: str) -> str:
    """A page of a proxy, as the words that are on it."""
    return " ".join(_MARKUP.sub(" ", text).split()) if "<" in text[:200] else text


def _error(words: ErrorWords, status: int, evidence: dict[str, Any]) -> EngineError:
    message = verbatim(words.message) or "(nothing was said)"
    kind, _ = classify_message("\n".join([words.message, *words.names]))
    code = status if status != 200 or words.code is None else words.code
    match kind:
        case "context_overflow":
            return _overflow(words, message, evidence)
        case "out_of_memory":
            return OutOfMemory(
                f"The server ran out of memory: {message}",
                hint="Use a smaller context or cache type, or send fewer requests at once.",
                evidence=evidence,
            )
        case "rate_limited":
            return _rate_limited(message, code, evidence)
        case "engine_fault":
            return ServerError(
                f"The server failed ({code}), by a fault of its own and not for want of memory: {message}",
                hint="Its log says more. It may have to be started again.",
                evidence=evidence,
            )
        case "invalid_settings":
            return InvalidSettings(
                f"The server refuses a setting of the request ({code}): {message}",
                hint="Leave out what it names, or name the server's own engine with --engine.",
                evidence=evidence,
            )
        case "model_error":
            return _no_model(message, code, evidence)
    return _by_status(message, code, evidence)


def _overflow(words: ErrorWords, message: str, evidence: dict[str, Any]) -> ContextOverflow:
    if words.numbers is not None:
        asked, limit = words.numbers["n_prompt_tokens"], words.numbers["n_ctx"]
        return ContextOverflow(
            f"The prompt has {asked} tokens; the engine's context holds {limit}.",
            hint=f"Shorten the prompt, or load the model with a context of more than {asked} tokens (n_ctx).",
            evidence=evidence,
        )
    if "size has been exceeded" in message:
        return ContextOverflow(
            f"The engine's context was full while it worked: {message}",
            hint="Send fewer requests at once, or load the model with a larger context (n_ctx).",
            evidence=evidence,
        )
    return ContextOverflow(
        f"Prompt and answer do not fit the model's context: {message}",
        hint="Shorten the prompt or the answer, or load the model with a larger context.",
        evidence=evidence,
    )


def _rate_limited(message: str, code: int | None, evidence: dict[str, Any]) -> RateLimited:
    wait_s = evidence.get("retry_after_s")
    hint = "Wait, or send fewer requests at once."
    if wait_s is not None:
        hint = f"Wait {wait_s:g} s, as it asks, or send fewer requests at once."
    if code == 402 or "quota" in message.lower():
        hint = "The account has nothing left to spend."
    return RateLimited(f"The server refuses for now ({code}): {message}", hint=hint, evidence=evidence)


def _no_model(message: str, code: int | None, evidence: dict[str, Any]) -> EngineModelError:
    return EngineModelError(
        f"The server cannot use this model ({code}): {message}",
        hint="Ask it which models it has (GET /v1/models), and name one of them.",
        evidence=evidence,
    )


def _by_status(message: str, code: int | None, evidence: dict[str, Any]) -> EngineError:
    if code in (401, 403):
        return InvalidSettings(
            f"The server does not let kvscope in ({code}): {message}",
            hint="Name the environment variable that holds its key with --api-key-env, and check that the key may use "
            "this model.",
            evidence=evidence,
        )
    if code in (402, 429):
        return _rate_limited(message, code, evidence)
    if code == 404 and _NO_SUCH_MODEL.search(message):
        return _no_model(message, code, evidence)
    if code in (408, 504):
        return EngineTimeout(
            f"The server, or a proxy before it, gave up waiting ({code}): {message}",
            hint="Its own time limit is shorter than the answer takes. Raise it there, or ask for less.",
            evidence=evidence,
        )
    if code is not None and code >= 500:
        return ServerError(f"The server failed ({code}): {message}", hint="Its log says more.", evidence=evidence)
    hint = REPLY_HINT
    if _WRONG_SCHEME.search(message):
        hint = "Write https:// instead of http://."
    elif code == 404:
        hint = "It has nothing at this address. Is the path right, and is it a server with OpenAI's interface?"
    elif code == 413:
        hint = "The request is larger than the server, or a proxy before it, takes. Send a shorter prompt."
    return EngineReplyError(f"The server refused the request ({code}): {message}", hint=hint, evidence=evidence)


def _redirected(status: int, headers: Mapping[str, str], evidence: dict[str, Any]) -> EngineReplyError:
    target = headers.get("location", "").partition("?")[0]
    to = f" to {target[:300]}" if target else ""
    return EngineReplyError(
        f"The server sends the request elsewhere{to} ({status}); it was not followed.",
        hint="Give that address to kvscope, if you trust it with the key and the prompts.",
        evidence=evidence,
    )


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds that the server asks to wait: Retry-After as seconds or as a date (RFC 9110, 10.2.3), which counts from
    the server's own Date; retry-after-ms where OpenAI and Azure send it. None where it does not say."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        text = headers.get(name, "").strip()
        if re.fullmatch(r"\d{1,9}(?:\.\d{1,9})?", text):
            return float(text) / unit
    until, now = _date(headers.get("retry-after", "")), _date(headers.get("date", ""))
    if until is None:
        return None
    return max(0.0, (until - (now or datetime.now(UTC))).total_seconds())


def _date(text: str) -> datetime | None:
    try:
        found = parsedate_to_datetime(text.strip())
    except (ValueError, TypeError, IndexError):
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
