"""The self-test on this machine: whole, with a client that is slow on purpose, and where something is missing."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kvscope.cli.selftest import selftest
from kvscope.engine.base import ClientHealth, Load, LoadAnswer, LoadResult, TokenEvent
from kvscope.engine.load_wire import LoadWire
from kvscope.errors import ConnectionLost, EngineStartFailed, UsageError
from kvscope.report.selftest_text import render_selftest
from kvscope.selftest import processors, run
from kvscope.selftest.cells import Cell, requests_cell, timed_cells
from kvscope.selftest.processors import Apart, apart, kept_on
from kvscope.selftest.run import run_cell, run_selftest
from kvscope.selftest.server import TruthServer

TOGETHER = Apart(server=None, client=None, why_not="only one processor may be used here")


def few(cell: Cell, waves: int = 2) -> Cell:
    return replace(cell, num_requests=cell.streams * waves)


ONE, EIGHT, THOUSAND = (few(cell) for cell in timed_cells(0.5)[:3])


@pytest.fixture(scope="module")
def server() -> Iterator[TruthServer]:
    with TruthServer(apart(), in_python=False) as running:
        yield running


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("cell", [ONE, EIGHT, THOUSAND, requests_cell(40)], ids=lambda cell: cell.name)
def test_every_answer_is_found_in_the_log(server: TruthServer, cell: Cell) -> None:
    """How exact they are depends on the machine; that they are the same answers does not."""
    row = run_cell(cell, server)
    assert (row.failed, row.first_error, row.compared.unmatched) == (0, None, 0)
    assert row.compared.answers == cell.num_requests
    assert row.compared.tokens == cell.num_requests * cell.tokens
    assert row.compared.server_late_s.p50 is not None
    assert row.compared.server_late_s.p50 >= 0
    assert row.cpu_s > 0


@pytest.mark.parametrize("cell", [ONE, EIGHT], ids=["1 stream", "8 streams"])
def test_a_slow_client_is_found_out(server: TruthServer, monkeypatch: pytest.MonkeyPatch, cell: Cell) -> None:
    """Each read is handed over 10 ms after it came: the first token is late by that, or more where reads queue. (A busy
    machine may take a millisecond off: it can hold up the client between sending and noting when it sent.)"""
    received = LoadWire.data_received

    def late(self: LoadWire, data: bytes) -> None:
        time.sleep(0.010)
        received(self, data)

    monkeypatch.setattr(LoadWire, "data_received", late)
    row = run_cell(replace(cell, tokens=4), server)
    assert row.compared.ttft_error_s.mean is not None
    assert row.compared.ttft_error_s.mean > 0.005
    assert "ttft" in row.why_not


def altered(change: Callable[[int, list[TokenEvent]], list[TokenEvent]]) -> run.Send:
    """kvscope's client, which then says other times: ``change`` gets each answer's place and its events."""

    def client(url: str, load: Load) -> LoadResult:
        result = run.send(url, load)
        answers = []
        for answer in result.answers:
            assert answer.generation is not None
            events = change(answer.index, list(answer.generation.events))
            answers.append(replace(answer, generation=replace(answer.generation, events=tuple(events))))
        return replace(result, answers=tuple(answers))

    return client


@pytest.mark.parametrize(
    ("of_load", "of_answers", "expected"), [((), 1, ()), ((), 2, ("slow",)), (("all",), 2, ("all",))]
)
def test_a_row_is_limited_as_its_load_is_or_many_of_its_answers(
    server: TruthServer, of_load: tuple[str, ...], of_answers: int, expected: tuple[str, ...]
) -> None:
    """Of 16 answers, one is less than a tenth, and two are more."""

    def client(url: str, load: Load) -> LoadResult:
        result = run.send(url, load)
        answers = []
        for answer in result.answers:
            assert answer.generation is not None
            health = ClientHealth(limited_by=("slow",) if answer.index < of_answers else ())
            answers.append(replace(answer, generation=replace(answer.generation, health=health)))
        return replace(result, answers=tuple(answers), health=ClientHealth(limited_by=of_load))

    row = run_cell(EIGHT, server, client)
    assert (row.limited_by, row.limited_answers) == (expected, of_answers)
    assert ("client_limited" in row.why_not) == bool(expected)


def early_and_late(index: int, events: list[TokenEvent]) -> list[TokenEvent]:
    return [replace(event, at_s=event.at_s + (0.02 if index % 2 else -0.02)) for event in events]


def bunched(index: int, events: list[TokenEvent]) -> list[TokenEvent]:
    return [events[0], *[replace(event, at_s=events[-1].at_s) for event in events[1:]]]


def stretched(index: int, events: list[TokenEvent]) -> list[TokenEvent]:
    first_s, factor = events[0].at_s, 1.5 if index % 2 else 0.5
    return [replace(event, at_s=first_s + (event.at_s - first_s) * factor) for event in events]


@pytest.mark.parametrize(
    ("change", "slugs"),
    [
        (early_and_late, {"ttft", "ttft_single"}),
        (bunched, {"gaps", "gaps_single"}),
        (stretched, {"gaps", "gaps_single"}),
    ],
)
@pytest.mark.parametrize("cell", [ONE, EIGHT, THOUSAND], ids=lambda cell: cell.name)
def test_a_client_whose_errors_cancel_is_found_out(
    server: TruthServer,
    cell: Cell,
    change: Callable[[int, list[TokenEvent]], list[TokenEvent]],
    slugs: set[str],
) -> None:
    """On a busy machine the averages may be off as well, so either word will do."""
    row = run_cell(cell, server, altered(change))
    assert slugs & set(row.why_not), row.why_not


def broken(url: str, load: Load) -> LoadResult:
    """A client none of whose requests comes through, but for the first."""
    lost = ConnectionLost("The wire was cut.", hint="Mend it.")
    result = run.send(url, replace(load, requests=load.requests[:1]))
    rest = (LoadAnswer(index=k, stream=0, sent_s=0.0, error=lost) for k in range(1, len(load.requests)))
    return replace(result, answers=(*result.answers, *rest))


def test_requests_that_fail_are_counted_and_the_first_is_quoted(server: TruthServer) -> None:
    row = run_cell(EIGHT, server, broken)
    assert row.failed == 15
    assert row.first_error == "The wire was cut."
    assert row.why_not[0] == "failed"


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole self-test of small cells."""
    monkeypatch.setattr(run, "timed_cells", lambda seconds: (ONE, EIGHT, THOUSAND))
    monkeypatch.setattr(run, "_FIRST_REQUESTS", 20)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("in_python", [False, True])
