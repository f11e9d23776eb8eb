"""Tokens by part as plain text for the terminal: from the dictionary that ``kvscope count --json`` prints."""

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from kvscope.units import format_count, format_percent

WIDTH = 100
_NAME_COLUMNS = 42
_MOST_FILES, _MOST_REQUESTS, _MOST_SKIPPED = 12, 20, 10
_MOST_ROWS = 14  # of one part
_SUMMED = ("tokens", "characters", "bytes", "dropped_characters")
_IN_FULL = 3  # requests: more of them are one line each
_HEAD = ("", "tokens", "share", "characters", "bytes", "tok/char")
KIND_NAMES = {
    "korean_prose": "Korean prose",
    "english_prose": "English prose",
    "code": "code",
    "digits": "digits and hex",
    "json": "JSON",
    "base64": "base64",
    "other": "other",
}


def render_count(found: Mapping[str, Any]) -> str:
    """The whole answer."""
    requests, texts = found["requests"], found["texts"]
    blocks = [_title(found)]
    if len(requests) > _IN_FULL:
        blocks += [_request_list(requests), _table("All requests, by part", _part_lines(found["parts"], found))]
    else:
        blocks += [_request_block(request, found) for request in requests]
    if texts is not None:
        blocks += _text_blocks(texts, found)
    if len(requests) == 1 and texts is not None:
        blocks.append([f"Conversation and files together: {format_count(found['total_tokens'])} tokens"])
    if not requests or texts is not None:
        blocks.append(_fit_lines(found, found["total_tokens"] + (found["as_message_adds_tokens"] or 0)))
    blocks += [
        _compared(found["compared"], texts),
        _price_lines(found["price"]),
        _warning_lines(found),
        _skipped(found),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _title(found: Mapping[str, Any]) -> list[str]:
    template = found["template"]
    how = "no chat template" if template is None else f"its chat template ({template['name']})"
    return [_fitted(f"Tokens with {found['tokenizer']['source']}, {how}", WIDTH)]


def _request_block(request: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    lines = []
    for part in request["parts"]:
        if part["rows"]:
            lines.append(_cells(part["name"], part, request["total_tokens"]))
            lines += [_row(row) for row in _folded(part["rows"])]
    block = _table(request["source"], [*lines, _total(request["parts"], request["total_tokens"])])
    block += _fit_lines(request, request["total_tokens"]) if found["texts"] is None else []
    return block + [line for text in request["warnings"] for line in _wrapped(f"Note: {text}")]


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
    label = f"{format_count(len(others))} others"
    return [*(rows[index] for index in kept), {**sums, "label": label, "without_it_saves_tokens": None}]


def _row(row: Mapping[str, Any]) -> list[str]:
    note = ""
    if row["dropped_characters"] and not row["characters"]:
        note = ": left out by template"
    elif row["dropped_characters"]:
        note = f": {format_count(row['dropped_characters'])} char. left out"
    elif row["without_it_saves_tokens"] is not None:
        note = f" (without it: -{format_count(row['without_it_saves_tokens'])})"
    name = _fitted(f"  {row['label']}", _NAME_COLUMNS - len(note)) + note
    return [name, format_count(row["tokens"]), "", format_count(row["characters"]), format_count(row["bytes"]), ""]


def _part_lines(parts: Sequence[Mapping[str, Any]], found: Mapping[str, Any]) -> list[list[str]]:
    total = found["total_tokens"]
    return [
        *(_cells(part["name"], part, total) for part in parts if part["characters"] or part["tokens"]),
        _total(parts, total),
    ]


def _total(parts: Sequence[Mapping[str, Any]], total_tokens: int) -> list[str]:
    amount = {name: sum(part[name] for part in parts) for name in ("characters", "bytes")}
    return _cells("total", {**amount, "tokens": total_tokens}, total_tokens)


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
        rows.append(_cells(f"{format_count(rest)} smaller files", sizes, all_tokens, tokens))
    if len(files) > 1:
        rows.append(_cells("total", total, all_tokens, all_tokens))
    part = "retrieved, beside the conversation" if found["requests"] else "text alone"
    noun = "1 file" if len(files) == 1 else f"{format_count(len(files))} files"
    sheets = "1 sheet" if total["manuscript_sheets"] == 1 else f"{format_count(total['manuscript_sheets'])} sheets"
    pages = f"{total['pages']:,.1f} pages, {sheets} of Korean manuscript paper"
    blocks = [_table(f"{noun} ({part})", rows) + _wrapped(f"{pages}. {total['pages_convention']}")]
    kinds = [
        _cells(KIND_NAMES.get(kind["kind"], kind["kind"]), kind, all_tokens, kind["tokens"][0])
        for kind in texts["kinds"]
    ]
    return [*blocks, _table("By kind of content", kinds)] if kinds else blocks


def _request_list(requests: Sequence[Mapping[str, Any]]) -> list[str]:
    head = ["", "tokens", "output", "left", "fits"]
    rows = [head]
    for number, request in enumerate(requests[:_MOST_REQUESTS], start=1):
        left = request["remaining_tokens"]
        rows.append(
            [
                f"{number}  {_path(request['source'])}",
                format_count(request["total_tokens"]),
                format_count(request["reserved_output_tokens"]),
                "unknown" if left is None else format_count(left),
                _word(request["fits"]),
            ]
        )
    rest = len(requests) - _MOST_REQUESTS
    answers = [request["fits"] for request in requests]
    fits = [(True, "fit"), (False, "do NOT fit"), (None, "unknown whether they fit")]
    told = ", ".join(f"{format_count(answers.count(fit))} {word}" for fit, word in fits if fit in answers)
    lines = [f"{format_count(len(requests))} requests: {told} (--request N shows one in full)", *_aligned(rows)]
    return [*lines, f"  ... and {format_count(rest)} more"] if rest > 0 else lines


def _word(fits: bool | None) -> str:
    return "unknown" if fits is None else "yes" if fits else "NO"


def _fit_lines(found: Mapping[str, Any], prompt_tokens: int) -> list[str]:
    limit, reserved = found["context_limit_tokens"], found["reserved_output_tokens"]
    lines = []
    added = found.get("as_message_adds_tokens")
    about = "about " if found.get("as_message_unsure_tokens") else ""
    if added is not None and added >= 0:
        lines += _wrapped(f"Sent as one message, the chat template and BOS add {about}{format_count(added)} tokens.")
    elif added is not None:
        lines += _wrapped(
            f"Sent as one message, with chat template and BOS, it is {format_count(-added)} tokens fewer: templates "
            "trim texts, and names of control tokens in them are one token each."
        )
    if limit is None:
        return [*lines, *_wrapped(f"Context limit: {found['context_limit_source']}.")]
    needed = prompt_tokens + reserved
    kept = f" + {format_count(reserved)} for the output = {format_count(needed)}" if reserved else ""
    of = f"{about}{format_count(prompt_tokens)}{kept} of {format_count(limit)} tokens"
    if found["fits"] is None:
        verdict = "whether that fits is not known, for not everything is counted"
        verdict += " exactly" if about else ""
    elif found["fits"]:
        verdict = f"fits, {about}{format_count(limit - needed)} are left"
    else:
        verdict = f"does NOT fit, {about}{format_count(needed - limit)} too many"
    lines += _wrapped(f"{of}: {verdict}. Limit: {found['context_limit_source']}.")
    return (
        lines
        if reserved or not found["fits"]
        else [*lines, *_wrapped("No output is reserved: --reserve-output N leaves room for it.")]
    )


def _compared(compared: Sequence[Mapping[str, Any]], texts: Mapping[str, Any] | None) -> list[str]:
    if not compared:
        return []
    first = compared[0]["content_tokens"]
    rows = [["", "contents alone", "to the first", "with its own template"]]
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
    lines = ["Side by side", *_aligned(rows)]
    if texts is None or not texts["kinds"]:
        return lines
    head = ["tokens by kind of content", *(f"[{number}]" for number in range(1, len(compared) + 1))]
    kinds = [
        [KIND_NAMES.get(kind["kind"], kind["kind"]), *map(format_count, kind["tokens"])] for kind in texts["kinds"]
    ]
    return [*lines, *_aligned([head, *kinds])]


def _price_lines(price: Mapping[str, Any] | None) -> list[str]:
    if price is None:
        return []
    unit = f" {price['currency']}" if price["currency"] else ""
    text = f"Price: {price['input_cost']}{unit} for the prompt ({price['input_per_million']}{unit} a million tokens)"
    if price["reserved_output_cost"] is not None:
        text += f", and at most {price['reserved_output_cost']}{unit} for the reserved output"
    return _wrapped(f"{text}.")


def _warning_lines(found: Mapping[str, Any]) -> list[str]:
    texts = list(found["warnings"])
    if len(found["requests"]) > _IN_FULL:
        texts += dict.fromkeys(text for request in found["requests"] for text in request["warnings"])
    images = sum(request["uncounted_images"] for request in found["requests"])
    if images:
        noun = "1 picture: its tokens are" if images == 1 else f"{format_count(images)} pictures: their tokens are"
        texts.append(f"{noun} not counted, so the real prompt is longer.")
    return [line for text in texts for line in _wrapped(f"Note: {text}")]


def _skipped(found: Mapping[str, Any]) -> list[str]:
    skipped = found["skipped"]
    if not skipped:
        return []
    lines = [f"Not counted ({format_count(len(skipped))}):"]
    for each in skipped[:_MOST_SKIPPED]:
        lines += _wrapped(f"{_path(each['path'])}: {each['reason']}")
    rest = len(skipped) - _MOST_SKIPPED
    return [*lines, f"  ... and {format_count(rest)} more; --json names all"] if rest > 0 else lines


def _table(title: str, rows: Sequence[Sequence[str]]) -> list[str]:
    return [_fitted(title, WIDTH), *_aligned([_HEAD, *rows])]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns that line up on a screen: the first to the left, the others to the right."""
    cells = [[_fitted(row[0], _NAME_COLUMNS), *row[1:]] for row in rows]
    widths = [max(display_width(row[column]) for row in cells) for column in range(len(cells[0]))]
    lines = []
    for row in cells:
        first = row[0] + " " * (widths[0] - display_width(row[0]))
        others = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join(["", first, *others]).rstrip())
    return lines


def display_width(text: str) -> int:
    """The columns that a text takes in a terminal: two for Korean and other wide characters, none for marks that join
    the character before."""
    return sum(map(_columns, text))


def _columns(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _fitted(text: str, columns: int) -> str:
    """``text`` in at most so many columns; its middle is left out where it has more."""
    text = " ".join(text.split("\n")) if "\n" in text else text
    if display_width(text) <= columns:
        return text
    head, tail = text[: columns // 2], text[len(text) - columns // 2 :]
    while display_width(head) + display_width(tail) > columns - 3:
        head, tail = (head[:-1], tail) if display_width(head) >= display_width(tail) else (head, tail[1:])
    return f"{head}...{tail}"


def _path(path: str) -> str:
    return unicodedata.normalize("NFC", path)


def _wrapped(text: str) -> list[str]:
    """Lines of at most the page's width, wide characters counted as two columns."""
    lines, line = [], " "
    for word in text.split():
        if line.strip() and display_width(line) + 1 + display_width(word) > WIDTH:
            lines.append(line)
            line = "     "
        line = f"{line} {word}"
    return [*lines, line]
