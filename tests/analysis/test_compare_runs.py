"""Two sides of a record held against each other. Differences and intervals are derived by hand where they are given."""

import math
from pathlib import Path
from typing import Any

import pytest

from analysis.records_to_compare import add, add_trial, design, record
from kvscope.analysis.attempts import load_attempts
from kvscope.analysis.compare_json import comparison_dict
from kvscope.analysis.compare_metrics import METRICS
from kvscope.analysis.compare_runs import compare_sides, judge_all
from kvscope.analysis.compare_sides import read_side
from kvscope.analysis.fail_if import FAILED, NOT_MEASURED, UNDECIDED, parse_fail_if
from kvscope.analysis.levels import level_rows
from kvscope.errors import RecordNotFound, UsageError
from kvscope.record.store import create_records, open_records
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


def test_all_places_together_are_judged_as_such(tmp_path: Path) -> None:
    """Of one place a rise of 1 with a standard error of 0.1 is over 0.5 for certain, of ten it is not: see
    test_fail_if. Each place has the rates of its design."""
    rise = [0.7, 0.9, 1.0, 1.1, 1.3]
    levels = tuple(range(10))
    before = record(tmp_path / "a.db", (design(levels=levels), run_row(), {n: [10.0] * 5 for n in levels}))
    after = record(tmp_path / "b.db", (design(levels=levels), run_row(), {n: [10 + r for r in rise] for n in levels}))
    condition = parse_fail_if("ttft > +0.5", METRICS)
    all_ten = judge_all(compare_sides(read_side(str(before), ""), read_side(str(after), "")), condition)
    assert [each.state for each in all_ten] == [UNDECIDED] * 10
    one = compare_sides(read_side(f"{before}#input_length=3", ""), read_side(f"{after}#input_length=3", ""))
    assert [each.state for each in judge_all(one, condition)] == [FAILED]
    assert [place.num_places for place in one.places] == [1]
    assert one.places[0].effects["ttft_s"].num_levels == 1


def test_a_design_that_stopped_when_narrow_has_the_intervals_that_its_own_table_has(tmp_path: Path) -> None:
    row = design(definition={"until": {"share": 0.05}})
    path = record(tmp_path / "r.db", (row, run_row(), {128: [1.0, 2.0, 3.0], 512: [1.5, 2.6, 3.7]}))
    with open_records(path) as records:
        attempts = load_attempts(records, row, {run.run_id: run for run in records.runs()})
    table = level_rows(row, attempts)[1].effects["ttft_s"]
    (place,) = compare_sides(read_side("input_length=128", path), read_side("input_length=512", path)).places
    assert place.effects["ttft_s"] == table
    # t(2) at 96 % is 4.848732; the mean is 0.6, the standard error 0.1/√3.
    assert table.difference.high == pytest.approx(0.6 + 4.848732 * 0.1 / 3**0.5, rel=1e-6)
    assert judge_all(
        compare_sides(read_side("input_length=128", path), read_side("input_length=512", path)),
        # t is √3 · (0.6 − 0.27)/0.1 = 5.72: above t(2) at 3.5 % (5.20), below that at 2.5 % (6.21).
        parse_fail_if("ttft > +270ms", METRICS),
    )[0].state == UNDECIDED  # fmt: skip


def test_metrics_are_all_that_the_export_measures_of_an_attempt(tmp_path: Path) -> None:
    path = record(tmp_path / "r.db", (design(), run_row(), {128: [1.0, 2.0], 512: [1.5, 2.6]}))
    (place,) = compare_sides(read_side("input_length=128", path), read_side("input_length=512", path)).places
    assert place.effects["output_tokens"].changed == 4
    assert {"load_wall_s", "queue_wait_s", "kv_cache_bytes_engine", "unexplained_bytes"} <= {*METRICS}
    # Answers scatter over questions, not over repeats: test_compare_leaves_answers.py.
    assert "quality_score" not in METRICS
    assert len(set(METRICS)) == len(METRICS)


def test_a_difference_of_rounding_is_none(tmp_path: Path) -> None:
    path = record(tmp_path / "r.db", (design(), run_row(), {128: [0.3] * 3, 512: [0.1 + 0.2] * 3}))
    (place,) = compare_sides(read_side("input_length=128", path), read_side("input_length=512", path)).places
    assert place.effects["ttft_s"].verdict == "no_difference_seen"


def test_the_json_has_the_share_and_the_ratio_with_its_own_interval_and_both_factors(tmp_path: Path) -> None:
    ours = record(tmp_path / "a.db", (design(), run_row(), {128: [1.0, 1.0, 4.0]}))
    row = design(design_id="d2", name="kv_dtype", factor="cache_type", levels=("q8_0",), baseline_level="q8_0")
    theirs = record(tmp_path / "b.db", (row, run_row(), {"q8_0": [2.0, 2.0, 8.0]}))
    sides = read_side(f"{ours}#input_length=128", ""), read_side(f"{theirs}#kv_dtype=q8_0", "")
    (place,) = comparison_dict(compare_sides(*sides), {})["places"]
    assert [place[name] for name in ("design", "factor", "level_a")] == ["input_length", "prompt_tokens", 128]
    assert [place[name] for name in ("design_b", "factor_b", "level_b")] == ["kv_dtype", "cache_type", "q8_0"]
    effect = place["metrics"]["ttft_s"]
    assert effect["difference"] == pytest.approx(2.0)
    assert effect["share"] == pytest.approx(1.0)  # each is twice as long
    assert effect["share_low"] == pytest.approx(effect["low"] / 2)  # the baseline's mean is 2
    assert effect["ratio"] == pytest.approx(1.0)
    # Logarithms: 0, 0, ln 4 and the same + ln 2, each of variance (ln 4)²/3; t(4) at 95 %: 2.776445.
    half = 2.776445 * (2 * (math.log(4) ** 2 / 3) / 3) ** 0.5
    assert effect["ratio_low"] == pytest.approx(2 * math.exp(-half) - 1, rel=1e-5)


def test_doubtful_rows_that_are_averaged_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    with create_records(path) as recorder:
        add(recorder, design(), run_row(), {128: [1.0, 1.0]})
        add(recorder, design(), run_row(), {512: [2.0]}, client={"client_limited": True}, warnings=["client-limited"])
        add_trial(
            recorder, design(), run_row(), level=512, block=1, ttft_s=2.0, warnings=["noisy-machine", "client-limited"]
        )
        add_trial(recorder, design(), run_row(), level=512, block=2, outcome="engine_died", warnings=["swap-active"])
    found = compare_sides(read_side("input_length=128", path), read_side("input_length=512", path))
    (place,) = comparison_dict(found, {})["places"]
    assert (place["client_limited_a"], place["warnings_a"]) == (0, {})
    assert (place["client_limited_b"], place["warnings_b"]) == (1, {"client-limited": 2, "noisy-machine": 1})
