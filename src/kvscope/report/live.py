"""A running engine, as it is now: text for the terminal and the dictionary that ``kvscope watch --json`` prints."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from kvscope.analysis.watched import CacheUse, Cause, NotFound, Rates
from kvscope.report.terminal_table import aligned
from kvscope.report.terminal_text import noted as wrapped
from kvscope.units import format_bytes, format_count, format_mib, format_seconds

_CAUSES = {
    "weights": "weights",
    "kv_cache": "KV cache and states, reserved",
    "compute": "compute buffers, touched so far",
    "host_cache": "copies of earlier prompts",
    "runtime": "heap, stacks, libraries",
    "unnamed": "all of it",
    "unexplained": "no name found",
}
_BASES = {
    "predicted": "predicted and seen",
    "reported": "stated by the engine and seen",
    "rule": "by the engine's rule, not seen",
    "shared": "at most",
    "measured": "measured",
    "unexplained": "",
}


def live_dict(
    *,
    target: Mapping[str, Any],
    at: str,
    memory: Mapping[str, Any] | None,
    causes: Sequence[Cause],
    cache: CacheUse,
    statistics: Mapping[str, float],
    rates: Rates | None,
    unknown: Sequence[str],
    not_found: Sequence[NotFound] = (),
) -> dict[str, Any]:
    """One look, as JSON shows it. What is not known is None."""
    return {
        "schema": "kvscope.watch/1",
        "at": at,
        "target": dict(target),
        "memory": None if memory is None else dict(memory),
        "causes": [asdict(cause) for cause in causes],
        "not_found": [asdict(each) for each in not_found],
        "kv_cache": asdict(cache),
        "requests_running": statistics.get("requests_running"),
        "requests_waiting": statistics.get("requests_waiting"),
        "statistics": dict(statistics),
        "rates": None if rates is None else asdict(rates),
        "unknown": list(unknown),
    }


def render_live(look: Mapping[str, Any]) -> str:
    """One look for people; ``look`` as ``live_dict`` gives it."""
    lines = [_head(look), "", *_memory(look), "", *_activity(look)]
    unknown = [*(_missing(each) for each in look["not_found"]), *look["unknown"]]
    if unknown:
        lines += ["", "Not known:", *(wrapped(text) for text in unknown)]
    return "\n".join(lines) + "\n"


def _head(look: Mapping[str, Any]) -> str:
    target = look["target"]
    process = f", process {target['pid']}" if target["pid"] is not None else ""
    engine = target["engine"] or "an engine that is not known here"
    url = f" at {target['url']}" if target["url"] else ""
    return f"{target['name']}: {engine}{url}{process} · {look['at']}"


def _memory(look: Mapping[str, Any]) -> list[str]:
    memory = look["memory"]
    if memory is None:
        stated = look["statistics"].get("engine_bytes")
        return ["Memory: not seen." if stated is None else f"Memory: the engine says {format_bytes(stated)}."]
    swap = f", {format_mib(memory['swap_bytes'])} of it swapped out" if memory["swap_bytes"] else ""
    own = memory["anon_bytes"] + memory["swap_bytes"]
    head = f"Memory: {format_mib(own)} its own{swap}, {format_mib(memory['file_bytes'])} pages of files"
    if memory["machine_available_bytes"] is not None:
        head += f"; {format_bytes(memory['machine_available_bytes'])} left on the machine"
    rows = [[_CAUSES[cause["slug"]], format_mib(cause["num_bytes"]), ""] for cause in look["causes"]]
    bases = [_basis(cause) for cause in look["causes"]]
    table = [f"  {left}  {basis}".rstrip() for left, basis in zip(aligned(rows), bases, strict=True)] if rows else []
    return [head, *table]


def _basis(cause: Mapping[str, Any]) -> str:
    basis = _BASES[cause["basis"]]
    if cause["expected_bytes"] is None:
        return basis
    return f"of {format_mib(cause['expected_bytes'])} found; the rest has no mapping of its own ({basis})"


def _missing(lost: Mapping[str, Any]) -> str:
    size = format_mib(lost["expected_bytes"])
    return f"{_CAUSES[lost['slug']]}: {size} by what is known of it, not found among its mappings."


def _activity(look: Mapping[str, Any]) -> list[str]:
    lines = [f"Requests: {_count(look['requests_running'])} running, {_count(look['requests_waiting'])} waiting"]
    lines.append(_cache(look["kv_cache"]))
    rates = look["rates"]
    if rates is not None:
        lines.append(_speed(rates))
    return lines


def _count(value: float | None) -> str:
    return "not stated" if value is None else format_count(round(value))


def _cache(cache: Mapping[str, Any]) -> str:
    used, reserved = cache["used_tokens"], cache["reserved_tokens"]
    parts = []
    if used is not None:
        of = f" of {format_count(reserved)}" if reserved else ""
        parts.append(f"{'at most ' if cache['is_at_most'] else ''}{format_count(used)}{of} tokens")
    if cache["used_share"] is not None:
        parts.append(f"{cache['used_share']:.1%}")
    if cache["used_bytes"] is not None:
        parts.append(format_mib(cache["used_bytes"]))
    return "KV cache in use: " + (", ".join(parts) if parts else "not stated")


def _speed(rates: Mapping[str, Any]) -> str:
    parts = [
        f"{label} {rates[name]:,.1f} tokens/s"
        for name, label in (("prompt_tokens_per_s", "prompts read at"), ("output_tokens_per_s", "output"))
        if rates[name] is not None
    ]
    if rates["ttft_mean_s"] is not None:
        parts.append(f"first token after {format_seconds(rates['ttft_mean_s'])} (mean)")
    if rates["prefix_hit_share"] is not None:
        parts.append(f"{rates['prefix_hit_share']:.0%} of prompt tokens found in the prefix cache")
    if rates["preemptions"]:
        parts.append(f"{rates['preemptions']} preempted")
    stated = "; ".join(parts) if parts else "nothing is stated"
    return wrapped(f"In the last {rates['seconds']:.1f} s: {stated}")
