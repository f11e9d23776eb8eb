"""The self-test as plain text for the terminal: from the dictionary that ``kvscope selftest --json`` prints."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvscope.report.terminal_table import aligned
from kvscope.report.terminal_text import noted as wrapped
from kvscope.units import format_count, format_number, format_percent, format_seconds

NOT_KNOWN = "–"
_WHY = {
    "failed": "requests failed",
    "unmatched": "answers are not those that were sent",
    "ttft": "first token off",
    "ttft_single": "single first tokens off",
    "gaps": "gaps off",
    "gaps_single": "single gaps off",
    "client_limited": "client_limited",
    "server_behind": "the server was behind",
}
# Above this share of the time without a processor, the machine was busy and the reader should know. (At its limit, a
# client waits for the kernel's own work too.)
_BUSY_SHARE = {"basic": 0.01, "rising": 0.05, "requests": 1.0}


def render_selftest(found: Mapping[str, Any]) -> str:
    """Two tables (how exact, at what cost), then what follows from them."""
    rows = found["rows"]
    lines = [
        "kvscope's client, held against a server that notes when it really sent each token",
        *_where(found["machine"], found["server"], found["seconds"]),
        "",
        "How exact: the client's times less the server's own, in ms and in % of the mean gap",
        *_exact(rows),
        "",
        "What it costs, and who was late",
        *_costs(rows),
        "",
        *(wrapped(text) for text in (*_verdict(found), *_advice(found))),
    ]
    return "\n".join(lines) + "\n"


def _where(machine: Mapping[str, Any], server: Mapping[str, Any], seconds: float) -> list[str]:
    kind = "in C, compiled here" if server["kind"] == "native" else "in Python"
    apart = f"kept on processor {server['core']}, the client off it"
    if server["why_not_apart"] is not None:
        apart = f"not kept apart from the client: {server['why_not_apart']}"
    texts = [
        f"kvscope {machine['kvscope']}, Python {machine['python']}, {machine['system']}, "
        f"{machine['processors']} processors; this took {format_seconds(seconds)}.",
        f"Server: {kind}; {apart}.",
    ]
    if server["why"] is not None:
        texts.append(f"Why in Python: {server['why']} It is less exact; how late it was stands below.")
    return [wrapped(text) for text in texts]


def _exact(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    head = [
        ["", "", "tokens/s", "", "first", "token", "off, ms", "", "gaps", "off"],
        ["", "streams", "offered", "got", "mean", "p50", "p99", "mean, %", "p50, ms", "p99, ms"],
    ]
    cells = [_exact_row(row) for row in rows]
    lines = aligned([*head, *cells])
    return [*lines[:2], *(f"{line}   {_judged(row)}" for line, row in zip(lines[2:], rows, strict=True))]


def _exact_row(row: Mapping[str, Any]) -> list[str]:
    ttft, gaps, offered = row["ttft_error_s"], row["gap_error_s"], row["offered_tokens_per_s"]
    share = row["gap_error_share"]
    return [
        row["cell"],
        format_count(row["streams"]),
        "as many" if offered is None else format_count(round(offered)),
        format_count(round(row["tokens_per_s"])),
        *(_ms(ttft[name], signed=True) for name in ("mean", "p50", "p99")),
        NOT_KNOWN if share is None else f"{share * 100:+.3f}",
        *(_ms(gaps[name]) for name in ("p50", "p99")),
    ]


def _judged(row: Mapping[str, Any]) -> str:
    tries = f" (try {row['tries']})" if row["tries"] > 1 else ""
    if row["limits"] is None and not row["why_not"]:
        return "no limits"
    return (", ".join(_WHY[slug] for slug in row["why_not"]) or "within") + tries


def _costs(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    head = [
        ["", "requests", "CPU, ms", "", "loop lag", "in one", "waited for", "server late, ms", ""],
        ["", "per s", "/1,000 tokens", "/request", "p99, ms", "read", "a processor", "p50", "p99"],
    ]
    return aligned([*head, *(_costs_row(row) for row in rows)])


def _costs_row(row: Mapping[str, Any]) -> list[str]:
    per_tokens, per_request = row["cpu_s_per_1000_tokens"], row["cpu_s_per_request"]
    late, is_short = row["server_late_s"], row["kind"] == "requests"
    return [
        row["cell"],
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
    names = " and ".join(row["cell"] for row in basic)
    if found["basic_within"]:
        limits = basic[0]["limits"]
        ttft_ms, gaps = limits["ttft_s"] * 1e3, format_percent(limits["gap_share"])
        single_ms = max(limits["ttft_off_p99_s"], limits["gap_off_p99_s"]) * 1e3
        text = (
            f"At {names} this client can be believed: on average the first token within {ttft_ms:g} ms and the gap "
            f"within {gaps}; of single ones, 99 % within {single_ms:g} ms."
        )
    else:
        text = f"At {names} this client is not within its limits here: times measured now are not to be believed."
    return [text, _load_verdict(found), *_unmarked(found["rows"])]


def _unmarked(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The dangerous kind: off, and nothing in a record would say so."""
    texts = []
    off = [row for row in rows if row["unmarked"]]
    if off:
        texts.append(
            f"Off and not client_limited: {', '.join(row['cell'] for row in off)}. In a record, times like these would "
            "carry no mark."
            + (" Other programs took the processors then." if all(row["disturbed"] for row in off) else "")
        )
    texts += [
        f"{row['cell']} was run again because other programs took the processors; in {row['unmarked_tries']} of the "
        f"{row['tries'] - 1} tries before, it was off and not client_limited. In a record, times of such a moment "
        "would carry no mark."
        for row in rows
        if row["unmarked_tries"]
    ]
    return texts


