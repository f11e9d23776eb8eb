"""kvscope measure: one experiment on a real engine."""

import json
import shlex
from collections.abc import Mapping
from typing import cast

import click

from kvscope.analysis.attempts import load_attempts
from kvscope.analysis.study import releases_of
from kvscope.analysis.table import table_rows
from kvscope.analysis.turns import turn_tables
from kvscope.cli.options import (
    check_minutes,
    command_line,
    json_option,
    parse_depth,
    parse_levels,
    parse_numbers,
    parse_settings,
    parse_share,
    parse_token_list,
    server_options,
)
from kvscope.cli.output import say, say_json
from kvscope.cli.progress import show_progress
from kvscope.engine.registry import EngineChoice
from kvscope.experiment.design import Arrival, Design, Language, Level, Until
from kvscope.experiment.measure import DEFAULT_RECORDS, Held, load_measured, plan_design
from kvscope.experiment.runner import DesignSummary, RunOptions, check_design, run_design, start_run
from kvscope.prompt.exact_length.source_text import LANGUAGES
from kvscope.record.store import create_records, open_records
from kvscope.report.release_text import release_lines
from kvscope.report.turns import turn_lines
from kvscope.units import parse_tokens

EXAMPLE = """\
\b
Examples:
  kvscope measure input_length --levels 128,512,2k
  kvscope measure output_length --levels 16,256 --input-tokens 256 --repeats 5
  kvscope measure context_limit --set cache_type_k=q8_0 --model ./model.gguf
  kvscope measure turns --levels 1,4,8 --no-reuse-prefix
  kvscope measure input_length --engine openai --url http://127.0.0.1:8080
Designs: context_limit, input_length, output_length, release, turns.
Kill it at any moment and run the same command again: finished trials are kept.
"""


