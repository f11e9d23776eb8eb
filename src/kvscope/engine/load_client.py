"""Several requests at once, each sent at its time, every read stamped as it comes and read when all are over.

``send_load`` serves every adapter whose requests are HTTP: the adapter says how each request is prepared and read
(``prepared.py``). Times and errors mean what they mean for one request alone.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from kvscope.engine.base import ChatRequest, ClientHealth, Load, LoadAnswer, LoadResult
from kvscope.engine.client_health import Ticker, coalesced, percentile_99, seen_of
from kvscope.engine.event_loop import fast_loop, no_collection, run
from kvscope.engine.http_client import hidden_in_errors
from kvscope.engine.http_connection import endpoint
from kvscope.engine.http_request import request_bytes
from kvscope.engine.load_sending import Senders, Sending
from kvscope.engine.open_files import room_for
from kvscope.engine.prepared import Prepared
from kvscope.errors import KvscopeError, UsageError


def send_load(load: Load, prepare: Callable[[ChatRequest], Prepared]) -> LoadResult:
    """Send the requests of ``load``, each at its time; all its answers, and how the client was. See
    ``Engine.generate_many``.

    ``prepare`` is called for every request before the first is sent. What it raises of kvscope's errors is that
    request's error, and so is whatever goes wrong with one request later, as ``ask`` would have raised it; a process
    that has died is seen as ConnectionLost or ConnectionRefused, which the adapter explains afterwards: ``explained``.
    Each answer has its ``health``. Ctrl-C ends all. Raises UsageError for a load that cannot be."""
    dues = due_times(load)
    sendings = [_made_ready(index, chat, prepare) for index, chat in enumerate(load.requests)]
    for sending, due_s in zip(sendings, dues, strict=False):
        sending.due_s = due_s
    senders = Senders(sendings=sendings, concurrency=load.concurrency)
    ticker = Ticker(also=senders.watch)
    # In an open loop, all may be under way at once.
    connections = load.concurrency if load.arrival == "closed" else len(load.requests)
    with no_collection(), room_for(min(connections, len(load.requests))):
        run(senders.send_all(ticker), fast_loop)
    answers = tuple(_answer(sending, senders.begin_s, ticker) for sending in sendings)
    return LoadResult(
        answers=answers,
        wall_s=senders.end_s - senders.begin_s,
        health=_health(sendings, answers, ticker),
        begin_s=senders.begin_s,
    )


def due_times(load: Load) -> tuple[float, ...]:
    """When each request falls due, in seconds from the begin; empty in a closed loop. Constant: evenly, the first at
    once. Poisson: gaps are exponential, from the load's seed, the first too. Raises UsageError for a load that cannot
    be."""
    if load.concurrency < 1:
        raise UsageError(f"A load of {load.concurrency} streams sends nothing.", hint="Give 1 or more.")
    if load.arrival == "closed":
        return ()
    rate = load.rate_per_s
    if rate is None or not 0 < rate < float("inf"):
        raise UsageError("An open loop needs the number of requests per second.", hint="Give a rate above 0.")
    if load.arrival == "constant":
        return tuple(index / rate for index in range(len(load.requests)))
    chance, at_s, dues = random.Random(load.seed), 0.0, []
    for _ in load.requests:
        at_s += chance.expovariate(rate)
        dues.append(at_s)
    return tuple(dues)


def explained(result: LoadResult, explain: Callable[[KvscopeError], KvscopeError]) -> LoadResult:
    """The same with every error as ``explain`` gives it: by an adapter that knows whether its process has died."""
    answers = tuple(
        answer if answer.error is None else replace(answer, error=explain(answer.error)) for answer in result.answers
    )
    return replace(result, answers=answers)


def _made_ready(index: int, chat: ChatRequest, prepare: Callable[[ChatRequest], Prepared]) -> Sending:
    sending = Sending(index=index)
    try:
        prepared = prepare(chat)
        with hidden_in_errors(prepared.headers):
            sending.where = endpoint(prepared.url)
            sending.request = request_bytes(
                "POST", sending.where, prepared.headers, prepared.payload, keeps_alive=prepared.keeps_alive
            )
        sending.prepared = prepared
    except KvscopeError as error:
        sending.error = error
    return sending


def _answer(sending: Sending, begin_s: float, ticker: Ticker) -> LoadAnswer:
    generation, error = None, sending.error
    if error is None:
        sending.read()
        assert sending.playback is not None
        generation, error = sending.playback.generation, sending.playback.error
        sending.playback.close()
    if generation is not None:
        assert sending.recording is not None
        health = ticker.health(
            sending.sent_s,
            sending.recording.ended_s,
            send_to_wire_s=sending.sent_s - sending.ready_s,
            late_p99_s=_late_s(sending),
            coalesced_fraction=coalesced(generation.reads),
            num_resent=int(sending.is_resent),
            seen=seen_of(generation, sending.sent_s),
        )
        generation = replace(generation, health=health)
    return LoadAnswer(
        index=sending.index,
        stream=sending.stream,
        sent_s=sending.sent_s - begin_s,
        due_s=None if sending.due_s is None else sending.due_s - begin_s,
        generation=generation,
        error=error,
    )


def _late_s(sending: Sending) -> float | None:
    return None if sending.due_s is None else sending.sent_s - sending.due_s


def _health(sendings: Sequence[Sending], answers: Sequence[LoadAnswer], ticker: Ticker) -> ClientHealth:
    reads = [read for answer in answers if answer.generation is not None for read in answer.generation.reads]
    sent = [one for one in sendings if one.recording is not None and one.recording.sent_s is not None]
    seen = [
        moments
        for one, answer in zip(sendings, answers, strict=True)
        if answer.generation is not None
        for moments in seen_of(answer.generation, one.sent_s)
    ]
    late = [late_s for one in sent if (late_s := _late_s(one)) is not None]
    return ticker.health(
        send_to_wire_s=percentile_99([one.sent_s - one.ready_s for one in sent]),
        late_p99_s=percentile_99(late),
        coalesced_fraction=coalesced(reads),
        num_resent=sum(one.is_resent for one in sendings),
        seen=seen,
    )
