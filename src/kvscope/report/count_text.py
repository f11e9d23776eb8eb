"""Tokens by part as plain text for the terminal: from the dictionary that ``kvscope count --json`` prints."""

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from kvscope.language import shown
from kvscope.report.terminal_table import aligned
from kvscope.report.terminal_text import WIDTH, display_width, joined, shortened, wrapped, wrapped_note
from kvscope.report.words import name_of, say
from kvscope.units import format_count, format_percent

_NAME_COLUMNS = 33
_MOST_FILES, _MOST_REQUESTS, _MOST_SKIPPED = 12, 20, 10
_MOST_ROWS = 14  # of one part
_SUMMED = ("tokens", "characters", "bytes", "dropped_characters")
_IN_FULL = 3  # requests: more of them are one line each
_HEAD = ("tokens", "share", "characters", "bytes", "ratio")


def render_count(found: Mapping[str, Any]) -> str:
    """The whole answer."""
    requests, texts = found["requests"], found["texts"]
    blocks = [_title(found)]
    if len(requests) > _IN_FULL:
        blocks += [_request_list(requests), _table(say("count.all_requests"), _part_lines(found["parts"], found))]
    else:
        blocks += [_request_block(request, found) for request in requests]
    if texts is not None:
        blocks += _text_blocks(texts, found)
    if len(requests) == 1 and texts is not None:
        blocks.append(wrapped(say("count.together", tokens=found["total_tokens"])))
    if not requests or texts is not None:
        blocks.append(_fit_lines(found, found["total_tokens"] + (found["as_message_adds_tokens"] or 0)))
    blocks += [
        _compared(found["compared"], texts),
        _price_lines(found["price"]),
        _warning_lines(found),
        _skipped(found),
    ]
    return joined("\n".join([*block, ""]) for block in blocks if block).removesuffix("\n")


def _title(found: Mapping[str, Any]) -> list[str]:
    template, tokenizer = found["template"], found["tokenizer"]["source"]
    if template is None:
        return wrapped(say("count.title_no_template", tokenizer=tokenizer))
    return wrapped(say("count.title", tokenizer=tokenizer, template=template["name"]))


