"""What a design would do, as plain text for the terminal: from the dictionary that ``kvscope measure --dry-run --json``
prints."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from kvscope.report.held_text import held_text
from kvscope.report.terminal_table import aligned
from kvscope.report.words import NO_BREAK
from kvscope.units import format_bytes, format_seconds

WIDTH = 80
_NOT_KNOWN = "not known"


def render_plan(plan: Mapping[str, Any]) -> str:
    """The question, what is held, what each level needs and takes, and the trials in their order."""
    return "\n".join(
        [
            _line(plan["question"]),
            _line(f"Held fixed: {_plain(held_text(_for_people(plan['held'])))}."),
            *map(_line, _documents(plan.get("documents"))),
            "",
            *_points(plan["points"]),
            "",
            _line(_room(plan)),
            _line(_time(plan)),
            *map(_line, _answers(plan["points"], plan["trials"])),
            _line(_devices(plan["devices"])),
            "",
            *map(_trial, plan["trials"]),
        ]
    )


def _for_people(held: Mapping[str, Any]) -> dict[str, Any]:
    """Without what only tells one set of documents from another."""
    return {name: value for name, value in held.items() if name not in ("documents_sha256", "questions_sha256")}


def _documents(found: Mapping[str, Any] | None) -> list[str]:
    """Of questions on documents: their languages, each way's longest prompt, and what was left out."""
    if found is None:
        return []
    languages = ", ".join(f"{count:,} {language}" for language, count in found["languages"].items())
    longest = "; ".join(f"{level} {tokens:,}" for level, tokens in found["longest_tokens"].items())
    return [
        f"Questions by language: {languages}.",
        f"Longest prompt, in tokens: {longest or _NOT_KNOWN}.",
        *(f"{each['slug']}: {each['text']}" for each in found["remarks"]),
    ]


def _line(text: str) -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent="  ", break_long_words=False)


def _note(text: str) -> str:
    return textwrap.fill(text, WIDTH, initial_indent="  ", subsequent_indent="      ", break_long_words=False)


def _plain(text: str) -> str:
    """Without the spaces of the page that lines are not broken at."""
    return text.replace(NO_BREAK, " ")


def plan_time(seconds: float) -> str:
    """A length of time that is waited for."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _points(points: Sequence[Mapping[str, Any]]) -> list[str]:
    head = ("level", "memory predicted", "fits", "one trial takes")
    cells = [(_levels(each["levels"]), _needed(each), _fits(each), _takes(each)) for each in points]
    lines = aligned([head, *cells])
    if any(len(line) > WIDTH for line in lines):
        lines = [_note(f"{row[0]}: {'; '.join(map(': '.join, zip(head[1:], row[1:], strict=True)))}.") for row in cells]
    notes = [
        _note(f"{_levels(each['levels'])}: {text}")
        for each in points
        if (text := each["not_run_because"] or _unpredicted(each)) is not None
    ]
    return [*lines, *notes]


def _levels(levels: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={level}" for name, level in levels.items())


def _needed(point: Mapping[str, Any]) -> str:
    if point["needed_bytes"] is None:
        return _NOT_KNOWN
    elsewhere = point["needed_bytes"] - point["needed_here_bytes"]
    return format_bytes(point["needed_bytes"]) + (f" ({format_bytes(elsewhere)} on devices)" if elsewhere else "")


def _fits(point: Mapping[str, Any]) -> str:
    if point["fits"] is None:
        return _NOT_KNOWN
    return "yes" if point["fits"] else "no, run anyway" if point["not_run_because"] is None else "no, not run"


def _takes(point: Mapping[str, Any]) -> str:
    if point["trial_s"] is None:
        return _NOT_KNOWN
    return f"{format_seconds(point['trial_s'])} (mean of {point['timed_trials']} in the record)"


def _unpredicted(point: Mapping[str, Any]) -> str | None:
    reason = point["not_predicted_because"]
    return None if reason is None else f"nothing is predicted, as {reason}."


def _room(plan: Mapping[str, Any]) -> str:
    available = plan["available_bytes"]
    return (
        "How much memory can be had here is not stated."
        if available is None
        else (f"{format_bytes(available)} of this machine's memory can be had now.")
    )


def _time(plan: Mapping[str, Any]) -> str:
    left, total = plan["trials_left"], len(plan["trials"])
    if not left:
        return f"All {total} trials are in the record already; nothing is to run."
    number = f"{left} of {total} trials" if left < total else "1 trial" if total == 1 else f"{total} trials"
    what = f"To run: {'at most ' if plan['is_at_most'] else ''}{number}{_refused(plan)}"
    if plan["left_s"] is None:
        return (
            f"{what}. How long they take is not known: not every level was measured before, by this design on this "
            "machine with this build, in this record."
        )
    return f"{what}, in about {plan_time(plan['left_s'])}, by the trials in the record."


def _answers(points: Sequence[Mapping[str, Any]], trials: Sequence[Mapping[str, Any]]) -> list[str]:
    """What is asked for the answers' sake, and what that adds to the time."""
    asked = [each["quality"] for each in points if each.get("quality") is not None]
    if not asked:
        return []
    tasks = list(dict.fromkeys(each["task"] for each in asked))
    what = f"the task {tasks[0]}" if len(tasks) == 1 else "its task"
    most = max(each["documents"] for each in asked)
    lengths = sorted({each["prompt_tokens"] for each in asked})
    tokens = " to ".join(f"{length:,}" for length in (lengths if len(lengths) < 2 else (lengths[0], lengths[-1])))
    if all("scored_trials" in each for each in asked):
        return [_scores(asked, what, tokens) + _context(asked[0])]
    return [
        f"Answers: each measured trial then asks about {most:,} documents of {what} and as many twins without the "
        f"facts, of {tokens} tokens. That takes about as long as the first tokens of {2 * most:,} more prompts of that "
        f"length, and a short answer to each question{_in_all(trials, 2 * most)}. Fewer: "
        f"--quality-documents, --repeats.{_context(asked[0])}"
    ]


