"""What an engine can still hold of earlier prompts when a trial begins: each trial's row says it."""

from kvscope.engine.base import Engine

FRESH_PROCESS = "fresh process"
CLEARED = "cleared"
NOT_CLEARED = "not cleared"


def begin_uncached(engine: Engine) -> str:
    """Drop what is kept of earlier prompts where that is kvscope's to do, and say how the trial begins. An engine that
    kvscope started holds none. One that others may use keeps what it has, and prompts that share no beginning with any
    other, asked for without reuse, find nothing there: what it reused all the same is in cached_tokens."""
    able = engine.capabilities
    if able.owns_process:
        return FRESH_PROCESS
    return CLEARED if able.can_clear_cache and engine.clear_cache() is None else NOT_CLEARED
