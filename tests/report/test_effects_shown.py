"""Effects in a terminal and on the page: differences with intervals, what is called one, failures beside, no line too
long. The numbers are of a study whose effects are known."""

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from study_rows import answered, attempt, design_row, mark, memory, trial_row, whole_lab, write_record

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.effects import paired_effect
from kvscope.analysis.levels import level_rows
from kvscope.analysis.study import DesignStudy, analyse
from kvscope.record.rows import DesignRow, WarningRow
from kvscope.record.store import open_records
from kvscope.report.blocks import Bullets, Chart, Paragraph, Table
from kvscope.report.charts import draw_file
from kvscope.report.doubts_text import doubt_lines
from kvscope.report.effect_cells import effect_cells
from kvscope.report.effects_text import effect_lines
from kvscope.report.page import render_page
from kvscope.report.section_effects import changes_section, effect_blocks
from kvscope.report.summary import summary
from kvscope.report.terminal_text import WIDTH
from kvscope.units import MIB

# The first token of the baseline takes 400 ms; of each level 400 ms and so much more, block by block.
MORE_MS = {"f16": (0, 0, 0, 0, 0), "q8_0": (-8, 4, 6, -4, 2), "q4_0": (80, 82, 84, 86, 88)}


def a_design(**changes: object) -> DesignRow:
    row = replace(design_row("context_limit"), name="kv_dtype", factor="kv_dtype", baseline_level="f16")
    return replace(row, levels=tuple(MORE_MS), **changes)  # type: ignore[arg-type]


def attempts_of(design: DesignRow, blocks: int = 5) -> list[Attempt]:
    runtime_kib = {"f16": 27_000, "q8_0": 27_000 - 10_240, "q4_0": 27_000 - 15_360}
    return [
        attempt(
            trial_row(design, level, block, position=block * 3 + place),
            design=design,
            **memory(runtime_kib=runtime_kib[level]),
            **answered(ttft_s=0.4 + MORE_MS[level][block] / 1000),
        )
        for block in range(blocks)
        for place, level in enumerate(MORE_MS)
    ]


def study(design: DesignRow, attempts: list[Attempt]) -> DesignStudy:
    return DesignStudy(design=design, attempts=tuple(attempts), levels=level_rows(design, attempts))


def joined(lines: list[str]) -> str:
    """The lines as one text, wherever they were broken."""
    return " ".join(" ".join(lines).split())


def line_of(lines: list[str], level: str, what: str) -> str:
    """The line of a quantity under the title of a level."""
    start = next(n for n, line in enumerate(lines) if f"{level} against" in line)
    return next(line for line in lines[start:] if what in line)


def test_a_terminal_says_each_difference_with_its_interval() -> None:
    design = a_design()
    lines = effect_lines(design, attempts_of(design))
    # q4_0: 80, 82, 84, 86, 88: mean 84, standard deviation √10; half width 2.7764 × 3.1623 / √5 = 3.93.
    line = line_of(lines, "q4_0", "first token")
    assert "400.0" in line
    assert "+84.0" in line
    assert "+80.1 to +87.9" in line
    assert "+21.0 %" in line
    assert line.endswith("yes")
    # q8_0: −8, 4, 6, −4, 2: mean 0, standard deviation √34 = 5.831; half width 7.24.
    line = line_of(lines, "q8_0", "first token")
    assert "-7.2 to +7.2" in line
    assert line.endswith("no")
    # 10,240 KiB are 10 MiB less, in every block.
    assert "-10.0 to -10.0" in line_of(lines, "q8_0", "memory, loaded")
    assert "all 2 changed levels together" in " ".join(lines)
    assert max(map(len, lines)) <= WIDTH == 80


def test_large_numbers_and_long_names_stay_within_the_terminal() -> None:
    levels = (131_072, 262_144)
    design = replace(design_row("input_length"), levels=levels, baseline_level=levels[0])
    found = [
        attempt(trial_row(design, x, b), design=design, **memory(60_000), **answered(ttft_s=x / 20 + 50 * b * b))
        for b in range(3)
        for x in levels
    ]
    lines = effect_lines(design, found)
    assert max(map(len, lines)) <= WIDTH
    # 131,072 ÷ 20 = 6,553.6 s more.
    assert "+6,554" in line_of(lines, "262,144", "first token (s)")


def test_what_is_called_a_difference_is_not_shown_as_none() -> None:
    # 16 KiB more in each of three blocks: 0.0156 MiB, of 50 MiB. Four pages are a difference that can be resolved.
    pairs = [(50 * MIB, 50 * MIB + 16 * 1024)] * 3
    effect = paired_effect("memory_loaded_bytes", pairs)
    assert effect.is_seen
    assert effect_cells(effect).difference == "+0.02"
    assert effect_cells(paired_effect("memory_loaded_bytes", [(50 * MIB, 50 * MIB)] * 3)).difference == "0.0"