def _request_block(request: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    lines = []
    for part in request["parts"]:
        if part["rows"]:
            lines.append(_cells(name_of("prompt_part", part["name"]), part, request["total_tokens"]))
            lines += [_row(row) for row in _folded(part["rows"])]
    block = _table(request["source"], [*lines, _total(request["parts"], request["total_tokens"])])
    block += _fit_lines(request, request["total_tokens"]) if found["texts"] is None else []
    return block + [line for text in request["warnings"] for line in wrapped_note(say("note", text=shown(text)))]


def _folded(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """A row that says nothing beside its part's own line is left out; of many, the largest are shown, in their order,
    and the others as one."""
    only = rows[0]
    if len(rows) == 1 and only["kind"] == "message" and not only["dropped_characters"] and not only["tool"]:
        return []
    if len(rows) <= _MOST_ROWS:
        return list(rows)
    by_size = sorted(range(len(rows)), key=lambda index: -rows[index]["tokens"])
    kept = sorted(by_size[: _MOST_ROWS - 2])
    others = [rows[index] for index in by_size[_MOST_ROWS - 2 :]]
    sums = {name: sum(row[name] for row in others) for name in _SUMMED}
    label = say("count.others", count=len(others))
    return [*(rows[index] for index in kept), {**sums, "label": label, "without_it_saves_tokens": None}]


def _row(row: Mapping[str, Any]) -> list[str]:
    count, slug = row["dropped_characters"], None
    if count:
        slug = "count.left_out_some" if row["characters"] else "count.left_out_whole"
    elif row["without_it_saves_tokens"] is not None:
        count, slug = row["without_it_saves_tokens"], "count.without_it"
    label = f"  {shown(row['label'])}"
    if slug is None:
        name = shortened(label, _NAME_COLUMNS)
    else:
        beside = display_width(say(slug, label="", count=count))
        name = say(slug, label=shortened(label, max(12, _NAME_COLUMNS - beside)), count=count)
    return [name, format_count(row["tokens"]), "", format_count(row["characters"]), format_count(row["bytes"]), ""]


def _part_lines(parts: Sequence[Mapping[str, Any]], found: Mapping[str, Any]) -> list[list[str]]:
    total = found["total_tokens"]
    return [
        *(
            _cells(name_of("prompt_part", part["name"]), part, total)
            for part in parts
            if part["characters"] or part["tokens"]
        ),
        _total(parts, total),
    ]


def _total(parts: Sequence[Mapping[str, Any]], total_tokens: int) -> list[str]:
    amount = {name: sum(part[name] for part in parts) for name in ("characters", "bytes")}
    return _cells(say("count.total"), {**amount, "tokens": total_tokens}, total_tokens)


def _cells(name: str, amount: Mapping[str, Any], total: int, tokens: int | None = None) -> list[str]:
    tokens = amount["tokens"] if tokens is None else tokens
    characters = amount["characters"]
    return [
        name,
        format_count(tokens),
        format_percent(tokens / total) if total else "",
        format_count(characters),
        format_count(amount["bytes"]),
        f"{tokens / characters:.3f}" if characters else "",
    ]


def _text_blocks(texts: Mapping[str, Any], found: Mapping[str, Any]) -> list[list[str]]:
    files, total = texts["files"], texts["total"]
    all_tokens = total["tokens"][0]
    largest = sorted(files, key=lambda file: -file["tokens"][0])[:_MOST_FILES]
    rows = [_cells(_path(file["path"]), file, all_tokens, file["tokens"][0]) for file in largest]
    rest = len(files) - len(largest)
    if rest:
        tokens = all_tokens - sum(file["tokens"][0] for file in largest)
        sizes = {name: total[name] - sum(file[name] for file in largest) for name in ("characters", "bytes")}
        rows.append(_cells(say("count.smaller_files", count=rest), sizes, all_tokens, tokens))
    if len(files) > 1:
        rows.append(_cells(say("count.total"), total, all_tokens, all_tokens))
    title = _of_number("count.files_beside" if found["requests"] else "count.files", len(files))
    pages = _of_number(
        "count.pages",
        total["manuscript_sheets"],
        pages=f"{total['pages']:,.1f}",
        convention=shown(total["pages_convention"]),
    )
    blocks = [_table(title, rows) + wrapped_note(pages)]
    kinds = [
        _cells(name_of("content_kind", kind["kind"]), kind, all_tokens, kind["tokens"][0]) for kind in texts["kinds"]
    ]
    return [*blocks, _table(say("count.by_kind"), kinds)] if kinds else blocks


def _of_number(slug: str, count: int, **values: object) -> str:
    return say(f"{slug}_one" if count == 1 else slug, count=count, **values)


def _request_list(requests: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [["", *(say(f"count.col_{name}") for name in ("tokens", "output", "left", "fits"))]]
    for number, request in enumerate(requests[:_MOST_REQUESTS], start=1):
        left = request["remaining_tokens"]
        rows.append(
            [
                f"{number}  {_path(request['source'])}",
                format_count(request["total_tokens"]),
                format_count(request["reserved_output_tokens"]),
                say("unknown") if left is None else format_count(left),
                _word(request["fits"]),
            ]
        )
    rest = len(requests) - _MOST_REQUESTS
    head = say(_fitting(requests), count=len(requests), **_answers(requests))
    lines = [*wrapped(head), *_named_rows(rows)]
    return [*lines, f"  {say('count.more', count=rest)}"] if rest > 0 else lines


def _answers(requests: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """How many fit, do not, and may."""
    answers = [request["fits"] for request in requests]
    return {"fit": answers.count(True), "too_long": answers.count(False), "unknown": answers.count(None)}


def _fitting(requests: Sequence[Mapping[str, Any]]) -> str:
    there: tuple[bool, ...] = tuple(count > 0 for count in _answers(requests).values())
    slugs: Mapping[tuple[bool, ...], str] = {
        (True, False, False): "all_fit",
        (False, True, False): "none_fits",
        (False, False, True): "unknown",
        (True, True, False): "some_fit",
        (True, False, True): "fit_or_unknown",
        (False, True, True): "not_or_unknown",
    }
    return f"count.requests_{slugs.get(there, 'mixed')}"


def _word(fits: bool | None) -> str:
    return say("unknown") if fits is None else say("count.yes") if fits else say("count.no")


def _fit_lines(found: Mapping[str, Any], prompt_tokens: int) -> list[str]:
    limit, reserved = found["context_limit_tokens"], found["reserved_output_tokens"]
    about = "_about" if found.get("as_message_unsure_tokens") else ""
    lines = _added_lines(found.get("as_message_adds_tokens"), about)
    source = shown(found["context_limit_source"])
    if limit is None:
        return [*lines, *wrapped_note(say("count.limit", source=source))]
    needed = prompt_tokens + reserved
    slug = "count.prompt_output" if reserved else "count.prompt"
    prompt = say(f"{slug}{about}", prompt=prompt_tokens, output=reserved, needed=needed, limit=limit)
    verdict = "fits_unknown" if found["fits"] is None else "fits" if found["fits"] else "fits_not"
    lines += wrapped_note(say(f"count.{verdict}{about}", prompt=prompt, left=abs(limit - needed), source=source))
    return lines if reserved or not found["fits"] else [*lines, *wrapped_note(say("count.no_output"))]


def _added_lines(added: int | None, about: str) -> list[str]:
    """What the template adds to texts that are sent as one message."""
    if added is None:
        return []
    return wrapped_note(say("count.takes", tokens=-added) if added < 0 else say(f"count.adds{about}", tokens=added))


def _compared(compared: Sequence[Mapping[str, Any]], texts: Mapping[str, Any] | None) -> list[str]:
    if not compared:
        return []
    first = compared[0]["content_tokens"]
    rows = [["", *(say(f"count.col_{name}") for name in ("alone", "to_first", "own"))]]
    for number, each in enumerate(compared, start=1):
        tokens, prompt = each["content_tokens"], each["prompt_tokens"]
        rows.append(
            [
                f"[{number}] {_path(each['source'])}",
                format_count(tokens),
                f"{tokens / first:.2f} ×" if first else "",
                "-" if prompt is None else format_count(prompt),
            ]
        )
    lines = [say("count.side_by_side"), *_named_rows(rows)]
    if texts is None or not texts["kinds"]:
        return lines
    head = [say("count.col_kinds"), *(f"[{number}]" for number in range(1, len(compared) + 1))]
    kinds = [[name_of("content_kind", kind["kind"]), *map(format_count, kind["tokens"])] for kind in texts["kinds"]]
    return [*lines, *_named_rows([head, *kinds])]


def _price_lines(price: Mapping[str, Any] | None) -> list[str]:
    if price is None:
        return []
    unit = f" {price['currency']}" if price["currency"] else ""
    slug = "count.price" if price["reserved_output_cost"] is None else "count.price_output"
    cost, per_million = f"{price['input_cost']}{unit}", f"{price['input_per_million']}{unit}"
    output = f"{price['reserved_output_cost']}{unit}"
    return wrapped_note(say(slug, cost=cost, per_million=per_million, output=output))


def _warning_lines(found: Mapping[str, Any]) -> list[str]:
    texts = list(found["warnings"])
    if len(found["requests"]) > _IN_FULL:
        texts += dict.fromkeys(text for request in found["requests"] for text in request["warnings"])
    told = list(map(shown, texts))
    images = sum(request["uncounted_images"] for request in found["requests"])
    if images:
        told.append(_of_number("count.pictures", images))
    return [line for text in told for line in wrapped_note(say("note", text=text))]


def _skipped(found: Mapping[str, Any]) -> list[str]:
    skipped = found["skipped"]
    if not skipped:
        return []
    lines = [say("count.skipped", count=len(skipped))]
    for each in skipped[:_MOST_SKIPPED]:
        lines += wrapped_note(say("count.skipped_one", path=_path(each["path"]), reason=shown(each["reason"])))
    rest = len(skipped) - _MOST_SKIPPED
    return [*lines, f"  {say('count.skipped_more', count=rest)}"] if rest > 0 else lines


def _table(title: str, rows: Sequence[Sequence[str]]) -> list[str]:
    return [shortened(title, WIDTH), *_named_rows([["", *(say(f"count.col_{name}") for name in _HEAD)], *rows])]


def _named_rows(rows: Sequence[Sequence[str]]) -> list[str]:
    """A table whose first column holds names, or paths, of any length."""
    return aligned([[shortened(row[0], _NAME_COLUMNS), *row[1:]] for row in rows])


def _path(path: str) -> str:
    return unicodedata.normalize("NFC", path)
