"""Progress of an experiment on stderr: one line per finished trial, with the time left."""

from statistics import fmean

from kvscope.cli.output import say, say_passing
from kvscope.experiment.runner import Progress
from kvscope.language import shown
from kvscope.record.metrics import TrialMetrics, metrics_of, request_metrics, tokens_by_request
from kvscope.record.rows import MEASURED_OUTCOMES, TrialResult
from kvscope.report.plan_text import plan_time
from kvscope.report.terminal_text import wrapped_note
from kvscope.report.words import say as words

COPY_GAIN = "copy_gain"


def show_progress(progress: Progress) -> None:
    """A listener for ``run_design`` that prints to stderr; a terminal is shown what runs now, too."""
    _tell(progress)
    if progress.next_trial is not None and progress.waiting_for is None:
        levels = ", ".join(f"{name}={level}" for name, level in progress.next_trial.levels.items())
        say_passing(words("progress.running", done=progress.done + 1, total=progress.total, levels=levels))


def _tell(progress: Progress) -> None:
    if progress.waiting_for is not None:
        _say(words("progress.waiting", what=shown(str(progress.waiting_for))))
        return
    if progress.is_calibrating:
        _say(words("progress.calibrating"))
        return
    if progress.result is None:
        if progress.next_trial is not None or not progress.kept:
            slug = "progress.opening_kept" if progress.kept else "progress.opening"
            say(words(slug, design=progress.design, total=progress.total, kept=progress.kept), err=True)
        return
    trial = progress.result.trial
    role = words("progress.warmup") if trial.role == "warmup" else words("progress.repeat", number=trial.repeat + 1)
    slug = "progress.line"
    if progress.left_s:
        slug = "progress.line_left_at_most" if progress.is_at_most else "progress.line_left"
    _say(
        words(
            slug,
            done=progress.done,
            total=progress.total,
            levels=_levels(progress.result),
            role=role,
            result=_result(progress.result),
            left=plan_time(progress.left_s or 0),
        )
    )


def _say(text: str) -> None:
    for line in wrapped_note(text):
        say(line, err=True)


def _levels(result: TrialResult) -> str:
    return ", ".join(f"{name}={level}" for name, level in result.trial.levels.items())


def _result(result: TrialResult) -> str:
    trial = result.trial
    if trial.outcome not in MEASURED_OUTCOMES:
        error = " ".join(shown(text) for text in (trial.error_message, trial.error_hint) if text)
        return words("progress.failed", outcome=trial.outcome, message=error)
    figures = _figures(metrics_of(result), trial.outcome, _first_and_later(result))
    if result.answers:
        figures.append(_quality(result))
    # Said at once and not at the end alone: who reads it can stop here and ask otherwise.
    figures += [shown(warning.message) for warning in result.warnings if warning.slug == "quality-unknown"]
    if trial.client.get("client_limited") is True:
        figures.append(words("progress.limited"))
    return ", ".join(figures) or words("progress.no_figures")


def _figures(metrics: TrialMetrics, outcome: str | None, waits: str | None = None) -> list[str]:
    """``waits``: the words for the first token, where one number for all requests says nothing."""
    figures = [waits] if waits is not None else []
    if waits is None and metrics.ttft_s is not None:
        figures.append(words("progress.first_token", ttft_s=metrics.ttft_s))
    if metrics.tpot_s is not None:
        figures.append(words("progress.per_token", tpot_s=metrics.tpot_s))
    if metrics.memory_after_bytes is not None and metrics.memory_baseline_bytes is not None:
        grown = metrics.memory_after_bytes - metrics.memory_baseline_bytes
        figures.append(words("progress.memory", num_bytes=grown))
    if outcome == "stopped_early":
        figures.append(words("progress.ended_early"))
    return figures


def _first_and_later(result: TrialResult) -> str | None:
    """Of questions on documents: the wait of the first, which reads everything, and that of the later ones, which may
    reuse it. None for any other trial, and for a single question."""
    if "given" not in result.trial.levels or not result.answers:
        return None
    tokens = tokens_by_request(result)
    measured = [request for request in result.requests if request.role == "measured"]
    waits = [request_metrics(request, tokens.get(request.index, ())).ttft_s for request in measured]
    later = [wait for wait in waits[1:] if wait is not None]
    if not later or waits[0] is None:
        return None
    return words("progress.first_token_later", ttft_s=waits[0], later_s=fmean(later))


def _quality(result: TrialResult) -> str:
    """The score, as a share where answers are right or wrong, else in nats; how many prompts of it were cut."""
    metrics = metrics_of(result)
    text = _score(metrics, is_reference=any(row.facts.get("is_reference") is True for row in result.answers))
    return words("progress.cut", text=text, count=metrics.quality_truncated) if metrics.quality_truncated else text


def _score(metrics: TrialMetrics, *, is_reference: bool) -> str:
    task, score = metrics.quality_task, metrics.quality_score
    if score is None:
        return words("progress.scored" if is_reference else "progress.score_unknown", task=task)
    if metrics.quality_low is None:
        # Of copy_gain a trial keeps what its facts have by themselves; the gain, against their twins, comes at the end.
        slug = "progress.score_facts" if task == COPY_GAIN else "progress.score_nats"
        return words(slug, task=task, score=f"{score:.3g}")
    return words("progress.score_share", task=task, share=f"{score:.0%}", items=metrics.quality_items)
