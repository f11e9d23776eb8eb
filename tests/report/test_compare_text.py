"""A comparison as text: 80 columns whatever it holds, and nothing of what the rows are doubtful for left unsaid."""

from typing import Any

import pytest

from kvscope.report.compare_text import render_comparison


def effect(a: float = 1.0, difference: float = 0.5, **changes: Any) -> dict[str, Any]:
    values = {
        "a": a, "b": a + difference, "difference": difference, "low": difference - 0.25, "high": difference + 0.25,
        "share": difference / a, "share_low": 0.25, "share_high": 0.75, "verdict": "more", "method": "welch_t",
        "pairs": 0,
    }  # fmt: skip
    return {**values, **changes}


def place(**changes: Any) -> dict[str, Any]:
    values = {
        "design": "input_length", "factor": "prompt_tokens", "design_b": "input_length", "factor_b": "prompt_tokens",
        "design_id_a": "d1d1d1d1d1", "design_id_b": "d2d2d2d2d2", "level_a": 128, "level_b": 128,
        "num_a": 5, "num_b": 5, "failed_a": 0, "failed_b": 0, "client_limited_a": 0, "client_limited_b": 0,
        "warnings_a": {}, "warnings_b": {}, "is_paired": False, "pairs_across_sittings": 0,
        "metrics": {"ttft_s": effect()},
    }  # fmt: skip
    return {**values, **changes}


def shown(*places: dict[str, Any], **changes: Any) -> str:
    found: dict[str, Any] = {
        "a": "a.db", "b": "b.db", "differs": [], "not_comparable": [], "left_out": [], "places": list(places),
        "fail_if": [],
    }  # fmt: skip
    return render_comparison({**found, **changes})


def difference(
    kind: str = "setting", name: str = "n_ctx", because: str | None = None, **changes: Any
) -> dict[str, Any]:
    return {"kind": kind, "name": name, "a": 512, "b": 1024, "because": because, **changes}


def row_of(text: str, name: str) -> list[str]:
    return next(line for line in text.splitlines() if line.strip().startswith(name)).split()


def test_a_row_has_the_difference_with_its_interval_and_share() -> None:
    # 1 s and half a second more, a quarter of one to either side.
    cells = "ttft, ms 1,000.0 +500.0 +250.0 to +750.0 +50.0 % yes".split()
    assert row_of(shown(place()), "ttft") == cells


@pytest.mark.parametrize("scale", [1e-9, 1e-3, 1.0, 123.456, 98765.4321, 1e7, 1e12])
def test_80_columns_whatever_the_numbers_are(scale: float) -> None:
    names = ("memory_released_bytes_device", "output_tokens_per_s_all", "ttft_s", "prompt_tokens_server")
    wide = {name: effect(a=scale, difference=-scale / 3, low=-scale, high=scale * 9, share=-0.9712) for name in names}
    assert max(map(len, shown(place(metrics=wide)).splitlines())) <= 80


def test_80_columns_of_grids_long_conditions_and_everything_beside() -> None:
    cell = {"n_ctx": 1024, "cache_type_k": "q8_0", "cache_type_v": "q8_0", "prompt_tokens": 100}
    text = shown(
        place(level_a=cell, level_b={**cell, "n_ctx": 2048}, design="grid", factor="n_ctx × cache_type_k × prompt"),
        place(warnings_a={f"some-long-warning-{number}": 3 for number in range(9)}, client_limited_a=2),
        differs=[difference(name="engine_command", a="llama-server --flag " * 9, b=None), difference("question")],
        left_out=[
            {"what": "input_length", "reason": "another_compared",
             "values": {"factor": "prompt_tokens", "design_id": f"d{number}" * 8, "side": "a"}} for number in range(7)
        ],
        fail_if=[
            {"condition": "memory_peak_bytes_device > +12.5MiB", "design": "grid", "level_a": cell, "level_b": cell,
             "state": state} for state in ("failed", "passed", "undecided", "not_measured")
        ],
    )  # fmt: skip
    assert max(map(len, text.splitlines())) <= 80
    assert "n_ctx=1024, cache_type_k=q8_0" in text
    assert "7 other designs of A (d0d0d0d0, d1d1d1d1, d2d2d2d2, d3d3d3d3 ...)" in " ".join(text.split())


def test_conditions_of_failing_are_said_with_their_place() -> None:
    judged = {"condition": "ttft > +5%", "design": "input_length", "level_a": 128, "level_b": None}
    text = " ".join(shown(place(), fail_if=[{**judged, "state": "not_measured"}]).split())
    assert "input_length at 128: FAILED: ttft > +5% could not be checked" in text


def test_several_causes_are_said_and_a_setting_that_the_level_makes_is_none() -> None:
    level = difference("question", "level")
    assert "things differ" not in shown(place(), differs=[level, difference(because="level")])
    assert "made by the level" in shown(place(), differs=[level, difference(because="level")])
    assert "2 things differ" in shown(place(), differs=[level, difference()])
    assert "things differ" not in shown(place(), differs=[level, difference("kvscope", "kvscope_version")])


def test_an_unnamed_difference_is_not_nothing() -> None:
    text = " ".join(shown(place(), differs=[difference("unnamed", "design_id", a="d1", b="d2")]).split())
    assert "something else differs (the design's identity does), which the record does not name" in text
    assert "Nothing differs" not in text


def test_both_questions_are_named_where_they_are_two() -> None:
    text = shown(place(design_b="kv_dtype", factor_b="cache_type", level_b="q8_0"))
    assert "input_length, prompt_tokens = 128 → kv_dtype, cache_type = q8_0 (not paired)" in " ".join(text.split())


def test_places_of_one_question_in_several_designs_name_them() -> None:
    assert "designs d1d1d1d1 and d2d2d2d2" in shown(place(), place(design_id_a="d3d3d3d3", design_id_b="d4"))
    assert "designs" not in shown(place(), place(level_a=512, level_b=512))


def test_doubts_of_the_rows_stand_below_their_counts() -> None:
    text = shown(place(client_limited_b=2, warnings_b={"client-limited": 2, "noisy-machine": 1}))
    assert "B with warnings: 2 client_limited" in text
    assert "client-limited" not in text  # the same once more
    assert "noisy-machine 1" in text
    assert "A with warnings" not in text


def test_pairs_of_two_sittings_are_said() -> None:
    assert "paired by block; 1 of the pairs" in shown(place(is_paired=True, pairs_across_sittings=1))


def test_what_a_metric_of_the_load_says_is_shown_and_what_was_only_predicted_is_not() -> None:
    metrics = {
        "load_wall_s": effect(verdict="no_difference_seen"),
        "itl_p50_s": effect(verdict="no_difference_seen"),
        "ttft_p50_s": effect(),
        "kv_cache_bytes_predicted": effect(),
    }
    text = shown(place(metrics=metrics))
    assert [name in text for name in ("load wall, ms", "itl p50", "ttft p50, ms", "predicted")] == [
        True, False, True, False,
    ]  # fmt: skip
