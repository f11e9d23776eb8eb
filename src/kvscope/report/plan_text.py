"""What a design would do, as plain text for the terminal: from the dictionary that ``kvscope measure --dry-run --json``
prints."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvscope.language import shown
from kvscope.report.held_text import held_text
from kvscope.report.terminal_table import aligned
from kvscope.report.terminal_text import WIDTH, display_width, padded, plain_blanks, wrapped, wrapped_note
from kvscope.report.words import NO_BREAK, name_of, say
from kvscope.units import format_bytes

# Columns of the role of a trial.
_ROLE = 8
_COLUMNS = ("level", "memory", "fits", "takes")


def render_plan(plan: Mapping[str, Any]) -> str:
    """The question, what is held, what each level needs and takes, and the trials in their order."""
    lines = [
        *wrapped(shown(plan["question"])),
        *wrapped(say("plan.held", held=held_text(_for_people(plan["held"])))),
        *_documents(plan.get("documents")),
        "",
        *_points(plan["points"]),
        "",
        *wrapped(_room(plan)),
        *wrapped(_time(plan)),
        *wrapped(_answers(plan["points"], plan["trials"])),
        *wrapped(_devices(plan["devices"])),
        "",
        *(line for trial in plan["trials"] for line in _trial(trial)),
    ]
    return plain_blanks("\n".join(lines))


def _for_people(held: Mapping[str, Any]) -> dict[str, Any]:
    """Without what only tells one set of documents from another."""
    return {name: value for name, value in held.items() if name not in ("documents_sha256", "questions_sha256")}


def _documents(found: Mapping[str, Any] | None) -> list[str]:
    """Of questions on documents: their languages, each way's longest prompt, and what was left out."""
    if found is None:
        return []
    languages = ", ".join(f"{count:,} {language}" for language, count in found["languages"].items())
    longest = "; ".join(f"{level} {tokens:,}" for level, tokens in found["longest_tokens"].items())
    told = [say("plan.languages", languages=languages), say("plan.longest", longest=longest or say("not_known"))]
    told += [say("plan.remark", slug=each["slug"], text=shown(each["text"])) for each in found["remarks"]]
    return [line for text in told for line in wrapped(text)]


