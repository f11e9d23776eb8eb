"""Calls of tools, where the server read them out of the answer and where they stand in its text as JSON."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvscope.quality.scoring import Score

_DECODER = json.JSONDecoder()
_MOST_OBJECTS = 50
_NAME_KEYS, _ARGUMENT_KEYS = (
    ("name", "tool", "tool_name", "function_name"),
    ("arguments", "parameters", "args", "input"),
)


def calls_said(tool_calls: Sequence[Mapping[str, Any]], text: str) -> tuple[list[tuple[str, dict[str, Any]]], str]:
    """(name, arguments) of each call, repeats left out, and where they were read: "tool_calls", "text",
    "cut_text" (JSON that was cut off, its last complete arguments) or ""."""
    for source, objects in (("tool_calls", iter(tool_calls)), ("text", _objects(text)), ("cut_text", _begun(text))):
        calls: list[tuple[str, dict[str, Any]]] = []
        for found in objects:
            call = _call(found)
            if call is not None and call not in calls:
                calls.append(call)
        if calls:
            return calls, source
    return [], ""


def scored_call(expected: str, tool_calls: Sequence[Mapping[str, Any]], text: str) -> Score:
    """``expected``: JSON, {"name": ..., "arguments": {...}}. Right: one call, of this name, with these arguments and no
    other. A number told as a text is the same number."""
    wanted = json.loads(expected)
    calls, source = calls_said(tool_calls, text)
    if not calls:
        return Score(value=0.0, names_something=False, facts={"tool_calls_read": 0})
    name, arguments = calls[0]
    named = {key: _told(value) for key, value in arguments.items()}
    asked = {key: _told(value) for key, value in wanted["arguments"].items()}
    is_right = source != "cut_text" and len(calls) == 1 and name == wanted["name"] and named == asked
    facts = {
        "tool_calls_read": len(calls),
        "read_from": source,
        "name_is_right": name == wanted["name"],
        "arguments_right": sum(named.get(key) == value for key, value in asked.items()),
        "arguments_expected": len(asked),
        "arguments_said": len(named),
    }
    could_be_right = name == wanted["name"] and named.items() <= asked.items()
    return Score(value=float(is_right), names_something=source != "cut_text" or not could_be_right, facts=facts)


def _told(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value.strip().casefold() if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _call(found: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
    inner = found.get("function")
    if isinstance(inner, Mapping):
        found = inner
    elif isinstance(inner, str) and "name" not in found:
        found = {**found, "name": inner}
    name = next((found[key] for key in _NAME_KEYS if isinstance(found.get(key), str)), None)
    arguments = next((found[key] for key in _ARGUMENT_KEYS if key in found), None)
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return None
    return (name, dict(arguments)) if name is not None and isinstance(arguments, Mapping) else None


def _objects(text: str) -> Iterator[Mapping[str, Any]]:
    """The outermost JSON objects of a text, in fences, marks or bare; those of a list too."""
    place, seen = 0, 0
    while seen < _MOST_OBJECTS and (place := text.find("{", place)) >= 0:
        seen += 1
        try:
            found, place = _DECODER.raw_decode(text, place)
        except (ValueError, RecursionError):
            place += 1
            continue
        if isinstance(found, dict):
            yield found


def _begun(text: str) -> Iterator[Mapping[str, Any]]:
    """A call whose JSON breaks off, closed behind the last argument that is whole. What it says so far may be wrong
    already, whatever would have come."""
    begin = text.find("{")
    place = len(text) if begin >= 0 else -1
    for _ in range(_MOST_OBJECTS):
        place = text.rfind(",", begin, place) if place > begin >= 0 else -1
        if place < 0:
            return
        for closing in ("}}", "}"):
            try:
                yield json.loads(text[begin:place] + closing)
            except (ValueError, RecursionError):
                continue
            return