def test_failures_stand_beside_the_pairs() -> None:
    design = a_design()
    found = attempts_of(design)
    lost = trial_row(design, "q4_0", 5, outcome="engine_died", trial_id="lost")
    lines = effect_lines(design, [*found, attempt(lost, design=design)])
    assert "5 measured, 1 failed (in no difference), 5 pairs" in joined(lines)
    only_failed = [a for a in found if a.trial.level != "q4_0"] + [attempt(lost, design=design)]
    assert "q4_0 against f16 (nothing measured, 1 failed)" in joined(effect_lines(design, only_failed))


def test_one_repeat_has_no_interval_and_no_verdict() -> None:
    design = a_design()
    lines = effect_lines(design, attempts_of(design, blocks=1))
    line = line_of(lines, "q4_0", "first token")
    assert "no interval" in line
    assert line.endswith("n = 1")
    assert "Too few repeats" in joined(lines)


def test_a_design_of_one_level_has_nothing_to_compare() -> None:
    design = replace(a_design(), levels=("f16",))
    assert effect_lines(design, attempts_of(design)) == []


@pytest.mark.parametrize(
    ("share", "most", "says"),
    [
        # q8_0 is the widest: 7.24 ms at 95 %; at the 96 % of --until t(4) is 2.9985 and it is 7.82 ms, 1.95 % of 400.
        (0.001, 5, "Not narrow enough after 5 of at most 5 repeats"),
        (0.02, 50, "reaches 2.0 % of the baseline"),
        # Narrow at five repeats; at three, one look before, it cannot have been seen to be: three looks are needed.
        (0.02, 5, "Narrow, but not often enough in a row: after 5 of at most 5 repeats"),
        (0.02, 5, "narrow at 3 looks, 2 repeats apart"),
        (0.02, 5, "--most-repeats"),
    ],
)
def test_what_repeating_ended_with(share: float, most: int, says: str) -> None:
    told = {"until": {"share": share, "metric": "ttft_s", "most_repeats": most}}
    design = a_design(definition=told)
    assert says in joined(effect_lines(design, attempts_of(design)))


def test_drift_is_told() -> None:
    design = a_design()
    # Every trial counts, each against its level: a machine that slows down by 20 ms a block does so at all of them. Of
    # 400, 420 … 480 ms at each level that is 80 ms from the first block to the last, of a mean of 440.
    found = [
        attempt(
            trial_row(design, level, block, position=block * 3), design=design, **answered(ttft_s=0.4 + 0.02 * block)
        )
        for block in range(5)
        for level in ("f16", "q8_0", "q4_0")
    ]
    text = joined(effect_lines(design, found))
    assert "The machine changed under way" in text
    assert "changed by +18.2 %" in text
    assert "The machine changed" not in " ".join(effect_lines(design, attempts_of(design)))
    doubts = [b for b in effect_blocks(study(design, found), "e") if isinstance(b, Paragraph) and b.kind == "doubt"]
    assert len(doubts) == 1


def test_two_noisy_baselines_do_not_tell_a_change_of_the_machine() -> None:
    design = a_design()
    for times, says in (
        ((0.4, 0.7), "From first to last the baseline's time to the first token changed by +75.0 %. Whether the"),
        ((0.4, 0.5, 0.7), "Whether the machine changed under way or this is noise, its 3 times"),
    ):
        found = [
            attempt(trial_row(design, "f16", n, position=n * 3), design=design, **answered(ttft_s=time))
            for n, time in enumerate(times)
        ]
        text = joined(effect_lines(design, found))
        assert "The machine changed" not in text
        assert "cannot tell" in text
        assert says in text


def test_a_server_whose_memory_grew_through_the_study_is_told() -> None:
    design = a_design()
    found = [
        attempt(
            trial_row(design, "f16", n, position=n * 3),
            design=design,
            marks=(mark("after_request", kib),),
            **answered(ttft_s=0.5),
        )
        for n, kib in enumerate((67_000, 84_000, 103_000, 119_000, 137_000))
    ]
    text = joined(effect_lines(design, found))
    assert "Memory changed under way" in text
    assert "The machine changed" not in text


def test_what_there_is_nothing_to_compare_with_is_named() -> None:
    design = a_design()
    levels = [a for a in attempts_of(design) if a.trial.level != "f16"]
    base = [a for a in attempts_of(design) if a.trial.level == "f16"]
    failed = [replace(a, result=replace(a.result, trial=replace(a.trial, outcome="timed_out"))) for a in base]
    assert "The baseline was not measured" in joined(effect_lines(design, [*levels, *failed]))
    assert "No level was measured besides the baseline" in joined(effect_lines(design, base))
    assert "Nothing was measured." in joined(effect_lines(design, failed))


