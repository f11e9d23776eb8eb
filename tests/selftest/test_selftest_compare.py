"""The client's times held against the server's log: known errors give the numbers derived here by hand."""

import json
from collections.abc import Callable

import pytest

from kvscope.engine.base import Generation, Read, TokenEvent
from kvscope.errors import EngineReplyError
from kvscope.selftest.cells import BASIC_LIMITS, HIGH_LIMITS, LOAD_LIMITS, Cell, requests_cell, timed_cells
from kvscope.selftest.compare import compare, spread
from kvscope.selftest.run import why_not
from kvscope.selftest.sent import read_sent

# Asked at 100.000 (the kernel's stamp), read at 100.001; due at 100.051, .061, .071, .081. The third is 0.5 ms late.
LINE = {
    "id": "a",
    "ttft_s": 0.05,
    "gap_s": 0.01,
    "tokens": 4,
    "group": 1,
    "stream": True,
    "complete": True,
    "blocked": 0,
    "received_s": 100.001,
    "arrived_s": 100.0,
    "sent_s": [100.051, 100.061, 100.0715, 100.081],
}


def log(*changes: dict[str, object]) -> str:
    return "".join(json.dumps({**LINE, **each}) + "\n" for each in changes or ({},))


def answer(times_s: list[float], name: str = "a", reads: list[int] | None = None) -> Generation:
    """``reads``: how many events came in each read."""
    texts = [name, *[" tok"] * (len(times_s) - 1)]
    return Generation(
        events=tuple(TokenEvent(at_s=at_s, text=text) for at_s, text in zip(times_s, texts, strict=True)),
        reads=tuple(Read(at_s=0.0, num_bytes=100, num_events=n) for n in reads or [1] * len(times_s)),
        completed_s=times_s[-1],
        prompt_tokens=1,
        cached_tokens=None,
        output_tokens=len(times_s),
        finish_reason="length",
    )


def test_errors_are_those_that_were_put_in() -> None:
    # True: first token at 0.051 after the request, gaps 10, 10.5 and 9.5 ms: 30 ms in all.
    # Said: first token at 0.0513, gaps 10.2, 10.3 and 9.8 ms: 30.3 ms in all.
    found = compare({"a": answer([0.0513, 0.0615, 0.0718, 0.0816])}, read_sent(log()))
    assert (found.answers, found.tokens, found.unmatched) == (1, 4, 0)
    assert found.ttft_error_s.mean == pytest.approx(0.0003)
    assert found.gap_error_share == pytest.approx(0.01)
    assert found.gap_error_s.p50 == pytest.approx(0.0002)  # off by 0.2, 0.2 and 0.3 ms
    assert found.gap_error_s.p99 == pytest.approx(0.0003)
    assert found.gap_seen_s.p50 == pytest.approx(0.0102)
    assert found.gap_true_s.p50 == pytest.approx(0.0100)
    assert found.server_late_s.max == pytest.approx(0.0005)
    assert found.server_late_s.p50 == pytest.approx(0.0, abs=1e-9)
    assert found.server_pace == pytest.approx(1.0)  # 30 ms planned, 30 ms taken
    assert found.coalesced_fraction == 0.0


def test_without_the_kernels_stamp_time_counts_from_when_the_server_had_read() -> None:
    found = compare({"a": answer([0.0513, 0.0615, 0.0718, 0.0816])}, read_sent(log({"arrived_s": None})))
    assert found.ttft_error_s.mean == pytest.approx(0.0013)  # true: 0.050


def test_tokens_of_one_read_are_counted_and_their_gaps_are_wrong() -> None:
    found = compare({"a": answer([0.061, 0.061, 0.0715, 0.081], reads=[2, 1, 1])}, read_sent(log()))
    assert found.coalesced_fraction == 0.25
    assert found.gap_error_s.p99 == pytest.approx(0.010)
    assert found.ttft_error_s.mean == pytest.approx(0.010)


