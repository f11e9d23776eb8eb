"""kvscope export: the record as a table."""

import io
import sys

import click

from kvscope.analysis.table import request_rows, table_rows
from kvscope.cli.output import say
from kvscope.experiment.measure import DEFAULT_RECORDS
from kvscope.record.export import FORMATS, write_csv, write_jsonl
from kvscope.record.store import open_records
from kvscope.report.files import write_file

WRITERS = {"jsonl": write_jsonl, "csv": write_csv}
ROWS = {"trials": table_rows, "requests": request_rows}


@click.command()
@click.option("--records", default=DEFAULT_RECORDS, show_default=True, help="Record file.")
@click.option(
    "--format", "file_format", type=click.Choice(FORMATS), default="jsonl", show_default=True, help="Of the table."
)
@click.option(
    "--rows",
    type=click.Choice(tuple(ROWS)),
    default="trials",
    show_default=True,
    help="One row per attempt of a trial, or one per request: each turn of a conversation is one.",
)
@click.option("--out", type=click.Path(dir_okay=False), help="File to write; standard output if left out.")
@click.option("--force", is_flag=True, help="Overwrite the file if it exists.")
@click.option("--json", "as_json", is_flag=True, help="The same as --format jsonl.")
def export(records: str, file_format: str, rows: str, out: str | None, force: bool, as_json: bool) -> int:
    """Write the record as a table: one row per attempt of a trial, or per request; failures are rows like any other."""
    with open_records(records) as found:
        table = list(ROWS[rows](found))
    write = WRITERS["jsonl" if as_json else file_format]
    if out is None:
        write(table, sys.stdout)
        return 0
    text = io.StringIO()
    write(table, text)
    write_file(out, text.getvalue(), force=force)
    say(f"Wrote {len(table)} rows to {out}.", err=True)
    return 0
