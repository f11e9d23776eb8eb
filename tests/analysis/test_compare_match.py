"""Which rows of one side are held against which of the other, and what is said to be left out."""

import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis.records_to_compare import add, add_trial, design, record
from kvscope.analysis.compare_metrics import METRICS
from kvscope.analysis.compare_runs import Comparison, compare_sides, judge_all
from kvscope.analysis.compare_sides import read_side
from kvscope.analysis.fail_if import NOT_MEASURED, PASSED, parse_fail_if
from kvscope.analysis.table import table_rows
from kvscope.errors import RecordNotFound, SchemaMismatch, UsageError
from kvscope.record.store import create_records, open_records
from record.rows_for_tests import run_row

RUN = run_row(run_id="aaaa1111")
LATER = run_row(run_id="bbbb2222")


def compare(a: str | Path, b: str | Path, records: str | Path = "none.db", **options: Any) -> Comparison:
    return compare_sides(read_side(str(a), records), read_side(str(b), records), **options)


def compared(found: Comparison) -> list[tuple[str, str, Any]]:
    """Of each place the two designs and A's level."""
    return [(p.point.pair.a.design_id, p.point.pair.b.design_id, p.point.level_a) for p in found.places]


def left_out(found: Comparison) -> list[tuple[str, Any]]:
    return [(each.reason, each.values.get("design_id", each.values.get("level"))) for each in found.left_out]


def test_the_same_study_is_compared_and_a_later_one_of_the_same_question_is_said(tmp_path: Path) -> None:
    ours = design(design_id="d1", study_id="s1")
    other = design(design_id="d2", study_id="s2", settings={"n_ctx": 1024})
    two = record(tmp_path / "two.db", (ours, RUN, {128: [1.0, 1.0]}), (other, LATER, {128: [9.0, 9.0]}))
    one = record(tmp_path / "one.db", (ours, RUN, {128: [1.0, 1.0]}))
    found = compare(two, one)
    assert compared(found) == [("d1", "d1", 128)]
    assert left_out(found) == [("another_compared", "d2")]
    assert found.differs == ()


def test_every_study_that_both_have_is_compared(tmp_path: Path) -> None:
    designs = [design(design_id=f"d{n}", study_id=f"s{n}", settings={"n_ctx": 512 * n}) for n in (1, 2)]
    path = record(tmp_path / "r.db", *((each, RUN, {128: [1.0]}) for each in designs))
    assert sorted(compared(compare(path, path))) == [("d1", "d1", 128), ("d2", "d2", 128)]


def test_designs_of_no_common_study_are_matched_by_what_is_held_and_then_the_last(tmp_path: Path) -> None:
    kept, changed = {"output_tokens": 8}, {"output_tokens": 99}
    before = record(tmp_path / "a.db", (design(design_id="d1", study_id="s1", held=kept), RUN, {128: [1.0]}))
    after = record(
        tmp_path / "b.db",
        (design(design_id="d2", study_id="s2", held=kept, settings={"n_ctx": 1}), RUN, {128: [1.0]}),
        (design(design_id="d3", study_id="s3", held=kept, settings={"n_ctx": 2}), RUN, {128: [1.0]}),
        (design(design_id="d4", study_id="s4", held=changed), RUN, {128: [1.0]}),
    )
    found = compare(before, after)
    assert compared(found) == [("d1", "d3", 128)]
    assert left_out(found) == [("another_compared", "d2"), ("another_compared", "d4")]


