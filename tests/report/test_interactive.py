"""The page with live charts: they are drawn under a policy that forbids eval, say their values under the pointer, and
are not needed."""

import json
import re
from html import unescape
from pathlib import Path

import pytest
from chromium import Chromium
from study_rows import whole_lab, write_record

from kvscope.report.blocks import Chart, Table
from kvscope.report.charts import FAILED, crosses, plot, to_spec
from kvscope.report.interactive import live_data, with_tips
from kvscope.report.page import write_report

HOSTILE = "</script><script>document.title='owned'</script><!-- <script> \u2028 &amp; "


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("interactive")
    return write_report(write_record(folder / "r.db", whole_lab()), folder / "r.html", interactive=True)


def chart_of(values: list[dict[str, object]]) -> Chart:
    spec = to_spec(plot(values).mark_point().encode(x="x:N", y="y:Q"))
    return Chart(slug="c", title=HOSTILE, description="", spec=spec, table=Table(caption="", columns=(), rows=()))


def test_data_of_a_chart_cannot_end_the_script_that_holds_it() -> None:
    text = live_data(chart_of([{"x": HOSTILE, "y": 1}]))
    assert "<" not in text
    assert ">" not in text
    assert "\u2028" not in text
    spec = json.loads(text)
    # As it was, but for the sign that ends a line in scripts: that one is written out.
    assert spec["description"] == spec["data"]["values"][0]["x"] == HOSTILE.replace("\u2028", "\\u2028")


def test_a_mark_says_its_values_by_the_titles_of_the_axes() -> None:
    import altair as alt

    place = {"x": alt.X("x:Q", title="tokens"), "y": alt.Y("y:Q", title="MiB")}
    layers = alt.layer(
        plot([{"x": 131072, "low": 1.5, "high": 22.123}]).mark_rule().encode(x="x:Q", y="low:Q", y2="high:Q"),
        plot([{"x": 131072, "y": 0.03125}]).mark_point().encode(**place),
        crosses([{"x": 4096, "y": 99}], **place),
        plot([{}]).mark_point().encode(x=alt.value(1)),
    )
    rule, point, cross, key = with_tips(to_spec(layers))["layer"]

    def said(layer: dict[str, object]) -> list[tuple[str, str]]:
        value = layer["data"]["values"][0]  # type: ignore[index]
        return [(tip["title"], value[tip["field"]]) for tip in layer["encoding"]["tooltip"]]  # type: ignore[index]

    assert said(point) == [("tokens", "131,072"), ("MiB", "0.0312")]
    assert said(rule) == [("tokens", "131,072"), ("MiB, from", "1.5000"), ("MiB, to", "22.12")]
    # A cross stands at the top whatever failed there.
    assert cross["mark"]["color"] == FAILED
    assert said(cross) == [("tokens", "4,096")]
    assert "tooltip" not in key["encoding"]


def test_size_and_policy(page: Path) -> None:
    text = page.read_text()
    assert len(text.encode()) <= 1_500_000
    (written,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    policy = unescape(written)
    assert "unsafe-eval" not in policy
    assert "script-src 'sha256-" in policy
    assert policy.count("sha256-") == len(re.findall(r"<script>", text))


@pytest.mark.browser
def test_charts_live_say_their_values_and_nothing_leaves(browser: Chromium, page: Path) -> None:
    browser.open(page)
    assert browser.messages == []
    assert browser.requests == [page.as_uri()]
    still, live = (browser.evaluate(f"document.querySelectorAll('{kind}').length") for kind in (".still", ".live svg"))
    assert still == live == browser.evaluate("document.querySelectorAll('script.live-data').length") > 8
    seen = "[...document.querySelectorAll('.chart svg')].filter(s => s.getBoundingClientRect().width > 200)"
    assert browser.evaluate(f"{seen}.every(s => s.closest('.live'))")
    # Patterns and the page's own colours are in them.
    assert browser.evaluate("!!document.querySelector('#memory .live [fill^=\"url(#live-\"]')")
    # The dot that was drawn last is above those that it covers.
    browser.evaluate("document.querySelector('#time .chart:not([lang=ko]) .mark-symbol').lastElementChild.id = 'dot'")
    browser.hover("#dot")
    tip = browser.evaluate("document.getElementById('vg-tooltip-element').innerText")
    assert re.fullmatch(r"prompt tokens\s+[\d,]+\s+first token \(s\)\s+[\d.,]+\s*", tip)
    assert browser.messages == []


@pytest.mark.browser
def test_without_scripts_and_on_paper_the_charts_are_the_drawn_ones(browser: Chromium, page: Path) -> None:
    browser.open(page, scripts=False)
    assert browser.evaluate("document.querySelectorAll('.chart > div > svg').length") > 8
    assert browser.evaluate("document.querySelectorAll('.live').length") == 0
    browser.open(page, media="print")
    assert browser.evaluate("getComputedStyle(document.querySelector('.live')).display") == "none"
    assert browser.evaluate("getComputedStyle(document.querySelector('.still')).display") != "none"
