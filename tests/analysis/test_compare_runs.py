"""Two sides of a record held against each other. Differences and intervals are derived by hand where they are given."""

from pathlib import Path
from typing import Any

import pytest

from analysis.records_to_compare import add, design, record
from kvscope.analysis.compare_json import comparison_dict
from kvscope.analysis.compare_metrics import METRICS
from kvscope.analysis.compare_runs import compare_sides, judge_all
from kvscope.analysis.compare_sides import read_side
from kvscope.analysis.fail_if import FAILED, NOT_MEASURED, parse_fail_if
from kvscope.errors import RecordNotFound, UsageError
from kvscope.record.store import create_records
from record.rows_for_tests import run_row


def test_two_conditions_of_one_design_are_paired_by_block(tmp_path: Path) -> None:
    path = record(tmp_path / "r.db", (design(), run_row(), {128: [1.0, 2.0, 3.0], 512: [1.5, 2.6, 3.7]}))
    found = compare_sides(read_side("prompt_tokens=128", path), read_side("input_length=512", path))
    (place,) = found.places
    assert place.is_paired
    effect = place.effects["ttft_s"]
    # Differences 0.5, 0.6, 0.7: mean 0.6, standard deviation 0.1, standard error 0.1/√3; t(2) at 95 % is 4.302653.
    assert effect.difference.value == pytest.approx(0.6)
    assert effect.difference.high == pytest.approx(0.6 + 4.302653 * 0.1 / 3**0.5, rel=1e-6)
    assert [(d.name, d.a, d.b) for d in found.differs] == [("level", 128, 512)]


def test_two_files_share_no_blocks_and_are_not_paired(tmp_path: Path) -> None:
    before = record(tmp_path / "a.db", (design(), run_row(), {128: [1.0, 2.0, 3.0], 512: [5.0, 5.0, 5.0]}))
    after = record(
        tmp_path / "b.db",
        (design(design_id="d2", settings={"n_ctx": 1024}), run_row(run_id="run2"), {128: [2.0, 3.0, 4.0], 512: [6.0]}),
    )
    found = compare_sides(read_side(str(before), "unused.db"), read_side(str(after), "unused.db"))
    assert [(d.kind, d.name, d.a, d.b) for d in found.differs] == [("setting", "n_ctx", 512, 1024)]
    assert [(p.point.level_a, p.a.measured, p.b.measured, p.is_paired) for p in found.places] == [
        (128, 3, 3, False),
        (512, 3, 1, False),
    ]
    effect = found.places[0].effects["ttft_s"]
    # Both have variance 1, so Welch's standard error is √(1/3 + 1/3) with 4 degrees of freedom; t(4) at 95 %: 2.776445.
    assert effect.difference.value == pytest.approx(1.0)
    assert effect.difference.low == pytest.approx(1.0 - 2.776445 * (2 / 3) ** 0.5, rel=1e-6)
    assert found.places[1].effects["ttft_s"].verdict == "unknown"


@pytest.mark.parametrize(
    ("changes", "kind", "name"),
    [
        ({"machine_id": "m2"}, "machine", "machine_id"),
        ({"model_fingerprint": "g", "model_name": "other"}, "model", "model"),
        ({"engine_build": "b2"}, "engine", "engine_build"),
    ],
)
def test_another_machine_model_or_build_is_refused_unless_that_is_asked(
    tmp_path: Path, changes: dict[str, Any], kind: str, name: str
) -> None:
    before = record(tmp_path / "a.db", (design(), run_row(), {128: [1.0, 2.0]}))
    after = record(tmp_path / "b.db", (design(design_id="d2", **changes), run_row(run_id="run2"), {128: [1.0, 2.0]}))
    sides = read_side(str(before), ""), read_side(str(after), "")
    refused = compare_sides(*sides)
    assert refused.places == ()
    assert [(d.kind, d.name) for d in refused.refused] == [(kind, name)]
    asked = compare_sides(*sides, across=(kind,))
    assert len(asked.places) == 1
    assert [d.name for d in asked.differs] == [name]