def test_what_would_have_been_seen_is_said() -> None:
    design = a_design()
    effect = level_rows(design, attempts_of(design))[1].effects["ttft_s"]
    assert effect_cells(effect).verdict == "no; more than 7.2 would be"


def test_the_page_has_a_chart_with_shapes_and_the_same_numbers_as_a_table() -> None:
    design = a_design()
    (chart,) = effect_blocks(study(design, attempts_of(design)), "effects-1")
    assert isinstance(chart, Chart)
    cells = [row.cells for row in chart.table.rows]
    assert ("q4_0", "first token (ms)", "400.0", "+84.0", "+80.1 to +87.9", "+21.0 %", "5", "yes, more") in cells
    svg = draw_file(chart)
    assert "q4_0: first token" in svg
    assert "difference seen" in svg
    assert "may be noise" in svg
    assert "no change" in chart.description


def test_the_only_difference_seen_is_in_the_chart(tmp_path: Path) -> None:
    # As measured with concurrency: the whole answer differed by 50 ms in each block, how it was split between the first
    # token and the others was noise; the chart had the two alone, and "may be noise" of all there was.
    design = replace(a_design(), levels=("f16", "q8_0"))
    found = []
    for block, noise in enumerate((-0.08, 0.08, 0.06, -0.04, 0.02)):
        for place, (level, more, first) in enumerate((("f16", 0.0, 0.0), ("q8_0", 0.05 + block / 1e4, noise))):
            times = answered(ttft_s=0.4 + first, tpot_s=(0.07 + more - first) / 7)
            trial = trial_row(design, level, block, position=block * 2 + place)
            found.append(attempt(trial, design=design, **times))
    (chart,) = effect_blocks(study(design, found), "effects-1")
    assert isinstance(chart, Chart)
    svg = draw_file(chart)
    assert "q8_0: first token" in svg
    assert "q8_0: whole answer" in svg
    assert "difference seen" in svg
    # Its times are measured, so the section on times does not say that none were.
    with open_records(write_record(tmp_path / "r.db", found)) as records:
        page = render_page(analyse(records))
    assert "Times were not measured" not in page
    assert "did to the times stands in the next section" in page


def test_shares_of_five_digits_do_not_run_together_under_the_axis() -> None:
    design = replace(a_design(), levels=("f16", "q8_0"))
    found = []
    for block in range(5):
        for place, (level, ttft_s) in enumerate((("f16", 0.01), ("q8_0", 1.8 + block / 50))):
            trial = trial_row(design, level, block, position=block * 2 + place)
            found.append(attempt(trial, design=design, **answered(ttft_s=ttft_s)))
    (chart,) = effect_blocks(study(design, found), "effects-1")
    assert isinstance(chart, Chart)
    svg = draw_file(chart)
    texts = re.findall(r"<text[^>]*translate\(([-\d.]+),[^>]*>([\d,]+)</text>", svg)
    places = sorted((float(x), len(text)) for x, text in texts)
    assert len(places) >= 3
    # A digit is some 6 units wide at this size.
    assert all(later - x > 6 * (one + two) / 2 for (x, one), (later, two) in pairwise(places))


def test_designs_with_charts_of_their_own_get_the_table_alone() -> None:
    design = replace(a_design(), name="input_length")
    (table,) = effect_blocks(study(design, attempts_of(design)), "effects-1")
    assert isinstance(table, Table)
    assert table.summary is not None


def test_nothing_measured_shows_nothing() -> None:
    design = a_design()
    assert effect_blocks(study(design, []), "effects-1") == []


def test_two_designs_on_one_page_have_a_chart_each(tmp_path: Path) -> None:
    one, other = a_design(design_id="one"), a_design(design_id="other")
    found = [*attempts_of(one), *attempts_of(other), *whole_lab()]
    with open_records(write_record(tmp_path / "r.db", found)) as records:
        page = render_page(analyse(records))
    titles = re.findall(r'<figcaption id="changes-[^"]*"><span lang="en">([^<]*)', page)
    assert [re.match(r"kv_dtype: \d+ of \d+ differences", title) is not None for title in titles] == [True, True]
    assert "effects-1-title" in page
    assert "effects-2-title" in page


def test_the_json_has_every_effect(tmp_path: Path) -> None:
    design = a_design()
    with open_records(write_record(tmp_path / "r.db", attempts_of(design))) as records:
        (found,) = summary(analyse(records))["studies"]
    effect = next(e for e in found["effects"] if (e["level"], e["metric"]) == ("q4_0", "ttft_s"))
    assert (effect["verdict"], effect["method"], effect["pairs"]) == ("more", "paired_t", 5)
    assert effect["difference"]["value"] == pytest.approx(0.084)
    # Bonferroni over two levels: t(4) at 98.25 % is 3.9028; 3.9028 × 3.1623 / √5 = 5.519 ms.
    assert effect["together"]["low"] == pytest.approx(0.084 - 0.005519, abs=1e-5)
    assert effect["share"]["value"] == pytest.approx(0.21, abs=1e-3)


