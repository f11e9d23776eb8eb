"""The table of a record: the same rows wherever they are printed."""

import json
from pathlib import Path

from click.testing import CliRunner
from study_rows import whole_lab, write_record

from kvscope.analysis.attribute import attribute
from kvscope.analysis.table import table_rows
from kvscope.cli.main import cli
from kvscope.record.store import open_records


def test_the_unexplained_rest_is_in_every_row_that_has_one(tmp_path: Path) -> None:
    attempts = {a.key: a for a in whole_lab()}
    with open_records(write_record(tmp_path / "r.db", attempts.values())) as records:
        rows = list(table_rows(records))
    assert len(rows) == 25
    for row in rows:
        one = attempts[f"{row['trial_id']}/{row['attempt']}"]
        found = attribute(one.result, one.prediction, "loaded")
        assert row["unexplained_bytes"] == (None if found is None else found.unexplained_bytes)
    assert [r["unexplained_bytes"] for r in rows].count(None) < 10


def test_measure_prints_the_rows_that_export_prints(tmp_path: Path) -> None:
    record = str(tmp_path / "r.db")
    common = ["measure", "context_limit", "--engine", "fake", "--levels", "512,1024", "--repeats", "1"]
    printed = CliRunner().invoke(cli, [*common, "--records", record, "--json"], standalone_mode=False)
    assert printed.exception is None, printed.exception
    exported = CliRunner().invoke(cli, ["export", "--records", record], standalone_mode=False)
    assert json.loads(printed.stdout) == [json.loads(line) for line in exported.stdout.splitlines()]
    assert any(row["unexplained_bytes"] is not None for row in json.loads(printed.stdout))