def test_a_design_that_measured_levels_of_the_other_side_wins_over_a_later_one_that_did_not(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with create_records(path) as recorder:
        add(recorder, design(design_id="d1", study_id="s1"), RUN, {128: [1.0]})
        failing = design(design_id="d2", study_id="s2", seed=1)
        add(recorder, failing, RUN, {})
        add_trial(recorder, failing, RUN, level=128, block=0, outcome="engine_died", error_slug="engine-died")
        add(recorder, design(design_id="d3", study_id="s3", levels=(999,)), RUN, {999: [1.0]})
    other = record(tmp_path / "b.db", (design(design_id="d4", study_id="s4", seed=2), RUN, {128: [1.0]}))
    assert compared(compare(path, other)) == [("d1", "d4", 128)]


@pytest.mark.parametrize("changes", [{"machine_id": "m2"}, {"engine_build": "b2"}])
def test_rows_of_a_machine_or_build_that_both_sides_have_are_preferred(tmp_path: Path, changes: dict[str, Any]) -> None:
    ours = design(design_id="d1", study_id="s1")
    theirs = replace(ours, design_id="d2", **changes)
    merged = record(tmp_path / "m.db", (ours, RUN, {128: [1.0]}), (theirs, LATER, {128: [2.0]}))
    one = record(tmp_path / "one.db", (ours, RUN, {128: [1.0]}))
    found = compare(merged, one)
    assert compared(found) == [("d1", "d1", 128)]
    assert (found.differs, left_out(found)) == ((), [("another_compared", "d2")])
    # Across builds or machines it is the one begun last that shall be held against the other.
    kind = "machine" if "machine_id" in changes else "engine"
    assert compared(compare(one, merged, across=(kind,))) == [("d1", "d2", 128)]


def test_a_study_that_may_not_be_compared_is_not_hidden_by_another_that_may(tmp_path: Path) -> None:
    """Two studies of one question on both sides, one of them run with another build."""
    one, two = (design(design_id=f"d{n}", study_id=f"s{n}", settings={"n_ctx": 512 * n}) for n in (1, 2))
    before = record(tmp_path / "a.db", (one, RUN, {128: [1.0]}), (two, RUN, {128: [1.0]}))
    other = replace(one, design_id="d3", engine_build="b2")
    after = record(tmp_path / "b.db", (two, RUN, {128: [1.0]}), (other, RUN, {128: [1.0]}))
    found = compare(before, after)
    assert compared(found) == [("d2", "d2", 128)]
    assert [each.reason for each in found.left_out] == ["not_comparable"]


@pytest.mark.parametrize(
    ("later", "theirs"),
    [
        # Another machine, where the first is of theirs.
        ({"machine_id": "m2", "study_id": "s1"}, {"design_id": "d3", "study_id": "s3", "seed": 7}),
        # Another study, where the first is theirs on another start of the engine.
        ({"study_id": "s2", "seed": 7}, {"design_id": "d3", "study_id": "s1"}),
        # The same study started otherwise, where the first is the very design.
        ({"study_id": "s1"}, {"design_id": "d1", "study_id": "s1"}),
    ],
)
def test_of_several_designs_with_a_condition_the_likest_wins_over_the_last(
    tmp_path: Path, later: dict[str, Any], theirs: dict[str, Any]
) -> None:
    first, second = design(design_id="d1", study_id="s1"), design(design_id="d2", **later)
    ours = record(tmp_path / "a.db", (first, RUN, {128: [1.0]}), (second, LATER, {128: [2.0]}))
    other = record(tmp_path / "b.db", (design(**theirs), RUN, {128: [1.0]}))
    found = compare(f"{ours}#input_length=128", f"{other}#input_length=128")
    assert compared(found) == [("d1", theirs["design_id"], 128)]


def test_where_one_question_may_not_be_compared_the_others_are_and_it_fails_a_check(tmp_path: Path) -> None:
    ours = design(design_id="d1", study_id="s1")
    longer = design(design_id="d2", study_id="s2", name="output_length", factor="output_tokens")
    before = record(tmp_path / "a.db", (ours, RUN, {128: [1.0, 1.0]}), (longer, RUN, {128: [1.0, 1.0]}))
    after = record(
        tmp_path / "b.db",
        (ours, RUN, {128: [1.0, 1.0]}),
        (replace(longer, design_id="d3", engine_build="b2"), RUN, {128: [1.0, 1.0]}),
    )
    found = compare(before, after)
    assert compared(found) == [("d1", "d1", 128)]
    assert [(d.kind, d.name) for d in found.refused] == [("engine", "engine_build")]
    assert (found.differs, [each.reason for each in found.left_out]) == ((), ["not_comparable"])
    states = [(each.design, each.state) for each in judge_all(found, parse_fail_if("ttft > +50%", METRICS))]
    assert states == [("input_length", PASSED), ("output_length", NOT_MEASURED)]


def test_what_b_never_measured_fails_a_check_and_what_only_b_has_does_not(tmp_path: Path) -> None:
    whole = record(tmp_path / "a.db", (design(), RUN, {128: [1.0, 1.0], 512: [2.0, 2.0]}))
    half = record(tmp_path / "b.db", (design(), RUN, {128: [1.0, 1.0]}))
    condition = parse_fail_if("ttft > +50%", METRICS)
    missing = judge_all(compare(whole, half), condition)
    assert [(each.level_a, each.level_b, each.state) for each in missing] == [
        (128, 128, PASSED),
        (512, None, NOT_MEASURED),
    ]
    assert [each.state for each in judge_all(compare(half, whole), condition)] == [PASSED]
    assert left_out(compare(half, whole)) == [("only_in_b", 512)]
    # Where one condition was named, the rest of the other side is not what was asked for.
    assert left_out(compare(f"{whole}#input_length=128", whole)) == []


def test_of_two_conditions_the_design_that_holds_both_wins(tmp_path: Path) -> None:
    path = record(
        tmp_path / "r.db",
        (design(design_id="d1"), RUN, {128: [1.0, 1.0], 512: [2.0, 2.0]}),
        (design(design_id="d2", levels=(512, 1024), seed=1), LATER, {512: [3.0, 3.0], 1024: [4.0, 4.0]}),
    )
    found = compare("input_length=128", "input_length=512", path)
    assert compared(found) == [("d1", "d1", 128)]
    assert found.places[0].is_paired
    assert left_out(found) == [("another_compared", "d2")]
    both = compare("input_length=512", "input_length=512", path)
    assert compared(both) == [("d2", "d2", 512)]  # of several that have it, the one begun last


def test_a_design_that_was_only_begun_hides_none_that_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    with create_records(path) as recorder:
        add(recorder, design(design_id="d1"), RUN, {128: [1.0], 512: [2.0]})
        begun = design(design_id="d2", seed=1)
        add(recorder, begun, LATER, {})
        add_trial(recorder, begun, LATER, level=128, block=0, role="warmup", outcome="ok", ttft_s=1.0)
        add_trial(recorder, begun, LATER, level=512, block=0, outcome="interrupted", error_slug="interrupted")
    found = compare("input_length=128", "input_length=512", path)
    assert (compared(found), left_out(found)) == ([("d1", "d1", 128)], [])


def test_a_level_that_was_never_tried_is_told_to_be_run(tmp_path: Path) -> None:
    path = record(tmp_path / "r.db", (design(), RUN, {128: [1.0]}))
    with pytest.raises(UsageError, match="no trial that was measured"):
        read_side("input_length=512", path)


def test_the_last_attempt_counts_and_warm_ups_do_not(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    with create_records(path) as recorder:
        add(recorder, design(), RUN, {128: [1.0], 512: [2.0]})
        add_trial(recorder, design(), RUN, level=128, block=0, attempt=2, ttft_s=7.0)
        add_trial(recorder, design(), RUN, level=512, block=3, role="warmup", ttft_s=90.0, trial_id="w")
        add_trial(recorder, design(), RUN, level=512, block=4, role="warmup", outcome="engine_died", trial_id="x")
    (place,) = compare("input_length=128", "input_length=512", path).places
    assert place.values["ttft_s"] == ((7.0,), (2.0,))
    assert (place.a.measured, place.b.measured, place.b.failed) == (1, 1, 0)


def test_last_is_the_last_sitting_that_measured_something(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    with create_records(path) as recorder:
        add(recorder, design(), RUN, {128: [1.0]})
        add(recorder, design(design_id="d2", seed=1), LATER, {128: [3.0]})
        warmed = run_row(run_id="cccc3333")
        recorder.add_run(warmed)
        add_trial(recorder, design(), warmed, level=128, block=0, role="warmup", ttft_s=9.0, trial_id="w")
    assert read_side("last", path).attempts["d2"][0].run.run_id == "bbbb2222"
    assert list(read_side("previous", path).attempts) == ["d1"]


def test_an_attempt_that_was_interrupted_and_taken_up_later_is_no_failure(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    with create_records(path) as recorder:
        add(recorder, design(), RUN, {128: [1.0, 1.0]})
        add_trial(recorder, design(), RUN, level=128, block=2, outcome="interrupted", error_slug="interrupted")
        recorder.add_run(LATER)
        add_trial(recorder, design(), LATER, level=128, block=2, attempt=2, ttft_s=1.0)
    (place,) = compare("previous", "last", path).places
    assert (place.a.measured, place.a.failed, place.b.measured) == (2, 0, 1)


def test_one_that_was_interrupted_and_never_taken_up_is_one(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    with create_records(path) as recorder:
        add(recorder, design(), RUN, {128: [1.0, 1.0], 512: [1.0]})
        add_trial(recorder, design(), RUN, level=128, block=2, outcome="interrupted", error_slug="interrupted")
    assert compare("input_length=128", "input_length=512", path).places[0].a.failed == 1


def test_pairs_are_of_one_block_and_it_is_counted_how_many_span_two_sittings(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    with create_records(path) as recorder:
        add(recorder, design(), RUN, {128: [1.0, 2.0], 512: [1.5]})
        recorder.add_run(LATER)
        add_trial(recorder, design(), LATER, level=512, block=1, ttft_s=2.6)  # its block began in the first sitting
        add_trial(recorder, design(), LATER, level=512, block=2, ttft_s=100.0)  # nothing to pair it with
    (place,) = compare("input_length=128", "input_length=512", path).places
    assert place.values["ttft_s"] == ((1.0, 2.0), (1.5, 2.6))
    assert place.across_sittings == 1


def test_a_metric_that_one_of_a_pair_lacks_pairs_the_other_blocks(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    with create_records(path) as recorder:
        add(recorder, design(), RUN, {512: [1.5, 2.6, 3.7]})
        for block, ttft_s in enumerate((1.0, None, 3.0)):
            add_trial(recorder, design(), RUN, level=128, block=block, ttft_s=ttft_s)
    (place,) = compare("input_length=128", "input_length=512", path).places
    assert place.values["ttft_s"] == ((1.0, 3.0), (1.5, 3.7))
    assert place.a.measured == 3


GRID = tuple({"n_ctx": n, "n_ubatch": u} for n in (1024, 2048) for u in (64, 128))


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    row = design(name="grid", factor="n_ctx × n_ubatch", levels=GRID, baseline_level=GRID[0], is_grid=True)
    return record(tmp_path / "grid.db", (row, RUN, {tuple(cell.items()): [1.0, 1.0] for cell in GRID}))


def test_cells_of_a_grid_are_held_against_those_that_are_alike_in_all_else(grid: Path) -> None:
    found = compare("n_ctx=1024", "n_ctx=2k", grid)
    assert [(p.point.level_a["n_ubatch"], p.point.level_b["n_ubatch"], p.is_paired) for p in found.places] == [
        (64, 64, True),
        (128, 128, True),
    ]
    assert [(d.name, d.a, d.b) for d in found.differs] == [("n_ctx", 1024, 2048)]


@pytest.mark.parametrize(
    "name", ["n_ubatch=128,n_ctx=1k", "grid=n_ctx=1024,n_ubatch=128", 'grid={"n_ubatch": 128, "n_ctx": 1024}']
)
def test_one_cell_of_a_grid(grid: Path, name: str) -> None:
    assert read_side(name, grid).levels == {"d1": ({"n_ctx": 1024, "n_ubatch": 128},)}


@pytest.mark.parametrize(
    ("levels", "written", "level"),
    [
        ((100, 2048), "2k", 2048),
        ((0.5, 1.5), "1.50", 1.5),
        ((True, False), "False", False),
        (("f16", "q8_0"), "q8_0", "q8_0"),
        (("a,b", "c"), "a,b", "a,b"),
    ],
)
def test_a_level_as_it_was_typed(tmp_path: Path, levels: tuple[Any, ...], written: str, level: Any) -> None:
    path = record(tmp_path / "r.db", (design(levels=levels), RUN, {each: [1.0] for each in levels}))
    assert read_side(f"input_length={written}", path).levels == {"d1": (level,)}


def test_a_short_begin_of_an_id_names_nothing(tmp_path: Path) -> None:
    path = record(tmp_path / "r.db", (design(), RUN, {128: [1.0]}))
    assert read_side("aaaa", path).attempts
    with pytest.raises(UsageError, match="names nothing"):
        read_side("aaa", path)


def test_a_file_that_is_not_there_is_named_itself(tmp_path: Path) -> None:
    path = record(tmp_path / "one.db", (design(), RUN, {128: [1.0]}))
    for name in ("missing.db", f"{tmp_path}/missing", "missing.db#last"):
        with pytest.raises(RecordNotFound, match=r"There is no record file .*missing"):
            read_side(name, path)
    with pytest.raises(RecordNotFound, match=r"'last' is no file, and there is no record file .*none\.db"):
        read_side("last", tmp_path / "none.db")


@pytest.mark.parametrize("name", ["", " ", "{path}#"])
def test_an_empty_name_is_not_the_whole_record(tmp_path: Path, name: str) -> None:
    path = record(tmp_path / "one.db", (design(), RUN, {128: [1.0]}))
    with pytest.raises(UsageError, match="does not say"):
        read_side(name.format(path=path), path)


@pytest.fixture
def without_runs(tmp_path: Path) -> Path:
    path = record(tmp_path / "r.db", (design(), RUN, {128: [1.0]}))
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA foreign_keys = OFF")
    connection.execute("DELETE FROM runs")
    connection.commit()
    connection.close()
    return path


def test_a_sitting_that_is_gone_from_the_record_is_damage(without_runs: Path) -> None:
    with pytest.raises(SchemaMismatch, match="the sitting aaaa1111"):
        read_side(str(without_runs), "none.db")
    with open_records(without_runs) as records, pytest.raises(SchemaMismatch, match="the sitting aaaa1111"):
        list(table_rows(records))