def test_machines_are_told_apart_by_their_facts(tmp_path: Path) -> None:
    other = run_row(run_id="run2", machine_id="m2", machine={"cpu": "another", "usable_cpus": 2})
    before = record(tmp_path / "a.db", (design(), run_row(), {128: [1.0]}))
    after = record(tmp_path / "b.db", (design(design_id="d2", machine_id="m2"), other, {128: [1.0]}))
    found = compare_sides(read_side(str(before), ""), read_side(str(after), ""))
    assert [(d.name, d.a, d.b) for d in found.refused] == [("cpu", "a processor", "another")]


def test_sittings_by_place_and_by_id(tmp_path: Path) -> None:
    path = record(
        tmp_path / "r.db",
        (design(), run_row(run_id="aaaa11"), {128: [1.0, 1.0]}),
        (design(design_id="d2", seed=1), run_row(run_id="bbbb22"), {128: [2.0, 2.0]}),
    )
    by_place = compare_sides(read_side("previous", path), read_side("last", path))
    by_id = compare_sides(read_side("aaaa", path), read_side(f"{path}#bbbb22", "no.db"))
    for found in (by_place, by_id):
        assert found.places[0].effects["ttft_s"].difference.value == pytest.approx(1.0)
        assert [(d.kind, d.name) for d in found.differs] == [("question", "seed")]


def test_what_only_one_side_has_is_said(tmp_path: Path) -> None:
    before = record(tmp_path / "a.db", (design(), run_row(), {128: [1.0]}))
    after = record(
        tmp_path / "b.db",
        (design(design_id="d2", name="output_length", factor="output_tokens"), run_row(), {16: [1.0]}),
    )
    found = compare_sides(read_side(str(before), ""), read_side(str(after), ""))
    assert [(left.what, left.reason) for left in found.left_out] == [
        ("input_length", "only_in_a"),
        ("output_length", "only_in_b"),
    ]
    assert found.places == ()


def test_failed_trials_are_counted_and_never_averaged(tmp_path: Path) -> None:
    with create_records(tmp_path / "r.db") as recorder:
        add(recorder, design(), run_row(), {128: [1.0, 1.0], 512: [2.0, 2.0]}, failed=(512,))
    path = tmp_path / "r.db"
    found = compare_sides(read_side("input_length=128", path), read_side("input_length=512", path))
    assert (found.places[0].b.measured, found.places[0].b.failed) == (2, 1)
    assert found.places[0].effects["ttft_s"].changed == 2.0


def test_conditions_of_failing_and_what_is_not_there_fails_too(tmp_path: Path) -> None:
    path = record(tmp_path / "r.db", (design(), run_row(), {128: [1.0, 2.0, 3.0], 512: [1.5, 2.6, 3.7]}))
    found = compare_sides(read_side("prompt_tokens=128", path), read_side("prompt_tokens=512", path))
    states = {
        text: judge_all(found, parse_fail_if(text, METRICS))[0].state for text in ("ttft > +1ms", "memory_peak > +5%")
    }
    assert states == {"ttft > +1ms": FAILED, "memory_peak > +5%": NOT_MEASURED}
    written = comparison_dict(found, {"ttft > +1ms": judge_all(found, parse_fail_if("ttft > +1ms", METRICS))})
    assert written["schema"] == "kvscope.compare/1"
    assert written["fail_if"][0]["state"] == FAILED


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("prompt_tokens=999", "no level"),
        ("cache_type_k=f16", "No design"),
        ("nothing", "names nothing"),
        ("previous", "sittings"),
    ],
)
def test_a_name_that_stands_for_nothing_says_what_there_is(tmp_path: Path, name: str, message: str) -> None:
    path = record(tmp_path / "r.db", (design(), run_row(), {128: [1.0]}))
    with pytest.raises(UsageError, match=message) as caught:
        read_side(name, path)
    assert caught.value.hint


def test_a_begin_of_several_ids_is_refused(tmp_path: Path) -> None:
    path = record(
        tmp_path / "r.db",
        (design(), run_row(run_id="aaaa11"), {128: [1.0]}),
        (design(design_id="d2", seed=1), run_row(run_id="aaaa22"), {128: [2.0]}),
    )
    with pytest.raises(UsageError, match="begin of 2 ids"):
        read_side("aaaa", path)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(RecordNotFound):
        read_side("last", tmp_path / "none.db")
