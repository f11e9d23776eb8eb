"""kvscope export: the record as a table."""

import io
import sys

import click

from kvscope.analysis.table import table_rows
from kvscope.cli.output import say
from kvscope.experiment.measure import DEFAULT_RECORDS
from kvscope.record.export import FORMATS, write_csv, write_jsonl
from kvscope.record.store import open_records
from kvscope.report.files import write_file

WRITERS = {"jsonl": write_jsonl, "csv": write_csv}


@click.command()
@click.option("--records", default=DEFAULT_RECORDS, show_default=True, help="Record file.")
@click.option(
    "--format", "file_format", type=click.Choice(FORMATS), default="jsonl", show_default=True, help="Of the table."
)
@click.option("--out", type=click.Path(dir_okay=False), help="File to write; standard output if left out.")
@click.option("--force", is_flag=True, help="Overwrite the file if it exists.")
@click.option("--json", "as_json", is_flag=True, help="The same as --format jsonl.")
def export(records: str, file_format: str, out: str | None, force: bool, as_json: bool) -> int:
    """Write one row per attempt of a trial, failures like any other."""
    with open_records(records) as found:
        rows = table_rows(found)
    write = WRITERS["jsonl" if as_json else file_format]
    if out is None:
        write(rows, sys.stdout)
        return 0
    text = io.StringIO()
    write(rows, text)
    write_file(out, text.getvalue(), force=force)
    say(f"Wrote {len(rows)} rows to {out}.", err=True)
    return 0