def test_the_whole_for_scripts_and_for_people(in_python: bool) -> None:
    told: list[str] = []
    before = os.sched_getaffinity(0)
    found = run_selftest(seconds=0.2, in_python=in_python, tell=told.append)
    assert os.sched_getaffinity(0) == before
    assert told == ["1 stream", "8 streams", "1,000 tokens/s", "requests"]
    data = json.loads(json.dumps(found.to_dict()))
    assert data["schema"] == "kvscope.selftest/1"
    assert data["server"]["kind"] == ("python" if in_python or not run_native() else "native")
    assert [row["cell"] for row in data["rows"]] == told
    assert data["basic_within"] == all(row["within"] for row in data["rows"][:2])
    for row in data["rows"]:
        assert row["tokens_per_s"] == pytest.approx(row["tokens"] / row["wall_s"])
        assert row["cpu_s_per_request"] == pytest.approx(row["cpu_s"] / row["answers"])
        assert row["within"] == (row["why_not"] == [])
    page = (Path(__file__).parents[2] / "docs" / "reference" / "selftest.md").read_text(encoding="utf-8")
    fields = {*data, *data["server"], *data["rows"][0]} - {"schema", "rows"}
    assert {name for name in fields if f"`{name}`" not in page} == set()
    text = render_selftest(data)
    assert all(name in text for name in told)
    assert ("in Python" in text) == (data["server"]["kind"] == "python")


def run_native() -> bool:
    with TruthServer(TOGETHER, in_python=False) as server:
        return bool(server.about()["server"] == "native")


