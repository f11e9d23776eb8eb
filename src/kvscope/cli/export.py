"""kvscope export: the record as a table."""

import sys
from pathlib import Path
from typing import TextIO

import click

from kvscope.analysis.attribute import unexplained_bytes
from kvscope.cli.output import say
from kvscope.errors import OutputExists, RecordUnwritable
from kvscope.experiment.measure import DEFAULT_RECORDS
from kvscope.record.export import FORMATS, export_rows, write_csv, write_jsonl
from kvscope.record.rows import Json
from kvscope.record.store import open_records

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
    rows = _rows(records)
    write = WRITERS["jsonl" if as_json else file_format]
    if out is None:
        write(rows, sys.stdout)
        return 0
    with _create(Path(out), force) as file:
        write(rows, file)
    say(f"Wrote {len(rows)} rows to {out}.", err=True)
    return 0


def _rows(path: str) -> list[dict[str, Json]]:
    with open_records(path) as records:
        rows = export_rows(records)
        for row in rows:
            result = records.result(row["trial_id"], row["attempt"])
            prediction = records.prediction(row["trial_id"], row["attempt"])
            row["unexplained_bytes"] = unexplained_bytes(result, prediction)
    return rows


def _create(path: Path, force: bool) -> TextIO:
    try:
        return path.open("w" if force else "x", encoding="utf-8", newline="")
    except FileExistsError as error:
        raise OutputExists(f"{path} exists already.", hint="Name another file, or add --force.") from error
    except OSError as error:
        raise RecordUnwritable(f"Cannot write {path}: {error.strerror}.", hint="Name another file.") from error
