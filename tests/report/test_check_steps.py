"""A doubt says what it saw, why that matters and what to do: on the page, and in a line of a terminal."""

import pytest

from kvscope.analysis.checks import Check
from kvscope.report.section_trust import by_weight, next_step, why_and_next
from kvscope.report.words import WORDS

SLUGS = sorted(slug.removeprefix("check_name.") for slug in WORDS if slug.startswith("check_name."))
# Two spaces, the name and a colon stand before a step in a terminal of 80 columns.
MOST_COLUMNS = 78


@pytest.mark.parametrize("slug", SLUGS)
def test_every_check_has_a_cause_and_a_next_step(slug: str) -> None:
    check = Check(slug=slug, passed=False, values={"hint": "Close other programs."})
    assert WORDS[f"check_why.{slug}"].endswith(".")
    step = next_step(check)
    assert step.endswith(".")
    assert why_and_next(check).endswith(step)
    if slug not in ("warning",):
        assert len(WORDS[f"check_short.{slug}"]) + 2 + len(step) <= MOST_COLUMNS


def test_a_warning_says_its_own_hint() -> None:
    check = Check(slug="warning", passed=False, values={"hint": "Close other programs."})
    assert next_step(check) == "Close other programs."


def test_what_is_of_something_else_comes_before_what_is_unsure() -> None:
    doubts = [Check(slug=slug, passed=False) for slug in ("spread", "drift", "swap", "cut_prompts", "repeats")]
    assert [check.slug for check in by_weight(doubts)] == ["cut_prompts", "swap", "drift", "spread", "repeats"]


def test_what_to_do_about_failures_follows_the_failure() -> None:
    failed = Check(slug="failures", passed=False, values={"outcome": "over_limit", "hint": "Set n_ctx to 5,008."})
    assert next_step(failed) == "Set n_ctx to 5,008."
    assert [c.slug for c in by_weight([Check(slug="repeats", passed=False), failed])] == ["failures", "repeats"]


def test_a_run_that_was_interrupted_goes_on() -> None:
    command = "kvscope measure output_length --repeats 8 --records int.db"
    few = Check(slug="repeats", passed=False, values={"fewest": 2, "limit": 3, "command": command})
    assert next_step(few) == f"Go on where it stopped: {command}"
