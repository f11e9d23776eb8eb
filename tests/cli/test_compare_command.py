"""kvscope compare as a build uses it: its exit codes, its table in 80 columns, its JSON."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kvscope.cli.main import cli
from kvscope.errors import UsageError
from kvscope.experiment.measure import measure


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
