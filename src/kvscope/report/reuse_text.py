"""What a request reuses of the one before it, as plain text for the terminal: from the dictionaries that
``kvscope reuse --json`` prints."""

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from kvscope.report.terminal_table import aligned
from kvscope.report.terminal_text import noted as wrapped
from kvscope.units import format_count, format_number

UNKNOWN = "not known"
_WIDEST = 44  # characters of an excerpt on each side of the place
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\"}
_JOINED = (range(0x1100, 0x1200), range(0xA960, 0xA980), range(0xD7B0, 0xD800))  # letters of Hangul syllables


def render_reuse(found: Mapping[str, Any]) -> str:
    """The answer first; then where and why the common beginning ends; then what to do."""
    lines = [_answer(found), *_of_the_answer(found), ""]
    lines += _break_lines(found)
    for later in found["later"]:
        lines += ["", f"With that mended, the next break is at token {_count(later['broken_at']['token'])}:"]
        lines += [wrapped(f"{later['what']} [{later['broken_by']}; {_place(later['broken_at'])}]")]
        lines += [wrapped(f"What to do: {later['advice']}")]
    lines += ["", *_confirmed(found), *_rule(found)]
    lines += [wrapped(f"Note: {note}") for note in found["notes"]]
    return "\n".join(lines) + "\n"


def _answer(found: Mapping[str, Any]) -> str:
    prompt = found["second"]["prompt_tokens"]
    reused, anew = found["reusable_tokens"], found["recomputed_tokens"]
    if reused is None:
        common = _count(found["common_prefix_tokens"])
        return f"How much turn 2 reuses is not known; {common} of its {_count(prompt)} tokens are the same as before."
    estimated = " (estimated)" if found["status"] == "estimated" else ""
    are = "is" if anew == 1 else "are"
    return f"Turn 2 reuses {_count(reused)} of {_count(prompt)} tokens; {_count(anew)} {are} computed anew{estimated}."


def _of_the_answer(found: Mapping[str, Any]) -> list[str]:
    """Which part of what is reused hangs on an answer that nobody stated."""
    first, reused = found["first"], found["reusable_tokens"]
    if first["answer"] != "history" or reused is None or reused <= first["prompt_tokens"]:
        return []
    sure = first["prompt_tokens"]
    run: Mapping[str, Any] = (found.get("confirmed") or ({}, {}))[1]
    is_confirmed = run.get("cached_tokens") == run.get("predicted_tokens") == sure
    confirmed, not_confirmed = (" (confirmed)", " (not confirmed)") if is_confirmed else ("", "")
    return [
        f"  {_count(sure)} of them are the first prompt{confirmed}, {_count(reused - sure)} more if the model's answer "
        f"is the history's{not_confirmed}."
    ]


def _break_lines(found: Mapping[str, Any]) -> list[str]:
    if found["broken_at"] is None:
        if found["broken_by"] is not None:
            return [wrapped(found["what"]), f"What to do: {found['advice']}"]
        if found["outcome"] == "repeated":
            return ["Nothing broke: all of the second request is held. Its last token is computed for the answer."]
        return ["Nothing broke: the second request goes on where the first and its answer end."]
    at = found["broken_at"]
    return [
        f"It breaks at token {_count(at['token'])}: {_place(at)}.",
        wrapped(f"{found['what']} [{found['broken_by']}]"),
        *_pieces(found["evidence"]),
        *_excerpts(found["excerpt"], show_letters=found["broken_by"] in ("unicode-form", "invisible-characters")),
        "",
        *wrapped(f"What to do: {found['advice']}").lstrip().splitlines(),
    ]


def _place(at: Mapping[str, Any]) -> str:
    names = {"system": "the system prompt", "user": "the user's message", "retrieved": "retrieved text"}
    names |= {"history": "the history", "tools": "the tools", "template": "the template's own text"}
    message = f", message {at['message']}" if at["message"] is not None and at["part"] != "system" else ""
    tool = f", tool {at['tool']}" if at["tool"] is not None else ""
    return f"{names[at['part']]}{message}{tool}, character {_count(at['character'])}"


def _pieces(evidence: Mapping[str, str]) -> list[str]:
    first, second = (_shortened(visible(evidence[side])) for side in ("first", "second"))
    return [f"    was {_quoted(first)}, is {_quoted(second)}"] if first or second else []


def _quoted(text: str) -> str:
    return f'"{text}"' if text else "nothing"


def _shortened(text: str) -> str:
    return text if len(text) <= 2 * _WIDEST else f"{text[:_WIDEST]} ... {text[-_WIDEST // 2 :]}"


def _excerpts(excerpt: Mapping[str, str], *, show_letters: bool) -> list[str]:
    before = visible(excerpt["before"], show_letters=show_letters)[-_WIDEST:]
    sides = [visible(excerpt[side], show_letters=show_letters)[:_WIDEST] for side in ("first", "second")]
    return [f"    first   {before}|{sides[0]}", f"    second  {before}|{sides[1]}"]


