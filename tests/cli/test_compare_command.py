"""kvscope compare as a build uses it: its exit codes, its table in 80 columns, its JSON."""

import json
import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from analysis.records_to_compare import design, record
from kvscope.cli.main import cli
from kvscope.errors import SchemaMismatch, UsageError
from kvscope.experiment.measure import measure
from record.rows_for_tests import run_row


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sittings of the fake engine: the first token takes 10 ms and 0.1 ms a token; in the second 20 ms and as
    much a token."""
    path = tmp_path_factory.mktemp("compare") / "r.db"
    for ttft_s in (0.01, 0.02):
        measure(
            "input_length",
            engine="fake",
            levels=(100, 400),
            repeats=2,
            settings={"ttft_s": ttft_s, "load_s": 0.0, "itl_s": 0.0001},
            records=path,
        )
    return path


def compare(*words: str, records: Path) -> Result:
    result = CliRunner().invoke(cli, ["compare", *words, "--records", str(records)], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result


def test_a_table_of_80_columns_that_says_what_differs(records: Path) -> None:
    result = compare("previous", "last", records=records)
    assert result.return_value == 0
    assert "ttft_s 0.01 → 0.02" in result.output
    assert max(map(len, result.output.splitlines())) <= 80
    # 10 ms + 100 × 0.1 ms = 20 ms, and 10 ms more in the second sitting; the fake engine's law has no noise.
    row = next(line for line in result.output.splitlines() if line.strip().startswith("ttft, ms"))
    assert row.split()[2:4] == ["20.00", "+10.00"]


def test_exit_codes_for_a_build(records: Path) -> None:
    assert compare("previous", "last", "--fail-if", "ttft > +5ms", records=records).return_value == 1
    assert compare("previous", "last", "--fail-if", "ttft > +15ms", records=records).return_value == 0
    assert compare("previous", "last", "--fail-if", "memory_peak_device > 0", records=records).return_value == 1


def test_all_of_it_as_json(records: Path) -> None:
    found = json.loads(compare("prompt_tokens=100", "prompt_tokens=400", "--json", records=records).output)
    assert found["schema"] == "kvscope.compare/1"
    (place,) = found["places"]
    assert place["is_paired"]
    # 300 tokens more, 0.1 ms each.
    assert place["metrics"]["ttft_s"]["difference"] == pytest.approx(0.03, rel=1e-9)


def test_a_condition_that_is_none_is_told_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a condition"):
        compare("last", "previous", "--fail-if", "ttft", records=tmp_path / "none.db")


def test_an_undecided_condition_fails_where_that_is_asked(tmp_path: Path) -> None:
    """Times of 1, 2 and 3 s against the same: whether they grew by more than 1 % nobody can tell."""
    path = record(tmp_path / "r.db", (design(), run_row(), {128: [1.0, 2.0, 3.0]}))
    words = (str(path), str(path), "--fail-if", "ttft > +1%")
    undecided = compare(*words, records=path)
    assert (undecided.return_value, compare(*words, "--strict", records=path).return_value) == (0, 1)
    assert "undecided: ttft > +1%" in undecided.output


def test_verdicts_are_printed_and_a_strict_build_passes_what_is_certain(records: Path) -> None:
    result = compare("previous", "last", "--fail-if", "ttft > +5ms", "--fail-if", "ttft > +1s", records=records)
    assert "input_length at 100: FAILED: ttft > +5ms" in result.output
    assert "input_length at 400: ok: not ttft > +1s" in result.output
    assert compare("previous", "last", "--fail-if", "ttft > +1s", "--strict", records=records).return_value == 0


def test_a_share_is_printed_as_one(records: Path) -> None:
    # From 20 ms to 30.
    assert "+50.0 %" in compare("previous", "last", records=records).output


def test_what_is_not_comparable_has_a_code_of_its_own(tmp_path: Path) -> None:
    before = record(tmp_path / "a.db", (design(), run_row(), {128: [1.0]}))
    after = record(tmp_path / "b.db", (design(design_id="d2", engine_build="b2"), run_row(), {128: [1.0]}))
    other = record(tmp_path / "c.db", (design(design_id="d3", levels=(9,)), run_row(), {9: [1.0]}))
    refused = compare(str(before), str(after), "--fail-if", "ttft > +1%", records=before)
    assert (refused.return_value, "--across engine" in refused.output) == (2, True)
    assert compare(str(before), str(after), "--across", "engine", records=before).return_value == 0
    nothing = compare(str(before), str(other), records=before)
    assert (nothing.return_value, "Nothing was measured on both sides" in nothing.output) == (2, True)


def test_a_level_that_b_did_not_measure_breaks_the_build(tmp_path: Path) -> None:
    whole = record(tmp_path / "a.db", (design(), run_row(), {128: [1.0, 1.0], 512: [2.0, 2.0]}))
    half = record(tmp_path / "b.db", (design(), run_row(), {128: [1.0, 1.0]}))
    result = compare(str(whole), str(half), "--fail-if", "ttft > +50%", records=whole)
    assert result.return_value == 1
    assert "input_length at 512: FAILED" in result.output
    assert compare(str(whole), str(half), records=whole).return_value == 0  # nothing was asked to fail


def test_throughput_under_load_can_break_a_build(tmp_path: Path) -> None:
    path = tmp_path / "load.db"
    measure(
        "concurrency", engine="fake", levels=(1, 8), repeats=2, records=path,
        settings={"ttft_s": 0.002, "load_s": 0.0, "itl_s": 0.0001},
    )  # fmt: skip
    words = ("concurrency=1", "concurrency=8")
    result = compare(*words, "--fail-if", "ttft_max > +5%", records=path)
    assert result.return_value == 1
    for name in ("load wall, ms", "output tokens/s all", "ttft max, ms"):
        assert name in result.output
    assert max(map(len, result.output.splitlines())) <= 80


def test_a_damaged_record_is_no_failed_build(tmp_path: Path) -> None:
    path = record(tmp_path / "r.db", (design(), run_row(), {128: [1.0]}))
    connection = sqlite3.connect(path)
    connection.execute("UPDATE trials SET levels = '{'")
    connection.commit()
    connection.close()
    with pytest.raises(SchemaMismatch) as caught:
        compare(str(path), str(path), "--fail-if", "ttft > +50%", records=path)
    assert caught.value.exit_code == 4
