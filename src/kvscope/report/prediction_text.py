"""A model and a prediction as plain text for the terminal. Works from the same dictionaries as --json prints, so a
stored prediction renders like a fresh one."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from kvscope.units import format_count, format_mib, format_number

UNKNOWN = "not known"
WIDTH = 110
_COMPONENTS = (
    ("weights", "weights"),
    ("kv_cache", "KV cache"),
    ("recurrent_state", "recurrent state"),
    ("index_cache", "index cache"),
    ("compute_buffer", "compute buffer"),
    ("output_buffer", "output buffer"),
    ("host_cache", "host prompt cache"),
    ("runtime", "runtime"),
)
_CACHE = frozenset({"kv_cache", "recurrent_state", "index_cache"})
_OTHER = ("compute_buffer", "output_buffer", "runtime", "host_cache")
# Shown even at 0 bytes, because the 0 has a reason worth reading.
_ALWAYS_SHOWN = frozenset({"weights", "kv_cache", "compute_buffer", "output_buffer", "host_cache", "runtime"})


def render_prediction(prediction: Mapping[str, Any]) -> str:
    """One prediction: what it takes, what grows, and why, line by line."""
    scenario = prediction["scenario"]
    lines = [
        f"{prediction['model']['name']} on {scenario['engine']}: {_tokens(scenario)}",
        f"Rules: {scenario['engine_version']}. Status: {prediction['status']}.",
        *_effective_line(prediction),
        "",
        *_component_table(prediction),
        "",
        *_growth_lines(prediction),
        "",
        *_reasons(prediction["items"], scenario["engine_version"]),
    ]
    if prediction["unknown"]:
        lines += ["", "Not known, or not certain:"]
        lines += [wrapped(f"{entry['what'].replace('_', ' ')}: {entry['why']}") for entry in prediction["unknown"]]
    if prediction.get("notes"):
        lines += ["", "Note:"]
        lines += [wrapped(note) for note in prediction["notes"]]
    return "\n".join(lines) + "\n"


def render_predictions(predictions: Sequence[Mapping[str, Any]], curve: Mapping[str, Any] | None = None) -> str:
    """Several lengths of the same question as one table, shortest first, and the growth between them. ``curve``: the
    dictionary of the growth curve, whose knees are then named with the slope before and after."""
    predictions = sorted(predictions, key=lambda prediction: int(prediction["scenario"]["tokens"]))
    first = predictions[0]
    lines = [
        f"{first['model']['name']} on {first['scenario']['engine']}, {first['scenario']['sequences']} at once",
        f"Rules: {first['scenario']['engine_version']}.",
        *_effective_line(first),
        "",
        *aligned(_length_rows(predictions), left=0),
    ]
    if curve is not None:
        lines += ["", *_curve_lines(curve, predictions)]
    elif "slots" in first["effective"]:
        lines += ["", "llama.cpp reserves the whole cache at load: it does not grow with the conversation."]
    notes = dict.fromkeys(note for prediction in predictions for note in prediction.get("notes") or ())
    lines += [_wrapped_note(note) for note in notes]
    return "\n".join(lines) + "\n"


def _length_rows(predictions: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    rows = [
        [
            "tokens",
            "cache needed, B",
            "since above, B/token",
            "cache held",
            "weights",
            "other known",
            "total known",
            "per token",
        ]
    ]
    before: tuple[int, int] | None = None
    for prediction in predictions:
        totals = prediction["totals"]
        tokens, sequences = prediction["scenario"]["tokens"], prediction["scenario"]["sequences"]
        needed = sum(item["needed_bytes"] for item in prediction["items"] if item["component"] in _CACHE)
        slope = ""
        if before is not None and tokens > before[0]:
            slope = format_number((needed - before[1]) / (tokens - before[0]) / sequences, 1).removesuffix(".0")
        before = (tokens, needed)
        others = [totals[f"{name}_bytes"] for name in _OTHER if totals[f"{name}_bytes"] is not None]
        rows.append(
            [
                format_count(tokens),
                format_count(needed),
                slope,
                _mib(totals["cache_bytes"]),
                _mib(totals["weights_bytes"]),
                format_mib(sum(others)) if others else UNKNOWN,
                format_mib(totals["total_bytes"]),
                f"{format_count(prediction['growth']['bytes_per_token'])} B",
            ]
        )
    return rows


def _curve_lines(curve: Mapping[str, Any], predictions: Sequence[Mapping[str, Any]]) -> list[str]:
    """What stays and what grows, and every length at which the slope changes."""
    scenario = predictions[0]["scenario"]
    last = predictions[-1]
    weights = last["totals"]["weights_bytes"]
    stays = [] if not weights else [f"weights {format_mib(weights)}"]
    if curve["fixed_bytes"]:
        stays.append(f"state of fixed size {format_mib(curve['fixed_bytes'])}")
    first, *later = curve["segments"]
    lines = [f"Fixed: {', '.join(stays)}."] if stays else []
    lines.append(f"Growing: {format_count(first['bytes_per_token'])} B for each token of a sequence.")
    slope = first["bytes_per_token"]
    for segment in later:
        lines.append(
            f"From {format_count(segment['from_tokens'])} tokens on: {format_count(segment['bytes_per_token'])} B "
            f"instead of {format_count(slope)} B ({segment['why']})."
        )
        slope = segment["bytes_per_token"]
    if curve["limit_tokens"] is not None:
        lines.append(f"A sequence ends at {format_count(curve['limit_tokens'])} tokens with these settings.")
    if curve["is_reserved"]:
        lines.append(f"{scenario['engine']} reserves the whole cache at load: it does not grow with the conversation.")
    return lines


def render_what_if(prediction: Mapping[str, Any]) -> str:
    """The changes of ``prediction["what_if"]`` as a table, each with what it costs; refused ones with the reason."""
    scenario = prediction["scenario"]
    changes = prediction["what_if"]
    rows = [["saves", "total known", "change"]]
    costs = []
    for change in changes:
        if change["refused"] is None:
            words = ", ".join(f"{name} = {_word(value)}" for name, value in change["change"].items())
            total = "not known" if change["unknown"] else format_mib(change["total_bytes"])
            rows.append([format_mib(change["saved_bytes"]), total, f"{words}{_unknown_there(change['unknown'])}"])
            costs.append(wrapped(f"{words}: {change['cost']} ({change['source']})"))
    total = format_mib(prediction["totals"]["total_bytes"])
    lines = [f"What if, beside {total} now ({_tokens(scenario)} on {scenario['engine']}; one change at a time):"]
    table = aligned([row[:2] for row in rows], left=0)
    lines += [f"{left}  {row[2]}" for left, row in zip(table, rows, strict=True)]
    lines += ["", "What they are known to cost:", *dict.fromkeys(costs)] if costs else ["  No change is known here."]
    refused = [change for change in changes if change["refused"] is not None]
    if refused:
        lines += ["", "Refused, or not known:"]
        for change in refused:
            words = ", ".join(f"{name} = {_word(value)}" for name, value in change["change"].items())
            lines.append(wrapped(f"{words}: {change['refused']}"))
    return "\n".join(lines) + "\n"


def _unknown_there(components: Sequence[str]) -> str:
    """What a change's total would leave out though the total beside it holds it."""
    return f" (not known there: {', '.join(name.replace('_', ' ') for name in components)})" if components else ""


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _wrapped_note(text: str) -> str:
    return textwrap.fill(f"Note: {text}", WIDTH, subsequent_indent="      ", break_long_words=False)


