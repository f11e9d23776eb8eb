"""Progress of an experiment on stderr: one line per finished trial, with the time left."""

from statistics import fmean

from kvscope.cli.output import say
from kvscope.experiment.runner import Progress
from kvscope.record.metrics import TrialMetrics, metrics_of, request_metrics, tokens_by_request
from kvscope.record.rows import MEASURED_OUTCOMES, TrialResult
from kvscope.report.plan_text import plan_time
from kvscope.units import format_mib, format_seconds

NO_FIGURES = "no figures"
COPY_GAIN = "copy_gain"


def show_progress(progress: Progress) -> None:
    """A listener for ``run_design`` that prints to stderr."""
    if progress.waiting_for is not None:
        say(f"  Waiting: {progress.waiting_for}.", err=True)
        return
    if progress.result is None:
        if progress.next_trial is not None or not progress.kept:
            say(_opening(progress), err=True)
        return
    trial = progress.result.trial
    where = f"[{progress.done}/{progress.total}] {_levels(progress.result)}"
    role = "warm-up" if trial.role == "warmup" else f"repeat {trial.repeat + 1}"
    say(f"  {where}, {role}: {_result(progress.result)}{_left(progress)}", err=True)


def _opening(progress: Progress) -> str:
    kept = f", {progress.kept} already in the record" if progress.kept else ""
    return f"{progress.design}: {progress.total} trials to run{kept}."


def _levels(result: TrialResult) -> str:
    return ", ".join(f"{name}={level}" for name, level in result.trial.levels.items())


def _result(result: TrialResult) -> str:
    trial = result.trial
    if trial.outcome not in MEASURED_OUTCOMES:
        return " ".join(text for text in (f"{trial.outcome}:", trial.error_message, trial.error_hint) if text)
    figures = _figures(metrics_of(result), trial.outcome, _first_and_later(result))
    if result.answers:
        figures = [*(each for each in figures if each != NO_FIGURES), _quality(result)]
    # Said at once and not at the end alone: who reads it can stop here and ask otherwise.
    figures += [warning.message for warning in result.warnings if warning.slug == "quality-unknown"]
    if trial.client.get("client_limited") is True:
        figures.append("client_limited: its times may be too long")
    return ", ".join(figures)


def _figures(metrics: TrialMetrics, outcome: str | None, waits: str | None = None) -> list[str]:
    """``waits``: the words for the first token, where one number for all requests says nothing."""
    figures = [waits] if waits is not None else []
    if waits is None and metrics.ttft_s is not None:
        figures.append(f"first token after {format_seconds(metrics.ttft_s)}")
    if metrics.tpot_s is not None:
        figures.append(f"then {format_seconds(metrics.tpot_s)} a token")
    if metrics.memory_after_bytes is not None and metrics.memory_baseline_bytes is not None:
        figures.append(f"memory {format_mib(metrics.memory_after_bytes - metrics.memory_baseline_bytes, signed=True)}")
    if outcome == "stopped_early":
        figures.append("the answer ended early")
    return figures or [NO_FIGURES]


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
    return f"first token after {format_seconds(waits[0])}, of later questions {format_seconds(fmean(later))}"


def _quality(result: TrialResult) -> str:
    """The score, as a share where answers are right or wrong, else in nats; how many prompts of it were cut."""
    metrics = metrics_of(result)
    is_reference = any(row.facts.get("is_reference") is True for row in result.answers)
    cut = f" ({metrics.quality_truncated} of its prompts cut)" if metrics.quality_truncated else ""
    if metrics.quality_score is None:
        if is_reference:
            return f"{metrics.quality_task} scored: other levels are held against it"
        return f"{metrics.quality_task} not known{cut}"
    if metrics.quality_low is None:
        # Of copy_gain a trial keeps what its facts have by themselves; the gain, against their twins, comes at the end.
        what = "log-probability of its facts " if metrics.quality_task == COPY_GAIN else ""
        return f"{metrics.quality_task}{': ' if what else ' '}{what}{metrics.quality_score:.3g} nats{cut}"
    return f"{metrics.quality_task} {metrics.quality_score:.0%} of {metrics.quality_items}{cut}"


def _left(progress: Progress) -> str:
    if not progress.left_s:
        return ""
    return f" · {'at most' if progress.is_at_most else 'about'} {plan_time(progress.left_s)} left"
