"""kvscope measure release: the verdicts stand on standard output, with what each step gave back."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kvscope.cli.main import cli
from kvscope.experiment.designs.release import ROUNDS, SAME_AGAIN_ROUNDS


@pytest.fixture
def record(tmp_path: Path) -> str:
    return str(tmp_path / "r.db")


def measure(record: str, *words: str) -> Result:
    command = ["measure", "release", "--engine", "fake", "--records", record, "--set", "load_s=0", *words]
    done = CliRunner().invoke(cli, command, standalone_mode=False)
    assert done.exception is None, done.exception
    return done


def test_the_verdicts_are_printed(record: str) -> None:
    printed = " ".join(measure(record, "--levels", "8192,0").stdout.split())
    # The fake engine copies every conversation: 512 + 16 tokens × 23,040 B are 11.6 MiB.
    assert "Retained and bounded, with cache_ram_mib = 8192: each conversation leaves 11.6 MiB more" in printed
    assert "of at most 8.0 GiB" in printed
    rounds = ROUNDS + SAME_AGAIN_ROUNDS
    assert f"Retained and bounded, with cache_ram_mib = 0: over {rounds} conversations memory moved by +0.0" in printed
    # By its law 28 MiB of its heap stay with the process after its release.
    assert "28.0 MiB of 134.0 MiB stay: the allocator keeps 28.0 MiB for reuse" in printed
    assert "moment held given back" in printed


def test_what_the_law_keeps_is_what_is_found(record: str) -> None:
    printed = measure(record, "--levels", "0", "--set", "fixed_bytes=0").stdout
    assert printed.startswith("Released, with cache_ram_mib = 0")


def test_json_is_rows_alone(record: str) -> None:
    rows = json.loads(measure(record, "--levels", "0", "--json").stdout)
    assert [row["design"] for row in rows] == ["release"] * 2


def test_another_design_says_nothing_of_a_release(record: str) -> None:
    command = ["measure", "input_length", "--engine", "fake", "--levels", "64", "--repeats", "1", "--records", record]
    done = CliRunner().invoke(cli, command, standalone_mode=False)
    assert done.exception is None
    assert "cache_ram_mib" not in done.stdout
