"""A prediction as plain text for the terminal, in the language that is spoken. Works from the same dictionaries as
--json prints, so a stored prediction renders like a fresh one."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvscope.language import shown
from kvscope.report.terminal_table import aligned
from kvscope.report.terminal_text import joined, wrapped, wrapped_note
from kvscope.report.words import NO_BREAK, has_words, name_of, say
from kvscope.units import MIB, format_count, format_mib, format_number

_COMPONENTS = (
    "weights",
    "kv_cache",
    "recurrent_state",
    "index_cache",
    "compute_buffer",
    "output_buffer",
    "host_cache",
    "runtime",
)
_CACHE = frozenset({"kv_cache", "recurrent_state", "index_cache"})
_OTHER = ("compute_buffer", "output_buffer", "runtime", "host_cache")
# Shown even at 0 bytes, because the 0 has a reason worth reading.
_ALWAYS_SHOWN = frozenset({"weights", "kv_cache", "compute_buffer", "output_buffer", "host_cache", "runtime"})
_COLUMNS = ("tokens", "cache_needed", "slope", "held", "weights", "other", "total_mib", "per_token")


def render_prediction(prediction: Mapping[str, Any]) -> str:
    """One prediction: what it takes, what grows, and why, line by line."""
    scenario = prediction["scenario"]
    status = name_of("status", prediction["status"])
    head = of_sequences(
        "predict.head",
        scenario,
        model=prediction["model"]["name"],
        engine=scenario["engine"],
        tokens=scenario["tokens"],
    )
    lines = [
        *wrapped(head),
        *wrapped(say("predict.rules_status", rules=scenario["engine_version"], status=status)),
        *_effective_lines(prediction),
        "",
        *_component_table(prediction),
        "",
        *_growth_lines(prediction),
        "",
        *_reasons(prediction["items"], scenario["engine_version"]),
    ]
    if prediction["unknown"]:
        lines += ["", say("predict.uncertain")]
        for entry in prediction["unknown"]:
            lines += wrapped_note(
                say("predict.uncertain_one", what=component_name(entry["what"]), why=shown(entry["why"]))
            )
    if prediction.get("notes"):
        lines += [
            "",
            say("predict.notes"),
            *(line for note in prediction["notes"] for line in wrapped_note(shown(note))),
        ]
    return joined(lines)


def render_predictions(predictions: Sequence[Mapping[str, Any]], curve: Mapping[str, Any] | None = None) -> str:
    """Several lengths of the same question as one table, shortest first, and the growth between them. ``curve``: the
    dictionary of the growth curve, whose knees are then named with the slope before and after."""
    predictions = sorted(predictions, key=lambda prediction: int(prediction["scenario"]["tokens"]))
    first = predictions[0]
    scenario = first["scenario"]
    asked = {"model": first["model"]["name"], "engine": scenario["engine"], "sequences": scenario["sequences"]}
    lines = [
        *wrapped(say("predict.head_lengths", **asked)),
        *wrapped(say("predict.rules", rules=scenario["engine_version"])),
        *_effective_lines(first),
        "",
        *aligned(length_rows(predictions), left=0),
    ]
    if curve is not None:
        lines += ["", *_curve_lines(curve, predictions)]
    elif "slots" in first["effective"]:
        lines += ["", *wrapped(say("predict.cache_reserved", engine=scenario["engine"]))]
    notes = dict.fromkeys(note for prediction in predictions for note in prediction.get("notes") or ())
    lines += [line for note in notes for line in wrapped(say("note", text=shown(note)), later="      ")]
    return joined(lines)


def length_rows(predictions: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """The table of several lengths, its head first; ``predictions``: shortest first."""
    rows = [[say(f"predict.col_{name}") for name in _COLUMNS]]
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
                *map(_number_of_mib, (totals["cache_bytes"], totals["weights_bytes"])),
                _number_of_mib(sum(others) if others else None),
                _number_of_mib(totals["total_bytes"]),
                format_count(prediction["growth"]["bytes_per_token"]),
            ]
        )
    return rows


def _curve_lines(curve: Mapping[str, Any], predictions: Sequence[Mapping[str, Any]]) -> list[str]:
    """What stays and what grows, and every length at which the slope changes."""
    weights, state = predictions[-1]["totals"]["weights_bytes"], curve["fixed_bytes"]
    lines = []
    if weights or state:
        kind = "both" if weights and state else "weights" if weights else "state"
        lines += wrapped(say(f"predict.fixed_{kind}", weights=weights, state=state))
    first, *later = curve["segments"]
    lines += wrapped(say("predict.growing", per_token=first["bytes_per_token"]))
    slope = first["bytes_per_token"]
    for segment in later:
        told = {"tokens": segment["from_tokens"], "per_token": segment["bytes_per_token"], "before": slope}
        lines += wrapped(say("predict.from", **told, why=shown(segment["why"])))
        slope = segment["bytes_per_token"]
    if curve["limit_tokens"] is not None:
        lines += wrapped(say("predict.ends", tokens=curve["limit_tokens"]))
    if curve["is_reserved"]:
        lines += wrapped(say("predict.cache_reserved", engine=predictions[0]["scenario"]["engine"]))
    return lines


def render_what_if(prediction: Mapping[str, Any]) -> str:
    """The changes of ``prediction["what_if"]`` as a table, each with what it costs; refused ones with the reason."""
    scenario, changes = prediction["scenario"], prediction["what_if"]
    total = prediction["totals"]["total_bytes"]
    head = of_sequences("what_if.head", scenario, total=total, tokens=scenario["tokens"], engine=scenario["engine"])
    possible = [change for change in changes if change["refused"] is None]
    rows = [[say("what_if.saves"), say("predict.col_total"), say("what_if.change")], *map(_change_row, possible)]
    lines = [*wrapped(head), *aligned(rows, left=0, at_end=1)]
    costs = dict.fromkeys(
        say("what_if.cost", change=change_words(each["change"]), cost=shown(each["cost"]), source=shown(each["source"]))
        for each in possible
    )
    if costs:
        lines += ["", say("what_if.costs"), *(line for cost in costs for line in wrapped_note(cost))]
    else:
        lines.append(f"  {say('what_if.none')}")
    refused = [change for change in changes if change["refused"] is not None]
    if refused:
        lines += ["", say("what_if.refused")]
    for change in refused:
        words = change_words(change["change"])
        lines += wrapped_note(say("what_if.refused_one", change=words, why=shown(change["refused"])))
    return joined(lines)


def _change_row(change: Mapping[str, Any]) -> list[str]:
    words = change_words(change["change"])
    if change["unknown"]:
        # What a change's total would leave out though the total beside it holds it.
        components = ", ".join(map(component_name, change["unknown"]))
        words = say("what_if.unknown_there", change=words, components=components)
    total = say("not_known") if change["unknown"] else format_mib(change["total_bytes"])
    return [format_mib(change["saved_bytes"]), total, words]


def change_words(change: Mapping[str, Any]) -> str:
    """Settings as they are given: ``cache_type_k = q8_0, n_ctx = 4096``; "as asked" where none is changed."""
    written = (f"{name} = {str(v).lower() if isinstance(v, bool) else v}" for name, v in change.items())
    return ", ".join(written) or say("what_if.as_asked")


def component_name(slug: str) -> str:
    """The reader's name of a component, or of another thing that is not known."""
    return name_of("component", slug) if has_words(f"component.{slug}") else slug.replace("_", " ")


