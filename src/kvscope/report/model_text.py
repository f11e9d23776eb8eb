"""What ``kvscope show`` prints: a model's layers as one would draw them, and where every fact comes from."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from kvscope.report.prediction_text import aligned, layer_ranges
from kvscope.units import format_bytes, format_count

# One letter a layer, by its kind. Upper case grows with every token, lower case does not.
_LETTERS = (
    ("full_attention", "F"),
    ("latent_attention", "L"),
    ("sliding_window", "s"),
    ("chunked_attention", "c"),
    ("compressed_attention", "C"),
    ("recurrent", "r"),
    ("cross_attention", "x"),
    ("hidden_state_memory", "h"),
    ("shared_cache", "-"),
    ("no_cache", "."),
)
_ROW = 60
_WIDTH = 110
_SHOWN_FIELDS = (
    "num_layers", "num_q_heads", "num_kv_heads", "key_dim", "layer_types", "window_tokens", "num_parameters",
    "trained_context_tokens", "dtype", "vocab_size",
)  # fmt: skip


def render_model(model: Mapping[str, Any]) -> str:
    """What a model is, from the dictionary that ``kvscope show --json`` prints."""
    letters = _letters(model["groups"])
    lines = [f"{model['name']}  ({model['architecture']}, from {model['source']})", "", *_facts(model), ""]
    lines += [f"{format_count(model['num_layers'])} layers, first to last:", *_drawing(model, letters), ""]
    lines += _table(model["groups"], letters)
    lines += ["", *textwrap.wrap(_cost(model), _WIDTH)]
    if model["tensors_by_type"]:
        rows = [["type", "tensors", "size"]]
        rows += [[t["dtype"], format_count(t["count"]), _size(t["bytes"])] for t in model["tensors_by_type"]]
        lines += ["", "Tensors, by type:", *aligned(rows, left=4)]
    for warning in model["warnings"]:
        lines += ["", *textwrap.wrap(f"Doubtful: {warning}", _WIDTH)]
    if model["unknown"]:
        lines += ["", *textwrap.wrap(f"Not known: {'; '.join(model['unknown'])}.", _WIDTH)]
    lines += ["", "Where this comes from (all of it: --json, sources):", *aligned(_sources(model), left=2)]
    return "\n".join(lines) + "\n"


def _facts(model: Mapping[str, Any]) -> list[str]:
    experts = _common_experts(model["groups"])
    rows = [
        ["parameters", _count(model["parameters"])],
        *([["experts", f"{format_count(experts)} in each layer that has any"]] if experts else []),
        ["hidden size", format_count(model["hidden_size"])],
        ["vocabulary", format_count(model["vocab_size"])],
        ["trained context", f"{_count(model['trained_context_tokens'])} tokens"],
        ["weights", "not known" if model["weights_bytes"] is None else _size(model["weights_bytes"])],
        ["fingerprint", model["fingerprint"][:16]],
    ]
    return aligned(rows, left=2)


def _letters(groups: Sequence[Mapping[str, Any]]) -> list[str]:
    """A letter for each group: its kind's, or the next free one where two groups are of one kind."""
    taken: list[str] = []
    for group in groups:
        kind = group["kind"]
        letter = "H" if "+" in kind else next((mark for name, mark in _LETTERS if kind.startswith(name)), "?")
        choices = [letter, *"ABDEGIJKMNOPQTUVWYZ0123456789"]
        taken.append(next((choice for choice in choices if choice not in taken), "?"))
    return taken


def _drawing(model: Mapping[str, Any], letters: Sequence[str]) -> list[str]:
    marks = ["?"] * model["num_layers"]
    for group, letter in zip(model["groups"], letters, strict=True):
        for index in group["layers"]:
            marks[index] = letter
    text = "".join(marks)
    rows = [text[start : start + _ROW] for start in range(0, len(text), _ROW)]
    return [f"  {start * _ROW:>4}  {row}" for start, row in enumerate(rows)]