def _in_all(trials: Sequence[Mapping[str, Any]], prompts: int) -> str:
    """How many prompts all trials that are to run add, where it is more than one; repeats ask the same again."""
    asking = [e for e in trials if e["role"] != "warmup" and not e["is_recorded"] and e["not_run_because"] is None]
    if len(asking) < 2:
        return ""
    again = ", as each repeat asks the same again" if any(each["repeat"] for each in asking) else ""
    return f": {prompts * len(asking):,} prompts in all {len(asking):,} trials{again}"


def _scores(asked: Sequence[Mapping[str, Any]], what: str, tokens: str) -> str:
    """Of texts that are scored, and not asked for: where, and what that adds to the time."""
    trials, most = sum(each["scored_trials"] for each in asked), max(each["documents"] for each in asked)
    twins = max(each["twins"] for each in asked)
    beside = f" and {twins:,} twins without the facts" if twins else ""
    floor = "" if twins else " (the baseline's first, of twice as many prompts: it measures the engine's own noise too)"
    return (
        f"Scores: {trials:,} of the measured trials (each level's first, and the baseline's second) then score what "
        f"the model gives to known texts of {what}, behind {most:,} documents{beside} of {tokens} tokens; nothing is "
        f"asked. Such a trial takes longer by about the first tokens of {most + twins:,} more prompts of that "
        f"length{floor} and about a hundred output tokens for each. Fewer: --quality-documents, --input-tokens."
    )


def _context(asked: Mapping[str, Any]) -> str:
    """That memory is not what it would be without the questions, where their context is the larger one."""
    if asked.get("n_ctx") is None:
        return ""
    return (
        f" The questions make n_ctx {asked['n_ctx']:,}, where {asked['n_ctx_without']:,} would do without them, and "
        "all memory is measured with that. To compare it with trials that ask nothing, give both the same: "
        f"--set n_ctx={asked['n_ctx']}."
    )


def _refused(plan: Mapping[str, Any]) -> str:
    refused = sum(each["not_run_because"] is not None and not each["is_recorded"] for each in plan["trials"])
    return f" ({refused} of them only recorded as refused)" if refused else ""


def _devices(devices: Sequence[str]) -> str:
    if not devices:
        return "No device is needed."
    return f"Each trial has for itself: {', '.join(devices)}. It waits for another kvscope that measures there."


def _trial(trial: Mapping[str, Any]) -> str:
    notes = [
        text for text, is_so in (("recorded", trial["is_recorded"]), ("not run", trial["not_run_because"])) if is_so
    ]
    note = f"  ({', '.join(notes)})" if notes else ""
    line = f"{trial['position']:4}  {trial['role']:8}  {_levels(trial['levels'])}  repeat {trial['repeat'] + 1}{note}"
    return textwrap.fill(line, WIDTH, subsequent_indent=" " * 16, break_long_words=False)
