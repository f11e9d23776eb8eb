"""Charts as SVG: drawn, small, named, without anything from outside."""

import json
import random
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from study_rows import answered, attempt, design_row, memory, trial_row, whole_lab, write_record

from kvscope.analysis.latency import TimeLaw, ttft_law
from kvscope.analysis.study import analyse
from kvscope.record.rows import SampleRow
from kvscope.record.store import open_records
from kvscope.report.blocks import Chart, Table
from kvscope.report.chart_files import chart_files
from kvscope.report.charts import PARTS, draw, draw_file, plot, to_spec
from kvscope.report.charts_memory import CURVE_POINTS, thinned, timeline_chart
from kvscope.report.charts_time import MOST_LEVELS, tpot_chart, ttft_chart
from kvscope.report.sections import study_pages
from kvscope.units import MIB


@pytest.fixture(scope="module")
def charts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Chart]:
    with open_records(write_record(tmp_path_factory.mktemp("c") / "r.db", whole_lab())) as records:
        (page,) = study_pages(analyse(records))
    return {b.slug: b for s in page.sections for b in s.blocks if isinstance(b, Chart)}


def test_the_charts_of_the_story(charts: dict[str, Chart]) -> None:
    assert set(charts) == {
        "memory-by-context",
        "memory-against-context",
        "memory-added",
        "first-token",
        "later-tokens",
        "completion",
        "memory-after-conversations",
    }


def test_each_is_well_formed_small_and_named(charts: dict[str, Chart]) -> None:
    for chart in charts.values():
        svg = draw_file(chart)
        root = ElementTree.fromstring(svg)
        assert len(draw(chart).encode()) <= 12 * 1024
        assert root.find("{http://www.w3.org/2000/svg}title").text == chart.title  # type: ignore[union-attr]
        assert root.find("{http://www.w3.org/2000/svg}desc").text == chart.description  # type: ignore[union-attr]
        assert "#0000" not in svg  # no placeholder colour is left
        assert "nan" not in svg.lower()


def test_nothing_comes_from_outside(charts: dict[str, Chart]) -> None:
    for chart in charts.values():
        drawn = draw(chart)
        assert not re.search(r"(?:href|src)\s*=|@import|<script|<style|<image|<use", drawn)
        assert set(re.findall(r"url\(([^)]*)\)", drawn)) <= {f"#{i}" for i in re.findall(r'id="([^"]+)"', drawn)}
        assert "http" not in drawn


def test_ids_differ_between_places_of_a_page(charts: dict[str, Chart]) -> None:
    one = charts["memory-by-context"]
    first, second = (set(re.findall(r'id="([^"]+)"', draw(one, prefix))) for prefix in ("a-", "b-"))
    assert first
    assert not first & second


def test_the_same_chart_is_the_same_text(charts: dict[str, Chart]) -> None:
    for chart in charts.values():
        assert draw(chart) == draw(chart)


def test_parts_of_memory_have_patterns_and_not_only_colours(charts: dict[str, Chart]) -> None:
    drawn = draw(charts["memory-by-context"])
    assert drawn.count("<pattern") >= 4
    kinds = re.findall(r"<pattern[^>]*>(.*?)</pattern>", drawn)
    strokes = [re.sub(r'fill="var[^"]*"', "", kind) for kind in kinds]
    assert len(set(strokes)) == len(strokes)


def test_every_chart_has_its_numbers_as_a_table(charts: dict[str, Chart]) -> None:
    for chart in charts.values():
        assert chart.table.rows
        assert chart.table.caption
        assert {len(r.cells) for r in chart.table.rows} == {len(chart.table.columns)}


def test_a_failure_is_a_cross_at_its_level() -> None:
    design = design_row("input_length")
    law = ttft_law([attempt(trial_row(design, n), design=design, **answered(n, ttft_s=n / 1000)) for n in (128, 512)])
    assert law is not None
    without, lost = draw(ttft_chart(law, [])), draw(ttft_chart(law, [512]))
    assert "var(--failed)" not in without
    assert "var(--failed)" in lost
    assert ">failed</text>" in lost


