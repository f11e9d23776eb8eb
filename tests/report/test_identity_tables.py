"""The identity on the page and in the JSON: rows whose every KiB is known."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from study_rows import KIB, attempt, design_row, memory, trial_row, write_record

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.study import Study, analyse
from kvscope.record.store import open_records
from kvscope.report.answer_parts import answer_table
from kvscope.report.blocks import Bullets, Link, Paragraph, Table
from kvscope.report.charts_memory import by_context_chart
from kvscope.report.identity_json import between_json, identities_json
from kvscope.report.identity_tables import identity_blocks

OWN_KIB = 25_000


def tiny(own_kib: int, layers: int, tokens: int) -> dict[str, Any]:
    return {
        "engine_version": "b1",
        "measured_at": "2026-11-30T12:00:00.000+00:00",
        "layers": layers,
        "vocabulary_tokens": tokens,
        "moments": {
            "loaded": {"own_bytes": own_kib * KIB, "kept_bytes": 0, "stacks_bytes": 512 * KIB},
            "after_request": [{"prompt_tokens": 64, "own_bytes": own_kib * KIB}],
        },
    }


CALIBRATION = {"fixed": tiny(5_000, 1, 257), "vocabulary": tiny(OWN_KIB, 30, 49_152)}


def row_of(level: int, leaked_kib: int, *, calibrated: bool) -> Attempt:
    design = design_row("context_limit", levels=(512, 2048))
    client = {"calibration": CALIBRATION} if calibrated else {}
    trial = replace(trial_row(design, level), client=client)
    return attempt(trial, design=design, **memory(runtime_kib=OWN_KIB + leaked_kib))


def study(path: Path, *, calibrated: bool = True) -> Study:
    rows = [row_of(512, 0, calibrated=calibrated), row_of(2048, 1_024, calibrated=calibrated)]
    with open_records(write_record(path / "r.db", rows)) as records:
        return analyse(records).studies[0]


def anchors(found: Study) -> dict[str, Link]:
    return {a.key: Link(text=str(n), anchor=f"row-{n}") for n, a in enumerate(found.attempts, start=1)}


@pytest.mark.parametrize("calibrated", [True, False])
def test_every_row_of_the_json_adds_up(tmp_path: Path, calibrated: bool) -> None:
    found = identities_json(study(tmp_path, calibrated=calibrated))
    assert len(found) == 2
    for row in found:
        assert (row["calibrated_on"] is not None) is calibrated
        assert set(row["moments"]) == {"loaded", "after_request", "peak"}
        for moment in row["moments"].values():
            total = sum(term["bytes"] for term in moment["terms"])
            assert total + moment["unexplained_bytes"] == moment["growth_bytes"]
    leaks = [row["moments"]["loaded"]["unexplained_bytes"] for row in found]
    assert leaks == ([0, 1_024 * KIB] if calibrated else [0, 0])


def test_the_pair_furthest_apart(tmp_path: Path) -> None:
    (pair,) = between_json(study(tmp_path))
    assert abs(pair["unexplained_bytes"]) == 1_024 * KIB
    assert sum(pair["terms"].values()) + pair["unexplained_bytes"] == pair["growth_bytes"]


def test_the_page_says_what_was_calibrated_on_what(tmp_path: Path) -> None:
    found = study(tmp_path)
    blocks = identity_blocks(found, anchors(found))
    tables = {block.caption.split(",")[0]: block for block in blocks if isinstance(block, Table)}
    assert len(tables) == 3
    terms = {row.cells[0]: row.cells for row in tables["Where the memory of that trial is"].rows}
    assert terms["engine's run time after the load"][1:3] == ("calibrated on a tiny model", "4.88")
    assert terms["vocabulary and tables"][1:3] == ("calibrated on a tiny model with this vocabulary", "19.53")
    assert terms["KV cache"][1] == "predicted, and seen in its mapping"
    assert "the tiny model had 0.50" in terms["thread stacks"][1].replace("\u00a0", " ")
    rows = tables["What grew from start to peak in each row"].rows
    assert [row.cells[0] for row in rows] == ["1", "2"]
    told = [item for block in blocks if isinstance(block, Bullets) for item in block.items]
    assert any("1 layers and 257 tokens" in item.replace("\u00a0", " ") for item in told)
    assert any("49,152 tokens and 30 layers" in item.replace("\u00a0", " ") for item in told)
    leads = [block.text for block in blocks if isinstance(block, Paragraph)]
    assert any("(2 rows)" in text for text in leads)


def test_an_older_record_is_not_calibrated_and_says_so(tmp_path: Path) -> None:
    found = study(tmp_path, calibrated=False)
    blocks = identity_blocks(found, anchors(found))
    told = [item for block in blocks if isinstance(block, Bullets) for item in block.items]
    assert told[0].startswith("Not calibrated")
    table = next(block for block in blocks if isinstance(block, Table))
    names = [row.cells[0] for row in table.rows]
    assert "arenas (heap of threads)" in names
    assert "engine's fixed run time" not in names


def test_what_has_no_name_is_told_of_the_row_that_has_most_of_it(tmp_path: Path) -> None:
    # 1,024 KiB more than the tiny models had, in the second row; in both the files, 94,320 and 15,000 KiB, are not
    # among the mappings after the request: 110,344 KiB together.
    found = study(tmp_path)
    told = [block.text for block in identity_blocks(found, anchors(found)) if isinstance(block, Paragraph)]
    assert "The most is +107.76\xa0MiB, in row 2." in told[0]
    assert "from row 1 to row 2" in told[-1]


def test_the_predicted_column_adds_up_and_holds_nothing_that_this_trial_counted(tmp_path: Path) -> None:
    found = study(tmp_path)
    table = answer_table(found, anchors(found))
    assert table is not None
    cells = {row.cells[0]: row.cells[1] for row in table.rows}
    # 25,000 KiB of the tiny models; what the allocator keeps and the stacks are of the trial itself.
    assert cells["run time, libraries"] == "24.4 (calibrated)"
    parts = [float(cells[name].split(" ")[0]) for name in ("weights", "KV cache", "compute, output")]
    assert cells["total"].split() == ["≥", f"{sum(parts) + 24.4:.1f}"]


def test_parts_that_nobody_predicted_are_unknown_and_no_zero(tmp_path: Path) -> None:
    chart = by_context_chart(study(tmp_path).by_context)
    assert chart is not None
    titles = [column.title for column in chart.table.columns]
    predicted = next(row.cells for row in chart.table.rows if "predicted" in row.cells[0])
    assert predicted[titles.index("the engine's own")] == "unknown"
    assert predicted[-1].startswith("≥")
