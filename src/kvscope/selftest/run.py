"""The self-test from its start to its table: server up, cell after cell, server down."""

import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace

from kvscope import __version__
from kvscope.engine.base import ClientHealth, Generation, Load, LoadAnswer, LoadResult
from kvscope.engine.event_loop import run
from kvscope.engine.load_client import send_load
from kvscope.engine.openai_http import prepare_chat, stream_chat
from kvscope.errors import KvscopeError, UsageError
from kvscope.selftest.cells import Cell, Limits, requests_cell, timed_cells, warm_up
from kvscope.selftest.compare import compare
from kvscope.selftest.processors import apart, kept_on, waited_s
from kvscope.selftest.result import (
    FAILED,
    GAPS,
    GAPS_SINGLE,
    LIMITED,
    SERVER_BEHIND,
    TTFT,
    TTFT_SINGLE,
    UNMATCHED,
    Compared,
    Row,
    Selftest,
    ServerFacts,
    Spread,
)
from kvscope.selftest.server import TruthServer

Send = Callable[[str, Load], LoadResult]
SECONDS = 1.0
_LONGEST_S = 60.0
# A first look at how many requests a second go through, so that the cell takes about the time that it may. What the
# answers say is read when the times have been taken, which takes longer than that: so there are not too many.
_FIRST_REQUESTS = 300
_MOST_REQUESTS = 10_000
# Below this share of its schedule, it was the server that did not offer what the row is named for.
_LEAST_PACE = 0.95
_MOST_TRIES = 3
# Where the client as a whole kept up, so many of its answers may be marked without the row being so.
_FEW_LIMITED = 0.1


def send(url: str, load: Load) -> LoadResult:
    """kvscope's client as it is used: one stream as in a trial of one request after another, several as a load."""
    if load.concurrency > 1:
        return send_load(load, lambda chat: prepare_chat(url, chat, fields={}))
    answers, started_s = [], time.perf_counter()
    for index, chat in enumerate(load.requests):
        generation, error, sent_s = None, None, time.perf_counter() - started_s
        try:
            generation = run(stream_chat(url, chat, fields={}))
        except KvscopeError as failure:
            error = failure
        answers.append(LoadAnswer(index=index, stream=0, sent_s=sent_s, generation=generation, error=error))
    return LoadResult(answers=tuple(answers), wall_s=time.perf_counter() - started_s, health=ClientHealth())


def run_selftest(
    *,
    seconds: float = SECONDS,
    in_python: bool = False,
    client: Send = send,
    tell: Callable[[str], None] = lambda cell: None,
) -> Selftest:
    """Hold ``client`` against the truth server. ``seconds``: of each cell; ``tell``: called with each cell's name as it
    begins. Raises UsageError for a time that cannot be, and an EngineError where the server does not come up."""
    if not 0.2 <= seconds <= _LONGEST_S:
        raise UsageError(f"{seconds:g} seconds for each row cannot be.", hint=f"Use 0.2 to {_LONGEST_S:g}.")
    began_s = time.perf_counter()
    places = apart()
    with TruthServer(places, in_python=in_python) as server, kept_on(places.client) as refused:
        run_cell(warm_up(), server, client)
        rows = []
        for cell in timed_cells(seconds):
            tell(cell.name)
            rows.append(_run_undisturbed(cell, server, client))
        tell("requests")
        first = run_cell(requests_cell(_FIRST_REQUESTS, name="first-requests"), server, client)
        fitting = round(seconds * first.compared.answers / first.wall_s)
        rows.append(run_cell(requests_cell(max(_FIRST_REQUESTS, min(fitting, _MOST_REQUESTS))), server, client))
        about = server.about()
    core = about["core"] if about["core"] >= 0 else None
    why_not = places.why_not or refused or (None if core is not None else "the server may not choose its processor")
    facts = ServerFacts(
        kind=about["server"],
        why=about.get("why"),
        core=core,
        client_cores=places.client if why_not is None else None,
        why_not_apart=why_not,
        kernel_stamps=about["kernel_stamps"],
    )
    return Selftest(rows=tuple(rows), server=facts, machine=_machine(), seconds=time.perf_counter() - began_s)


def _run_undisturbed(cell: Cell, server: TruthServer, client: Send) -> Row:
    """A basic cell that is off while other programs demonstrably took the processors says nothing about the client:
    it is run again, and the row says how often."""
    row = run_cell(cell, server, client)
    while cell.kind == "basic" and row.why_not and row.is_disturbed and row.tries < _MOST_TRIES:
        unmarked = row.unmarked_tries + row.is_unmarked
        row = replace(run_cell(cell, server, client), tries=row.tries + 1, unmarked_tries=unmarked)
    return row


