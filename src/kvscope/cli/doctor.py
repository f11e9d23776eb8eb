"""kvscope doctor: which engines and probes work here, which do not, why, and what to install."""

import platform
import re
from typing import Any

import click

from kvscope import __version__
from kvscope.cli.options import json_option
from kvscope.cli.output import say, say_json
from kvscope.engine.registry import available_engines
from kvscope.language import shown
from kvscope.probe.available import available_probes
from kvscope.probe.machine_memory import machine_memory
from kvscope.report.terminal_text import WIDTH, display_width, plain_blanks, wrapped
from kvscope.report.words import say as words

EXAMPLE = """\
\b
Example:
  kvscope doctor            for people
  kvscope doctor --json     for scripts
Predicting and reporting need no engine at all; measuring needs one that works here.
"""

_FIRST_WORD = re.compile(r" *\S+ +")


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
    sizes = {"total": memory["total_bytes"], "available": memory["available_bytes"]}
    lines = [
        *wrapped(words("doctor.head", **{name: found[name] for name in ("kvscope", "python", "system")})),
        *wrapped(words("doctor.memory", **sizes, swap=_swap(memory))),
        "",
        *wrapped(words("doctor.engines")),
        *(line for each in found["engines"] for line in _lines(each, _reached(each["version"]))),
        "",
        *wrapped(words("doctor.probes")),
        *(line for each in found["probes"] for line in _lines(each, each["detail"])),
    ]
    return plain_blanks("\n".join(lines))


def _lines(each: dict[str, Any], detail: str | None) -> list[str]:
    slug = "doctor.works_not"
    if each["works"]:
        slug = "doctor.works_detail" if detail else "doctor.works"
    told = {"name": shown(each["name"]), "detail": shown(detail or ""), "why": shown(each["why_not"] or "")}
    line = f"  {words(slug, **told)}"
    return [line] if display_width(line) <= WIDTH else _folded(line)


def _folded(line: str) -> list[str]:
    """The blanks behind the first word, which line up the names, stay."""
    first = _FIRST_WORD.match(line)
    return wrapped(line) if first is None else wrapped(line[first.end() :], first[0], " " * 7)


def _reached(version: str | None) -> str:
    return words("doctor.by_url") if version is None else words("doctor.version", version=version)


def _swap(memory: dict[str, int | None]) -> str:
    total, free = memory["swap_total_bytes"], memory["swap_free_bytes"]
    if total is None or free is None:
        return words("doctor.swap_unknown")
    return words("doctor.swap", total=total, used=total - free) if total else words("doctor.swap_none")