def plan_time(seconds: float) -> str:
    """A length of time that is waited for."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    slug = "plan.hours" if hours else "plan.minutes" if minutes else "plan.seconds"
    return plain_blanks(say(slug, hours=hours, minutes=minutes, seconds=rest))


def _points(points: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [[say(f"plan.col_{name}").replace(" ", NO_BREAK) for name in _COLUMNS]]
    rows += [[_levels(each["levels"]), _needed(each), _fits(each), _takes(each)] for each in points]
    lines = aligned(rows)
    for each in points:
        reason = each["not_run_because"] or each["not_predicted_because"]
        if reason is not None:
            refused = each["not_run_because"] is not None
            text = shown(reason) if refused else say("plan.not_predicted", reason=shown(reason))
            lines += wrapped_note(say("plan.of_level", levels=_levels(each["levels"]), text=text))
    return lines


def _levels(levels: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={level}" for name, level in levels.items())


def _needed(point: Mapping[str, Any]) -> str:
    if point["needed_bytes"] is None:
        return say("not_known")
    elsewhere = point["needed_bytes"] - point["needed_here_bytes"]
    if not elsewhere:
        return format_bytes(point["needed_bytes"])
    return say("plan.on_devices", size=point["needed_bytes"], elsewhere=elsewhere)


def _fits(point: Mapping[str, Any]) -> str:
    if point["fits"] is None:
        return say("not_known")
    if point["fits"]:
        return say("plan.fits_yes")
    return say("plan.fits_no_run" if point["not_run_because"] is None else "plan.fits_no")


def _takes(point: Mapping[str, Any]) -> str:
    if point["trial_s"] is None:
        return say("not_known")
    return say("plan.takes", seconds=point["trial_s"], count=point["timed_trials"])


def _room(plan: Mapping[str, Any]) -> str:
    available = plan["available_bytes"]
    return say("plan.room_unknown") if available is None else say("plan.room", size=available)


def _time(plan: Mapping[str, Any]) -> str:
    left, total = plan["trials_left"], len(plan["trials"])
    if not left:
        return say("plan.all_recorded", total=total)
    slug = "plan.trials_of" if left < total else "plan.trials_one" if total == 1 else "plan.trials"
    trials = say(slug, left=left, total=total)
    refused = sum(each["not_run_because"] is not None and not each["is_recorded"] for each in plan["trials"])
    if refused:
        trials = say("plan.refused", trials=trials, refused=refused)
    at_most = "_at_most" if plan["is_at_most"] else ""
    if plan["left_s"] is None:
        return say(f"plan.run_unknown{at_most}", trials=trials)
    return say(f"plan.run_in{at_most}", trials=trials, time=plan_time(plan["left_s"]))


def _answers(points: Sequence[Mapping[str, Any]], trials: Sequence[Mapping[str, Any]]) -> str:
    """What is asked for the answers' sake, and what that adds to the time; nothing where nothing is asked."""
    asked = [each["quality"] for each in points if each.get("quality") is not None]
    if not asked:
        return ""
    tasks = list(dict.fromkeys(each["task"] for each in asked))
    lengths = sorted({each["prompt_tokens"] for each in asked})
    told = {
        "task": say("plan.one_task", task=tasks[0]) if len(tasks) == 1 else say("plan.its_task"),
        "tokens": say("plan.tokens", tokens=lengths[0])
        if len(lengths) == 1
        else say("plan.tokens_span", least=lengths[0], most=lengths[-1]),
        "documents": max(each["documents"] for each in asked),
    }
    is_scored = all("scored_trials" in each for each in asked)
    sentences = [_scores(asked, told) if is_scored else _asked(trials, told)]
    if asked[0].get("n_ctx") is not None:
        # Memory is not what it would be without the questions, where their context is the larger one.
        sentences.append(say("plan.larger_context", context=asked[0]["n_ctx"], without=asked[0]["n_ctx_without"]))
    return " ".join(sentences)


def _asked(trials: Sequence[Mapping[str, Any]], told: Mapping[str, Any]) -> str:
    """How many prompts all trials that are to run add, where it is more than one; repeats ask the same again."""
    asking = [e for e in trials if e["role"] != "warmup" and not e["is_recorded"] and e["not_run_because"] is None]
    prompts, slug = 2 * told["documents"], "plan.answers"
    if len(asking) >= 2:
        slug = "plan.answers_repeated" if any(each["repeat"] for each in asking) else "plan.answers_all"
    return say(slug, **told, prompts=prompts, all_prompts=prompts * len(asking), trials=len(asking))


def _scores(asked: Sequence[Mapping[str, Any]], told: Mapping[str, Any]) -> str:
    """Of texts that are scored, and not asked for: where, and what that adds to the time."""
    trials, twins = sum(each["scored_trials"] for each in asked), max(each["twins"] for each in asked)
    slug = "plan.scores_twins" if twins else "plan.scores"
    return say(slug, **told, trials=trials, twins=twins, prompts=told["documents"] + twins)


def _devices(devices: Sequence[str]) -> str:
    return say("plan.devices", devices=", ".join(devices)) if devices else say("plan.no_device")


def _trial(trial: Mapping[str, Any]) -> list[str]:
    slug = (
        "plan.trial" + ("_recorded" if trial["is_recorded"] else "") + ("_not_run" if trial["not_run_because"] else "")
    )
    role = padded(name_of("plan.role", trial["role"]), _ROLE)
    position, repeat = f"{trial['position']:4}", trial["repeat"] + 1
    line = say(slug, position=position, role=role, levels=_levels(trial["levels"]), repeat=repeat)
    return [line] if display_width(line) <= WIDTH else wrapped(line.strip(), "  ", " " * 16)
