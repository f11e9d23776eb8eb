"""What a request reuses of the one before it, as plain text for the terminal: from the dictionaries that
``kvscope reuse --json`` prints."""

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from kvscope.language import shown
from kvscope.report.terminal_table import aligned
from kvscope.report.terminal_text import display_width, joined, padded, wrapped, wrapped_note
from kvscope.report.words import say
from kvscope.units import format_count, format_number

_WIDEST = 32  # characters of an excerpt on each side of the place
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\"}
_JOINED = (range(0x1100, 0x1200), range(0xA960, 0xA980), range(0xD7B0, 0xD800))  # letters of Hangul syllables


def render_reuse(found: Mapping[str, Any]) -> str:
    """The answer first; then where and why the common beginning ends; then what to do."""
    lines = [*wrapped(_answer(found)), *_of_the_answer(found), "", *_break_lines(found)]
    for later in found["later"]:
        at = later["broken_at"]
        what = say("reuse.later_what", what=shown(later["what"]), cause=later["broken_by"], place=_place(at))
        lines += ["", *wrapped(say("reuse.later", token=at["token"])), *wrapped_note(what)]
        lines += wrapped_note(say("what_to_do", advice=shown(later["advice"])))
    lines += ["", *_confirmed(found), *_rule(found)]
    return joined([*lines, *(line for note in found["notes"] for line in wrapped_note(say("note", text=shown(note))))])


def _answer(found: Mapping[str, Any]) -> str:
    prompt = found["second"]["prompt_tokens"]
    reused, anew = found["reusable_tokens"], found["recomputed_tokens"]
    if reused is None:
        return say("reuse.unknown", common=found["common_prefix_tokens"], prompt=prompt)
    slug = "reuse.estimated" if found["status"] == "estimated" else "reuse.exact"
    return say(f"{slug}_one" if anew == 1 else slug, reused=reused, prompt=prompt, anew=anew)


def _of_the_answer(found: Mapping[str, Any]) -> list[str]:
    """Which part of what is reused hangs on an answer that nobody stated."""
    first, reused = found["first"], found["reusable_tokens"]
    if first["answer"] != "history" or reused is None or reused <= first["prompt_tokens"]:
        return []
    sure = first["prompt_tokens"]
    run: Mapping[str, Any] = (found.get("confirmed") or ({}, {}))[1]
    is_confirmed = run.get("cached_tokens") == run.get("predicted_tokens") == sure
    slug = "reuse.of_answer_confirmed" if is_confirmed else "reuse.of_answer"
    return wrapped(say(slug, sure=sure, more=reused - sure), "  ", "  ")


def _break_lines(found: Mapping[str, Any]) -> list[str]:
    at, advice = found["broken_at"], [] if found["advice"] is None else _advice(found["advice"])
    if at is None:
        if found["broken_by"] is not None:
            return [*wrapped_note(shown(found["what"])), *advice]
        return wrapped(say("reuse.nothing_repeated" if found["outcome"] == "repeated" else "reuse.nothing"))
    return [
        *wrapped(say("reuse.breaks", token=at["token"], place=_place(at))),
        *wrapped_note(say("reuse.what", what=shown(found["what"]), cause=found["broken_by"])),
        *_pieces(found["evidence"]),
        *_excerpts(found["excerpt"], show_letters=found["broken_by"] in ("unicode-form", "invisible-characters")),
        "",
        *advice,
    ]


def _advice(text: str) -> list[str]:
    return wrapped(say("what_to_do", advice=shown(text)), later="      ")


def _place(at: Mapping[str, Any]) -> str:
    slug = "reuse.place"
    slug += "_message" if at["message"] is not None and at["part"] != "system" else ""
    slug += "_tool" if at["tool"] is not None else ""
    part = say(f"reuse.part.{at['part']}")
    return say(slug, part=part, message=at["message"], tool=at["tool"], character=at["character"])


def _pieces(evidence: Mapping[str, str]) -> list[str]:
    first, second = (_shortened(visible(evidence[side])) for side in ("first", "second"))
    told = say("reuse.was_is", first=_quoted(first), second=_quoted(second))
    return wrapped(told, "    ", "      ") if first or second else []


def _quoted(text: str) -> str:
    return say("reuse.quoted", text=text) if text else say("reuse.no_text")


def _shortened(text: str) -> str:
    return text if len(text) <= 2 * _WIDEST else f"{text[:_WIDEST]} ... {text[-_WIDEST // 2 :]}"


def _excerpts(excerpt: Mapping[str, str], *, show_letters: bool) -> list[str]:
    before = _ending(visible(excerpt["before"], show_letters=show_letters))
    names = [say(f"reuse.{side}") for side in ("first", "second")]
    widest = max(map(display_width, names))
    sides = [_beginning(visible(excerpt[side], show_letters=show_letters)) for side in ("first", "second")]
    return [f"    {padded(name, widest)}  {before}|{side}" for name, side in zip(names, sides, strict=True)]


