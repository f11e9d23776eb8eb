"""Calls of tools, where the server read them out of the answer and where they stand in its text: as JSON, or as models
write them that were trained to call tools in another form."""

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvscope.quality.scoring import Score

_DECODER = json.JSONDecoder()
_MOST_OBJECTS = 50
_MOST_WRAPPED = 3
_WRAPPERS = ("tool_calls", "tool_call", "function_call", "calls")
_TRAILING_COMMA = re.compile(r",(?=\s*[}\]])")
# "I will not call {...}" calls nothing.
_DENIED = re.compile(r"(?:\b(?:not|never|cannot|without|instead of)\b|n['’]t\b)[^.!?:\n]{0,60}\Z", re.IGNORECASE)
# name, then its arguments as JSON: gpt-oss, Mistral, Llama 3.1, DeepSeek.
_NAME_BEFORE_JSON = re.compile(
    r"(?:\bto=functions\.|\[TOOL_CALLS\]\s*|<function=|<｜tool▁sep｜>)([A-Za-z_]\w*)(?=[^{}]{0,80}\{)[^{}]*"
)
# Qwen3-Coder, GLM-4.5.
_IN_TAGS = (
    (
        re.compile(r"<function=([A-Za-z_]\w*)>((?:\s*<parameter=\w+>.*?</parameter>)+)", re.DOTALL),
        re.compile(r"<parameter=(\w+)>\s*(.*?)\s*</parameter>", re.DOTALL),
    ),
    (
        re.compile(r"<tool_call>\s*([A-Za-z_]\w*)((?:\s*<arg_key>.*?</arg_value>)+)", re.DOTALL),
        re.compile(r"<arg_key>\s*(\w+)\s*</arg_key>\s*<arg_value>\s*(.*?)\s*</arg_value>", re.DOTALL),
    ),
)
# name(argument=value, ...), as Python has it: Llama 3.2 and 4, LFM2, Gemma.
_PYTHON = re.compile(r"(?<![\w.])([A-Za-z_]\w*)(\((?:\s*\w+\s*=\s*[^()=]{1,200}?[,)])+)")
_NAME_KEYS, _ARGUMENT_KEYS = (
    ("name", "tool", "tool_name", "function_name"),
    ("arguments", "parameters", "args", "input"),
)


def calls_said(tool_calls: Sequence[Mapping[str, Any]], text: str) -> tuple[list[tuple[str, dict[str, Any]]], str]:
    """(name, arguments) of each call, repeats left out, and where they were read: "tool_calls", "text",
    "cut_text" (JSON that was cut off, its last complete arguments) or ""."""
    sources = (
        ("tool_calls", iter(tool_calls)),
        ("text", _objects(text)),
        ("text", _in_other_forms(text)),
        ("text", _objects(_TRAILING_COMMA.sub("", text))),
        ("cut_text", _begun(text)),
    )
    for source, objects in sources:
        calls: list[tuple[str, dict[str, Any]]] = []
        for found in objects:
            call = _call(found)
            if call is not None and _as_told(call) not in map(_as_told, calls):
                calls.append(call)
        if calls:
            return calls, source
    return [], ""


def calls_as_text(tool_calls: Sequence[Mapping[str, Any]]) -> str:
    """Calls that the server read, as JSON, one a line; as the server handed them over where they are no whole calls.
    Empty where there are none."""
    calls = [_call(found) for found in tool_calls]
    return "\n".join(
        json.dumps(found if call is None else {"name": call[0], "arguments": call[1]}, ensure_ascii=False, default=str)
        for found, call in zip(tool_calls, calls, strict=True)
    )


def scored_call(expected: str, tool_calls: Sequence[Mapping[str, Any]], text: str) -> Score:
    """``expected``: JSON, {"name": ..., "arguments": {...}}. Right: one call, of this name, with these arguments and no
    other. A number told as a text is the same number."""
    wanted = json.loads(expected)
    calls, source = calls_said(tool_calls, text)
    if not calls:
        return Score(value=0.0, names_something=False, facts={"tool_calls_read": 0})
    name, arguments = calls[0]
    (_, named), (_, asked) = _as_told((name, arguments)), _as_told((name, wanted["arguments"]))
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


def _as_told(call: tuple[str, Mapping[str, Any]]) -> tuple[str, dict[str, str]]:
    return call[0], {key: _told(value) for key, value in call[1].items()}


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
    if name is None or not isinstance(arguments, Mapping):
        return None
    return name.removeprefix("functions."), dict(arguments)


def _objects(text: str) -> Iterator[Mapping[str, Any]]:
    """The outermost JSON objects of a text, in fences, marks or bare; those of a list too, and those in a wrapper."""
    place, seen = 0, 0
    while seen < _MOST_OBJECTS and (place := text.find("{", place)) >= 0:
        seen += 1
        begin = place
        try:
            found, place = _DECODER.raw_decode(text, place)
        except (ValueError, RecursionError):
            place += 1
            continue
        if isinstance(found, dict) and not _DENIED.search(text[max(0, begin - 100) : begin]):
            yield from _unwrapped(found)


def _unwrapped(found: Mapping[str, Any], depth: int = 0) -> Iterator[Mapping[str, Any]]:
    """The calls in {"tool_calls": [...]} and {"tool_call": {...}}; anything else as it is."""
    inner = next((found[key] for key in _WRAPPERS if isinstance(found.get(key), dict | list)), None)
    if inner is None or depth == _MOST_WRAPPED:
        yield found
        return
    for each in inner if isinstance(inner, list) else [inner]:
        if isinstance(each, dict):
            yield from _unwrapped(each, depth + 1)


def _in_other_forms(text: str) -> Iterator[Mapping[str, Any]]:
    for whole, each in _IN_TAGS:
        for found in whole.finditer(text):
            yield {"name": found[1], "arguments": dict(each.findall(found[2]))}
    for found in _NAME_BEFORE_JSON.finditer(text):
        try:
            yield {"name": found[1], "arguments": _DECODER.raw_decode(text, found.end())[0]}
        except (ValueError, RecursionError):
            continue
    for found in _PYTHON.finditer(text):
        arguments = _of_python(found[0])
        if arguments and not _DENIED.search(text[max(0, found.start() - 100) : found.start()]):
            yield {"name": found[1], "arguments": arguments}


def _of_python(call: str) -> dict[str, Any]:
    """The arguments of a call in Python's form; empty where it is none, or holds anything but plain values."""
    try:
        tree = ast.parse(call, mode="eval").body
        if not isinstance(tree, ast.Call) or tree.args:
            return {}
        return {word.arg: ast.literal_eval(word.value) for word in tree.keywords if word.arg is not None}
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return {}


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
