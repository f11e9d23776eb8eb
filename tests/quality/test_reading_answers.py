"""What hand-made answers are read as: first whether they say anything of the model, then right or wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from questions_by_hand import question

from kvscope.quality.reading import PromptSeen, Said, read_answer
from kvscope.record.rows import READINGS

NUMBER = question("48213", "10990", "73906")
NAME = question("타루빈", "미로단")
REST = "left the spare key and a straw hat in Lindol."
COPY = question(REST, scoring="exact", evidence=(f"Torvan and Belkis {REST}",))
SET = question(("Torvan", "Belkis"), "Ulmon", scoring="set")

WHOLE = PromptSeen(counted_tokens=1000, server_tokens=1000)


@pytest.mark.parametrize("content", ["48213", "10990", "", "I do not know.", "<think>hm"])
@pytest.mark.parametrize("finish_reason", ["stop", "length", None])
def test_a_cut_prompt_is_never_a_right_or_wrong_answer(content: str, finish_reason: str | None) -> None:
    said = Said(content=content, finish_reason=finish_reason)
    read = read_answer(NUMBER, said, PromptSeen(counted_tokens=1000, server_tokens=500))
    assert (read.reading, read.score) == ("truncated_input", None)
    assert read.facts["counted_tokens"] == 1000
    assert read.facts["server_tokens"] == 500


def test_a_prompt_is_cut_by_the_error_too_and_by_nothing_less_than_its_slack() -> None:
    assert read_answer(NUMBER, Said(content="48213", error_slug="truncated-input")).reading == "truncated_input"
    for server, slack, reading in ((992, 8, "right"), (991, 8, "truncated_input"), (999, 0, "truncated_input")):
        prompt = PromptSeen(counted_tokens=1000, server_tokens=server, slack_tokens=slack)
        assert read_answer(NUMBER, Said(content="48213"), prompt).reading == reading
    assert read_answer(NUMBER, Said(content="48213"), PromptSeen(counted_tokens=1000)).reading == "right"
    assert read_answer(NUMBER, Said(content="48213"), PromptSeen(server_tokens=10)).reading == "right"


def test_an_error_is_a_failure_with_its_slug() -> None:
    read = read_answer(NUMBER, Said(content="", error_slug="timed-out"), PromptSeen(counted_tokens=9, server_tokens=0))
    assert (read.reading, read.score, read.facts) == ("failed", None, {"error": "timed-out"})


# Content, reasoning, the server's finish reason, and the reading.
READ = [
    (NUMBER, "48213", "", "stop", "right"),
    (NUMBER, "48213", "10990 or 73906?", "stop", "right"),
    (NUMBER, "", "It is 48213", "stop", "no_answer"),
    (NUMBER, "", "It is 48213", "length", "cut_output"),
    (NUMBER, "", "", "stop", "no_answer"),
    (NUMBER, "", "", "length", "no_answer"),
    (NUMBER, " \n", "", "stop", "no_answer"),
    (NUMBER, "<think>48213</think>", "", "stop", "no_answer"),
    (NUMBER, "<think>It is 48213, or", "", "length", "cut_output"),
    (NUMBER, "<think>It is 48213, or", "", "stop", "no_answer"),
    (NUMBER, "<think>10990</think>48213", "", "stop", "right"),
    (NUMBER, "<think>48213</think>10990", "", "stop", "wrong"),
    (NUMBER, "The number of the crate is 48213 and the", "", "length", "right"),
    (NUMBER, "Let me see. The number of the", "", "length", "cut_output"),
    (NUMBER, "The number of the crate is 10990, because", "", "length", "wrong"),
    (NUMBER, "The number of the crate is 482", "", "length", "cut_output"),
    (NUMBER, "The number of the crate is 482", "", "stop", "wrong"),
    (NUMBER, "The number of the crate is 487", "", "length", "wrong"),
    (NUMBER, "The text does not mention", "", "length", "wrong"),
    (NUMBER, "The value of Nolvul is that of Nolvul. " * 4, "", "length", "wrong"),  # no limit would have helped
    (NUMBER, "The number of the number of the number of 48213 " + "and so on " * 9, "", "length", "right"),
    (NUMBER, "Let me see. The number of the", "", "stop", "wrong"),
    (NAME, "타루빈입니다.", "", "stop", "right"),
    (NAME, "미로단입니다.", "", "stop", "wrong"),
    (NAME, "이 글에 나오는 사람의 이름은", "", "length", "cut_output"),
    (NAME, "알 수 없습니다.", "", "stop", "wrong"),
    (COPY, f"Torvan and Belkis {REST}", "", "stop", "right"),
    (COPY, "Torvan and Belkis left the spare", "", "length", "cut_output"),
    (COPY, "Torvan and", "", "length", "cut_output"),
    (COPY, "Torvan and Belkis left the spare", "", "stop", "wrong"),
    (COPY, "Torvan and Belkis\n\nTorvan and Belkis\n\nTorvan", "", "length", "wrong"),  # SmolLM2 went round so
    (SET, "Torvan and Belkis", "", "stop", "right"),
    (SET, "Torvan, Belkis", "", "length", "cut_output"),
    (SET, "Torvan, Ulmon", "", "length", "wrong"),
    (SET, "Torvan", "", "stop", "wrong"),
]


@pytest.mark.parametrize("reason", ["content_filter", "abort", "error", "cancelled", "timeout", "SAFETY", "new word"])
@pytest.mark.parametrize("content", ["The crate", "48213", "10990", ""])
def test_an_answer_that_the_server_broke_off_says_nothing_of_the_model(reason: str, content: str) -> None:
    read = read_answer(NUMBER, Said(content=content, finish_reason=reason), WHOLE)
    assert (read.reading, read.score, read.facts) == ("failed", None, {"finish_reason": reason})


@pytest.mark.parametrize("reason", ["length", "max_tokens", "MAX_TOKENS", "model_length"])
def test_every_servers_word_for_the_limit_is_a_cut(reason: str) -> None:
    assert read_answer(NUMBER, Said(content="The crate", finish_reason=reason), WHOLE).reading == "cut_output"


@pytest.mark.parametrize("reason", ["stop", "STOP", "eos", "end_turn", "stop_sequence", None])
def test_every_servers_word_for_an_end_is_one(reason: str | None) -> None:
    assert read_answer(NUMBER, Said(content="48213", finish_reason=reason), WHOLE).reading == "right"


@pytest.mark.parametrize(("asked", "content", "reasoning", "finish_reason", "reading"), READ)
def test_readings(asked: object, content: str, reasoning: str, finish_reason: str, reading: str) -> None:
    said = Said(content=content, reasoning=reasoning, finish_reason=finish_reason)
    read = read_answer(asked, said, WHOLE)  # type: ignore[arg-type]
    assert read.reading == reading
    assert (read.score is None) == (reading not in ("right", "wrong"))
    assert read.facts["finish_reason"] == finish_reason


def test_refusals_are_told_apart_from_other_wrong_answers() -> None:
    refused = read_answer(NUMBER, Said(content="The text does not say which number it has."))
    guessed = read_answer(NUMBER, Said(content="12345"))
    assert (refused.reading, refused.facts.get("refused")) == ("wrong", True)
    assert (guessed.reading, guessed.facts.get("refused")) == ("wrong", None)
    assert "refused" not in read_answer(NUMBER, Said(content="It is 48213; no other number is mentioned.")).facts


# Answers of SmolLM2 135M and Gemma 3 270M, as they came, that an earlier reading had wrong or that are awkward.
CONTINUED = [
    (NUMBER, " 48213. The number of the crate Ulm is 10990.", "length", "right"),
    (NUMBER, " 48213", "length", "right"),
    (NUMBER, " 100000.", "length", "wrong"),
    (NUMBER, "\n48213\n10990", "length", "right"),
    (NUMBER, " the same as that of Rores.", "length", "wrong"),
    (NUMBER, " written on a slip of paper that the widow", "length", "cut_output"),
    (NAME, " 타루빈이다. 미로단은 앞방에서", "length", "right"),
    (COPY, f" {REST} The swallows flew low.", "length", "right"),
    (COPY, " left the spare key and a straw hat in Lindol", "stop", "right"),
    (COPY, " left the spare key", "length", "cut_output"),
]


@pytest.mark.parametrize(("asked", "content", "finish_reason", "reading"), CONTINUED)
def test_a_continuation_is_read_to_the_end_of_its_first_sentence(
    asked: object, content: str, finish_reason: str, reading: str
) -> None:
    said = Said(content=content, finish_reason=finish_reason)
    assert read_answer(asked, said, WHOLE, form="cue").reading == reading  # type: ignore[arg-type]


@given(
    st.text(max_size=60),
    st.text(max_size=20),
    st.sampled_from(["stop", "length", "tool_calls", None]),
    st.sampled_from(["chat", "cue"]),
)
def test_every_text_has_a_reading(content: str, reasoning: str, finish_reason: str | None, form: object) -> None:
    said = Said(content=content, reasoning=reasoning, finish_reason=finish_reason)
    for asked in (NUMBER, NAME, COPY, SET):
        read = read_answer(asked, said, WHOLE, form=form)  # type: ignore[arg-type]
        assert read.reading in READINGS
        assert (read.score is None) == (read.reading not in ("right", "wrong"))
