"""The self-test as plain text for the terminal: from the dictionary that ``kvscope selftest --json`` prints."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvscope.language import shown
from kvscope.report.terminal_table import aligned
from kvscope.report.terminal_text import joined, wrapped, wrapped_note
from kvscope.report.words import say
from kvscope.units import format_count, format_number, format_percent

NOT_KNOWN = "–"
_EXACT = ("streams", "offered", "got", "first_mean", "first_p50", "first_p99", "gap_share", "gap_p50", "gap_p99")
_COSTS = ("requests", "cpu_tokens", "cpu_request", "lag", "in_one", "waited", "late_p50", "late_p99")
# Above this share of the time without a processor, the machine was busy and the reader should know. (At its limit, a
# client waits for the kernel's own work too.)
_BUSY_SHARE = {"basic": 0.01, "rising": 0.05, "requests": 1.0}


def render_selftest(found: Mapping[str, Any]) -> str:
    """Two tables (how exact, at what cost), then what follows from them."""
    rows = found["rows"]
    lines = [
        *wrapped(say("selftest.title")),
        *_where(found["machine"], found["server"], found["seconds"]),
        "",
        *wrapped(say("selftest.exact")),
        *_exact(rows),
        "",
        *wrapped(say("selftest.costs")),
        *aligned([["", *(say(f"selftest.col_{name}") for name in _COSTS)], *map(_costs_row, rows)]),
        "",
        *(line for text in (*_verdict(found), *_advice(found)) for line in wrapped_note(text)),
    ]
    return joined(lines)


def _where(machine: Mapping[str, Any], server: Mapping[str, Any], seconds: float) -> list[str]:
    kind = say("selftest.kind.native" if server["kind"] == "native" else "selftest.kind.python")
    facts = {name: machine[name] for name in ("kvscope", "python", "system", "processors")}
    texts = [say("selftest.machine", **facts, seconds=seconds)]
    if server["why_not_apart"] is None:
        texts.append(say("selftest.server", kind=kind, core=server["core"]))
    else:
        texts.append(say("selftest.server_not_apart", kind=kind, why=shown(server["why_not_apart"])))
    if server["why"] is not None:
        texts.append(say("selftest.why_python", why=shown(server["why"])))
    return [line for text in texts for line in wrapped_note(text)]


def _exact(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The numbers, and below them what is to be said of rows that are not simply within their limits."""
    lines = aligned([["", *(say(f"selftest.col_{name}") for name in _EXACT)], *map(_exact_row, rows)])
    judged = [[_cell(row), _judged(row)] for row in rows]
    return [*lines, "", *aligned(judged, left=2, heads=0)]


def _cell(row: Mapping[str, Any]) -> str:
    return shown(row["cell"])


def _exact_row(row: Mapping[str, Any]) -> list[str]:
    ttft, gaps, offered = row["ttft_error_s"], row["gap_error_s"], row["offered_tokens_per_s"]
    share = row["gap_error_share"]
    return [
        _cell(row),
        format_count(row["streams"]),
        say("selftest.as_many") if offered is None else format_count(round(offered)),
        format_count(round(row["tokens_per_s"])),
        *(_ms(ttft[name], signed=True) for name in ("mean", "p50", "p99")),
        NOT_KNOWN if share is None else f"{share * 100:+.3f}",
        *(_ms(gaps[name]) for name in ("p50", "p99")),
    ]


def _judged(row: Mapping[str, Any]) -> str:
    if row["limits"] is None and not row["why_not"]:
        return say("selftest.no_limits")
    text = _why(row) if row["why_not"] else say("selftest.within")
    return say("selftest.tries", text=text, tries=row["tries"]) if row["tries"] > 1 else text


def _why(row: Mapping[str, Any]) -> str:
    return ", ".join(say(f"selftest.why.{slug}") for slug in row["why_not"])


