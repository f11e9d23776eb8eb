"""What a sitting that ended early left out, in words: on the first screen, in a terminal, and beside the designs."""

from kvscope.analysis.left_out import not_begun, repeats_run, trials_left
from kvscope.analysis.study import DesignStudy, Study
from kvscope.report.words import say

# Designs whose slopes the headline gives, by their factor, with what is missing without them.
_HEADLINE = {"n_ctx": "memory", "prompt_tokens": "wait"}


def left_out_text(study: Study) -> str | None:
    """How many planned trials were not run, and what the headline lacks for it; None where all were run, or none."""
    left, planned = trials_left(study)
    if not left or not study.is_measured:
        return None
    told = say("left_out.trials", left=left, planned=planned)
    lacking = [say(f"left_out.{slug}") for factor, slug in _HEADLINE.items() if _is_lacking(study, factor)]
    return " ".join([told, *lacking, say("left_out.next")])


def _is_lacking(study: Study, factor: str) -> bool:
    """Whether a design of the factor was planned, not run whole, and tells no slope."""
    unfinished = [d for d in study.designs if d.design.factor == factor and repeats_run(d)[0] < d.design.repeats]
    if not unfinished:
        return False
    if factor == "n_ctx":
        return study.context is None
    return study.ttft is None or study.ttft.trend != "grows"


def not_begun_text(study: Study) -> str | None:
    """The designs of which nothing was begun, by name; None where there is none."""
    names = tuple(dict.fromkeys(each.design.name for each in not_begun(study)))
    return say("left_out.designs", names=names) if names else None


def repeats_text(design: DesignStudy) -> str:
    """Repeats as they were run, and as planned where fewer were."""
    fewest, most = repeats_run(design)
    planned = design.design.repeats
    if fewest >= planned:
        return str(most)
    if fewest == most:
        return say("left_out.repeats", run=fewest, planned=planned)
    return say("left_out.repeats_span", fewest=fewest, most=most, planned=planned)
