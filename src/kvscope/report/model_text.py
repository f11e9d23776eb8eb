"""What ``kvscope show`` prints: a model's layers as one would draw them, and where every fact comes from."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvscope.language import shown
from kvscope.report.layer_words import layer_kind
from kvscope.report.prediction_text import layer_ranges
from kvscope.report.terminal_table import aligned
from kvscope.report.terminal_text import WIDTH, display_width, joined, wrapped
from kvscope.report.words import say
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
_MOST_RANGES = 4
_SHOWN_FIELDS = (
    "num_layers", "num_q_heads", "num_kv_heads", "key_dim", "layer_types", "window_tokens", "num_parameters",
    "trained_context_tokens", "dtype", "vocab_size",
)  # fmt: skip


def render_model(model: Mapping[str, Any]) -> str:
    """What a model is, from the dictionary that ``kvscope show --json`` prints."""
    letters = _letters(model["groups"])
    head = say("show.head", name=model["name"], architecture=model["architecture"], source=model["source"])
    lines = [*_spaced(head), "", *_facts(model), "", say("show.layers", count=model["num_layers"])]
    lines += [*_drawing(model, letters), "", *_table(model["groups"], letters), "", *wrapped(_cost(model), later="")]
    if model["tensors_by_type"]:
        rows = [[say(f"show.col_{name}") for name in ("type", "tensors", "size")]]
        rows += [[t["dtype"], format_count(t["count"]), _size(t["bytes"])] for t in model["tensors_by_type"]]
        lines += ["", say("show.types"), *aligned(rows, left=4)]
    for warning in model["warnings"]:
        lines += ["", *wrapped(say("show.doubtful", warning=shown(warning)), later="")]
    if model["unknown"]:
        lines += ["", *wrapped(say("show.unknown", what="; ".join(map(shown, model["unknown"]))), later="")]
    return joined([*lines, "", say("show.sources"), *aligned(_sources(model), left=2, heads=0)])


def _spaced(head: str) -> list[str]:
    """The head as it is, two blanks before its bracket included, where it fits into a line."""
    return [head] if display_width(head) <= WIDTH else wrapped(head)


def _facts(model: Mapping[str, Any]) -> list[str]:
    experts, trained = _common_experts(model["groups"]), model["trained_context_tokens"]
    facts = {
        "parameters": _count(model["parameters"]),
        **({"experts": say("show.experts_each", count=experts)} if experts else {}),
        "hidden": format_count(model["hidden_size"]),
        "vocabulary": format_count(model["vocab_size"]),
        "trained": say("not_known") if trained is None else say("show.tokens", count=trained),
        "weights": say("not_known") if model["weights_bytes"] is None else _size(model["weights_bytes"]),
        "fingerprint": model["fingerprint"][:16],
    }
    return aligned([[say(f"show.{name}"), fact] for name, fact in facts.items()], left=2, heads=0)


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
    """The groups, without columns that hold nothing."""
    shows_experts = _common_experts(groups) is None
    rows = [["", *(say(f"show.col_{name}") for name in ("layers", "keeps", "heads", "token", "sequence"))]]
    rows += [
        _group_row(group, letter, shows_experts=shows_experts) for group, letter in zip(groups, letters, strict=True)
    ]
    told = [column for column in range(len(rows[0])) if any(row[column] for row in rows[1:])]
    return aligned([[row[column] for column in told] for row in rows], left=4)


def _group_row(group: Mapping[str, Any], letter: str, *, shows_experts: bool) -> list[str]:
    cap, kind = group["cap_tokens"], layer_kind(group["kind"])
    slug = "show.grows" if cap is None else "show.grows_to"
    grows = say(slug, num_bytes=group["bytes_per_token"], cap=cap) if group["bytes_per_token"] else ""
    if shows_experts and group["num_experts"]:
        kind = say("show.kind_experts", kind=kind, experts=group["num_experts"])
    return [
        letter,
        say("show.some_layers", count=len(group["layers"]), ranges=_which(group["layers"])),
        kind,
        _heads(group),
        grows,
        format_bytes(group["state_bytes"]) if group["state_bytes"] else "",
    ]


def _which(layers: Sequence[int]) -> str:
    """The layers' numbers, cut after some ranges: the drawing above shows them all."""
    ranges = layer_ranges(layers).split(", ")
    return ", ".join(ranges[:_MOST_RANGES]) + (", ..." if len(ranges) > _MOST_RANGES else "")


def _heads(group: Mapping[str, Any]) -> str:
    details = group["details"]
    if group["num_kv_heads"] is not None:
        sizes = {"kv": group["num_kv_heads"], "key": group["key_dim"], "value": group["value_dim"]}
        return say("show.heads_q_kv" if group["num_q_heads"] else "show.heads_kv", q=group["num_q_heads"], **sizes)
    for prefix in ("", "main."):
        if f"{prefix}latent_dim" in details:
            sizes = {"latent": details[f"{prefix}latent_dim"], "rope": details[f"{prefix}rope_dim"]}
            index = details.get("index_dim")
            return say("show.heads_latent" if index is None else "show.heads_latent_index", **sizes, index=index)
    shapes = [f"{name} {'×'.join(map(str, value))}" for name, value in details.items() if isinstance(value, list)]
    if details.get("conv_channels"):
        shapes.insert(0, f"conv {details['conv_channels']}×{details['conv_kernel']}")
    if "layer_index" in details:
        return say("show.heads_reads", layer=details["layer_index"])
    return ", ".join(shapes)


def _cost(model: Mapping[str, Any]) -> str:
    per_token, beyond = model["bytes_per_token"], model["bytes_per_token_beyond_windows"]
    state = model["state_bytes_per_sequence"]
    slug = "show.cost" + ("_window" if beyond != per_token else "") + ("_state" if state else "")
    return say(slug, per_token=per_token, dtype=model["cache_dtype"], beyond=beyond, state=state)


def _sources(model: Mapping[str, Any]) -> list[list[str]]:
    """The sources of the main facts; of a layer's, where no model-wide one is kept, the first layer's."""
    sources = model["sources"]
    found = []
    for name in _SHOWN_FIELDS:
        where = sources.get(name) or sources.get(f"layers[0].{name}")
        if where is not None:
            found.append([name, shown(where)])
    kinds = sources.get("layers[0].cache")
    if kinds is not None and "layer_types" not in sources:
        found.append([say("show.kinds"), shown(kinds)])
    return found


def _count(value: int | None) -> str:
    return say("not_known") if value is None else format_count(value)


def _size(num_bytes: int) -> str:
    return say("show.size", num_bytes=num_bytes)