def _tokens(scenario: Mapping[str, Any]) -> str:
    sequences = scenario["sequences"]
    each = "one sequence" if sequences == 1 else f"each of {sequences} sequences"
    return f"{format_count(scenario['tokens'])} tokens in {each}"


def _effective_line(prediction: Mapping[str, Any]) -> list[str]:
    effective = prediction["effective"]
    if "slots" not in effective:
        cache = [f"Cache elements: {effective['cache_dtype']}."] if effective.get("cache_dtype") else []
        return [*cache, *_pool_lines(prediction["pool"])]
    cut = ""
    if effective["slots"] > 1:
        each = format_count(effective["context_per_sequence_tokens"])
        cut = " shared by all" if effective["kv_unified"] else f" in {effective['streams']} streams of {each}"
    slots = "1 slot" if effective["slots"] == 1 else f"{effective['slots']} slots"
    return [
        f"Context: {format_count(effective['context_tokens'])} cells{cut}, {slots}, "
        f"batch {effective['batch_tokens']}, microbatch {effective['microbatch_tokens']},",
        f"cache {effective['cache_type_k']}/{effective['cache_type_v']}, flash attention {effective['flash_attn']}.",
    ]


def _pool_lines(pool: Mapping[str, Any] | None) -> list[str]:
    if pool is None:
        return []
    size = f"blocks of {format_count(pool['block_tokens'])} tokens, {format_count(pool['bytes_per_block'])} B each"
    if pool["num_blocks"] is None:
        return [f"Pool: {size}; how many there are depends on the memory it gets (--available-bytes)."]
    return [
        f"Pool: {format_count(pool['num_blocks'])} {size}: {format_count(pool['capacity_tokens'])} tokens, "
        f"{format_number(pool['max_concurrency'], 2)} sequences of the context limit."
    ]


