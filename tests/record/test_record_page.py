"""The page about the record's file, held against the file: every table, every column, every way to read it."""

import contextlib
import io
import re
import shutil
import sqlite3
from pathlib import Path

import pytest

from kvscope.record.rows import PHASES
from kvscope.record.schema import SCHEMA_VERSION
from kvscope.record.store import create_records, open_records

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "record-file.md").read_text(encoding="utf-8")


def described() -> dict[str, list[tuple[str, str]]]:
    """Table → (column, type) as the page lists them."""
    sections = re.split(r"^### `(\w+)`$", PAGE, flags=re.MULTILINE)[1:]
    return {
        table: re.findall(r"^\| `(\w+)` \| ([^|]+) \|", text, flags=re.MULTILINE)
        for table, text in zip(sections[::2], sections[1::2], strict=True)
    }


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A real record under the name that the page uses."""
    path = tmp_path / "kvscope.db"
    shutil.copy(ROOT / "tests" / "golden" / "records" / "schema3.db", path)
    create_records(path).close()
    monkeypatch.chdir(tmp_path)
    return path


def test_every_table_and_every_column_is_described(record: Path) -> None:
    connection = sqlite3.connect(record)
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    found = {}
    for table in tables:
        found[table] = [
            (name, kind if is_required or is_key else f"{kind}, may be null")
            for _, name, kind, is_required, _, is_key in connection.execute(f"PRAGMA table_info({table})")
        ]
    connection.close()
    assert described() == found
    assert f"this page is of schema {SCHEMA_VERSION}" in PAGE
    assert all(f"`{phase}`" in PAGE for phase in PHASES)


def test_the_lines_for_sqlite3_and_python_do_what_they_say(record: Path) -> None:
    (query,) = re.findall(r'sqlite3 kvscope.db "([^"]+)"', PAGE)
    with contextlib.closing(sqlite3.connect(record)) as connection:
        rows = connection.execute(query).fetchall()
    assert sum(count for _, _, count, _ in rows) == 7  # measured and ok, of 11 attempts
    assert all(mean > 0 for *_, mean in rows)
    (code,) = re.findall(r"```python\n(.+?)```", PAGE, flags=re.DOTALL)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {})
    with open_records(record) as records:
        tokens = [token for trial in records.trials() for token in records.result(trial).tokens]
    assert [f"({token.at_s!r}, {token.text!r})" for token in tokens] == re.findall(
        r"\((?:[\d.e-]+), (?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")\)", printed.getvalue()
    )


def test_the_lines_for_duckdb_do_what_they_say(record: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    from click.testing import CliRunner

    from kvscope.cli.main import cli

    (export,) = re.findall(r"^kvscope (export --format duckdb .+)$", PAGE, flags=re.MULTILINE)
    assert CliRunner().invoke(cli, export.split(), standalone_mode=False).exception is None
    (query,) = re.findall(r'duckdb record.duckdb "([^"]+)"', PAGE)
    with duckdb.connect("record.duckdb", read_only=True) as connection:
        assert len(connection.execute(query).fetchall()) > 1