def limited(one: Attempt, message: str = "its event loop stood still.") -> Attempt:
    """The same, of a client that could not keep up."""
    warning = WarningRow(slug="client-limited", message=message, hint="Leave it a processor of its own.")
    trial = replace(one.trial, client={**one.trial.client, "client_limited": True})
    return replace(one, result=replace(one.result, trial=trial, warnings=(warning,)))


def test_a_difference_in_times_that_may_be_the_clients_is_marked() -> None:
    design = a_design()
    attempts = attempts_of(design)
    assert not any("*" in line for line in effect_lines(design, attempts))
    # Two of the five trials of q4_0, no baseline: two of the ten behind its differences.
    doubtful = [limited(a) if a.trial.level == "q4_0" and a.trial.block < 2 else a for a in attempts]
    lines = effect_lines(design, doubtful)
    assert line_of(lines, "q4_0", "first token").rstrip().endswith("yes*")
    assert not line_of(lines, "q4_0", "MiB").rstrip().endswith("*")  # memory has nothing of it
    assert "* 2 of the 10 trials behind it are client_limited" in joined(lines)
    assert "*" not in line_of(lines, "q8_0", "first token")
    assert all(len(line) <= WIDTH for line in lines)
    # A baseline is behind every difference.
    base = [limited(a) if a.trial.level == "f16" and a.trial.block == 0 else a for a in attempts]
    assert joined(effect_lines(design, base)).count("* 1 of the 10 trials") == 2


def test_doubts_are_said_by_kind_with_how_many_trials_have_them() -> None:
    design = a_design()
    attempts = attempts_of(design)
    assert doubt_lines(attempts) == []
    swapped = WarningRow(slug="swap-active", message="Part of the\nmemory was swapped out, " * 4, hint="")
    first = replace(attempts[0], result=replace(attempts[0].result, warnings=(swapped,)))
    lines = doubt_lines([first, limited(attempts[1], "the first"), limited(attempts[2], "another"), *attempts[3:]])
    told = joined(lines)
    assert "client-limited, 2 of 15: the first" in told
    assert "another" not in told
    assert told.index("client-limited") < told.index("swap-active, 1 of 15: Part of the memory")
    assert all(len(line) <= WIDTH for line in lines)


def test_the_page_marks_them_too() -> None:
    design = a_design()
    attempts = [limited(a) if a.trial.level == "q4_0" and a.trial.block < 2 else a for a in attempts_of(design)]
    blocks = effect_blocks(study(design, attempts), "effects-1")
    told = [block.text for block in blocks if isinstance(block, Paragraph)]
    assert "* 2 of the 15 trials of this design are client_limited: times marked so may be too long." in told
    table = next(b.table if isinstance(b, Chart) else b for b in blocks if isinstance(b, Chart | Table))
    marked = {(line.cells[0], line.cells[1]) for line in table.rows if line.cells[-1].endswith("*")}
    assert {level for level, _ in marked} == {"q4_0"}
    assert all("MiB" not in what for _, what in marked)
    assert len(marked) >= 3
    clean = effect_blocks(study(design, attempts_of(design)), "effects-1")
    assert not any("client_limited" in block.text for block in clean if isinstance(block, Paragraph))


def test_of_many_designs_some_are_shown_whole_and_the_levels_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvscope.report.section_effects.MOST_LEVELS", 4)
    monkeypatch.setattr("kvscope.report.section_effects.MOST_WHOLE", 2)
    named = {1: "kv_dtype", 2: "batch_size", 3: "kv_dtype", 4: "kv_dtype"}
    designs = [a_design(design_id=f"{number:016x}", study_id=f"{number:016x}", name=named[number]) for number in named]
    with open_records(write_record(tmp_path / "r.db", [a for d in designs for a in attempts_of(d)])) as records:
        (study,) = analyse(records).studies
    blocks = changes_section(study, {}).blocks
    levels = [b for b in blocks if isinstance(b, Table) and "(baseline)" in b.rows[0].cells[0]]
    assert [len(table.rows) for table in levels] == [3, 3, 3, 3]
    # Of the second the only one of its name, of the others the last.
    bullets = [b for b in blocks if isinstance(b, Bullets)]
    assert len(bullets) == 2
    (said,) = [b.text for b in blocks if isinstance(b, Paragraph) and "too many to show whole" in b.text]
    assert said.startswith("4 designs")
    assert "; 2 of them" in said
    assert "--records r.db --json" in said