def of_sequences(slug: str, asked: Mapping[str, Any], **values: object) -> str:
    """The sentence ``slug``, or that of one sequence where no more are asked for."""
    sequences = asked["sequences"]
    return say(f"{slug}_one" if sequences == 1 else slug, sequences=sequences, **values)


def _effective_lines(prediction: Mapping[str, Any]) -> list[str]:
    effective = prediction["effective"]
    if "slots" not in effective:
        dtype = effective.get("cache_dtype")
        cache = wrapped(say("predict.cache_elements", dtype=dtype)) if dtype else []
        return [*cache, *_pool_lines(prediction["pool"])]
    kind = "one" if effective["slots"] == 1 else "shared" if effective["kv_unified"] else "streams"
    return wrapped(
        say(
            f"predict.context_{kind}",
            cells=effective["context_tokens"],
            slots=effective["slots"],
            streams=effective.get("streams"),
            each=effective.get("context_per_sequence_tokens"),
            batch=effective["batch_tokens"],
            microbatch=effective["microbatch_tokens"],
            type_k=effective["cache_type_k"],
            type_v=effective["cache_type_v"],
            flash=effective["flash_attn"],
        )
    )


def _pool_lines(pool: Mapping[str, Any] | None) -> list[str]:
    if pool is None:
        return []
    size = {"block": pool["block_tokens"], "block_bytes": pool["bytes_per_block"]}
    if pool["num_blocks"] is None:
        return wrapped(say("predict.pool_open", **size))
    sequences = format_number(pool["max_concurrency"], 2)
    capacity = pool["capacity_tokens"]
    return wrapped(say("predict.pool", **size, blocks=pool["num_blocks"], capacity=capacity, sequences=sequences))


