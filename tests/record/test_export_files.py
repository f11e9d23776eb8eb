"""Parquet and DuckDB files, read back by the libraries that others read them with."""

import builtins
import io
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from rows_for_tests import answer_row, design_row, full_result, request_row, run_row, trial_row

from kvscope.analysis.table import answer_rows, request_rows, sample_rows, table_rows, token_rows
from kvscope.cli.main import cli
from kvscope.errors import MissingDependency, UsageError
from kvscope.record import export_files
from kvscope.record.export import write_csv, write_jsonl
from kvscope.record.rows import PredictionRow, SampleRow, TokenRow, TrialResult, WarningRow
from kvscope.record.store import create_records, open_records
from kvscope.record.table_columns import TABLES

duckdb = pytest.importorskip("duckdb")
parquet = pytest.importorskip("pyarrow.parquet")

GOLDEN = Path(__file__).parent.parent / "golden" / "records"
MAKERS = {
    "trials": table_rows,
    "requests": request_rows,
    "tokens": token_rows,
    "samples": sample_rows,
    "answers": answer_rows,
}
HOSTILE = 'a\x00b,"c"\n\'); DROP TABLE trials; -- \u202e🙂 \ud83d'
READ_BACK = HOSTILE.replace("\ud83d", "\\ud83d")  # half of a character is written out when it is recorded


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A trial of everything, of extreme numbers and hostile texts, and one that failed at once."""
    path = tmp_path / "r.db"
    good, bad = trial_row(level=HOSTILE, levels={"x": HOSTILE}), trial_row(trial_id="t2", position=1)
    whole = replace(
        full_result(replace(good, outcome="ok", duration_s=0.1 + 0.2)),
        requests=(request_row(finish_reason=HOSTILE, completed_s=math.pi),),
        tokens=tuple(
            TokenRow(request_index=0, index=n, at_s=(n + 1) / 3, text=HOSTILE, kind="content") for n in range(4)
        ),
        samples=(SampleRow(quantity="anon_bytes", at_s=5e-324, value_bytes=2**63 - 1, late_s=0.0),),
        warnings=(WarningRow(slug=HOSTILE, message="", hint=""), WarningRow(slug="", message="", hint="")),
        answers=(
            answer_row(item=HOSTILE, answer=HOSTILE, facts={"x": [1, HOSTILE]}, score=1 / 3),
            answer_row(index=1, reading="failed", score=None, evidence_in_prompt=None, answer=None),
        ),
    )
    prediction = {"totals": {"kv_cache_bytes": 2**53 + 1, "total_bytes": None}}
    with create_records(path) as recorder:
        recorder.add_run(run_row())
        recorder.add_design(design_row(model_name=HOSTILE))
        recorder.start_trial(good, PredictionRow(created_at="", prediction=prediction))
        recorder.finish_trial(whole)
        recorder.start_trial(bad, None)
        recorder.finish_trial(TrialResult(trial=replace(bad, outcome="engine_died", error_slug="engine-died")))
    return path


def lines(path: Path, table: str) -> list[dict[str, Any]]:
    """The rows as JSON Lines hold them."""
    out = io.StringIO()
    with open_records(path) as records:
        write_jsonl(MAKERS[table](records), out)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def as_lines(table: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of a file with types, as JSON Lines would hold them: JSON columns parsed, all else as it is."""
    kinds = {column.name: column.kind for column in TABLES[table]}
    return [
        {
            name: json.loads(value) if kinds[name] == "json" and value is not None else value
            for name, value in row.items()
        }
        for row in rows
    ]


def exported(path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["export", "--records", str(path), *arguments], standalone_mode=False)


def all_rows(connection: Any, table: str) -> list[dict[str, Any]]:
    found = connection.execute(f"SELECT * FROM {table}")
    names = [column[0] for column in found.description]
    return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


@pytest.fixture(params=["made up", "lab.db", "schema3.db"])
def record(request: pytest.FixtureRequest, path: Path) -> Path:
    return path if request.param == "made up" else GOLDEN / request.param


@pytest.mark.parametrize("table", list(TABLES))
def test_parquet_holds_what_json_lines_hold(record: Path, tmp_path: Path, table: str) -> None:
    out = tmp_path / "rows.parquet"
    done = exported(record, "--format", "parquet", "--rows", table, "--out", str(out))
    assert done.exception is None, done.exception
    expected = lines(record, table)
    assert expected or (table == "answers" and record.parent == GOLDEN)  # older than answers
    assert as_lines(table, parquet.read_table(out).to_pylist()) == expected
    assert f"Wrote {len(expected)} rows" in done.stderr


def test_duckdb_holds_all_tables_in_one_file(record: Path, tmp_path: Path) -> None:
    out = tmp_path / "record.duckdb"
    done = exported(record, "--format", "duckdb", "--out", str(out))
    assert done.exception is None, done.exception
    with duckdb.connect(str(out), read_only=True) as connection:
        assert [name for (name,) in connection.execute("SHOW TABLES").fetchall()] == sorted(TABLES)
        for table in TABLES:
            assert as_lines(table, all_rows(connection, table)) == lines(record, table), table
    assert [file.name for file in tmp_path.iterdir() if file.suffix == ".duckdb"] == ["record.duckdb"]


