"""Calibrations that are damaged, foreign or hostile: none of them explains memory, and none takes the page away."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from study_rows import attempt, design_row, memory, trial_row, write_record

from kvscope.analysis.calibration import calibration_of, tiny_model
from kvscope.analysis.calibration_record import NOT_RECORDED, OF_ANOTHER, REASONS, UNREADABLE, why_not_calibrated
from kvscope.analysis.identity import row_identity
from kvscope.analysis.study import analyse
from kvscope.record.store import open_records
from kvscope.report.identity_json import identities_json
from kvscope.report.identity_tables import identity_blocks

MIB = 1024**2


def part(**changed: Any) -> dict[str, Any]:
    row = {"own_bytes": 5 * MIB, "kept_bytes": -MIB, "stacks_bytes": MIB, "library_data_bytes": 0}
    after = [{"prompt_tokens": tokens, **row} for tokens in (64, 512)]
    facts = {"version": 2, "engine_version": "b1", "measured_at": "2026-11-30T12:00:00", "layers": 1}
    return {**facts, "vocabulary_tokens": 257, "moments": {"loaded": dict(row), "after_request": after}, **changed}


def loaded(**changed: Any) -> dict[str, Any]:
    found = part()
    found["moments"]["loaded"] |= changed
    return found


def after(rows: Any) -> dict[str, Any]:
    found = part()
    found["moments"]["after_request"] = rows
    return found


HOSTILE: dict[str, Any] = {
    "size is text": loaded(stacks_bytes="abc"),
    "size is a list": loaded(stacks_bytes=[1]),
    "size is markup": loaded(kept_bytes="<script>alert(1)</script>"),
    "size is infinite": loaded(stacks_bytes=float("inf")),
    "size is no number": loaded(library_code_bytes=float("nan")),
    "own is a truth": loaded(own_bytes=True),
    "own is huge": loaded(own_bytes=10**30),
    "own is beyond a float": loaded(own_bytes=10**400),
    "own is negative": loaded(own_bytes=-(10**9)),
    "own is absent": loaded(own_bytes=None),
    "prompts are a number": after(5),
    "prompts are text": after("abc"),
    "prompts are none": after([]),
    "a prompt is none": after([None]),
    "a prompt of zero": after([{**part()["moments"]["loaded"], "prompt_tokens": 0}]),
    "prompts are equal": after([{**part()["moments"]["loaded"], "prompt_tokens": 64}] * 2),
    "a prompt is huge": after([{**part()["moments"]["loaded"], "prompt_tokens": 10**400}]),
    "day is a number": part(measured_at=5),
    "layers are markup": part(layers="<b>"),
    "day is long": part(measured_at="x" * 10_000),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_nothing_is_taken_of_a_part_with_one_thing_wrong(name: str) -> None:
    assert tiny_model(part()) is not None
    assert tiny_model(HOSTILE[name]) is None


@pytest.mark.parametrize("where", ["fixed", "vocabulary"])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_calibration_of_a_record_leaves_its_row_uncalibrated(tmp_path: Path, name: str, where: str) -> None:
    design = design_row("context_limit", levels=(512, 2048))
    good = {"fixed": part(), "vocabulary": part()}
    clients = [{"calibration": {**good, where: HOSTILE[name]}}, {"calibration": good}]
    trials = [replace(trial_row(design, n), client=c) for n, c in zip((512, 2048), clients, strict=True)]
    record = write_record(tmp_path / "r.db", [attempt(each, design=design, **memory()) for each in trials])
    with open_records(record) as records:
        study = analyse(records).studies[0]
    assert [row.calibration is not None for row in study.identities] == [False, True]
    assert [row.why_not_calibrated for row in study.identities] == [UNREADABLE, None]
    told = identities_json(study)
    assert [row["not_calibrated"] for row in told] == [UNREADABLE, None]
    json.dumps(told, allow_nan=False)
    assert identity_blocks(study, {})


@pytest.mark.parametrize("changed", ["engine", "engine_version", "engine_build", "machine_id"])
def test_a_calibration_of_another_engine_is_none(tmp_path: Path, changed: str) -> None:
    design = design_row("context_limit", levels=(512, 2048))
    facts = {name: getattr(design, name) for name in ("engine", "engine_version", "engine_build", "machine_id")}
    parts = [part(**facts), part(**{**facts, changed: "another"})]
    trials = [
        replace(trial_row(design, level), client={"calibration": {"fixed": each, "vocabulary": None}})
        for level, each in zip((512, 2048), parts, strict=True)
    ]
    record = write_record(tmp_path / "r.db", [attempt(each, design=design, **memory()) for each in trials])
    with open_records(record) as records:
        rows = analyse(records).studies[0].identities
    assert [row.why_not_calibrated for row in rows] == [None, OF_ANOTHER]


@pytest.mark.parametrize("reason", REASONS)
def test_why_a_row_is_not_calibrated_is_as_recorded(reason: str) -> None:
    found = attempt(**memory())
    assert why_not_calibrated(found.result) == NOT_RECORDED
    trial = replace(found.result.trial, client={"calibration": {"not_calibrated": reason}})
    told = replace(found, result=replace(found.result, trial=trial))
    assert calibration_of(told.result) is None
    assert row_identity(told).why_not_calibrated == reason


@pytest.mark.parametrize("recorded", [5, "off", [], {}, {"not_calibrated": "<script>"}, {"not_calibrated": [1]}])
def test_a_reason_that_is_none_is_not_shown(recorded: Any) -> None:
    found = attempt(**memory())
    trial = replace(found.result.trial, client={"calibration": recorded})
    assert why_not_calibrated(replace(found.result, trial=trial)) == UNREADABLE