def test_over_several_answers_each_counts_with_its_own_error() -> None:
    # The second answer is the first one a second later, 4 ms late throughout: TTFT off by 4 ms, its gaps not at all.
    later = {**LINE, "id": "b", "received_s": 101.001, "arrived_s": 101.0, "sent_s": [t + 1 for t in LINE["sent_s"]]}  # type: ignore[attr-defined]
    seen = {
        "a": answer([0.051, 0.061, 0.0715, 0.081]),
        "b": answer([0.055, 0.065, 0.0755, 0.085], name="b"),
    }
    found = compare(seen, read_sent(log({}, later)))
    assert found.answers == 2
    assert found.ttft_error_s.mean == pytest.approx(0.002)
    assert found.ttft_error_s.p50 == pytest.approx(0.0, abs=1e-9)
    assert found.ttft_error_s.p99 == pytest.approx(0.004)
    assert found.gap_error_share == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(
    ("seen", "sent", "unmatched"),
    [
        ({}, log(), 1),  # sent and not seen
        ({"a": answer([0.05, 0.06, 0.07, 0.08])}, "", 1),  # seen and never sent
        ({"a": answer([0.05, 0.06, 0.07])}, log(), 1),  # a token is missing
        ({"a": answer([0.05, 0.06, 0.07, 0.08], name="b")}, log(), 1),  # another's answer
        ({"a": answer([0.05, 0.06, 0.07, 0.08])}, log({"complete": False}), 1),
        ({"a": answer([0.05, 0.06, 0.07, 0.08])}, log({"id": "b"}), 2),
    ],
)
def test_what_does_not_belong_together_is_not_compared(seen: dict[str, Generation], sent: str, unmatched: int) -> None:
    found = compare(seen, read_sent(sent))
    assert (found.answers, found.unmatched) == (0, unmatched)
    assert found.ttft_error_s.mean is None
    assert found.gap_error_share is None


def test_a_server_that_fell_behind_is_known_by_its_own_log() -> None:
    # Gaps of 20 ms instead of 10: half its pace; late by 0, 10, 20 and 30 ms.
    sent = read_sent(log({"sent_s": [100.051, 100.071, 100.091, 100.111]}))
    found = compare({"a": answer([0.051, 0.071, 0.091, 0.111])}, sent)
    assert found.server_pace == pytest.approx(0.5)
    assert found.server_late_s.max == pytest.approx(0.03)
    assert found.gap_error_share == pytest.approx(0.0, abs=1e-9)  # the client said what was true
    cell = timed_cells(1.0)[3]
    assert why_not(cell, found, failed=0, is_limited=False) == ["server_behind"]


def test_a_late_server_that_does_not_know_when_requests_came_in_is_not_the_clients_fault() -> None:
    # Every token 5 ms late; the request may have waited as long to be read.
    line = {"arrived_s": None, "sent_s": [100.056, 100.066, 100.076, 100.086]}
    found = compare({"a": answer([0.060, 0.070, 0.080, 0.090])}, read_sent(log(line)))
    assert not found.arrivals_known
    assert why_not(timed_cells(1.0)[3], found, failed=0, is_limited=False) == ["server_behind"]
    line["arrived_s"] = 100.001
    known = compare({"a": answer([0.060, 0.070, 0.080, 0.090])}, read_sent(log(line)))
    assert why_not(timed_cells(1.0)[3], known, failed=0, is_limited=False) == ["ttft"]


def test_groups_are_due_together() -> None:
    line = {"group": 2, "sent_s": [100.051, 100.051, 100.071, 100.071]}
    (sent,) = read_sent(log(line)).values()
    assert sent.late_s() == pytest.approx([0.0, 0.0, 0.0, 0.0], abs=1e-9)
    assert compare({"a": answer([0.051, 0.051, 0.071, 0.071])}, {"a": sent}).server_pace == pytest.approx(1.0)


def test_why_a_row_is_not_to_be_believed() -> None:
    good = [0.051, 0.061, 0.0715, 0.081]
    one = timed_cells(1.0)[0]

    def judged(times_s: list[float], cell: Cell = one, *, failed: int = 0, limited: bool = False) -> list[str]:
        found = compare({"a": answer(times_s)}, read_sent(log()))
        return why_not(cell, found, failed=failed, is_limited=limited)

    assert judged(good) == []
    assert judged([t + 0.00029 for t in good]) == []
    assert judged([t + 0.00031 for t in good]) == ["ttft"]
    assert judged([t - 0.00031 for t in good]) == ["ttft"]
    assert judged([*good[:3], 0.081 + 0.00004]) == ["gaps"]  # 0.04 of 30 ms: 0.13 %
    assert judged([*good[:3], 0.081 + 0.00002]) == []
    assert judged([t + 0.1 for t in good], requests_cell(10)) == []  # it has no limits
    assert judged(good, limited=True) == ["client_limited"]
    assert judged(good, failed=1) == ["failed"]
    nothing = compare({}, {})
    assert why_not(one, nothing, failed=0, is_limited=False) == ["unmatched", "ttft", "gaps"]


# 100 answers of 4 tokens, due at 50, 60, 70 and 80 ms after the request came in; the server kept to it.
HUNDRED = "".join(
    json.dumps({**LINE, "id": f"a{k}", "sent_s": [100.05, 100.06, 100.07, 100.08], "received_s": 100.0}) + "\n"
    for k in range(100)
)
EVEN_MS = [50.0, 60.0, 70.0, 80.0]