def _costs_row(row: Mapping[str, Any]) -> list[str]:
    per_tokens, per_request = row["cpu_s_per_1000_tokens"], row["cpu_s_per_request"]
    late, is_short = row["server_late_s"], row["kind"] == "requests"
    return [
        _cell(row),
        format_count(round(row["requests_per_s"])),
        NOT_KNOWN if per_tokens is None or is_short else format_number(per_tokens * 1e3, 1),
        _ms(per_request) if is_short else NOT_KNOWN,
        _ms(row["loop_lag_p99_s"]),
        _share(row["coalesced_fraction"]),
        _share(row["waited_share"]),
        _ms(late["p50"]),
        _ms(late["p99"]),
    ]


def _verdict(found: Mapping[str, Any]) -> list[str]:
    basic = [row for row in found["rows"] if row["kind"] == "basic"]
    cells = _cell(basic[0])
    for row in basic[1:]:
        cells = say("selftest.two_cells", first=cells, second=_cell(row))
    if found["basic_within"]:
        limits = basic[0]["limits"]
        single_ms = max(limits["ttft_off_p99_s"], limits["gap_off_p99_s"]) * 1e3
        ttft_ms = f"{limits['ttft_s'] * 1e3:g}"
        told = {"ttft_ms": ttft_ms, "gaps": limits["gap_share"], "single_ms": f"{single_ms:g}"}
        text = say("selftest.believed", cells=cells, **told)
    else:
        text = say("selftest.not_believed", cells=cells)
    return [text, _load_verdict(found), *_unmarked(found["rows"])]


def _unmarked(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The dangerous kind: off, and nothing in a record would say so."""
    off = [row for row in rows if row["unmarked"]]
    texts = []
    if off:
        slug = "selftest.unmarked_disturbed" if all(row["disturbed"] for row in off) else "selftest.unmarked"
        texts.append(say(slug, cells=", ".join(map(_cell, off))))
    texts += [
        say("selftest.unmarked_tries", cell=_cell(row), off=row["unmarked_tries"], tries=row["tries"] - 1)
        for row in rows
        if row["unmarked_tries"]
    ]
    return texts


def _load_verdict(found: Mapping[str, Any]) -> str:
    rising = [row for row in found["rows"] if row["kind"] == "rising"]
    name = found["believed_up_to_cell"]
    cell = None if name is None else shown(name)
    if rising and name == rising[-1]["cell"]:
        return say("selftest.load_most", cell=cell)
    names = [row["cell"] for row in rising]
    first = rising[0 if name is None else names.index(name) + 1]
    said = say("selftest.load_to", cell=cell) if name else say("selftest.load_not")
    if "client_limited" in first["why_not"]:
        slug = "selftest.at_marked"
    elif "failed" in first["why_not"]:
        slug = "selftest.at_errors"
    else:
        slug = "selftest.at_server" if first["why_not"] == ["server_behind"] else "selftest.at_unmarked"
    return say(slug, said=said, cell=_cell(first), why=_why(first))


def _advice(found: Mapping[str, Any]) -> list[str]:
    rows = found["rows"]
    texts = []
    off = [row for row in rows if row["why_not"]]
    waits = [row for row in rows if (row["waited_share"] or 0.0) > _BUSY_SHARE[row["kind"]]]
    if waits:
        worst = max(waits, key=lambda row: row["waited_share"])
        texts.append(say("selftest.busy", cell=_cell(worst), share=format_percent(worst["waited_share"], 0)))
    if found["server"]["why_not_apart"] is not None:
        texts.append(say("selftest.shared"))
    errors = [row["first_error"] for row in rows if row["first_error"]]
    if errors:
        texts.append(say("selftest.first_error", error=shown(errors[0])))
    return [*texts, say("selftest.advice")] if off else texts


def _ms(seconds: float | None, *, signed: bool = False) -> str:
    if seconds is None:
        return NOT_KNOWN
    return f"{round(seconds * 1e3, 2) + 0.0:{'+' if signed else ''},.2f}"


def _share(share: float | None) -> str:
    return NOT_KNOWN if share is None else format_percent(share)