def _beginning(text: str) -> str:
    text = text[:_WIDEST]
    while display_width(text) > _WIDEST:
        text = text[:-1]
    return text


def _ending(text: str) -> str:
    text = text[-_WIDEST:]
    while display_width(text) > _WIDEST:
        text = text[1:]
    return text


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
    rule = say("reuse.rule", engine=found["engine"], because=shown(found["because"]), source=shown(found["source"]))
    steps, least = found["granularity_tokens"], found["minimum_prefix_tokens"]
    return [
        *wrapped_note(rule),
        *(wrapped_note(say("reuse.steps", tokens=steps)) if steps > 1 else []),
        *(wrapped_note(say("reuse.least", tokens=least)) if least > 1 else []),
    ]


def _confirmed(found: Mapping[str, Any]) -> list[str]:
    """What the engine itself reused, where it was run."""
    if not found.get("confirmed"):
        return []
    first, second = found["confirmed"]
    measured, predicted = second["cached_tokens"], second["predicted_tokens"]
    if measured is None:
        slug = "reuse.run_unstated"
    elif predicted is None:
        slug = "reuse.run_no_rule"
    else:
        slug = "reuse.run_confirmed" if measured == predicted else "reuse.run_differs"
    said = say(slug, held=first["prompt_tokens_ours"], measured=measured, predicted=predicted)
    return [*wrapped(said, later="      "), *_other_prompts(found["confirmed"]), *_times(first, second), ""]


def _other_prompts(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where the engine counted another prompt than was compared."""
    lines = []
    for row in rows:
        ours, theirs = row["prompt_tokens_ours"], row["prompt_tokens_server"]
        if theirs not in (None, ours):
            lines += wrapped_note(say("reuse.other_count", theirs=theirs, source=row["source"], ours=ours))
    return lines


def _times(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    if first["ttft_s"] is None or second["ttft_s"] is None:
        return wrapped_note(say("reuse.no_time", turn=1 if first["ttft_s"] is None else 2))
    times = [f"{format_number(1000 * row['ttft_s'], 0)} ms" for row in (first, second)]
    return wrapped_note(say("reuse.times", first=times[0], second=times[1]))


def render_reuse_log(found: Mapping[str, Any]) -> str:
    """One row for each request of a log, and the totals."""
    turns = found["turns"]
    lines = [*wrapped(_log_answer(found)), "", *aligned(_log_rows(turns), left=0, at_end=1)]
    causes = {turn["broken_by"]: turn["advice"] for turn in turns if turn["broken_by"]}
    lines += ["", say("reuse.log_broke")] if causes else []
    for slug, times in found["broken_by"].items() if causes else ():
        told = "reuse.log_cause_one" if times == 1 else "reuse.log_cause"
        lines += wrapped_note(say(told, cause=slug, count=times, advice=shown(causes[slug])))
    problems = list(map(shown, found["problems"]))
    problems += [say("reuse.log_problem", turn=t["turn"], problem=shown(t["problem"])) for t in turns if t["problem"]]
    if problems:
        lines += ["", say("reuse.log_left_out"), *(line for problem in problems for line in wrapped_note(problem))]
    return joined(lines)


def _log_answer(found: Mapping[str, Any]) -> str:
    totals, count = found["totals"], len(found["turns"])
    reused, prompt = totals["reusable_tokens"], totals["prompt_tokens"]
    if reused is None or prompt is None:
        return say("reuse.log_unknown", count=count)
    told = {"count": count, "reused": reused, "prompt": prompt, "computed": totals["recomputed_tokens"]}
    return say("reuse.log", **told, share=reused / prompt) if prompt else say("reuse.log_empty", **told)


def _log_rows(turns: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    heads = ("turn", "after", "prompt", "reused", "computed", "share", "broken")
    rows = [[say(f"reuse.col_{name}") for name in heads]]
    for turn in turns:
        prompt, reused = turn["prompt_tokens"], turn["reusable_tokens"]
        known = prompt is not None and reused is not None and prompt > 0
        at = turn["broken_at"]
        cause = turn["broken_by"] or ""
        place = say("reuse.broken_at", cause=cause, token=at["token"]) if at else cause
        rows.append(
            [
                str(turn["turn"]),
                "" if turn["previous"] is None else str(turn["previous"]),
                _count(prompt),
                _count(reused),
                _count(turn["recomputed_tokens"]),
                format_number(100 * reused / prompt, 1) if known else "",
                say("reuse.see_below") if turn["problem"] else place,
            ]
        )
    return rows


def _count(number: int | None) -> str:
    return say("not_known") if number is None else format_count(number)
