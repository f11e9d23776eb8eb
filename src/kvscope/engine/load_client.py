"""Several requests at once, each sent at its time, every read stamped as it comes.

``send_load`` serves every adapter whose requests are HTTP: the adapter says how each request is prepared and read
(``prepared.py``).
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable

from kvscope.engine.base import ChatRequest, ClientHealth, Load, LoadAnswer, LoadResult
from kvscope.engine.http_client import run
from kvscope.engine.prepared import Prepared, ask
from kvscope.errors import KvscopeError


def send_load(load: Load, prepare: Callable[[ChatRequest], Prepared]) -> LoadResult:
    """Send the requests of ``load``, each at its time; all its answers, and how the client was. See
    ``Engine.generate_many``.

    ``prepare`` is called for every request before the first is sent. What it raises of kvscope's errors is that
    request's error, and so is whatever goes wrong with one request later; a process that has died is seen as
    ConnectionLost or ConnectionRefused, which the adapter explains afterwards: ``explained``. Ctrl-C ends all."""
    return run(_send(load, prepare))


async def _send(load: Load, prepare: Callable[[ChatRequest], Prepared]) -> LoadResult:
    started_s = time.perf_counter()
    waiting = deque(enumerate(load.requests))
    answers: dict[int, LoadAnswer] = {}

    async def stream(number: int) -> None:
        while waiting:
            index, chat = waiting.popleft()
            sent_s = time.perf_counter() - started_s
            generation, error = None, None
            try:
                generation = await ask(prepare(chat))
            except KvscopeError as failure:
                error = failure
            answers[index] = LoadAnswer(index=index, stream=number, sent_s=sent_s, generation=generation, error=error)

    await asyncio.gather(*(stream(number) for number in range(load.concurrency)))
    return LoadResult(
        answers=tuple(answers[index] for index in sorted(answers)),
        wall_s=time.perf_counter() - started_s,
        health=ClientHealth(),
    )


def explained(result: LoadResult, explain: Callable[[KvscopeError], KvscopeError]) -> LoadResult:
    """The same with every error as ``explain`` gives it: by an adapter that knows whether its process has died."""
    from dataclasses import replace

    answers = tuple(
        answer if answer.error is None else replace(answer, error=explain(answer.error)) for answer in result.answers
    )
    return replace(result, answers=answers)
