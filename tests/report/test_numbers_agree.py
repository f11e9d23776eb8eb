"""Numbers that stand beside each other agree: a share with its difference, a value with its interval, lines with their
width; and what the page says of limits and commands is in the JSON too."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvscope.analysis.effects import paired_effect
from kvscope.analysis.study import analyse
from kvscope.cli.main import cli
from kvscope.language import LANGUAGES, speaking
from kvscope.record.store import open_records
from kvscope.report.effect_cells import effect_cells
from kvscope.report.section_answer import _as_closely
from kvscope.report.terminal_text import display_width
from kvscope.report.text import render_text
from kvscope.units import MIB

GOLDEN = Path(__file__).parents[1] / "golden/records"


@pytest.mark.parametrize("name", ["lab.db", "schema3.db", "schema4.db"])
def test_no_line_of_a_terminal_is_wider_than_80_columns_however_many_studies_there_are(name: str) -> None:
    with open_records(GOLDEN / name) as records:
        found = analyse(records)
    for language in LANGUAGES:
        with speaking(language):
            assert max(map(display_width, render_text(found).splitlines())) <= 80


def test_a_share_in_the_table_never_has_another_sign_than_its_difference() -> None:
    cells = effect_cells(paired_effect("ttft_s", [(1.0, 1.3), (3.0, 2.6)]))
    # By hand: 50 ms less of 2,000.
    assert (cells.difference, cells.share) == ("-50", "-2.5 %")


def test_an_interval_of_a_page_of_memory_is_not_written_as_one_of_no_width() -> None:
    cells = effect_cells(paired_effect("memory_peak_bytes", [(60.0 * MIB, 60.0 * MIB)] * 2))
    # A page is 4 KiB, 0.0039 MiB; with two pairs t(1) = 12.71 times √⅙ ÷ √2 of it, 0.0143 MiB.
    assert cells.difference == "0.0"
    assert cells.interval == "-0.01 to +0.01"
    assert "0.01" in cells.verdict


@pytest.mark.parametrize(
    ("mib", "low", "high", "told"),
    [
        (21.973, 21.97, 21.976, ("22.0", "22.0")),  # 22.0 in the headline is outside of 21.97 to 21.98
        (21.973, 21.93, 22.02, ("21.93", "22.02")),
        (0.4, 0.38, 0.42, ("0.38", "0.42")),
    ],
)
def test_the_headline_lies_inside_its_interval(mib: float, low: float, high: float, told: tuple[str, str]) -> None:
    each = [value * MIB / 1000 for value in (mib, low, high)]
    assert _as_closely(*each) == told
    assert float(told[0]) <= round(mib, 1) <= float(told[1])


def test_the_json_says_how_far_it_goes_and_what_to_measure() -> None:
    done = CliRunner().invoke(cli, ["report", "--records", str(GOLDEN / "lab.db"), "--json"])
    assert done.exit_code == 0, done.output
    (study,) = json.loads(done.stdout)["studies"]
    assert (study["limit"]["tokens"], study["limit"]["binds"]) == (8192, "trained")
    assert study["limit"]["says"].startswith("Fits here: 8,192 tokens")
    assert study["look"][0].startswith("kvscope measure microbatch")
    assert {"share", "ratio"} <= set(study["effects"][0])
