"""kvscope lab: the main job, end to end."""

from pathlib import Path

import click

from kvscope.analysis.study import analyse
from kvscope.analysis.table import table_rows
from kvscope.cli.options import check_minutes, command_line, json_option, server_options
from kvscope.cli.output import say, say_json
from kvscope.cli.progress import show_progress
from kvscope.engine.registry import EngineChoice
from kvscope.errors import RecordUnwritable
from kvscope.experiment.design import Design
from kvscope.experiment.lab import LAB_MINUTES, lab_designs, run_lab
from kvscope.experiment.measure import load_measured
from kvscope.experiment.runner import DesignSummary, exit_code, start_run
from kvscope.model.spec import ModelSpec
from kvscope.record.store import create_records, open_records
from kvscope.report.page import write_report
from kvscope.report.terminal_text import wrapped
from kvscope.report.text import render_text
from kvscope.report.words import say as words


@click.command()
@click.option("--engine", default="llama.cpp", show_default=True, help="Engine to run.")
@click.option("--engine-command", help="Your own llama-server, with its flags, instead of the built-in llama.cpp.")
@click.option("--model", help="A .gguf file, a folder, or pkg:NAME; the bundled example otherwise.")
@server_options
@click.option("--out", default="kvscope-lab", show_default=True, type=click.Path(file_okay=False), help="Folder.")
@click.option(
    "--max-minutes",
    type=float,
    callback=check_minutes,
    default=LAB_MINUTES,
    show_default=True,
    help="Start no trial after this.",
)
@click.option("--keep-text", is_flag=True, help="Record all answers word for word.")
@json_option
def lab(
    engine: str,
    engine_command: str | None,
    model: str | None,
    url: str | None,
    served_model: str | None,
    pid: int | None,
    api_key_env: str | None,
    out: str,
    max_minutes: float,
    keep_text: bool,
    as_json: bool,
) -> int:
    """Predict, measure and reconcile one model on one engine, and write the report.

    Kill it at any moment and run it again: finished trials are kept.
    """
    choice = EngineChoice(
        name=engine,
        command=engine_command,
        url=url,
        served_model=served_model,
        pid=pid,
        api_key_env=api_key_env,
    )
    spec = load_measured(choice, model)
    choice.check()
    folder = _folder(out)
    records = folder / "kvscope.db"
    designs = lab_designs(spec, engine, is_attached=choice.is_attached)
    summaries = _run(designs, spec, choice, records, max_minutes, keep_text)
    _report(records, folder / "report.html", as_json)
    _say_what_is_left(summaries, out)
    return exit_code(summaries)


def _run(
    designs: tuple[Design, ...],
    spec: ModelSpec | None,
    choice: EngineChoice,
    records: Path,
    max_minutes: float,
    keep_text: bool,
) -> list[DesignSummary]:
    with create_records(records) as recorder:
        run = start_run(recorder, command_line())
        try:
            return run_lab(
                recorder,
                run,
                designs,
                spec,
                choice,
                max_seconds=max_minutes * 60,
                keep_text=keep_text,
                listener=show_progress,
            )
        except KeyboardInterrupt:
            say(words("measured.interrupted", records=records, command=command_line()), err=True)
            raise


def _folder(out: str) -> Path:
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RecordUnwritable(f"Cannot make {out}: {error.strerror}.", hint="Name another with --out.") from error
    return folder


def _report(records: Path, page: Path, as_json: bool) -> None:
    # The page is the lab's own output of the same record, so it is always brought up to date.
    write_report(records, page, force=True)
    with open_records(records) as found:
        if as_json:
            say_json(list(table_rows(found)), indent=None)
        else:
            say(render_text(analyse(found)))
    say(words("lab.report", file=page), err=as_json)
    say(words("lab.record", file=records), err=as_json)


def _say_what_is_left(summaries: list[DesignSummary], out: str) -> None:
    # A later pass over a design counts what earlier passes left: the last one of each design tells.
    not_run = sum({summary.design_id: summary.not_run for summary in summaries}.values())
    if not_run:
        say(words("lab.left", count=not_run), err=True)
    elif not any(summary.measured + summary.failed for summary in summaries):
        for line in wrapped(words("lab.nothing_run", folder=out)):
            say(line, err=True)
