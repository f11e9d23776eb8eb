"""kvscope report: the one-page report, or the same findings as text, from a record alone."""

import gc
from functools import partial
from pathlib import Path

import click

from kvscope.analysis.study import Analysis, analyse
from kvscope.cli.opened_record import opened_record
from kvscope.cli.output import say, say_json
from kvscope.errors import OutputExists, RecordUnwritable, UsageError
from kvscope.experiment.measure import DEFAULT_RECORDS
from kvscope.record.queries import outcome_counts
from kvscope.record.store import Records
from kvscope.report.words import say as words

FORMATS = ("html", "md", "text")
_BY_SUFFIX = {".html": "html", ".htm": "html", ".md": "md", ".txt": "text"}

# More attempts than this are told before the report is made of them, and what each takes.
_MANY, _BYTES_OF_ATTEMPT = 10_000, 160_000

EXAMPLE = """\
\b
Examples:
  kvscope report --records kvscope-lab/kvscope.db                     the findings, here
  kvscope report --records kvscope-lab/kvscope.db --out report.html   the page
  kvscope report --out report.md                                      for an issue or a wiki
  kvscope report --charts charts                                      each chart as SVG and PNG
"""


@click.command(epilog=EXAMPLE)
@click.option("--records", default=DEFAULT_RECORDS, show_default=True, help="Record file.")
@click.option("--out", type=click.Path(dir_okay=False), help="File to write; standard output if left out.")
@click.option("--format", "file_format", type=click.Choice(FORMATS), help="By default from the file's name; else text.")
@click.option("--interactive", is_flag=True, help="Page with live charts: values under the pointer, about 1 MB more.")
@click.option("--charts", type=click.Path(file_okay=False), help="Folder for the charts as SVG and PNG files.")
@click.option("--force", is_flag=True, help="Overwrite files that exist.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def report(
    records: str,
    out: str | None,
    file_format: str | None,
    interactive: bool,
    charts: str | None,
    force: bool,
    as_json: bool,
) -> int:
    """Make the report of a record. It needs no engine and no network."""
    from kvscope.report.files import write_file

    chosen = file_format or (_BY_SUFFIX.get(Path(out).suffix.lower(), "html") if out else "text")
    if interactive and chosen != "html":
        raise UsageError("--interactive is of the page alone.", hint="Add --out report.html, or leave it out.")
    with opened_record(records) as found:
        _tell_size(found)
        analysis = analyse(found)
    gc.freeze()  # millions of rows that stay to the end: no search for cycles goes through them while a page is made
    if charts is not None:
        _write_charts(analysis, Path(charts), force)
    if as_json:
        from kvscope.report.summary import summary

        say_json(summary(analysis), indent=None)
    if out is not None:
        write_file(out, _render(analysis, chosen, interactive), force=force)
        say(words("report.wrote", file=out), err=True)
    elif not as_json and (charts is None or file_format is not None):
        say(_render(analysis, chosen, interactive))
    return 0


def _tell_size(records: Records) -> None:
    attempts = sum(count.attempts for count in outcome_counts(records))
    if attempts > _MANY:
        say(words("report.many", attempts=attempts, size=attempts * _BYTES_OF_ATTEMPT), err=True)


def _render(analysis: Analysis, chosen: str, interactive: bool) -> str:
    if chosen == "html":
        from kvscope.report.page import render_page

        return render_page(analysis, interactive=interactive)
    if chosen == "md":
        from kvscope.report.markdown import render_markdown

        return render_markdown(analysis)
    from kvscope.report.text import render_text

    return render_text(analysis)


def _write_charts(analysis: Analysis, folder: Path, force: bool) -> None:
    from kvscope.report.chart_files import chart_files
    from kvscope.report.files import write_with

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RecordUnwritable(f"Cannot make {folder}: {error.strerror}.", hint="Name another folder.") from error
    made = chart_files(analysis)
    there = [name for name in made.files if (folder / name).exists()]
    if there and not force:
        raise OutputExists(f"{folder / there[0]} exists already.", hint="Name another folder, or add --force.")
    for name, content in made.files.items():
        write_with(folder / name, partial(Path.write_bytes, data=content), force=force)
    for doubt in made.doubts:
        say(doubt, err=True)
    say(words("charts.written", count=len(made.files) // 2, folder=folder), err=True)
