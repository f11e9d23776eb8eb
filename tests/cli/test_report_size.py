"""A report of very many attempts is announced with what it takes before it is made."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from study_rows import whole_lab, write_record

from kvscope.cli.main import cli


@pytest.mark.parametrize(("many", "is_told"), [(24, True), (25, False)])
def test_a_report_of_many_attempts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, many: int, is_told: bool) -> None:
    monkeypatch.setattr("kvscope.cli.report._MANY", many)
    record = write_record(tmp_path / "r.db", whole_lab())
    done = CliRunner().invoke(cli, ["report", "--records", str(record)], standalone_mode=False)
    assert done.exception is None
    assert ("25 attempts: the report holds them all at once" in done.stderr) == is_told