def visible(text: str, *, show_letters: bool = False) -> str:
    """``text`` on one line, with what is not seen written out: line ends and tabs escaped, blanks at an end or in a row
    as middle dots. ``show_letters``: marks and letters that are joined to others as their numbers."""
    shown = []
    for index, character in enumerate(text):
        beside = text[max(0, index - 1) : index] + text[index + 1 : index + 2]
        if character == " ":
            at_edge = index in (0, len(text) - 1) or not beside.strip(" ") or any(c.isspace() for c in beside)
            shown.append("·" if at_edge else " ")
        elif character in _ESCAPES:
            shown.append(_ESCAPES[character])
        elif not character.isprintable() or (show_letters and _is_joined(character)):
            shown.append(character.encode("unicode_escape", "surrogatepass").decode("ascii"))
        else:
            shown.append(character)
    return "".join(shown)


def _is_joined(character: str) -> bool:
    return unicodedata.combining(character) > 0 or any(ord(character) in letters for letters in _JOINED)


def _rule(found: Mapping[str, Any]) -> list[str]:
    lines = [wrapped(f"{found['engine']}: {found['because']} ({found['source']})")]
    if found["granularity_tokens"] > 1:
        lines.append(f"  Reuse comes in steps of {_count(found['granularity_tokens'])} tokens.")
    if found["minimum_prefix_tokens"] > 1:
        lines.append(f"  A beginning of fewer than {_count(found['minimum_prefix_tokens'])} tokens is not reused.")
    return lines


def _confirmed(found: Mapping[str, Any]) -> list[str]:
    """What the engine itself reused, where it was run."""
    if not found.get("confirmed"):
        return []
    first, second = found["confirmed"]
    measured, predicted = second["cached_tokens"], second["predicted_tokens"]
    held = f"holding the first prompt ({_count(first['prompt_tokens_ours'])} tokens) and no answer"
    if measured is None:
        said = f"Run on the engine, {held}: it did not say how many tokens it reused."
    elif predicted is None:
        said = f"Run on the engine, {held}: it reused {_count(measured)} tokens; the rule did not say how many."
    elif measured == predicted:
        said = f"Confirmed on the engine, {held}: it reused {_count(measured)} tokens, as predicted."
    else:
        said = f"NOT as predicted: {held}, the engine reused {_count(measured)} tokens, not {_count(predicted)}."
    return [*wrapped(said).lstrip().splitlines(), *_other_prompts(found["confirmed"]), *_times(first, second), ""]


def _other_prompts(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where the engine counted another prompt than was compared."""
    lines = []
    for row in rows:
        ours, theirs = row["prompt_tokens_ours"], row["prompt_tokens_server"]
        if theirs not in (None, ours):
            said = f"The engine counted {_count(theirs)} prompt tokens of {row['source']}, not {_count(ours)}."
            lines.append(wrapped(said))
    return lines


def _times(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    if first["ttft_s"] is None or second["ttft_s"] is None:
        turn = 1 if first["ttft_s"] is None else 2
        return wrapped(f"The one token of turn {turn}'s answer had no text, so when it came is not known.").splitlines()
    times = [f"{format_number(1000 * row['ttft_s'], 0)} ms" for row in (first, second)]
    return [f"  First token of turn 1 after {times[0]}, of turn 2 after {times[1]} (one run each)."]


def render_reuse_log(found: Mapping[str, Any]) -> str:
    """One row for each request of a log, and the totals."""
    turns = found["turns"]
    lines = [_log_answer(found), "", *aligned(_log_rows(turns), left=0)]
    causes = {turn["broken_by"]: turn["advice"] for turn in turns if turn["broken_by"]}
    if causes:
        lines += ["", "What broke, the most frequent first:"]
        for slug, times in found["broken_by"].items():
            lines.append(wrapped(f"{slug}, {times} time{'s' if times > 1 else ''}. What to do: {causes[slug]}"))
    problems = [*found["problems"], *(f"turn {t['turn']}: {t['problem']}" for t in turns if t["problem"])]
    if problems:
        lines += ["", "Left out:", *(wrapped(problem) for problem in problems)]
    return "\n".join(lines) + "\n"


def _log_answer(found: Mapping[str, Any]) -> str:
    totals, number = found["totals"], len(found["turns"])
    reused, prompt = totals["reusable_tokens"], totals["prompt_tokens"]
    if reused is None or prompt is None:
        return f"{_count(number)} requests; how much they reuse is not known for all of them."
    share = f" ({format_number(100 * reused / prompt, 1)} %)" if prompt else ""
    return (
        f"{_count(number)} requests reuse {_count(reused)} of {_count(prompt)} prompt tokens{share}; "
        f"{_count(totals['recomputed_tokens'])} are computed."
    )


def _log_rows(turns: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    rows = [["turn", "after", "prompt tokens", "reused", "computed", "reused %", "broken by"]]
    for turn in turns:
        prompt, reused = turn["prompt_tokens"], turn["reusable_tokens"]
        known = prompt is not None and reused is not None and prompt > 0
        at = turn["broken_at"]
        place = f"{turn['broken_by']} at token {_count(at['token'])}" if at else turn["broken_by"] or ""
        rows.append(
            [
                str(turn["turn"]),
                "" if turn["previous"] is None else str(turn["previous"]),
                _count(prompt),
                _count(reused),
                _count(turn["recomputed_tokens"]),
                format_number(100 * reused / prompt, 1) if known else "",
                "(see below)" if turn["problem"] else place,
            ]
        )
    widest = max(len(row[-1]) for row in rows)
    return [[*row[:-1], row[-1].ljust(widest)] for row in rows]


def _count(number: int | None) -> str:
    return UNKNOWN if number is None else format_count(number)
