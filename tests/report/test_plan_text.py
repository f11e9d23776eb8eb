"""What a dry run says, of a plan made by hand."""

from typing import Any

import pytest

from kvscope.report.plan_text import plan_time, render_plan


def point(level: int, **changes: Any) -> dict[str, Any]:
    return {
        "levels": {"prompt_tokens": level},
        "needed_bytes": 200 * 1024**2,
        "needed_here_bytes": 200 * 1024**2,
        "fits": True,
        "not_run_because": None,
        "not_predicted_because": None,
        "trial_s": 2.0,
        "timed_trials": 3,
        **changes,
    }


def plan(*points: dict[str, Any], **changes: Any) -> dict[str, Any]:
    trials = [
        {
            "position": number,
            "role": "measured",
            "levels": each["levels"],
            "repeat": 0,
            "not_run_because": each["not_run_because"],
            "is_recorded": False,
        }
        for number, each in enumerate(points)
    ]
    return {
        "question": "How long?",
        "held": {"output_tokens": 8},
        "points": list(points),
        "trials": trials,
        "trials_left": len(trials),
        "left_s": 4.0,
        "is_at_most": False,
        "available_bytes": 8 * 1024**3,
        "devices": ["cpu"],
        **changes,
    }


def test_what_is_needed_and_how_long_it_takes() -> None:
    said = " ".join(render_plan(plan(point(128), point(256, needed_here_bytes=100 * 1024**2))).split())
    assert "200.0 MiB" in said
    assert "200.0 MiB (100.0 MiB on" in said  # the cell goes on in the line below
    assert "8.0 GiB of this machine's memory can be had now" in said
    assert "To run: 2 trials, in about 4 s, by the trials in the record." in said
    assert "2.00 s (mean of 3 in the" in said
    assert "Each trial has for itself: cpu" in said


def test_what_is_refused_is_said_with_its_reason() -> None:
    said = render_plan(plan(point(128, fits=False, not_run_because="Predicted to need more. Not run.")))
    assert "no, not run" in said
    assert "no, run anyway" in render_plan(plan(point(128, fits=False)))
    assert "prompt_tokens=128: Predicted to need more. Not run." in said
    assert "(not run)" in said


def test_what_is_not_known_is_said_to_be_unknown() -> None:
    unknown = point(128, needed_bytes=None, needed_here_bytes=None, fits=None, trial_s=None, timed_trials=0)
    said = render_plan(
        plan({**unknown, "not_predicted_because": "no description of the model was given"}, left_s=None)
        | {"available_bytes": None, "devices": []}
    )
    assert said.count("not known") >= 4
    assert "nothing is predicted, as no description of the model was given" in " ".join(said.split())
    assert "How long they take is not known" in said
    assert "How much memory can be had here is not stated" in said
    assert "No device is needed" in said


def test_what_may_end_earlier_and_what_is_over() -> None:
    assert "To run: at most 1 trial, in about 4 s" in render_plan(plan(point(1), is_at_most=True))
    assert "All 1 trials are in the record already" in render_plan(plan(point(1), trials_left=0, left_s=0))


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.6, "1 min 0 s"), (61, "1 min 1 s"), (7384, "2 h 3 min")]
)
def test_lengths_of_time(seconds: float, text: str) -> None:
    assert plan_time(seconds) == text


def test_what_is_held_is_written_for_people() -> None:
    held = {"output_tokens": 32, "reuse_prefix": True, "concurrency": 4, "settings": {"n_ctx": 2816, "n_threads": 1}}
    said = " ".join(render_plan(plan(point(128), held=held)).split())
    requests = "output limit (tokens) = 32; prefix reuse = on; requests at once = 4"
    assert f"Held fixed: {requests}; engine settings: n_ctx = 2,816, n_threads = 1." in said
    assert "{" not in said


def test_no_line_is_wider_than_a_terminal() -> None:
    wide = point(128) | {"levels": {"n_ubatch": 128, "prompt_tokens": 4096}}
    grid = plan(
        wide | {"needed_here_bytes": 0}, wide | {"not_run_because": "Predicted to need more than is free. " * 4}
    )
    for lines in (render_plan(plan(point(128))), render_plan(grid)):
        assert max(map(len, lines.splitlines())) <= 80
    first, second = render_plan(grid).splitlines()[4:6]
    # Cells are folded between words, and numbers keep their units.
    assert first.startswith("  n_ubatch=128,  ")
    assert "200.0 MiB (200.0 MiB on" in first
    assert second.startswith("  prompt_tokens=4096  ")


def test_what_questions_cost_is_told_of_all_trials_that_ask_them() -> None:
    asked = {"task": "keys", "documents": 10, "prompt_tokens": 1024}
    made = plan(point(256, quality=asked), point(512, quality=asked))
    assert "40 prompts in all 2 trials." in " ".join(render_plan(made).split())
    twice = [*made["trials"], *({**each, "repeat": 1} for each in made["trials"])]
    warmup = {**made["trials"][0], "role": "warmup"}
    known = {**made["trials"][0], "is_recorded": True}
    text = " ".join(render_plan({**made, "trials": [warmup, *twice, known]}).split())
    assert "80 prompts in all 4 trials, as each repeat asks the same again." in text
