"""Asynchronous work run to its end from ordinary code, on the loop that suits it."""

import asyncio
import gc
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")
LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def fast_loop() -> asyncio.AbstractEventLoop:
    """A new loop: uvloop's, which takes about half the processor time of asyncio's for each
    read; asyncio's own where uvloop has no build (Windows, other interpreters)."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


@contextmanager
def no_collection() -> Iterator[None]:
    """No search for garbage while times are taken: one over a large heap takes a tenth of a second, and what requests
    leave has no circles."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def run(work: Coroutine[Any, Any, T], loop_factory: LoopFactory = fast_loop) -> T:
    """Run a coroutine to its end from ordinary code, also where a loop is running already (a notebook). Ctrl-C cancels
    it, which closes its sockets."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run(work, loop_factory)
    started: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = []

    async def tracked() -> T:
        started.append((asyncio.get_running_loop(), asyncio.ensure_future(work)))
        return await started[0][1]

    with ThreadPoolExecutor(max_workers=1) as thread:
        future = thread.submit(_run, tracked(), loop_factory)
        try:
            return future.result()
        except BaseException:
            if started and not future.done():
                loop, task = started[0]
                loop.call_soon_threadsafe(task.cancel)
            raise


def _run(work: Coroutine[Any, Any, T], loop_factory: LoopFactory) -> T:
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(work)