def said(shift: Callable[[int, list[float]], list[float]]) -> dict[str, Generation]:
    """What the client says of the hundred: ``shift`` makes each one's times, in ms, of the true ones."""
    return {f"a{k}": answer([ms / 1e3 for ms in shift(k, EVEN_MS)], name=f"a{k}") for k in range(100)}


def turned(ms: float) -> Callable[[int, list[float]], list[float]]:
    """So much too late and too early in turn: nothing on average."""
    return lambda k, times: [at + (ms if k % 2 else -ms) for at in times]


def few(number: int, ms: float) -> Callable[[int, list[float]], list[float]]:
    return lambda k, times: [at + (ms if k < number // 2 else -ms if k < number else 0) for at in times]


def middle(number: int, ms: float) -> Callable[[int, list[float]], list[float]]:
    """The second token alone, and so two gaps of three, of so many answers."""
    return lambda k, times: [times[0], times[1] + (ms if k < number else 0), *times[2:]]


@pytest.mark.parametrize(
    ("shift", "cell", "expected"),
    [
        (turned(0.0), 0, []),
        (turned(0.29), 0, []),
        (turned(0.31), 0, ["ttft_single"]),  # the middle one
        (few(2, 0.99), 0, []),  # of 100, the 99th is the second worst
        (few(2, 1.01), 0, ["ttft_single"]),
        (few(1, 20.0), 0, []),
        (middle(100, 0.09), 0, []),
        (middle(100, 0.11), 0, ["gaps_single"]),  # 200 of 300 gaps
        (middle(2, 0.99), 0, []),  # 4 of 300: the 99th percentile is the fourth worst
        (middle(2, 1.01), 0, ["gaps_single"]),
        (middle(1, 5.0), 0, []),
        # With more tokens a second, more is allowed.
        (turned(0.9), 2, []),
        (turned(1.1), 2, ["ttft_single"]),
        (few(2, 5.1), 2, ["ttft_single"]),
        (middle(100, 0.45), 2, []),
        (middle(100, 0.55), 2, ["gaps_single"]),
        (middle(2, 5.1), 2, ["gaps_single"]),
        (turned(4.9), 6, []),
        (few(2, 10.1), 6, ["ttft_single"]),
        (middle(100, 0.9), 6, []),
        (middle(100, 1.1), 6, ["gaps_single"]),
        (middle(2, 9.9), 6, []),
        (middle(2, 10.1), 6, ["gaps_single"]),
        # The three clients that pass by their averages.
        (turned(20.0), 1, ["ttft_single"]),
        (lambda k, times: [times[0], *[times[-1]] * 3], 1, ["gaps_single"]),
        (lambda k, times: [50 + (at - 50) * (1.5 if k % 2 else 0.5) for at in times], 1, ["gaps_single"]),
    ],
)
def test_errors_that_cancel_are_found(
    shift: Callable[[int, list[float]], list[float]], cell: int, expected: list[str]
) -> None:
    found = compare(said(shift), read_sent(HUNDRED))
    assert found.ttft_error_s.mean == pytest.approx(0.0, abs=2.5e-4)
    assert found.gap_error_share == pytest.approx(0.0, abs=1e-9)
    assert why_not(timed_cells(1.0)[cell], found, failed=0, is_limited=False) == expected


def test_how_far_off_each_first_token_was() -> None:
    off = compare(said(turned(2.0)), read_sent(HUNDRED))
    assert (off.ttft_error_s.p50, off.ttft_error_s.p99) == pytest.approx((-0.002, 0.002))
    assert (off.ttft_off_s.mean, off.ttft_off_s.p50, off.ttft_off_s.p99) == pytest.approx((0.002, 0.002, 0.002))


def test_a_log_that_is_none_is_refused() -> None:
    for text in ("{}", "[1]", '{"id": "a"}', "no"):
        with pytest.raises(EngineReplyError, match="log cannot be read"):
            read_sent(text)


def test_percentiles_are_values_that_were_there() -> None:
    found = spread(float(value) for value in range(1, 201))
    assert (found.mean, found.p50, found.p99, found.max) == (100.5, 100.0, 198.0, 200.0)
    assert spread([]).p99 is None


def test_the_cells_offer_what_they_are_named_for() -> None:
    cells = timed_cells(1.0)
    assert [cell.streams for cell in cells[:2]] == [1, 8]
    assert [cell.limits for cell in cells] == [*[BASIC_LIMITS] * 2, *[LOAD_LIMITS] * 3, *[HIGH_LIMITS] * 2]
    for cell in cells[2:]:
        named = int(cell.name.removesuffix(" tokens/s").replace(",", ""))
        assert cell.offered_tokens_per_s == pytest.approx(named, rel=0.05)
    ids = [cell.request_id(number) for cell in cells for number in range(cell.num_requests)]
    assert len(set(ids)) == len(ids)
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-.") for name in ids)
