"""What the self-test says of its rows, from rows that are made by hand."""

import re
from dataclasses import asdict, replace
from typing import Any

import pytest

from kvscope.report.selftest_text import render_selftest
from kvscope.selftest.cells import BASIC_LIMITS, HIGH_LIMITS
from kvscope.selftest.compare import spread
from kvscope.selftest.result import Compared, Row, Selftest, ServerFacts

COMPARED = Compared(
    answers=10,
    tokens=240,
    unmatched=0,
    ttft_error_s=spread([0.0001]),
    ttft_off_s=spread([0.0001]),
    gap_error_share=0.0002,
    gap_error_s=spread([0.00002]),
    gap_seen_s=spread([0.005]),
    gap_true_s=spread([0.005]),
    coalesced_fraction=0.0,
    server_late_s=spread([0.00001]),
    server_pace=1.0,
    server_blocked=0,
    arrivals_known=True,
)
GOOD = Row(
    cell="1 stream",
    kind="basic",
    streams=1,
    requests=10,
    offered_tokens_per_s=178.0,
    wall_s=2.0,
    failed=0,
    first_error=None,
    compared=COMPARED,
    cpu_s=0.02,
    waited_share=0.0,
    loop_lag_p99_s=0.0001,
    limited_by=(),
    limited_answers=0,
    limits=asdict(BASIC_LIMITS),
    why_not=(),
)
SERVER = ServerFacts(kind="native", why=None, core=1, client_cores=(0,), why_not_apart=None, kernel_stamps=True)
MACHINE = {"kvscope": "0", "python": "3", "system": "Linux", "processors": 2}


def row(cell: str, *why_not: str, waited: float = 0.0, **more: Any) -> Row:
    kind = "rising" if cell.endswith("tokens/s") else "basic"
    limits = asdict(HIGH_LIMITS if kind == "rising" else BASIC_LIMITS)
    return replace(GOOD, cell=cell, kind=kind, limits=limits, why_not=why_not, waited_share=waited, **more)


def found(*rows: Row) -> Selftest:
    return Selftest(rows=rows, server=SERVER, machine=MACHINE, seconds=1.0)


def text(*rows: Row) -> str:
    return " ".join(render_selftest(found(*rows).to_dict()).split())


ONE, EIGHT, LOW, HIGH = row("1 stream"), row("8 streams"), row("1,000 tokens/s"), row("8,000 tokens/s")


@pytest.mark.parametrize(
    ("why_not", "unmarked"),
    [
        ((), False),
        (("ttft",), True),
        (("ttft_single",), True),
        (("gaps",), True),
        (("gaps_single",), True),
        (("gaps", "client_limited"), False),
        (("client_limited",), False),
        (("failed",), False),
        (("server_behind",), False),
        (("ttft", "server_behind"), True),
    ],
)
def test_which_rows_are_dangerous(why_not: tuple[str, ...], unmarked: bool) -> None:
    made = row("8 streams", *why_not)
    assert made.is_unmarked is unmarked
    assert made.to_dict()["unmarked"] is unmarked
    said = text(ONE, made, LOW, HIGH)
    assert ("Off and not client_limited: 8 streams. In a record, times like these would carry no mark." in said) == (
        unmarked
    )


def test_that_others_took_the_processors_does_not_hide_them() -> None:
    said = text(ONE, row("8 streams", "ttft", waited=0.5), row("1,000 tokens/s", "gaps_single", waited=0.2), HIGH)
    assert "Off and not client_limited: 8 streams, 1,000 tokens/s. In a record" in said
    assert "carry no mark. Other programs took the processors then." in said
    assert "At 1,000 tokens/s: single gaps off; its rows would not be marked, so stay below." in said
    one_quiet = text(ONE, row("8 streams", "ttft", waited=0.5), row("1,000 tokens/s", "gaps"), HIGH)
    assert "Other programs took the processors then." not in one_quiet


