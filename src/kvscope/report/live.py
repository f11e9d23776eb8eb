"""A running engine, as it is now: text for the terminal and the dictionary that ``kvscope watch --json`` prints."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from kvscope.analysis.watched import CacheUse, Cause, NotFound, Rates
from kvscope.language import shown
from kvscope.report.terminal_table import aligned
from kvscope.report.terminal_text import joined, wrapped, wrapped_note
from kvscope.report.words import say
from kvscope.units import format_count, format_mib


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
    lines = [*wrapped(_head(look)), "", *_memory(look), "", *_activity(look)]
    unknown = [*(_missing(each) for each in look["not_found"]), *map(shown, look["unknown"])]
    if unknown:
        lines += ["", say("watch.not_known"), *(line for text in unknown for line in wrapped_note(text))]
    return joined(lines)


def _head(look: Mapping[str, Any]) -> str:
    target = look["target"]
    slug = "watch.head" + ("_url" if target["url"] else "") + ("" if target["pid"] is None else "_process")
    engine = target["engine"] or say("watch.engine_unknown")
    return say(slug, name=target["name"], engine=engine, url=target["url"], pid=target["pid"], at=look["at"])


def _memory(look: Mapping[str, Any]) -> list[str]:
    memory = look["memory"]
    if memory is None:
        stated = look["statistics"].get("engine_bytes")
        return [say("watch.not_seen") if stated is None else say("watch.stated", size=stated)]
    swap, own = memory["swap_bytes"], memory["anon_bytes"] + memory["swap_bytes"]
    head = say("watch.memory_swap" if swap else "watch.memory", own=own, swap=swap, files=memory["file_bytes"])
    if memory["machine_available_bytes"] is not None:
        head = say("watch.memory_left", memory=head, left=memory["machine_available_bytes"])
    rows = [[_cause(cause), format_mib(cause["num_bytes"]), _basis(cause)] for cause in look["causes"]]
    return [*wrapped(head), *aligned(rows, heads=0, at_end=1)]


def _cause(cause: Mapping[str, Any]) -> str:
    return say(f"watch.cause.{cause['slug']}")


def _basis(cause: Mapping[str, Any]) -> str:
    basis = "" if cause["basis"] == "unexplained" else say(f"watch.basis.{cause['basis']}")
    if cause["expected_bytes"] is None:
        return basis
    return say("watch.partly", expected=cause["expected_bytes"], basis=basis)


def _missing(lost: Mapping[str, Any]) -> str:
    return say("watch.missing", cause=_cause(lost), size=lost["expected_bytes"])


def _activity(look: Mapping[str, Any]) -> list[str]:
    running, waiting = _count(look["requests_running"]), _count(look["requests_waiting"])
    lines = [*wrapped(say("watch.requests", running=running, waiting=waiting)), *wrapped(_cache(look["kv_cache"]))]
    return lines if look["rates"] is None else [*lines, *wrapped_note(_speed(look["rates"]))]


def _count(value: float | None) -> str:
    return say("watch.not_stated") if value is None else format_count(round(value))


def _cache(cache: Mapping[str, Any]) -> str:
    used, reserved = cache["used_tokens"], cache["reserved_tokens"]
    parts = []
    if used is not None:
        slug = "watch.used" + ("_at_most" if cache["is_at_most"] else "") + ("_of" if reserved else "")
        parts.append(say(slug, used=used, reserved=reserved))
    if cache["used_share"] is not None:
        parts.append(f"{cache['used_share']:.1%}")
    if cache["used_bytes"] is not None:
        parts.append(format_mib(cache["used_bytes"]))
    return say("watch.cache", parts=", ".join(parts) or say("watch.not_stated"))


def _speed(rates: Mapping[str, Any]) -> str:
    parts = [
        say(f"watch.rate_{kind}", rate=f"{rates[name]:,.1f}")
        for name, kind in (("prompt_tokens_per_s", "prompt"), ("output_tokens_per_s", "output"))
        if rates[name] is not None
    ]
    if rates["ttft_mean_s"] is not None:
        parts.append(say("watch.ttft", ttft_s=rates["ttft_mean_s"]))
    if rates["prefix_hit_share"] is not None:
        parts.append(say("watch.hits", share=f"{rates['prefix_hit_share']:.0%}"))
    if rates["preemptions"]:
        parts.append(say("watch.preempted", count=rates["preemptions"]))
    return say("watch.rates", seconds=f"{rates['seconds']:.1f}", parts="; ".join(parts) or say("watch.nothing"))
