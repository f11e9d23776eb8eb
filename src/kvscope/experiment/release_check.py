"""What an engine gives back, step by step, after the last request of a trial: first the copies that it keeps of earlier
prompts (``clear_cache``), then its model (``unload``). Its exit comes with the end of the trial.

Each step is the engine's own way (``Engine.clear_cache``, ``Capabilities.unload_way``); one that it does not have is
left out. After each, memory is read once it stands still. A request that is still running or waiting is somebody's:
then nothing is taken away, and nothing is claimed.
"""

from collections.abc import Callable
from typing import Protocol

from kvscope.engine.base import Engine, ReportedBuffer
from kvscope.errors import EngineStartFailed


class MarkMoment(Protocol):
    """Reads memory at a moment of the trial, its list of mappings too, once memory stands still."""

    def __call__(self, phase: str) -> None: ...


class Warn(Protocol):
    """Notes a doubt."""

    def __call__(self, slug: str, message: str, hint: str) -> None: ...


def check_release(
    engine: Engine,
    *,
    mark: MarkMoment,
    warn: Warn,
    note_kept: Callable[[str, list[ReportedBuffer]], None],
) -> None:
    """Take the steps that this engine has. ``note_kept`` gets what it says it still keeps of prompts after its own
    clearing. Raises an EngineError where a step fails."""
    able = engine.capabilities
    if not able.can_clear_cache and not able.can_unload:
        return
    active = engine.active_requests()
    if active:
        warn(
            "requests-active",
            f"{active} requests were running or waiting after the last one of the trial: the engine was not told to "
            "release anything.",
            "Measure again when nobody else uses this engine.",
        )
        return
    if able.can_clear_cache:
        reason = engine.clear_cache()
        # Of an engine that emptied its cache and keeps copies elsewhere, the copies are counted as what remains.
        if reason is None or engine.statistics().get("kv_cache_used_tokens") == 0:
            mark("cache_cleared")
            note_kept("cache_cleared", kept_buffers(engine))
        else:
            warn("not-cleared", f"What is kept of earlier prompts was not dropped: {reason}", "The step is left out.")
    if able.can_unload:
        _unload(engine, mark, warn)


def _unload(engine: Engine, mark: MarkMoment, warn: Warn) -> None:
    try:
        engine.unload()
    except EngineStartFailed as error:
        # A server that runs for others too keeps a model that is not ours to unload: no failure of what was measured.
        if engine.capabilities.owns_process:
            raise
        warn("not-unloaded", f"The model was not unloaded: {error}", error.hint or "The step is left out.")
        return
    mark("unloaded")


def kept_buffers(engine: Engine) -> list[ReportedBuffer]:
    """What the engine says it keeps of earlier prompts, beside its cache."""
    host_cache = engine.host_cache()
    return [*([host_cache] if host_cache is not None else []), *engine.checkpoints()]