def test_a_curve_is_thinned_without_losing_its_peak() -> None:
    samples = [SampleRow(quantity="anon_bytes", at_s=n / 50, value_bytes=n % 7, late_s=0) for n in range(5000)]
    samples[3333] = SampleRow(quantity="anon_bytes", at_s=66.66, value_bytes=10**9, late_s=0)
    kept = thinned(samples)
    assert len(kept) <= CURVE_POINTS
    assert max(s.value_bytes for s in kept) == 10**9
    assert [s.at_s for s in kept] == sorted(s.at_s for s in kept)
    assert thinned(samples[:10]) == samples[:10]


def test_text_in_a_chart_is_escaped() -> None:
    hostile = '<script>alert("x")</script>'
    spec = to_spec(plot([{"x": hostile, "y": 1}]).mark_bar().encode(x="x:N", y="y:Q"))
    table = Table(caption="c", columns=(), rows=())
    drawn = draw(Chart(slug='a"><b', title=hostile, description=hostile, spec=spec, table=table))
    ElementTree.fromstring(drawn)
    assert "<script" not in drawn


def test_files_have_plain_colours_and_a_name_each(tmp_path: Path) -> None:
    with open_records(write_record(tmp_path / "r.db", whole_lab())) as records:
        files = chart_files(analyse(records)).files
    assert "memory-by-context.svg" in files
    for name, content in files.items():
        assert b"var(--" not in content
        assert name.endswith(".png") or content.startswith(b'<svg xmlns="http://www.w3.org/2000/svg"')


def test_memory_over_time_with_its_moments() -> None:
    noise = random.Random(1)
    samples = tuple(
        SampleRow(quantity=quantity, at_s=n / 50, value_bytes=noise.randrange(10**8), late_s=0)
        for quantity in ("anon_bytes", "file_bytes")
        for n in range(5000)
    )
    chart = timeline_chart(attempt(**memory(), **answered(2048), samples=samples))
    drawn = draw(chart)
    assert len(drawn.encode()) <= 12 * 1024
    assert "2,048 prompt tokens" in chart.title.replace("\u00a0", " ")
    # One numbered line for each mark but the last: the process is gone by then.
    assert [r.cells[1] for r in chart.table.rows] == ["1", "2", "3", "4", "5"]
    assert re.findall(r">([1-5])</text>", drawn) == ["1", "2", "3", "4", "5"]
    assert "on devices" not in drawn
    assert chart.table.rows[1].cells[3] == "79.57"  # loaded: 8,400 + 46,080 + 27,000 KiB = 81,480 KiB


def test_host_and_device_memory_on_one_axis() -> None:
    """R05 (lmstudio-bug-tracker#1764): host 604 → 2,629 → 5,304 MB while the device's stands still."""
    host = {10.0: 604, 70.0: 2629, 130.0: 5304}
    samples = [SampleRow(quantity="anon_bytes", at_s=at, value_bytes=mb * 10**6, late_s=0) for at, mb in host.items()]
    samples += [
        SampleRow(quantity="device_bytes", at_s=at + 3, value_bytes=(9000 + mb) * 10**6, late_s=0)
        for at, mb in zip(host, (0, 74, 97), strict=True)
    ]
    chart = timeline_chart(attempt(**memory(), **answered(2048), samples=tuple(samples)))
    text = json.dumps(chart.spec)
    for at_s in (10.0, 70.0, 130.0, 13.0, 73.0, 133.0):
        assert f'"x": {at_s}' in text
    drawn = draw(chart)
    assert "on devices" in drawn
    assert "file-backed" not in drawn  # was not sampled here


def test_what_is_swapped_out_stays_in_the_curve() -> None:
    """R03: RSS of 70 MiB, 9.35 GiB held. The own memory of the curve is RssAnon + VmSwap of one reading."""
    samples = (
        SampleRow(quantity="anon_bytes", at_s=1.0, value_bytes=9500 * MIB, late_s=0),
        SampleRow(quantity="swap_bytes", at_s=1.0, value_bytes=0, late_s=0),
        SampleRow(quantity="anon_bytes", at_s=2.0, value_bytes=40 * MIB, late_s=0),
        SampleRow(quantity="swap_bytes", at_s=2.0, value_bytes=9534 * MIB, late_s=0),
    )
    text = json.dumps(timeline_chart(attempt(**memory(), **answered(2048), samples=samples)).spec)
    assert '"y": 9574.0' in text
    assert '"y": 40.0' not in text


