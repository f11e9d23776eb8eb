"""kvscope export: the record as tables."""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import click

from kvscope.analysis.table import answer_rows, request_rows, sample_rows, table_rows, token_rows
from kvscope.cli.opened_record import opened_record
from kvscope.cli.output import say
from kvscope.errors import UsageError
from kvscope.experiment.measure import DEFAULT_RECORDS
from kvscope.record.export import FORMATS, write_csv, write_jsonl
from kvscope.record.export_files import write_duckdb, write_parquet
from kvscope.record.rows import Json
from kvscope.record.store import Records
from kvscope.report.files import write_with
from kvscope.report.words import say as words

TEXT_WRITERS = {"jsonl": write_jsonl, "csv": write_csv}
ROWS = {
    "trials": table_rows,
    "requests": request_rows,
    "tokens": token_rows,
    "samples": sample_rows,
    "answers": answer_rows,
}


@click.command()
@click.option("--records", default=DEFAULT_RECORDS, show_default=True, help="Record file.")
@click.option(
    "--format",
    "file_format",
    type=click.Choice(FORMATS),
    default="jsonl",
    show_default=True,
    help="Of the table; duckdb is one database with all of them.",
)
@click.option(
    "--rows",
    type=click.Choice(tuple(ROWS)),
    help="One row per attempt of a trial (trials, the default), per request (each turn of a conversation is one), per "
    "token, per sample of memory, or per answer to a quality task's questions.",
)
@click.option("--out", type=click.Path(dir_okay=False), help="File to write; standard output if left out.")
@click.option("--force", is_flag=True, help="Overwrite the file if it exists.")
@click.option("--json", "as_json", is_flag=True, help="The same as --format jsonl.")
def export(records: str, file_format: str, rows: str | None, out: str | None, force: bool, as_json: bool) -> int:
    """Write the record as a table: one row per attempt of a trial, per request, token, sample or answer; failures are
    rows like any other. Parquet and DuckDB need: pip install 'kvscope[records]'."""
    file_format = "jsonl" if as_json else file_format
    with opened_record(records) as found:
        if out is None:
            _print(found, file_format, rows or "trials")
            return 0
        counts: dict[str, int] = {}
        write_with(out, lambda path: counts.update(_write(found, file_format, rows, path)), force=force)
    if len(counts) == 1:
        (count,) = counts.values()
        say(words("export.wrote_rows", count=count, file=out), err=True)
    else:
        tables = ", ".join(words("export.table", table=name, count=count) for name, count in counts.items())
        say(words("export.wrote_tables", tables=tables, file=out), err=True)
    return 0


def _print(records: Records, file_format: str, rows: str) -> None:
    if file_format not in TEXT_WRITERS:
        raise UsageError(f"{file_format} is not a text: it needs a file.", hint="Name one with --out FILE.")
    TEXT_WRITERS[file_format](ROWS[rows](records), sys.stdout)


def _write(records: Records, file_format: str, rows: str | None, path: Path) -> Mapping[str, int]:
    """Write the file; returns table → how many rows."""
    if file_format == "duckdb":
        tables: dict[str, Iterable[Mapping[str, Json]]] = {
            name: make(records) for name, make in ROWS.items() if rows in (None, name)
        }
        return write_duckdb(tables, path)
    name = rows or "trials"
    if file_format == "parquet":
        return {name: write_parquet(name, ROWS[name](records), path)}
    with path.open("w", encoding="utf-8", errors="backslashreplace", newline="") as out:
        return {name: TEXT_WRITERS[file_format](ROWS[name](records), out)}