def test_tries_that_were_run_again_are_told_of() -> None:
    said = text(ONE, replace(EIGHT, tries=3, unmarked_tries=2), LOW, HIGH)
    assert "within (try 3)" in said
    assert "8 streams was run again because other programs took the processors; in 2 of the 2 tries before" in said
    assert "run again because" not in text(ONE, replace(EIGHT, tries=3), LOW, HIGH)


def test_all_basic_rows_must_be_within() -> None:
    assert found(ONE, EIGHT).basic_within
    for rows in ((ONE, row("8 streams", "gaps_single")), (row("1 stream", "ttft"), EIGHT)):
        assert not found(*rows, LOW, HIGH).basic_within
        assert "is not within its limits here" in text(*rows, LOW, HIGH)
    assert found(ONE, EIGHT, row("1,000 tokens/s", "ttft")).basic_within  # heavier load is another question


def test_believed_is_the_last_before_the_first_that_is_not() -> None:
    higher = row("30,000 tokens/s")
    for rows, name in (
        ((LOW, HIGH), "8,000 tokens/s"),
        ((LOW, row("8,000 tokens/s", "gaps"), higher), "1,000 tokens/s"),
        ((row("1,000 tokens/s", "client_limited"), HIGH), None),
    ):
        said = found(ONE, EIGHT, *rows).to_dict()
        assert said["believed_up_to_cell"] == name
        assert said["believed_up_to_tokens_per_s"] == (None if name is None else 120.0)  # 240 tokens in 2 s
    said_text = text(ONE, EIGHT, LOW, row("8,000 tokens/s", "client_limited"))
    assert "believed up to 1,000 tokens/s. At 8,000 tokens/s: client_limited; its rows say so themselves" in said_text
    assert "cannot be believed here. At 1,000" in text(ONE, EIGHT, row("1,000 tokens/s", "failed"))


def test_within_says_within_what() -> None:
    said = text(ONE, EIGHT, LOW, HIGH)
    assert (
        "At 1 stream and 8 streams this client can be believed: on average the first token within 0.3 ms and the gap "
        "within 0.1 %; of single ones, 99 % within 1 ms." in said
    )
    assert "up to 8,000 tokens/s, the most that was tried" in said
    assert "What to do" not in said
    assert "was busy" not in said


def test_a_busy_machine_is_named_with_its_worst_row() -> None:
    said = text(row("1 stream", waited=0.02), row("8 streams", waited=0.3), LOW, HIGH)
    assert "The machine was busy: at 8 streams the client was ready and had no processor for 30 %" in said
    assert "was busy" not in text(row("1 stream", waited=0.009), EIGHT, row("1,000 tokens/s", waited=0.04), HIGH)


def test_figures_stand_in_the_table_as_they_are() -> None:
    made = replace(
        EIGHT,
        wall_s=4.0,
        cpu_s=0.012,
        compared=replace(
            COMPARED,
            ttft_error_s=spread([-0.002, 0.003]),
            gap_error_share=-0.0013,
            gap_error_s=spread([0.004]),
            coalesced_fraction=0.25,
        ),
    )
    text = render_selftest(found(made, LOW).to_dict())
    # The name may be folded; numbers stand in its first line.
    rows = [line.split() for line in text.splitlines() if re.match("  8 ", line)]
    lines = [[cell for cell in row if cell != "streams"] for row in rows]
    # streams, offered, got (240 tokens in 4 s), mean, p50, p99 in ms, gaps in % and ms; below, what is judged
    assert lines[0][1:] == ["1", "178", "60", "+0.50", "-2.00", "+3.00", "-0.130", "4.00", "4.00"]
    assert lines[1][1:] == ["within"]
    # requests per s, CPU ms of 1,000 tokens (12 ms for 240), lag, in one read, waited, late
    assert lines[2][1:] == ["2", "50.0", "–", "0.10", "25.0", "%", "0.0", "%", "0.01", "0.01"]
