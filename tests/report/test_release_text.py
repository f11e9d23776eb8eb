"""The release check in the terminal and on the page: what the captured runs of the real engine say."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from release_rows import GIB, MIB, judged, line
from study_rows import attempt, design_row, trial_row

from kvscope.analysis.release import Release, Step, judge_release
from kvscope.record.rows import MapRow, MarkRow, ReportedBufferRow
from kvscope.report.release_text import release_lines
from kvscope.report.section_release import REMAINS, steps_table, verdict_text
from kvscope.report.terminal_text import WIDTH

CAPTURED = Path(__file__).parent.parent / "analysis" / "captured_smollm2.json"


TINY = {"moments": {"loaded": {"own_bytes": 9 * MIB, "kept_bytes": 0},
                    "after_request": [{"prompt_tokens": 64, "own_bytes": 9 * MIB}]}}  # fmt: skip
CALIBRATION = {"fixed": TINY, "vocabulary": None}


def captured(name: str, **trial: Any) -> Release:
    rows: dict[str, Any] = json.loads(CAPTURED.read_text())[name]
    design = design_row("release")
    found = judge_release(
        attempt(
            trial_row(design, 8192, **trial),
            design=design,
            marks=tuple(MarkRow(**m) for m in rows["marks"]),
            maps=tuple(MapRow(**m) for m in rows["maps"]),
            reported=tuple(ReportedBufferRow(**r) for r in rows["reported"]),
        )
    )
    assert found is not None
    return found


@pytest.fixture(scope="module")
def real() -> Release:
    return captured("release_8192")


def test_the_terminal_says_verdict_bound_slope_and_steps(real: Release) -> None:
    lines = release_lines([real])
    text = " ".join(" ".join(lines).split())
    assert text.startswith("Retained and bounded, with cache_ram_mib = 8192: each conversation leaves 11.6 MiB more")
    assert "of at most 8.0 GiB" in text
    assert "to go." in text
    # Without the first reading steps of 11,876 11,884 11,892 KiB: a slope of 11,884 and errors of 4, -4, -4, 4, whose
    # squares sum to 64. √(64 ÷ 2 ÷ 5) = 2.53; times 4.303 (Student's t, 2 degrees) 10.9 KiB either way: 11.595 to
    # 11.616 MiB.
    assert "From one conversation to the next +11.61 MiB (95 %: +11.59 to +11.62); with the same text again not" in text
    heads = next(line for line in lines if line.strip().startswith("moment"))
    assert heads.split()[1:3] == ["held", "given"]  # "back" stands below
    # 192,176 KiB after the fifth conversation.
    assert next(line for line in lines if "answered" in line).split()[1] == "187.67"
    assert max(map(len, lines)) <= WIDTH


def test_what_remains_adds_up_to_what_is_held_over_the_start(real: Release) -> None:
    for step in real.steps:
        if step.remains is None:
            continue
        slugs = {term.slug for term in step.remains.terms if term.backing == "anonymous"}
        assert slugs <= {slug for named in REMAINS.values() for slug in named}
        assert step.held_bytes is not None
        assert real.launched_bytes is not None
        named = sum(term.num_bytes for term in step.remains.terms if term.backing == "anonymous")
        assert named + step.remains.unexplained_anon_bytes == step.held_bytes - real.launched_bytes


def test_the_names_in_a_row_add_up_to_what_is_held(real: Release) -> None:
    table = steps_table([real], "cache_ram_mib")
    titles = [column.title for column in table.columns]
    for cells in (row.cells for row in table.rows):
        numbers = [float(cell.split(" of ")[0].replace(",", "")) for cell in cells[4:] if cell != "–"]
        if numbers:
            # Each of nine cells is rounded to a hundredth.
            assert sum(numbers) == pytest.approx(float(cells[2].replace(",", "")), abs=0.05)
    assert titles[4] == "start"


def test_every_step_of_a_release_is_named_alike_whether_or_not_the_engine_was_calibrated() -> None:
    # The same marks and mappings twice; a calibration names the heap by cause after requests alone.
    plain, calibrated = captured("release_8192"), captured("release_8192", client={"calibration": CALIBRATION})
    assert steps_table([calibrated], "cache_ram_mib") == steps_table([plain], "cache_ram_mib")


def test_copies_that_were_not_found_in_memory_are_no_zero() -> None:
    # Gemma 3, two slots, without checkpoints: the log stated 12.0 MiB, and all of it lay in the heap.
    step = Step(
        phase="after_request", held_bytes=143 * MIB, given_back_bytes=None, device_bytes=None,
        remains=replace(captured("release_0").steps[0].remains, terms=()), stated={"copies": round(12.023 * MIB)},
    )  # fmt: skip
    found = replace(captured("release_0"), steps=(step,))
    table = steps_table([found], "cache_ram_mib")
    titles = [column.title for column in table.columns]
    assert table.rows[0].cells[titles.index("copies")] == "0.00 of 12.02"
    assert any("0.00 of 12.02" in line for line in release_lines([found]))


def test_what_is_given_back_is_the_difference_of_two_rows(real: Release) -> None:
    table = steps_table([real], "cache_ram_mib")
    held = [float(row.cells[2].replace(",", "")) for row in table.rows]
    back = [row.cells[3] for row in table.rows]
    assert back[0] == "–"
    for number in range(1, len(held)):
        assert float(back[number]) == pytest.approx(held[number - 1] - held[number], abs=0.011)


def test_a_release_at_exit_says_so() -> None:
    found = judged([GIB] * 6, exited=0)
    assert verdict_text(found) == "released at exit"
    assert release_lines([found])[0].startswith("Released at exit, with cache_ram_mib = 8192: the engine showed no")


def test_devices_have_a_column_where_they_were_read() -> None:
    found = judged(
        [GIB] * 6, unloaded=GIB, device_levels=line(GIB, 64 * MIB, 6), devices={"launched": 0, "unloaded": GIB}
    )
    assert [c.title for c in steps_table([found], "f").columns][4] == "device memory"
    assert found.judged_place == "device"
    without = judged([GIB] * 6, unloaded=GIB)
    assert "device memory" not in [c.title for c in steps_table([without], "f").columns]


def test_nothing_judged_is_nothing_said() -> None:
    assert release_lines([]) == []