def _component_table(prediction: Mapping[str, Any]) -> list[str]:
    totals = prediction["totals"]
    rows = [["", *(say(f"predict.col_{name}") for name in ("needed", "allocated", "bytes"))]]
    for component in _COMPONENTS:
        allocated = totals[f"{component}_bytes"]
        if allocated == 0 and component not in _ALWAYS_SHOWN:
            continue
        own = [item for item in prediction["items"] if item["component"] == component]
        name = name_of("component", component)
        if any(item["status"] == "estimated" for item in own):
            name = say("predict.estimated", part=name)
        known = allocated is not None
        needed = sum(item["needed_bytes"] for item in own) if known else None
        rows.append([name, _mib(needed), _mib(allocated), format_count(allocated) if known else ""])
    total = totals["total_bytes"]
    label = say("predict.total_known" if None in totals.values() else "predict.total")
    rows.append([label, "", format_mib(total), format_count(total)])
    return aligned(rows)


def _growth_lines(prediction: Mapping[str, Any]) -> list[str]:
    growth = prediction["growth"]
    per_token = growth["bytes_per_token"]
    lines = wrapped(say("predict.per_token", per_token=per_token, per_thousand=per_token * 1000))
    for knee in growth["knees"]:
        lines += wrapped(say("predict.knee", tokens=knee["tokens"], why=shown(knee["why"])))
    if "slots" in prediction["effective"]:
        lines += wrapped(say("predict.reserved", engine="llama.cpp"))
    return lines


def _reasons(items: Sequence[Mapping[str, Any]], rules: str) -> list[str]:
    """Each item's reason; layers with the same reason are named together. The rules' version is named once, above."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for item in items:
        groups.setdefault((item["component"], item["because"]), []).append(item)
    lines = [say("predict.why")]
    for (component, because), members in groups.items():
        layers = [item["layer_index"] for item in members if item["layer_index"] is not None]
        kind = "because_layers" if len(layers) > 1 else "because_layer" if layers else "because"
        part, reason = name_of("component", component), shown(because).replace(f"; {rules}", "")
        lines += wrapped_note(say(f"predict.{kind}", part=part, layers=layer_ranges(layers), because=reason))
    return lines


def layer_ranges(indices: Sequence[int]) -> str:
    """``[0, 1, 2, 5]`` → ``0-2, 5``."""
    ranges: list[list[int]] = []
    for index in sorted(indices):
        if ranges and index == ranges[-1][1] + 1:
            ranges[-1][1] = index
        else:
            ranges.append([index, index])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def _mib(num_bytes: int | None) -> str:
    return say("not_known") if num_bytes is None else format_mib(num_bytes)


def _number_of_mib(num_bytes: int | None) -> str:
    """Without the unit, which the column's head has."""
    return say("not_known").replace(" ", NO_BREAK) if num_bytes is None else format_number(num_bytes / MIB, 1)
