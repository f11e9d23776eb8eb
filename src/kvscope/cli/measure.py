"""kvscope measure: one experiment on a real engine, or those of a study file."""

import shlex
from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any

import click

from kvscope.cli.options import check_minutes, command_line, json_option
from kvscope.cli.output import say, say_json
from kvscope.cli.progress import show_progress
from kvscope.cli.study_options import asked_options, planned_studies
from kvscope.errors import UsageError
from kvscope.experiment.asked import FIELDS, default_of
from kvscope.experiment.designs import DESIGNS
from kvscope.experiment.measure import DEFAULT_RECORDS, model_of, run_planned
from kvscope.experiment.plan import Planned
from kvscope.experiment.plan_preview import preview_plan
from kvscope.experiment.retrieval_asked import write_bundled
from kvscope.experiment.runner import DesignSummary, RunOptions, exit_code
from kvscope.experiment.study_file import study_text
from kvscope.report.files import write_file
from kvscope.report.plan_text import render_plan
from kvscope.report.terminal_text import wrapped
from kvscope.report.words import say as words

EXAMPLE = f"""\
\b
Examples:
  kvscope measure input_length --levels 128,512,2k
  kvscope measure concurrency --levels 1,4 --shared-prefix 256
  kvscope measure prefix_reuse --levels cold,warm,after_60s
  kvscope measure grid --factor n_ubatch=128,512 --factor prompt_tokens=256,1k
  kvscope measure input_length --engine openai --url http://127.0.0.1:8080
  kvscope measure input_length --until 5% --write-study mine.toml
  kvscope measure mine.toml
{fill(f"Designs: {', '.join(sorted(DESIGNS))}.", 78, subsequent_indent="  ")}
Kill it at any moment, run the same command again: finished trials are kept.
"""


# Documents of so many characters together take seconds and more to be counted.
LONG_TEXT = 1_000_000


@click.command(epilog=EXAMPLE)
@click.argument("design", metavar="DESIGN|FILE.toml")
@asked_options
@click.option("--records", default=DEFAULT_RECORDS, show_default=True, help="Record file.")
@click.option("--max-minutes", type=float, callback=check_minutes, help="Start no further trial after this time.")
@click.option("--max-wait", type=float, callback=check_minutes, help="Minutes to wait for another kvscope's trials.")
@click.option("--fail-fast", is_flag=True, help="Stop at the first failed trial.")
@click.option("--retry-failed", is_flag=True, help="Run failed trials anew, as another attempt.")
@click.option("--try-anyway", is_flag=True, help="Run what is predicted not to fit, and send what does not.")
@click.option("--keep-text", is_flag=True, help="Record your own texts, and all answers, word for word.")
@click.option("--dry-run", is_flag=True, help="Show what would run, and stop.")
@click.option("--write-study", metavar="FILE.toml", help="Write what would run as a study file, and stop.")
@click.option("--write-documents", metavar="DIR", help="Write the bundled documents of retrieval as files, and stop.")
@json_option
def measure(
    design: str,
    records: str,
    max_minutes: float | None,
    dry_run: bool,
    write_study: str | None,
    write_documents: str | None,
    **given: Any,
) -> int:
    """Run one experiment: vary one thing, hold the rest, repeat, and record every trial.

    A study file says the same in a file: write one with --write-study, and see docs/reference/study-files.md.
    """
    if write_documents is not None:
        return _write_documents(write_documents, design, given)
    as_json, max_wait = given.pop("as_json"), given.pop("max_wait")
    options = RunOptions(
        max_seconds=None if max_minutes is None else max_minutes * 60,
        max_wait_s=None if max_wait is None else max_wait * 60,
        **{name: given.pop(name) for name in ("fail_fast", "retry_failed", "try_anyway", "keep_text")},
    )
    studies = planned_studies(design, given)
    _note_long_texts(studies)
    if write_study is not None:
        file = write_file(write_study, study_text(studies, write_study), force=False)
        say(words("measured.written_study", file=file), err=True)
        say(words("measured.run_it", command=f"kvscope measure {shlex.quote(write_study)}"), err=True)
    elif dry_run:
        _show_plans(studies, records, options, as_json)
    else:
        summaries = _run(studies, records, options)
        from kvscope.cli.measured import tell  # after the trials: they need not wait until it is loaded

        tell(summaries, records, as_json)
        return exit_code(summaries)
    return 0


def _note_long_texts(studies: Sequence[Planned]) -> None:
    """Say what is waited for before anything is shown: tokens of a long text take a while to be counted."""
    held = [each.design.held.retrieval for each in studies]
    characters = max((sum(len(document.text) for document in one.documents) for one in held if one), default=0)
    if characters >= LONG_TEXT:
        for line in wrapped(words("measured.long_texts", count=characters)):
            say(line, err=True)


def _write_documents(folder: str, design: str, given: Mapping[str, Any]) -> int:
    if design != "retrieval":
        raise UsageError(
            "Bundled documents are what the design retrieval asks about.",
            hint="Use: kvscope measure retrieval --write-documents DIR.",
        )
    language = given["language"] or default_of(FIELDS["language"])
    documents, questions = write_bundled(folder, given["documents"], language)
    say(words("measured.written_documents", documents=documents, questions=questions), err=True)
    paths = f"--documents {shlex.quote(str(documents))} --questions {shlex.quote(str(questions))}"
    say(words("measured.ask_them", command=f"kvscope measure retrieval {paths}"), err=True)
    return 0


def _run(studies: Sequence[Planned], records: str, options: RunOptions) -> list[DesignSummary]:
    try:
        return run_planned(studies, records=records, command=command_line(), options=options, listener=show_progress)
    except KeyboardInterrupt:
        say(words("measured.interrupted", records=records, command=command_line()), err=True)
        raise


def _show_plans(studies: Sequence[Planned], records: str, options: RunOptions, as_json: bool) -> None:
    plans = [
        preview_plan(each.design, model_of(each), each.choice, records=records, options=options).to_dict()
        for each in studies
    ]
    if as_json:
        say_json(plans[0] if len(plans) == 1 else plans)
    else:
        say("\n\n".join(render_plan(each) for each in plans))