def _load_verdict(found: Mapping[str, Any]) -> str:
    rising = [row for row in found["rows"] if row["kind"] == "rising"]
    name = found["believed_up_to_cell"]
    if rising and name == rising[-1]["cell"]:
        return f"Under load it can be believed up to {name}, the most that was tried."
    names = [row["cell"] for row in rising]
    first = rising[0 if name is None else names.index(name) + 1]
    said = f"Under load it can be believed up to {name}." if name else "Under load it cannot be believed here."
    if "client_limited" in first["why_not"]:
        marked = "its rows say so themselves (client_limited)"
    elif "failed" in first["why_not"]:
        marked = "its requests end in errors"
    elif first["why_not"] == ["server_behind"]:
        marked = "the server could not send that fast here, so that more was not tried"
    else:
        marked = "its rows would not be marked, so stay below"
    return f"{said} At {first['cell']}: {', '.join(_WHY[slug] for slug in first['why_not'])}; {marked}."


def _advice(found: Mapping[str, Any]) -> list[str]:
    rows = found["rows"]
    texts = []
    off = [row for row in rows if row["why_not"]]
    waits = [row for row in rows if (row["waited_share"] or 0.0) > _BUSY_SHARE[row["kind"]]]
    if waits:
        worst = max(waits, key=lambda row: row["waited_share"])
        texts.append(
            f"The machine was busy: at {worst['cell']} the client was ready and had no processor for "
            f"{format_percent(worst['waited_share'], 0)} of the time. Run this again when nothing else runs."
        )
    if found["server"]["why_not_apart"] is not None:
        texts.append(
            "Client and server shared processors: what the server takes, the client lacks. Figures are worse "
            "than with an engine on another machine."
        )
    errors = [row["first_error"] for row in rows if row["first_error"]]
    if errors:
        texts.append(f"The first error: {errors[0]}")
    if off:
        texts.append(
            "What to do: send fewer requests at once, run the client on a machine or on processors that "
            "nothing else uses (taskset), or split the load over several machines."
        )
    return texts


def _ms(seconds: float | None, *, signed: bool = False) -> str:
    if seconds is None:
        return NOT_KNOWN
    return f"{round(seconds * 1e3, 2) + 0.0:{'+' if signed else ''},.2f}"


def _share(share: float | None) -> str:
    return NOT_KNOWN if share is None else format_percent(share)