def test_hostile_texts_and_extreme_numbers_come_out_as_they_went_in(path: Path) -> None:
    row, failed = lines(path, "trials")
    assert (row["level"], row["model_name"], row["warnings"]) == (READ_BACK, READ_BACK, [READ_BACK, ""])
    assert (row["duration_s"], row["kv_cache_bytes_predicted"]) == (0.1 + 0.2, 2**53 + 1)
    assert [token["text"] for token in lines(path, "tokens")] == [READ_BACK] * 4
    assert lines(path, "samples")[0]["value_bytes"] == 2**63 - 1
    unknown = [name for name, value in failed.items() if value is None]
    assert {"ttft_s", "memory_peak_bytes", "prompt_tokens_server", "kv_cache_bytes_predicted"} <= set(unknown)


def test_unknown_is_null_and_types_are_what_they_say(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "trials.parquet"
    exported(path, "--format", "parquet", "--out", str(out))
    types = {field.name: str(field.type) for field in parquet.read_schema(out)}
    for name, kind in types.items():
        if name.endswith("_s"):
            assert kind == "double", name
        if "_bytes" in name or name.endswith("_tokens"):
            assert kind == "int64", name
    assert (types["warnings"], types["settings"]) == ("list<element: string>", "string")
    failed = parquet.read_table(out).to_pylist()[1]
    assert failed["ttft_s"] is failed["memory_peak_bytes"] is None
    with duckdb.connect() as connection:
        query = f"SELECT count(*), count(ttft_s), sum(isnan(ttft_s)::INT) FROM '{out}'"
        assert connection.execute(query).fetchone() == (2, 1, 0)


def test_a_table_without_rows_has_its_columns(tmp_path: Path) -> None:
    with create_records(tmp_path / "empty.db") as recorder:
        recorder.add_run(run_row())
    for file_format, name in (("parquet", "o.parquet"), ("duckdb", "o.duckdb")):
        assert exported(tmp_path / "empty.db", "--format", file_format, "--out", str(tmp_path / name)).exception is None
    assert parquet.read_table(tmp_path / "o.parquet").column_names == [column.name for column in TABLES["trials"]]
    with duckdb.connect(str(tmp_path / "o.duckdb"), read_only=True) as connection:
        assert all_rows(connection, "tokens") == []


def test_every_column_is_of_the_kind_that_its_table_says(record: Path) -> None:
    kinds = {"text": str, "int": int, "float": (int, float), "bool": bool, "texts": list, "json": object}
    for table, columns in TABLES.items():
        for row in lines(record, table):
            assert list(row) == [column.name for column in columns]
            for column in columns:
                value = row[column.name]
                assert value is None or isinstance(value, kinds[column.kind]), column.name  # type: ignore[arg-type]


def test_rows_are_written_as_they_come(tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No writer asks for all rows before it writes the first."""
    monkeypatch.setattr(export_files, "_BATCH", 10)
    (row, _) = lines(path, "trials")
    ahead = 0

    class Out(io.StringIO):
        def write(self, text: str) -> int:
            nonlocal ahead
            ahead = 0
            return super().write(text)

    def rows() -> Any:
        nonlocal ahead
        for _ in range(100):
            ahead += 1
            assert ahead <= 2
            yield row

    assert write_jsonl(rows(), Out()) == write_csv(rows(), Out()) == 100
    most = 0
    made = export_files._batches

    def counted(*arguments: Any) -> Any:
        nonlocal most
        for batch in made(*arguments):
            most = max(most, batch.num_rows)
            yield batch

    monkeypatch.setattr(export_files, "_batches", counted)
    assert export_files.write_parquet("trials", ({**row, "level": 1} for _ in range(95)), tmp_path / "p") == 95
    assert most == 10


@pytest.mark.parametrize(
    ("missing", "file_format"), [("pyarrow", "parquet"), ("pyarrow", "duckdb"), ("duckdb", "duckdb")]
)
def test_without_the_package_it_says_what_to_install(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str, file_format: str
) -> None:
    found = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.split(".")[0] == missing:
            raise ImportError(name)
        return found(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    done = exported(path, "--format", file_format, "--out", str(tmp_path / "out"))
    assert isinstance(done.exception, MissingDependency)
    assert "kvscope[records]" in str(done.exception.hint)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("file_format", ["parquet", "duckdb"])
def test_a_format_that_is_no_text_needs_a_file(path: Path, file_format: str) -> None:
    assert isinstance(exported(path, "--format", file_format).exception, UsageError)


def test_one_table_alone_to_duckdb(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "one.duckdb"
    done = exported(path, "--format", "duckdb", "--rows", "requests", "--out", str(out))
    assert done.exception is None
    with duckdb.connect(str(out), read_only=True) as connection:
        assert connection.execute("SHOW TABLES").fetchall() == [("requests",)]