def _common_experts(groups: Sequence[Mapping[str, Any]]) -> int | None:
    """The number of experts, where it is the same in every layer; else each group names its own."""
    numbers = {group["num_experts"] for group in groups}
    return numbers.pop() if len(numbers) == 1 else None


def _table(groups: Sequence[Mapping[str, Any]], letters: Sequence[str]) -> list[str]:
    """The groups, with as many ranges of layers as the line has room for."""
    common = _common_experts(groups)
    for num_ranges in range(4, 0, -1):
        rows = [["", "layers", "what each keeps", "heads", "a token", "a sequence"]]
        for group, letter in zip(groups, letters, strict=True):
            rows.append(_group_row(group, letter, num_ranges, shows_experts=common is None))
        table = aligned(rows, left=4)
        if max(map(len, table)) <= _WIDTH:
            break
    return table


def _group_row(group: Mapping[str, Any], letter: str, num_ranges: int, *, shows_experts: bool) -> list[str]:
    grows = f"{format_count(group['bytes_per_token'])} B" if group["bytes_per_token"] else ""
    if grows and group["cap_tokens"] is not None:
        grows += f", up to {format_count(group['cap_tokens'])}"
    return [
        letter,
        f"{len(group['layers'])}: {_which(group['layers'], num_ranges)}",
        group["kind"] + (f" ({group['num_experts']} experts)" if shows_experts and group["num_experts"] else ""),
        _heads(group),
        grows,
        format_bytes(group["state_bytes"]) if group["state_bytes"] else "",
    ]


def _which(layers: Sequence[int], num_ranges: int) -> str:
    """The layers' numbers, cut after some ranges: the drawing above shows them all."""
    ranges = layer_ranges(layers).removeprefix("layers ").removeprefix("layer ").split(", ")
    return ", ".join(ranges[:num_ranges]) + (", ..." if len(ranges) > num_ranges else "")


def _heads(group: Mapping[str, Any]) -> str:
    details = group["details"]
    if group["num_kv_heads"] is not None:
        text = f"{group['num_kv_heads']} KV × ({group['key_dim']} + {group['value_dim']})"
        return f"{group['num_q_heads']} Q, {text}" if group["num_q_heads"] else text
    for prefix in ("", "main."):
        if f"{prefix}latent_dim" in details:
            index = f" + index {details['index_dim']}" if "index_dim" in details else ""
            return f"latent {details[f'{prefix}latent_dim']} + rope {details[f'{prefix}rope_dim']}{index}"
    shapes = [f"{name} {'×'.join(map(str, value))}" for name, value in details.items() if isinstance(value, list)]
    if details.get("conv_channels"):
        shapes.insert(0, f"conv {details['conv_channels']}×{details['conv_kernel']}")
    if "layer_index" in details:
        return f"reads layer {details['layer_index']}'s"
    return ", ".join(shapes)


def _cost(model: Mapping[str, Any]) -> str:
    text = f"One more token costs {format_count(model['bytes_per_token'])} B in {model['cache_dtype']}"
    if model["bytes_per_token_beyond_windows"] != model["bytes_per_token"]:
        text += f", and {format_count(model['bytes_per_token_beyond_windows'])} B once every window is full"
    if model["state_bytes_per_sequence"]:
        text += f"; each conversation also holds {format_bytes(model['state_bytes_per_sequence'])} whatever its length"
    return text + "."


def _sources(model: Mapping[str, Any]) -> list[list[str]]:
    """The sources of the main facts; of a layer's, where no model-wide one is kept, the first layer's."""
    sources = model["sources"]
    found = []
    for name in _SHOWN_FIELDS:
        where = sources.get(name) or sources.get(f"layers[0].{name}")
        if where is not None:
            found.append([name, where])
    kinds = sources.get("layers[0].cache")
    if kinds is not None and "layer_types" not in sources:
        found.append(["kinds of layers", kinds])
    return found


def _count(value: int | None) -> str:
    return "not known" if value is None else format_count(value)


def _size(num_bytes: int) -> str:
    return f"{format_bytes(num_bytes)} ({format_count(num_bytes)} B)"
