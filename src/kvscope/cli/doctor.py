"""kvscope doctor: which engines and probes work here, which do not, why, and what to install."""

import platform
from typing import Any

import click

from kvscope import __version__
from kvscope.cli.options import json_option
from kvscope.cli.output import say, say_json
from kvscope.engine.registry import available_engines
from kvscope.probe.available import available_probes
from kvscope.probe.machine_memory import machine_memory
from kvscope.units import format_bytes

EXAMPLE = """\
\b
Example:
  kvscope doctor            for people
  kvscope doctor --json     for scripts
Predicting and reporting need no engine at all; measuring needs one that works here.
"""


@click.command(epilog=EXAMPLE)
@json_option
def doctor(as_json: bool) -> int:
    """Say what works on this machine, what does not, and what to do about it."""
    found = examine()
    say_json(found) if as_json else say(render(found))
    return 0


def examine() -> dict[str, Any]:
    """What there is here, as the JSON shows it. A value that is not known is None."""
    return {
        "schema": "kvscope.doctor/1",
        "kvscope": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "memory": _memory(),
        "engines": [
            {"name": name, "works": reason is None, "version": version, "why_not": reason}
            for name, version, reason in available_engines()
        ],
        "probes": [
            {"name": each.name, "works": each.why_not is None, "why_not": each.why_not, "detail": each.detail}
            for each in available_probes()
        ],
    }


def _memory() -> dict[str, int | None]:
    try:
        memory = machine_memory()
    except Exception:  # whatever it is, the rest is still said
        return {"total_bytes": None, "available_bytes": None, "swap_total_bytes": None, "swap_free_bytes": None}
    return {
        "total_bytes": memory.total_bytes,
        "available_bytes": memory.available_bytes,
        "swap_total_bytes": memory.swap_total_bytes,
        "swap_free_bytes": memory.swap_free_bytes,
    }


def render(found: dict[str, Any]) -> str:
    """The same for people."""
    memory = found["memory"]
    lines = [
        f"kvscope {found['kvscope']}, Python {found['python']}, {found['system']}",
        f"Memory: {_size(memory['total_bytes'])}, {_size(memory['available_bytes'])} available; {_swap(memory)}",
        "",
        "Engines (to measure; predicting and reporting need none)",
        *(_line(each, _reached(each["version"])) for each in found["engines"]),
        "",
        "Probes (what can be watched)",
        *(_line(each, each["detail"]) for each in found["probes"]),
    ]
    return "\n".join(lines)


def _line(each: dict[str, Any], detail: str | None) -> str:
    if each["works"]:
        return f"  yes  {each['name']}" + (f"  ({detail})" if detail else "")
    return f"  no   {each['name']}: {each['why_not']}"


def _reached(version: str | None) -> str:
    return f"version {version}" if version is not None else "a server that runs already, by its --url"


def _size(num_bytes: int | None) -> str:
    return "unknown" if num_bytes is None else format_bytes(num_bytes)


def _swap(memory: dict[str, int | None]) -> str:
    if memory["swap_total_bytes"] is None or memory["swap_free_bytes"] is None:
        return "swap unknown"
    if not memory["swap_total_bytes"]:
        return "no swap"
    used = memory["swap_total_bytes"] - memory["swap_free_bytes"]
    return f"swap {_size(memory['swap_total_bytes'])}, {_size(used)} used"