@click.command(epilog=EXAMPLE)
@click.argument("design")
@click.option("--engine", default="llama.cpp", show_default=True, help="Engine to run.")
@click.option("--engine-command", help="Your own llama-server, with its flags, instead of the built-in llama.cpp.")
@click.option("--model", help="A .gguf file, a folder, or pkg:NAME; the bundled example otherwise.")
@server_options
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Of the engine's server; 0 picks a free one.")
@click.option("--levels", help="Values of the factor, the baseline first: 128,512,2k.")
@click.option("--repeats", type=int, help="How often each level is measured.")
@click.option("--requests", type=int, help="Conversations per trial, one after another.")
@click.option("--input-tokens", help="Prompt tokens, where they are not the factor.")
@click.option("--output-tokens", help="Output tokens asked for, where they are not the factor.")
@click.option("--concurrency", help="Requests under way at once.")
@click.option("--rate", help="Requests sent per second, whatever is still under way.")
@click.option("--arrival", type=click.Choice(("constant", "poisson")), help="At that rate: evenly, or at random.")
@click.option("--shared-prefix", help="So many tokens at the beginning of all prompts of a trial are the same.")
@click.option("--until", help="Repeat until the effects' intervals are this narrow: 5% of the baseline's mean.")
@click.option("--until-metric", default="ttft_s", show_default=True, help="Which column of the record they are of.")
@click.option("--most-repeats", type=int, default=50, show_default=True, help="With --until: at most so many repeats.")
@click.option("--reuse-prefix/--no-reuse-prefix", default=None, help="Let the engine reuse earlier prompts, or not.")
@click.option("--language", type=click.Choice(LANGUAGES), default="en", show_default=True, help="Of the prompts.")
@click.option("--text", type=click.Path(), help="Your own text file or folder to make prompts of.")
@click.option("--key-depth", help="Where their key sentence stands: start, middle (default), end, or 30%.")
@click.option(
    "--set", "settings", multiple=True, metavar="NAME=VALUE", help="Engine setting, by the engine's own name."
)
@click.option("--grid", is_flag=True, help="Do vary two things at once, and label the result as a grid.")
@click.option("--records", default=DEFAULT_RECORDS, show_default=True, help="Record file.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the order of trials and of the prompts.")
@click.option("--max-minutes", type=float, callback=check_minutes, help="Start no further trial after this time.")
@click.option("--fail-fast", is_flag=True, help="Stop at the first failed trial.")
@click.option("--retry-failed", is_flag=True, help="Run failed trials anew, as another attempt.")
@click.option("--try-anyway", is_flag=True, help="Run what is predicted not to fit, and send what does not.")
@click.option("--dry-run", is_flag=True, help="Show what would run, and stop.")
@json_option
def measure(
    design: str,
    engine: str,
    engine_command: str | None,
    model: str | None,
    url: str | None,
    served_model: str | None,
    pid: int | None,
    api_key_env: str | None,
    port: int,
    levels: str | None,
    repeats: int | None,
    requests: int | None,
    input_tokens: str | None,
    output_tokens: str | None,
    concurrency: str | None,
    rate: str | None,
    arrival: str | None,
    shared_prefix: str | None,
    until: str | None,
    until_metric: str,
    most_repeats: int,
    reuse_prefix: bool | None,
    language: str,
    text: str | None,
    key_depth: str | None,
    settings: tuple[str, ...],
    grid: bool,
    records: str,
    seed: int,
    max_minutes: float | None,
    fail_fast: bool,
    retry_failed: bool,
    try_anyway: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Run one experiment: vary one thing, hold the rest, repeat, and record every trial."""
    held = Held(
        input_tokens=parse_token_list(input_tokens),
        output_tokens=parse_token_list(output_tokens),
        requests=requests,
        reuse_prefix=reuse_prefix,
        language=cast(Language, language),
        text=text,
        key_percent=parse_depth(key_depth),
        concurrency=parse_token_list(concurrency),
        rate_per_s=parse_numbers(rate),
        arrival=cast(Arrival | None, arrival),
        shared_prefix_tokens=None if shared_prefix is None else parse_tokens(shared_prefix),
        settings=parse_settings(settings),
    )
    choice = EngineChoice(
        name=engine,
        command=engine_command,
        port=port,
        url=url,
        served_model=served_model,
        pid=pid,
        api_key_env=api_key_env,
    )
    share = parse_share(until)
    planned = plan_design(
        design,
        engine=engine,
        levels=parse_levels(levels),
        repeats=repeats,
        held=held,
        seed=seed,
        grid=grid,
        is_attached=not choice.takes_settings,
        by_command=choice.command_settings(),
        until=None if share is None else Until(share=share, metric=until_metric, most_repeats=most_repeats),
    )
    if dry_run:
        _show_plan(planned, check_design(planned, load_measured(choice, model), choice), as_json)
        return 0
    options = RunOptions(
        fail_fast=fail_fast,
        retry_failed=retry_failed,
        try_anyway=try_anyway,
        max_seconds=None if max_minutes is None else max_minutes * 60,
    )
    summary = _run(planned, model, choice, records, options)
    _tell(summary, records, as_json)
    return 1 if summary.failed + summary.kept_failed else 0


def _run(design: Design, model: str | None, choice: EngineChoice, records: str, options: RunOptions) -> DesignSummary:
    spec = load_measured(choice, model)
    choice.check()
    with create_records(records) as recorder:
        run = start_run(recorder, command_line())
        try:
            return run_design(recorder, run, design, spec, choice, options=options, listener=show_progress)
        except KeyboardInterrupt:
            say(f"What was measured is kept in {records}. To go on: {command_line()}", err=True)
            raise


def _show_plan(design: Design, doubts: list[tuple[Mapping[str, Level], str]], as_json: bool) -> None:
    trials = design.trials("")
    why_not = {json.dumps(dict(point)): reason for point, reason in doubts}
    if as_json:
        rows = [
            {
                "position": trial.position,
                "role": trial.role,
                "levels": dict(trial.levels),
                "repeat": trial.repeat,
                "not_run_because": why_not.get(json.dumps(dict(trial.levels))),
            }
            for trial in trials
        ]
        say_json({"design": design.kind.name, "is_grid": design.is_grid, "trials": rows})
        return
    say(f"{design.kind.question}\nHeld fixed: {json.dumps(design.held.to_dict(), ensure_ascii=False)}")
    for trial in trials:
        levels = ", ".join(f"{name}={level}" for name, level in trial.levels.items())
        reason = why_not.get(json.dumps(dict(trial.levels)))
        doubt = f"  ({reason})" if reason else ""
        say(f"{trial.position:4}  {trial.role:8}  {levels}  repeat {trial.repeat + 1}{doubt}")


def _tell(summary: DesignSummary, records: str, as_json: bool) -> None:
    if as_json:
        with open_records(records) as found:
            ids = {trial.trial_id for trial in found.trials(summary.design_id)}
            say_json([row for row in table_rows(found) if row["trial_id"] in ids], indent=None)
        return
    text = f"{summary.name}: {summary.measured} measured, {summary.failed} failed, {summary.kept} kept from before"
    if summary.not_run:
        text += f", {summary.not_run} not run ({summary.stopped_by}; run the same command to go on)"
    say(f"{text}. Recorded in {records}.", err=True)
    if summary.kept_failed:
        say(f"{summary.kept_failed} of those kept had failed; to try them again add --retry-failed.", err=True)
    _tell_turns(summary, records)
    _tell_release(summary, records)
    say(f"See it: kvscope report --records {shlex.quote(records)} --out report.html", err=True)


def _tell_turns(summary: DesignSummary, records: str) -> None:
    with open_records(records) as found:
        design = next(row for row in found.designs() if row.design_id == summary.design_id)
        tables = turn_tables(load_attempts(found, design, {run.run_id: run for run in found.runs()}))
    for line in turn_lines(tables):
        say(line)


def _tell_release(summary: DesignSummary, records: str) -> None:
    if summary.name != "release":
        return
    with open_records(records) as found:
        for line in release_lines(releases_of(found, summary.design_id)):
            say(line)