def _component_table(prediction: Mapping[str, Any]) -> list[str]:
    totals = prediction["totals"]
    rows = [["", "needed", "allocated", "bytes allocated"]]
    for component, label in _COMPONENTS:
        allocated = totals[f"{component}_bytes"]
        if allocated == 0 and component not in _ALWAYS_SHOWN:
            continue
        needed = sum(item["needed_bytes"] for item in prediction["items"] if item["component"] == component)
        known = allocated is not None
        is_estimate = any(i["status"] == "estimated" for i in prediction["items"] if i["component"] == component)
        rows.append(
            [
                label + (" (estimated)" if is_estimate else ""),
                format_mib(needed) if known else UNKNOWN,
                format_mib(allocated) if known else UNKNOWN,
                format_count(allocated) if known else "",
            ]
        )
    total = totals["total_bytes"]
    label = "total of what is known" if None in totals.values() else "total"
    rows.append([label, "", format_mib(total), format_count(total)])
    return aligned(rows)


def _growth_lines(prediction: Mapping[str, Any]) -> list[str]:
    growth = prediction["growth"]
    per_token = growth["bytes_per_token"]
    lines = [
        f"One more token of one sequence needs {format_count(per_token)} B "
        f"({format_mib(per_token * 1000)} per 1,000 tokens)."
    ]
    lines += [f"The slope changes at {format_count(k['tokens'])} tokens: {k['why']}." for k in growth["knees"]]
    if "slots" in prediction["effective"]:
        lines.append("llama.cpp reserves the whole cache at load: its memory does not grow with the conversation.")
    return lines


def _reasons(items: Sequence[Mapping[str, Any]], rules: str) -> list[str]:
    """Each item's reason; layers with the same reason are named together. The rules' version is named once, above."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for item in items:
        groups.setdefault((item["component"], item["because"]), []).append(item)
    lines = ["Why:"]
    labels = dict(_COMPONENTS)
    for (component, because), members in groups.items():
        layers = [item["layer_index"] for item in members if item["layer_index"] is not None]
        where = f", {'each of ' if len(layers) > 1 else ''}{layer_ranges(layers)}" if layers else ""
        lines.append(wrapped(f"{labels[component]}{where}: {because.replace(f'; {rules}', '')}"))
    return lines


def wrapped(text: str) -> str:
    """Indented lines of at most the page's width."""
    return textwrap.fill(text, WIDTH, initial_indent="  ", subsequent_indent="      ", break_long_words=False)


def layer_ranges(indices: Sequence[int]) -> str:
    """``[0, 1, 2, 5]`` → ``layers 0-2, 5``."""
    ranges: list[list[int]] = []
    for index in sorted(indices):
        if ranges and index == ranges[-1][1] + 1:
            ranges[-1][1] = index
        else:
            ranges.append([index, index])
    text = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
    return f"{'layer' if len(indices) == 1 else 'layers'} {text}"


def aligned(rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Aligned columns; the first ``left`` columns to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(("  " + "  ".join(cells)).rstrip())
    return lines


def _mib(num_bytes: int | None) -> str:
    return UNKNOWN if num_bytes is None else format_mib(num_bytes)
