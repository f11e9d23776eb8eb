"""The turns of a recorded conversation: which request is which turn, and how each request ended."""

from functools import cache

from kvscope.errors import EngineError
from kvscope.record.rows import QUALITY, TRUNCATED_SLUG, RequestRow, TrialResult

FACTOR = "turns"


def turns_of(result: TrialResult) -> dict[int, int]:
    """Index of a request → its turn, from 1; empty where the attempt played no conversation."""
    if FACTOR not in result.trial.levels:
        return {}
    asked = [request.index for request in result.requests if request.role not in ("warmup", QUALITY)]
    return {index: turn for turn, index in enumerate(asked, start=1)}


def request_outcome(request: RequestRow, of_attempt: str | None) -> str:
    """How one request ended, given how its attempt did. Of several at once each can end in a way of its own."""
    if request.error_slug == TRUNCATED_SLUG:
        return "truncated_input"
    if request.error_slug is not None:
        own = None if request.stream is None else _outcome_by_slug().get(request.error_slug)
        return own or of_attempt or "interrupted"
    if request.role == QUALITY:  # it ends where the answer ends
        return "ok"
    is_short = request.output_tokens is not None and request.output_tokens < request.output_tokens_limit
    return "stopped_early" if is_short else "ok"


@cache
def _outcome_by_slug() -> dict[str, str]:
    """Slug of an engine's error → the outcome that it is."""
    found, kinds = {}, [EngineError]
    while kinds:
        kind = kinds.pop()
        found[kind.slug] = kind.outcome
        kinds += kind.__subclasses__()
    return found