@pytest.mark.usefixtures("short")
def test_the_exit_code_says_whether_the_basic_rows_are_within(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvscope.cli.selftest.run_selftest", lambda **asked: run_selftest(client=broken, seconds=0.2))
    result = CliRunner().invoke(selftest, [], standalone_mode=False)
    assert result.return_value == 1, result.exception
    assert "is not within its limits here" in result.output
    assert "The first error: The wire was cut." in result.output
    monkeypatch.setattr(run, "why_not", lambda *words, **more: [])
    monkeypatch.setattr("kvscope.cli.selftest.run_selftest", lambda **asked: run_selftest(seconds=0.2))
    result = CliRunner().invoke(selftest, ["--json"], standalone_mode=False)
    assert result.return_value == 0, result.exception
    assert json.loads(result.stdout)["basic_within"] is True
    assert json.loads(result.stdout)["believed_up_to_cell"] == "1,000 tokens/s"


def test_a_cell_that_others_disturbed_is_run_again_and_says_so(
    server: TruthServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    off = replace(run_cell(ONE, server), why_not=("ttft",), waited_share=0.5)
    good = replace(off, why_not=(), waited_share=0.0)
    given = iter([off, off, good])
    monkeypatch.setattr(run, "run_cell", lambda *words: next(given))
    again = run._run_undisturbed(ONE, server, run.send)
    assert (again.tries, again.unmarked_tries, again.why_not) == (3, 2, ())
    given = iter([off, replace(off, why_not=("ttft", "client_limited")), off])
    again = run._run_undisturbed(ONE, server, run.send)
    assert (again.tries, again.unmarked_tries, again.why_not) == (3, 1, ("ttft",))
    # It is not run again where nobody disturbed it: then it is the client.
    quiet = replace(off, waited_share=0.0, compared=replace(off.compared, server_late_s=run_cell_late(0.0001)))
    given = iter([quiet, good])
    assert run._run_undisturbed(ONE, server, run.send) == quiet


def run_cell_late(seconds: float) -> Any:
    from kvscope.selftest.compare import spread

    return spread([seconds])


@pytest.mark.parametrize("seconds", [0.0, -1.0, 1e9, float("nan")])
def test_a_time_that_cannot_be(seconds: float) -> None:
    with pytest.raises(UsageError):
        run_selftest(seconds=seconds)


# --- the server's process --------------------------------------------------------------------------------------------


def test_the_server_ends_with_its_block_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with TruthServer(apart(), in_python=False) as server:
        pid = server.pid
        assert pid is not None
        assert exists(pid)
    assert not exists(pid)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("in_python", [False, True])
def test_the_server_dies_with_its_parent(in_python: bool) -> None:
    code = f"""
import time
from kvscope.selftest.processors import apart
from kvscope.selftest.server import TruthServer
with TruthServer(apart(), in_python={in_python}) as server:
    print(server.pid, flush=True)
    time.sleep(60)
"""
    with subprocess.Popen((sys.executable, "-c", code), stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert exists(pid)
        os.kill(parent.pid, signal.SIGKILL)
    until_s = time.monotonic() + 20
    while exists(pid) and time.monotonic() < until_s:
        time.sleep(0.01)
    assert not exists(pid)


def test_no_place_for_temporary_files_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    with pytest.raises(EngineStartFailed) as caught:
        run_selftest(seconds=0.2)
    assert "No usable temporary directory" in caught.value.message
    assert "TMPDIR" in (caught.value.hint or "")


def test_a_server_that_died_is_no_client_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with TruthServer(apart(), in_python=False) as server:
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        row_or_error: Callable[[], object] = lambda: run_cell(ONE, server)  # noqa: E731
        with pytest.raises(Exception, match="the truth server ended"):
            row_or_error()


# --- processors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [
        ({0}, Apart(server=None, client=None, why_not="only one processor may be used here")),
        ({3, 5}, Apart(server=5, client=(3,))),
        ({0, 1, 2, 3}, Apart(server=3, client=(0, 1))),  # 2 is the other half of 3's core
        ({2, 3}, Apart(server=3, client=(2,))),  # there is nothing else
    ],
)
def test_server_and_client_are_kept_apart(monkeypatch: pytest.MonkeyPatch, allowed: set[int], expected: Apart) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: allowed)
    monkeypatch.setattr(processors, "_halves", lambda core: {2, 3} if core in (2, 3) else {core})
    assert apart() == expected


def test_a_system_that_refuses_to_keep_programs_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, cores: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    with kept_on((0,)) as why_not:
        assert why_not is not None
        assert "Operation not permitted" in why_not
    monkeypatch.delattr(os, "sched_getaffinity")
    assert apart().server is None


@pytest.mark.usefixtures("short")
def test_on_one_processor_it_runs_and_says_that_they_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "apart", lambda: TOGETHER)
    found = run_selftest(seconds=0.2).to_dict()
    assert found["server"]["core"] is None
    assert found["server"]["client_cores"] is None
    said = " ".join(render_selftest(found).split())
    assert "only one processor may be used here" in said
    assert "shared processors" in said
