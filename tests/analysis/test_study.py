"""A whole record: what belongs together, what was found, and in which order."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from study_rows import (
    KV_BYTES_PER_CELL,
    answered,
    attempt,
    design_row,
    log_lines,
    mark,
    memory,
    prediction,
    reported,
    request_row,
    run_row,
    trial_row,
    whole_lab,
    write_record,
)

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.attribute import unexplained_bytes
from kvscope.analysis.study import Analysis, Study, analyse
from kvscope.analysis.table import table_rows
from kvscope.record.store import open_records
from kvscope.report.blocks import Bullets, Paragraph, Table
from kvscope.report.charts_time import ttft_chart
from kvscope.report.claims import row_anchors
from kvscope.report.section_answer import headline, interval_line
from kvscope.report.section_growth import why
from kvscope.report.section_rows import rows_section
from kvscope.report.section_trust import trust_section
from kvscope.report.sections import study_page


def analysed(path: Path, attempts: list[Attempt], **more: Any) -> Analysis:
    with open_records(write_record(path / "r.db", attempts, **more)) as records:
        return analyse(records)


def study_of(path: Path, attempts: list[Attempt]) -> Study:
    (study,) = analysed(path, attempts).studies
    return study


def slugs(study: Study) -> list[str]:
    return [f.slug for f in study.findings]


def test_the_lab_finds_what_was_built_into_it(tmp_path: Path) -> None:
    study = study_of(tmp_path, whole_lab())
    assert study.context is not None
    assert study.context.measured.slope.value is not None
    # Loading adds 30 × 3 × 64 × 2 × 2 B for each cell and 27,000 KiB whatever the context.
    assert round(study.context.measured.slope.value, 6) == KV_BYTES_PER_CELL
    assert study.context.measured.intercept is not None
    assert round(study.context.measured.intercept) == 27_000 * 1024
    assert study.ttft is not None
    assert study.ttft.line.num_levels == 2
    assert [r.verdict for r in study.releases] == ["retained_bounded", "retained_bounded"]
    assert [r.cause for r in study.releases] == ["host_cache", "none"]
    assert study.num_failed == 1
    assert not any(f.is_contradiction for f in study.findings)
    assert {"reported_agrees", "slope_agrees", "unexplained_small", "failed", "ttft_grows_once", "first_microbatch",
            "output_time", "release_host_cache", "release_retained_bounded"} <= set(slugs(study))  # fmt: skip


def test_the_first_screen_shows_the_largest_context(tmp_path: Path) -> None:
    study = study_of(tmp_path, whole_lab())
    assert study.main is not None
    assert study.main.attempt.context_tokens == 8192
    assert [v.attempt.context_tokens for v in study.by_context] == [512, 2048, 8192]


def test_memory_after_the_load_is_not_the_cache(tmp_path: Path) -> None:
    study = study_of(tmp_path, whole_lab())
    finding = next(f for f in study.findings if f.slug == "first_microbatch")
    # Each request added 14,000 KiB, all of it touched of the compute and output buffers, none of it KV cache.
    assert finding.values["added_bytes"] == 14_000 * 1024
    assert finding.values["working_bytes"] == 14_000 * 1024
    assert finding.values["naive_bytes"] == 14_000 * 1024 / 512
    assert finding.values["shortest_naive_bytes"] == 14_000 * 1024 / 128


def measured(level: int, repeat: int = 0, **changes: Any) -> Attempt:
    design = design_row()
    rows = {**memory(level), **answered(), "reported": log_lines(level), "effective": {"n_ctx": level}, **changes}
    return attempt(trial_row(design, level, repeat), design=design, predicted=prediction(level), **rows)


def test_an_engine_that_reserves_something_else_contradicts_first(tmp_path: Path) -> None:
    lines = (*log_lines(2048)[:1], reported("kv_cache", "22.50"), *log_lines(2048)[2:])
    study = study_of(tmp_path, [measured(512), measured(2048, reported=lines)])
    assert slugs(study)[0] == "reported_differs"
    assert study.findings[0].is_contradiction
    assert study.findings[0].values["reported_mib"] == "22.50"


def test_a_slope_that_is_not_the_predicted_one_contradicts(tmp_path: Path) -> None:
    # The process pays 25,000 B for each cell where 23,040 were predicted.
    def paying(level: int, repeat: int) -> Attempt:
        rows = memory(level)
        marks = (mark("launched", 8_400), mark("loaded", 8_400 + 25_000 * level // 1024 + repeat))
        return measured(level, repeat, marks=marks, maps=rows["maps"])

    study = study_of(tmp_path, [paying(level, r) for level in (512, 2048) for r in range(3)])
    finding = next(f for f in study.findings if f.slug == "slope_differs")
    assert finding.is_contradiction
    assert finding.values["predicted_bytes"] == KV_BYTES_PER_CELL
    assert 24_990 < float(str(finding.values["measured_bytes"])) < 25_010


def sliding(n_ctx: int, repeat: int, window_cells: int = 1024) -> Attempt:
    """A model half of whose bytes for each token stop at a window: 11,520 B each of full and of windowed layers."""
    predicted = prediction(n_ctx)
    kv = 11_520 * n_ctx + 11_520 * min(n_ctx, window_cells)
    predicted["totals"]["cache_bytes"] = kv
    marks = (mark("launched", 8_400), mark("loaded", 8_400 + 27_000 + kv // 1024 + 4 * repeat))
    return replace(measured(n_ctx, repeat, marks=marks, maps=()), prediction=predicted)


def later(law: Any, tmp_path: Path) -> str:
    design = design_row("input_length", levels=(128, 512, 2048))
    attempts = [
        attempt(trial_row(design, n, r), design=design, **answered(n, tpot_s=law(n, r)))
        for n in design.levels
        for r in range(3)
    ]
    (slug,) = [s for s in slugs(study_of(tmp_path, attempts)) if s.startswith("tpot_")]
    return slug


def test_later_tokens_that_grow_that_do_not_and_that_cannot_be_told(tmp_path: Path) -> None:
    for number, (law, slug) in enumerate(
        [
            (lambda n, r: 0.010 + n * 1e-5 + r * 1e-4, "tpot_grows"),
            (lambda n, r: 0.010 + r * 1e-5, "tpot_flat"),
            (lambda n, r: 0.010 + ((n * 7 + r * 13) % 5) * 2e-3, "tpot_unclear"),
        ]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert later(law, folder) == slug


def test_a_window_makes_steps_and_not_one_slope(tmp_path: Path) -> None:
    design = design_row(levels=(512, 1024, 4096))
    attempts = [replace(sliding(n, r), design=design) for n in (512, 1024, 4096) for r in range(3)]
    study = study_of(tmp_path, attempts)
    assert study.context is not None
    assert not study.context.is_straight
    steps = [f for f in study.findings if f.slug == "step_agrees"]
    assert [f.values["predicted_bytes"] for f in steps] == [23_040, 11_520]
    assert [f.values["measured_bytes"] for f in steps] == [23_040, 11_520]
    assert not [s for s in slugs(study) if s.startswith("slope_")]


def test_a_straight_prediction_is_one_slope(tmp_path: Path) -> None:
    study = study_of(tmp_path, whole_lab())
    assert study.context is not None
    assert study.context.is_straight
    assert [s.predicted for s in study.context.steps] == [KV_BYTES_PER_CELL] * 2


def test_a_slope_without_an_interval_contradicts_nothing(tmp_path: Path) -> None:
    study = study_of(tmp_path, [measured(512), measured(2048)])
    assert "slope_differs" not in slugs(study)
    assert study.context is not None
    assert not study.context.measured.slope.has_interval


def test_a_prompt_that_the_server_cut_contradicts(tmp_path: Path) -> None:
    cut = measured(512, requests=(request_row(prompt_tokens_server=60),))
    assert slugs(study_of(tmp_path, [cut]))[0] == "tokens_mismatch"


def test_rows_of_other_machines_models_and_builds_are_other_studies(tmp_path: Path) -> None:
    first = measured(512)
    others = [
        replace(first, design=design_row(design_id=name, **{field: "other"}))
        for name, field in (("a", "machine_id"), ("b", "model_fingerprint"), ("c", "engine_build"))
    ]
    trials = [
        replace(a, result=replace(a.result, trial=replace(a.trial, trial_id=a.design.design_id,
                                                          design_id=a.design.design_id)))
        for a in others
    ]  # fmt: skip
    analysis = analysed(tmp_path, [first, *trials])
    assert len(analysis.studies) == 4
    assert [len(s.attempts) for s in analysis.studies] == [1, 1, 1, 1]


def test_two_sittings_of_one_design_are_one_study(tmp_path: Path) -> None:
    second = measured(2048)
    second = replace(second, result=replace(second.result, trial=replace(second.trial, run_id="later")))
    analysis = analysed(tmp_path, [measured(512), second], runs=[run_row(), run_row(run_id="later")])
    (study,) = analysis.studies
    assert [r.run_id for r in study.runs] == ["run", "later"]


def test_only_failures(tmp_path: Path) -> None:
    lost = measured(512)
    lost = replace(lost, result=replace(lost.result, trial=replace(lost.trial, outcome="out_of_memory")))
    study = study_of(tmp_path, [lost])
    assert not study.is_measured
    assert study.context is None
    assert study.main is None
    assert study.prediction is not None
    assert slugs(study) == ["failed"]


def test_a_trial_still_running(tmp_path: Path) -> None:
    running = measured(512)
    running = replace(running, result=replace(running.result, trial=replace(running.trial, outcome=None)))
    study = study_of(tmp_path, [running])
    assert study.num_failed == 0
    assert [c.slug for c in study.checks if c.passed is False] == ["repeats", "unfinished", "not_run"]


def test_an_empty_record(tmp_path: Path) -> None:
    assert analysed(tmp_path, []).studies == ()


def test_a_design_without_a_trial(tmp_path: Path) -> None:
    (study,) = analysed(tmp_path, [], designs=[design_row()]).studies
    assert study.attempts == ()
    assert study.findings == ()


def first_tokens(path: Path, times_s: dict[int, list[float]]) -> Study:
    """A study of inputs of these lengths, with these times to the first token."""
    design = design_row("input_length", levels=tuple(times_s))
    return study_of(
        path,
        [
            attempt(trial_row(design, tokens, repeat), design=design, **answered(tokens, ttft_s=time_s))
            for tokens, times in times_s.items()
            for repeat, time_s in enumerate(times)
        ],
    )


@pytest.mark.parametrize(
    ("times_s", "slug"),
    [
        # The waits of a noisy machine: the slope's interval is −107 to +86 ms for each 1,000 tokens.
        ({128: [0.50, 0.52], 1024: [0.48, 0.53], 2048: [0.40, 0.58]}, "ttft_unclear"),
        # 10 ms more, once: no interval at all.
        ({128: [0.50], 1024: [0.51]}, "ttft_unclear"),
        ({128: [0.50, 0.51, 0.52], 1024: [0.80, 0.81, 0.82], 2048: [1.20, 1.21, 1.22]}, "ttft_grows"),
        ({128: [0.50, 0.51, 0.52], 1024: [0.80, 0.81, 0.82]}, "ttft_grows_once"),
        # Within a twentieth of where it began, interval and all.
        ({128: [0.500, 0.501], 1024: [0.501, 0.500], 2048: [0.501, 0.500]}, "ttft_flat"),
        ({128: [0.80, 0.81, 0.82], 1024: [0.50, 0.51, 0.52]}, "ttft_falls"),
    ],
)
def test_only_what_stands_out_of_the_noise_is_said_of_the_wait(
    tmp_path: Path, times_s: dict[int, list[float]], slug: str
) -> None:
    study = first_tokens(tmp_path, times_s)
    assert [s for s in slugs(study) if s.startswith("ttft_")] == [slug]
    assert ("The first token came after" in headline(study)) is slug.startswith("ttft_grows")


@pytest.mark.parametrize(
    ("times_s", "is_line"),
    [
        # 0.1 s, and 0.3 s for each 1,000 tokens, give or take 4 ms: one price is true of every step.
        ({1000: [0.400, 0.404], 2000: [0.700, 0.704], 4000: [1.300, 1.304]}, True),
        # Two lengths show no bend, and of one repeat none can be told from noise.
        ({1000: [0.400, 0.404], 2000: [0.700, 0.704]}, False),
        ({1000: [0.400], 2000: [0.700, 0.704], 4000: [1.300, 1.304]}, False),
        # By the line through them 128 tokens would take less than no time: least squares give −1.48 s there.
        ({128: [0.3, 0.4], 512: [0.9, 1.1], 1024: [2.6, 2.2], 4096: [22.0, 30.0]}, False),
        # 0.2 s, then 0.6 s for each further 1,000.
        ({1000: [0.40, 0.41], 2000: [0.60, 0.61], 3000: [1.20, 1.21]}, False),
    ],
)
def test_one_price_of_a_token_is_told_only_where_the_waits_lie_on_a_line(
    tmp_path: Path, times_s: dict[int, list[float]], is_line: bool
) -> None:
    study = first_tokens(tmp_path, times_s)
    assert study.ttft is not None
    assert study.ttft.is_line is is_line
    if study.ttft.trend != "grows":
        return
    assert ("delays the first token" in headline(study)) is is_line
    assert ("of prompt delay the first token by" in ttft_chart(study.ttft, []).title) is is_line
    if not is_line:
        first, *_, last = sorted(times_s)
        assert f"with a prompt of {first:,} tokens, and after" in headline(study)
        assert f"with {last:,}." in headline(study)
        told = f"at {first:,} tokens one trial, so no interval"
        assert (told in interval_line(study)) is (len(times_s[first]) == 1 < len(times_s[last]))


def test_what_was_measured_without_a_prediction_is_not_called_nothing(tmp_path: Path) -> None:
    # A server that runs already, measured without --model at one length, and at two that differ by noise.
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    one = headline(replace(first_tokens(tmp_path / "one", {40: [0.20, 0.30, 0.22]}), prediction=None))
    assert one.startswith("The first token came after 220\xa0ms, with a prompt of 40 tokens. Nothing was predicted")
    two = headline(replace(first_tokens(tmp_path / "two", {128: [0.50], 1024: [0.51]}), prediction=None))
    assert two.startswith("2 trials were measured. Nothing was predicted")


def test_the_whole_answers_time_may_be_noise_too(tmp_path: Path) -> None:
    design = design_row("output_length")
    rows = [(16, 0.5), (16, 1.5), (64, 0.6), (64, 1.6)]
    attempts = [
        attempt(trial_row(design, n, r), design=design, **answered(output=n, ttft_s=s, tpot_s=1e-4))
        for r, (n, s) in enumerate(rows)
    ]
    assert "output_time_unclear" in slugs(study_of(tmp_path, attempts))


def test_nothing_predicted_agrees_with_nothing(tmp_path: Path) -> None:
    # "logical" says what 100 tokens need, whatever the context limit: 2,304,000 B at 512 and at 2,048. That is no
    # prediction over the context limit.
    def of_no_known_engine(level: int) -> Attempt:
        logical = prediction(level, scenario={"engine": "logical", "tokens": 100, "settings": {}}, buffers=[])
        logical["totals"]["cache_bytes"] = 2_304_000
        return replace(measured(level), prediction=logical)

    study = study_of(tmp_path, [of_no_known_engine(512), of_no_known_engine(2048)])
    assert "slope_measured" in slugs(study)
    assert study.context is not None
    assert study.context.predicted_points == ()


def test_a_rest_contradicts_no_prediction_that_was_not_made(tmp_path: Path) -> None:
    # No rules of the engine: the 45 MiB of its cache at 2,048 cells have no name, and the model's file has.
    logical = prediction(scenario={"engine": "logical", "tokens": 100, "settings": {}}, buffers=[])
    study = study_of(tmp_path, [replace(measured(2048), prediction=logical)])
    finding = next(f for f in study.findings if f.slug.startswith("unexplained_"))
    assert (finding.slug, finding.is_contradiction) == ("unexplained_no_rules", False)
    assert finding.values["unexplained_anon_bytes"] == 45 * 2**20
    assert finding.values["seen_bytes"] == 94_320 * 1024
    assert finding.values["measured_bytes"] == 27_000 * 1024


def test_where_nothing_was_predicted_nothing_is_said_to_be_unexplained(tmp_path: Path) -> None:
    # As of a server that runs already, measured without the model's file.
    alone = replace(measured(2048), prediction=None)
    assert not [slug for slug in slugs(study_of(tmp_path, [alone])) if slug.startswith("unexplained")]
    assert unexplained_bytes(alone.result, None) is None
    assert unexplained_bytes(alone.result, prediction(2048)) is not None


def test_one_length_is_not_compared_with_itself(tmp_path: Path) -> None:
    design = design_row("input_length", levels=(128,))
    only = attempt(trial_row(design, 128), design=design, **memory(), **answered(128))
    found = slugs(study_of(tmp_path, [only]))
    assert "first_microbatch_once" in found
    assert "first_microbatch" not in found


def test_a_predicted_slope_of_zero_is_not_any_slope(tmp_path: Path) -> None:
    def flat(level: int, repeat: int) -> Attempt:
        predicted = prediction(level)
        predicted["totals"]["cache_bytes"] = 1000
        rows = memory(level)
        marks = (mark("launched", 8_400), mark("loaded", 35_400 + level * KV_BYTES_PER_CELL // 1024 + 4 * repeat))
        return replace(measured(level, repeat, marks=marks, maps=rows["maps"]), prediction=predicted)

    study = study_of(tmp_path, [flat(level, r) for level in (512, 2048) for r in range(3)])
    finding = next(f for f in study.findings if f.slug == "slope_differs")
    assert finding.is_contradiction
    assert finding.values["predicted_bytes"] == 0
    assert finding.values["share"] == 1.0


def test_what_was_not_seen_is_not_said_to_be_the_growth(tmp_path: Path) -> None:
    # One context limit only: nothing was compared.
    assert why(study_of(tmp_path, [measured(512)])).startswith("Predicted: with the context the KV cache grows")


def test_what_was_seen_is(tmp_path: Path) -> None:
    assert why(study_of(tmp_path, whole_lab())).startswith("All of that growth is the KV cache")


def test_an_attempt_that_was_repeated_is_no_failed_trial(tmp_path: Path) -> None:
    attempts = whole_lab()
    whole = study_of(tmp_path, attempts)
    good = next(a for a in attempts if a.is_measured)
    cut = replace(good.result.trial, outcome="interrupted", error_slug="interrupted", error_message="cut short")
    again = replace(good.result.trial, attempt=2)
    before = replace(good, result=replace(good.result, trial=cut, requests=(), tokens=(), marks=(), maps=()))
    after = replace(good, result=replace(good.result, trial=again))
    (tmp_path / "two").mkdir()
    study = study_of(tmp_path / "two", [before if a is good else a for a in attempts] + [after])
    assert len(study.attempts) == len(whole.attempts) + 1
    assert (len(study.trials), study.num_failed, study.num_repeated) == (len(whole.trials), whole.num_failed, 1)
    assert [level.num_failed for d in study.designs for level in d.levels] == [
        level.num_failed for d in whole.designs for level in d.levels
    ]


def test_rows_keep_their_numbers_when_more_are_recorded(tmp_path: Path) -> None:
    # Two designs in turn, then a second sitting of the first one: as the record and its export have them.
    context, inputs = design_row(), design_row("input_length")
    rows = [attempt(trial_row(d, level), design=d, **answered()) for level in (0, 1) for d in (context, inputs)]
    later = attempt(trial_row(context, 2, started_at="2026-11-30T10:00:00.000+00:00"), design=context, **answered())
    for name, recorded in (("first", rows), ("second", [*rows, later])):
        path = write_record(tmp_path / name, recorded)
        with open_records(path) as records:
            (study,) = analyse(records).studies
            exported = [(row["trial_id"], row["attempt"]) for row in table_rows(records)]
        numbers = {key: int(link.text) for key, link in row_anchors(study, "").items()}
        assert numbers == {f"{trial}/{number}": n for n, (trial, number) in enumerate(exported, start=1)}
        assert [numbers[each.key] for each in rows] == [1, 2, 3, 4]
        shown = rows_section(study, row_anchors(study, "")).blocks[1]
        assert isinstance(shown, Table)
        assert [row.cells[0] for row in shown.rows] == [str(n) for n in range(1, len(recorded) + 1)]


def test_a_run_that_failed_after_the_load_shows_what_was_read_until_then(tmp_path: Path) -> None:
    design = design_row()
    trial = trial_row(design, 2048, outcome="context_overflow", error_message="Too long.")
    lost = attempt(trial, design=design, **memory(), reported=log_lines(), effective={"n_ctx": 2048})
    study = study_of(tmp_path, [lost])
    assert not study.is_measured
    page = study_page(study, "")
    assert page.answer.headline.startswith("No trial came to its end: 1 of 1 failed (over the context limit).")
    assert page.answer.table is not None
    cells = {row.cells[0]: row.cells for row in page.answer.table.rows}
    # 23,040 B for each of 2,048 cells are 45.0 MiB: predicted, stated in the log, and seen.
    assert cells["KV cache"][1:] == ("45.0", "45.0", "45.0")
    told = " ".join(block.text for section in page.sections for block in section.blocks if isinstance(block, Paragraph))
    assert "until the trial failed (over the context limit)" in told
    assert "Nothing was measured" not in told


def test_what_a_record_does_not_tell_is_said_of_what_it_holds(tmp_path: Path) -> None:
    alone = trust_section(study_of(tmp_path, [measured(512)])).blocks[-1]
    assert isinstance(alone, Bullets)
    assert any("Several requests at once" in item for item in alone.items)
    assert any("none was read here" in item for item in alone.items)
    (tmp_path / "at_once").mkdir()
    design = design_row(held={"concurrency": 2})
    row = attempt(trial_row(design, 512), design=design, **memory(), **answered())
    on_device = tuple(replace(mark, device_bytes=1) for mark in row.result.marks)
    row = replace(row, result=replace(row.result, marks=on_device))
    both = trust_section(study_of(tmp_path / "at_once", [row])).blocks[-1]
    assert isinstance(both, Bullets)
    assert len(both.items) == len(alone.items) - 2
