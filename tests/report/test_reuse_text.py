"""The text of kvscope reuse: the answer first, and what is not seen made visible."""

from typing import Any

import pytest

from kvscope.report.reuse_text import render_reuse, render_reuse_log, visible

FOUND: dict[str, Any] = {
    "schema": "kvscope.reuse/1",
    "first": {"source": "a", "prompt_tokens": 1300, "held_tokens": 1310, "answer": "history"},
    "second": {"source": "b", "prompt_tokens": 1400},
    "engine": "llama.cpp",
    "engine_version": None,
    "common_prefix_tokens": 1234,
    "reusable_tokens": 1234,
    "recomputed_tokens": 166,
    "status": "exact",
    "because": "it is so",
    "source": "the engine",
    "granularity_tokens": 1,
    "minimum_prefix_tokens": 1,
    "outcome": "broken",
    "fits": True,
    "broken_by": "whitespace",
    "broken_at": {"part": "system", "message": 0, "tool": None, "character": 5, "token": 1234},
    "what": "Only blanks changed in the system prompt.",
    "advice": "Send it as it was.",
    "evidence": {"first": "\r", "second": ""},
    "excerpt": {"before": "a  b", "first": "\r\nBe", "second": "\nBe"},
    "later": [],
    "notes": ["a note"],
}
UNBROKEN = {**FOUND, **dict.fromkeys(("broken_by", "broken_at", "what", "advice", "evidence", "excerpt"))}
ROW: dict[str, Any] = {"source": "a", "prompt_tokens_ours": 1300, "prompt_tokens_server": 1300, "ttft_s": None}


def test_the_first_line_is_the_answer() -> None:
    lines = render_reuse(FOUND).splitlines()
    assert lines[0] == "Turn 2 reuses 1,234 of 1,400 tokens; 166 are computed anew."
    assert lines[2] == "It breaks at token 1,234: the system prompt, character 5."
    assert "    first   a··b|\\r\\nBe" in lines
    assert "    second  a··b|\\nBe" in lines
    assert any(line.startswith("What to do: Send it as it was.") for line in lines)
    assert "  Note: a note" in lines


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"status": "estimated"}, "(estimated)"),
        (
            {"reusable_tokens": None, "recomputed_tokens": None},
            "is not known; 1,234 of its 1,400",
        ),
        ({"recomputed_tokens": 1}, "1 is computed anew"),
        ({"granularity_tokens": 16, "minimum_prefix_tokens": 16}, "steps of 16 tokens"),
    ],
)
def test_what_is_not_certain_is_said(change: dict[str, Any], says: str) -> None:
    assert says in render_reuse({**FOUND, **change})


def test_nothing_broke() -> None:
    assert "Nothing broke: the second request goes on" in render_reuse({**UNBROKEN, "outcome": "appended"})
    assert "all of the second request is held" in render_reuse({**UNBROKEN, "outcome": "repeated"})


@pytest.mark.parametrize(
    ("cached", "predicted", "says"),
    [
        (1234, 1234, "Confirmed on the engine"),
        (1200, 1234, "NOT as predicted"),
        (None, 1234, "did not say"),
        (1200, None, "the rule did not say"),
    ],
)
def test_what_the_engine_reused_stands_beside_it(cached: int | None, predicted: int | None, says: str) -> None:
    second = {**ROW, "source": "b", "cached_tokens": cached, "predicted_tokens": predicted}
    found = {**FOUND, "confirmed": [{**ROW, "cached_tokens": 0, "predicted_tokens": 0}, second]}
    text = " ".join(render_reuse(found).split())
    assert says in text
    assert "The engine counted" not in text
    other = {**found, "confirmed": [{**ROW, "prompt_tokens_server": 1301}, second]}
    assert "The engine counted 1,301 prompt tokens of a, not 1,300." in render_reuse(other)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a b", "a b"),
        ("a  b", "a··b"),
        (" a ", "·a·"),
        ("a\tb\\", "a\\tb\\\\"),
        ("\u200b\ufeff", "\\u200b\\ufeff"),
        ("강 é 😀", "강 é 😀"),
        ("\x1b[31m", "\\x1b[31m"),
    ],
)
def test_what_is_not_seen_is_written_out(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_letters_that_join_are_shown_as_numbers_where_asked() -> None:
    assert visible("e\u0301 \u1100\u1161", show_letters=True) == "e\\u0301 \\u1100\\u1161"


def test_a_log_is_a_table_with_its_totals_first() -> None:
    turn = {
        "turn": 1,
        "source": "l:1",
        "previous": None,
        "prompt_tokens": 100,
        "reusable_tokens": 0,
        "problem": None,
        "recomputed_tokens": 100,
        "broken_by": None,
        "broken_at": None,
        "advice": None,
    }
    broken = {
        **turn,
        "turn": 2,
        "previous": 1,
        "prompt_tokens": 200,
        "reusable_tokens": 50,
        "recomputed_tokens": 150,
        "broken_by": "clock",
        "broken_at": {"token": 50},
        "advice": "Leave it out.",
    }
    counts = dict.fromkeys(("prompt_tokens", "reusable_tokens", "recomputed_tokens"))
    failed = {**turn, **counts, "turn": 3, "problem": "bad"}
    found = {
        "turns": [turn, broken],
        "totals": {"prompt_tokens": 300, "reusable_tokens": 50, "recomputed_tokens": 250},
        "broken_by": {"clock": 1},
        "problems": ["l:9: no JSON"],
    }
    text = render_reuse_log(found)
    assert text.startswith("2 requests reuse 50 of 300 prompt tokens (16.7 %); 250 are computed.\n")
    assert "clock at token 50" in text
    assert "clock, 1 time. What to do: Leave it out." in text
    assert "l:9: no JSON" in text
    totals = dict.fromkeys(found["totals"])
    unknown = render_reuse_log({**found, "turns": [turn, broken, failed], "totals": totals})
    assert "not known for all of them" in unknown
    assert "turn 3: bad" in unknown


def test_what_hangs_on_an_assumed_answer_is_told_apart_from_what_was_confirmed() -> None:
    """Seen: "reuses 89 of 176", and then "Confirmed: 68 as predicted"."""
    first = {"source": "a", "prompt_tokens": 68, "held_tokens": 89, "answer": "history"}
    found = {**UNBROKEN, "outcome": "appended", "first": first, "reusable_tokens": 89, "status": "estimated"}
    said = " ".join(render_reuse(found).split())
    assert "68 of them are the first prompt, 21 more if the model's answer is the history's." in said
    rows = [
        {**ROW, "cached_tokens": 0, "predicted_tokens": 0},
        {**ROW, "source": "b", "cached_tokens": 68, "predicted_tokens": 68},
    ]
    text = " ".join(render_reuse({**found, "confirmed": rows}).split())
    assert "68 of them are the first prompt (confirmed), 21 more if the model's answer is the history's (not" in text
    assert "The one token of turn 1's answer had no text" in text
    stated = {**found, "first": {**first, "answer": "stated"}}
    assert "more if" not in render_reuse(stated)