def test_samples_of_the_control_group_alone_draw_no_curve() -> None:
    samples = (SampleRow(quantity="cgroup_bytes", at_s=1.0, value_bytes=7, late_s=0),)
    assert "own memory" not in draw(timeline_chart(attempt(**memory(), **answered(2048), samples=samples)))


def law_of(*times: tuple[int, float]) -> TimeLaw:
    design = design_row("input_length")
    law = ttft_law([attempt(trial_row(design, n), design=design, **answered(n, ttft_s=s)) for n, s in times])
    assert law is not None
    return law


def plain(text: str) -> str:
    return text.replace("\u00a0", " ")


def test_a_titles_sentence_is_the_finding() -> None:
    # A line through (1,000, 1 s), (2,000, 2 s), (3,000, 3 s) twice: 1 s for each 1,000, without any spread.
    law = law_of(*[(n, n / 1000) for n in (1000, 2000, 3000)] * 2)
    assert plain(ttft_chart(law, []).title) == (
        "Each 1,000 tokens of prompt delay the first token by 1.00 s (95 %: 1.00 s to 1.00 s)"
    )
    assert plain(tpot_chart(law, []).title) == (
        "Each later token takes 1.00 s behind 1,000 tokens of prompt, and 3.00 s behind 3,000"
    )
    # Two lengths once each: a line fits them perfectly and says nothing of its own doubt.
    alone = law_of((1000, 1.0), (2000, 2.0))
    assert plain(ttft_chart(alone, []).title) == (
        "The first token comes after 1.00 s with 1,000 tokens of prompt, and after 2.00 s with 2,000"
    )
    assert plain(ttft_chart(law_of((1000, 1.0)), []).title) == (
        "The first token comes after 1.00 s with 1,000 tokens of prompt"
    )


def test_of_many_trials_means_and_spans_are_drawn() -> None:
    chart = ttft_chart(law_of(*[(n, n / 1000 + k / 100) for n in (1000, 2000, 3000) for k in range(100)]), [])
    shown = {layer["mark"]["type"]: layer["data"]["values"] for layer in chart.spec["layer"][:4]}
    # The mean of 0 to 99 hundredths is 0.495; the least and the most are 0 and 0.99.
    assert [(v["x"], round(v["y"], 6)) for v in shown["point"]] == [(1000, 1.495), (2000, 2.495), (3000, 3.495)]
    spans = [layer["data"]["values"] for layer in chart.spec["layer"] if "low" in layer["data"]["values"][0]]
    assert [(v["x"], round(v["low"], 6), round(v["high"], 6)) for v in spans[0]] == [
        (1000, 1, 1.99),
        (2000, 2, 2.99),
        (3000, 3, 3.99),
    ]
    assert "300 trials" in chart.description
    assert len(draw(chart).encode()) <= 12 * 1024


def test_of_many_lengths_some_are_drawn_the_ends_among_them() -> None:
    chart = ttft_chart(law_of(*[(n, n / 1000) for n in range(100, 1100)]), [])
    drawn = [v["x"] for v in chart.spec["layer"][0]["data"]["values"]]
    assert len(drawn) == MOST_LEVELS
    assert (drawn[0], drawn[-1]) == (100, 1099)
    assert f"{MOST_LEVELS} of 1,000 lengths" in chart.description
    assert len(chart.table.rows) == MOST_LEVELS
    assert len(draw(chart).encode()) <= 20 * 1024


def test_every_part_has_a_hue_and_a_pattern_of_its_own() -> None:
    assert len(PARTS) <= 8
    for place in range(4):
        assert len({part[place] for part in PARTS.values()}) == len(PARTS)


def test_every_specification_is_valid_vega_lite(charts: dict[str, Chart]) -> None:
    """They are not held against the schema while a page is made. (The look that all share, ``config``, has a ground
    that is null: Vega-Lite takes it, and its schema does not.)"""
    import altair as alt
    from altair.utils.schemapi import debug_mode, validate_jsonschema
    from jsonschema import ValidationError

    top, root = {"$ref": "#/definitions/TopLevelSpec"}, alt.LayerChart._rootschema
    with debug_mode(True):
        for chart in charts.values():
            validate_jsonschema({name: part for name, part in chart.spec.items() if name != "config"}, top, root)
        with pytest.raises(ValidationError):
            validate_jsonschema({**charts["first-token"].spec, "layer": [{"mark": "no such mark"}]}, top, root)