def run_cell(cell: Cell, server: TruthServer, client: Send = send) -> Row:
    """One row: the load sent, the server's log fetched, both held against each other."""
    load = cell.load()
    cpu_s, waits_s, began_s = time.process_time(), waited_s(), time.perf_counter()
    result = client(server.url, load)
    wall_s, cpu_s, waits_after_s = time.perf_counter() - began_s, time.process_time() - cpu_s, waited_s()
    sent = server.take_sent()
    seen = {cell.request_id(a.index): a.generation for a in result.answers if a.generation is not None}
    errors = [answer.error for answer in result.answers if answer.error is not None]
    compared = compare(seen, sent)
    limited = [each.health.limited_by for each in seen.values() if each.health is not None and each.health.limited_by]
    limited_by = result.health.limited_by
    if not limited_by and len(limited) > _FEW_LIMITED * len(seen):
        limited_by = limited[0]
    return Row(
        cell=cell.name,
        kind=cell.kind,
        streams=cell.streams,
        requests=cell.num_requests,
        offered_tokens_per_s=cell.offered_tokens_per_s,
        wall_s=result.wall_s,
        failed=len(errors),
        first_error=errors[0].message if errors else None,
        compared=compared,
        cpu_s=cpu_s,
        waited_share=None if waits_s is None or waits_after_s is None else (waits_after_s - waits_s) / wall_s,
        loop_lag_p99_s=_lag(result.health, seen),
        limited_by=limited_by,
        limited_answers=len(limited),
        limits=None if cell.limits is None else asdict(cell.limits),
        why_not=tuple(why_not(cell, compared, failed=len(errors), is_limited=bool(limited_by))),
    )


def _lag(of_all: ClientHealth, seen: Mapping[str, Generation]) -> float | None:
    """Of the load as a whole, where the client watched that; otherwise the worst of its answers."""
    if of_all.loop_lag_p99_s is not None:
        return of_all.loop_lag_p99_s
    each = (answer.health.loop_lag_p99_s for answer in seen.values() if answer.health is not None)
    return max((lag_s for lag_s in each if lag_s is not None), default=None)


def why_not(cell: Cell, compared: Compared, *, failed: int, is_limited: bool) -> list[str]:
    """Why a cell's row is not to be believed, most telling first; empty: it is within its limits."""
    found = [FAILED] if failed else []
    if compared.unmatched > failed or (not compared.answers and not failed):
        found.append(UNMATCHED)
    is_behind = _is_behind(cell, compared)
    if cell.limits is not None:
        found += _first_token_off(cell.limits, compared) if compared.arrivals_known or not is_behind else []
        found += _gaps_off(cell.limits, compared)
    found += [LIMITED] if is_limited else []
    return [*found, SERVER_BEHIND] if is_behind else found


def _first_token_off(limits: Limits, compared: Compared) -> list[str]:
    mean_s = compared.ttft_error_s.mean
    if mean_s is None or abs(mean_s) > limits.ttft_s:
        return [TTFT]
    return [TTFT_SINGLE] if _singly_off(compared.ttft_off_s, limits.ttft_off_p50_s, limits.ttft_off_p99_s) else []


def _gaps_off(limits: Limits, compared: Compared) -> list[str]:
    share = compared.gap_error_share
    if share is None or abs(share) > limits.gap_share:
        return [GAPS]
    return [GAPS_SINGLE] if _singly_off(compared.gap_error_s, limits.gap_off_p50_s, limits.gap_off_p99_s) else []


def _singly_off(off: Spread, most_p50_s: float, most_p99_s: float) -> bool:
    return (off.p50 or 0.0) > most_p50_s or (off.p99 or 0.0) > most_p99_s


def _is_behind(cell: Cell, compared: Compared) -> bool:
    """Whether the server did not offer what the row is named for, and not because nobody read; or whether it was so
    late, and so may have read requests so late, that nothing can be said of the first token."""
    late_s = compared.server_late_s.p50
    if cell.limits is not None and not compared.arrivals_known and late_s is not None and late_s > cell.limits.ttft_s:
        return True
    return compared.server_pace is not None and compared.server_pace < _LEAST_PACE and not compared.server_blocked


def _machine() -> dict[str, object]:
    return {
        "kvscope": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processors": os.cpu_count(),
    }
