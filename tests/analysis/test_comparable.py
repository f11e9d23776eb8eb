"""What differs between two designs: every fact that the record holds, and that something does where it names none."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis.records_to_compare import add, add_trial, design, record
from kvscope.analysis.comparable import Difference, differences
from kvscope.analysis.compare_runs import compare_sides
from kvscope.analysis.compare_sides import read_side
from kvscope.record.store import create_records
from record.rows_for_tests import run_row

FACTS = {"cpu": "a", "kernel": "6.1", "memory_total_bytes": 1000, "accelerators": []}
ASKED = {"factors": [["prompt_tokens", [128, 512]]], "repeats": 3, "warmups": 1}


def told(found: tuple[Difference, ...]) -> list[tuple[str, str, Any, Any]]:
    return [(d.kind, d.name, d.a, d.b) for d in found]


def of_runs(a: dict[str, Any], b: dict[str, Any]) -> list[tuple[str, str, Any, Any]]:
    runs = [run_row(run_id=f"r{number}", **changes) for number, changes in enumerate((a, b))]
    return told(differences(design(), design(), runs_a=runs[:1], runs_b=runs[1:]))


@pytest.mark.parametrize(("name", "other"), [("kernel", "6.2"), ("python", "3.12"), ("accelerator_driver", "580")])
def test_what_changes_on_one_machine_is_said(name: str, other: str) -> None:
    found = of_runs({"machine": FACTS}, {"machine": {**FACTS, name: other}})
    assert found == [("system", name, FACTS.get(name), other)]


def test_what_says_nothing_about_the_machine_is_not() -> None:
    """A few MiB of memory differ from boot to boot, and a record of before GPUs were looked at lacks a fact."""
    older = {name: value for name, value in FACTS.items() if name != "accelerators"}
    assert of_runs({"machine": older}, {"machine": {**FACTS, "memory_total_bytes": 1001}}) == []


def test_the_release_of_kvscope_and_the_version_of_the_design() -> None:
    assert of_runs({"kvscope_version": "0.1"}, {"kvscope_version": "0.2"}) == [
        ("kvscope", "kvscope_version", "0.1", "0.2")
    ]
    assert told(differences(design(), design(design_id="d2", version=2))) == [("question", "version", 1, 2)]


def test_a_side_of_several_releases_has_them_all() -> None:
    runs = [run_row(run_id=name, kvscope_version=name) for name in ("0.1", "0.2")]
    found = told(differences(design(), design(), runs_a=runs, runs_b=runs[1:]))
    assert found == [("kvscope", "kvscope_version", ["0.1", "0.2"], "0.2")]
    assert differences(design(), design(), runs_a=runs, runs_b=runs[::-1]) == ()


def test_an_engine_command_is_a_setting() -> None:
    rows = [design(design_id=each, definition={**ASKED, "engine_command": f"server {each}"}) for each in ("d1", "d2")]
    assert told(differences(*rows)) == [("setting", "engine_command", "server d1", "server d2")]


def test_other_identities_without_a_known_difference_are_never_called_the_same() -> None:
    row = design(definition=ASKED)
    other = replace(row, design_id="d2")
    assert told(differences(row, other)) == [("unnamed", "design_id", "d1", "d2")]
    # Other repeats or levels are what makes them others, and nothing that changes a value.
    assert differences(row, replace(other, definition={**ASKED, "repeats": 9})) == ()
    assert differences(design(), design(design_id="d2", levels=(1, 2))) == ()
    assert differences(row, row) == ()
    assert told(differences(row, replace(other, definition={**ASKED, "warmups": 0}))) == [("question", "warmups", 1, 0)]


def test_facts_are_of_the_rows_that_are_compared(tmp_path: Path) -> None:
    """A later sitting of another machine and release, which measured something else, says nothing about them."""
    ours = run_row(machine=FACTS, kvscope_version="0.1")
    theirs = run_row(run_id="r3", machine={"cpu": "c"}, machine_id="m3", kvscope_version="0.1")
    other = run_row(run_id="r2", machine={"cpu": "b"}, kvscope_version="9.9", machine_id="m2")
    longer = design(design_id="d2", name="output_length", factor="output_tokens", machine_id="m2")
    merged = record(tmp_path / "m.db", (design(), ours, {128: [1.0]}), (longer, other, {128: [1.0]}))
    one = record(tmp_path / "one.db", (design(), ours, {128: [1.0]}))
    third = record(tmp_path / "three.db", (design(design_id="d3", machine_id="m3"), theirs, {128: [1.0]}))
    sides = {path: read_side(str(path), "none.db") for path in (merged, one, third)}
    assert compare_sides(sides[merged], sides[one]).differs == ()
    refused = compare_sides(sides[merged], sides[third])
    assert ("cpu", "a", "c") in [(d.name, d.a, d.b) for d in refused.differs]
    assert "kvscope" not in [d.kind for d in refused.differs]


@pytest.fixture
def by_level(tmp_path: Path) -> Path:
    """A design whose level makes a setting, its second level tried first."""
    path = tmp_path / "kv.db"
    row = design(name="kv_dtype", factor="kv_dtype", levels=("f16", "q8_0"))
    with create_records(path) as recorder:
        add(recorder, row, run_row(), {})
        for level, num_bytes in (("f16", 2), ("q8_0", 1)):
            settings = {"n_ctx": 512, "bytes": num_bytes}
            add_trial(recorder, row, run_row(), level=level, block=0, ttft_s=1.0, settings=settings)
    return path


def test_the_settings_of_a_condition_are_those_of_its_own_rows(by_level: Path) -> None:
    found = compare_sides(read_side("kv_dtype=q8_0", by_level), read_side(str(by_level), "none.db"))
    assert [place.point.level_a for place in found.places] == ["q8_0"]
    assert found.differs == ()


def test_a_level_and_the_setting_it_makes_are_one_cause(by_level: Path) -> None:
    found = compare_sides(read_side("kv_dtype=f16", by_level), read_side("kv_dtype=q8_0", by_level))
    assert [(d.kind, d.name, d.a, d.b, d.because) for d in found.differs] == [
        ("question", "level", "f16", "q8_0", None),
        ("setting", "bytes", 2, 1, "level"),
    ]


def test_a_setting_of_another_design_is_a_cause_of_its_own(by_level: Path, tmp_path: Path) -> None:
    row = design(design_id="d2", name="kv_dtype", factor="kv_dtype", levels=("f16", "q8_0"), settings={"n_ctx": 1024})
    other = record(tmp_path / "o.db", (row, run_row(), {"q8_0": [1.0]}))
    found = compare_sides(read_side("kv_dtype=f16", by_level), read_side(f"{other}#kv_dtype=q8_0", "none.db"))
    assert ("n_ctx", 512, 1024, None) in [(d.name, d.a, d.b, d.because) for d in found.differs]
