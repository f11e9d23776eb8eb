"""Every failure has one reason: the table of what was given, what was answered, and why it is not right."""

from dataclasses import replace

import pytest

from kvscope.engine.base import Generation, TokenEvent
from kvscope.experiment.retrieval_answers import answer_row, cut_noted
from kvscope.experiment.retrieval_failures import FAILURES, named_rivals
from kvscope.experiment.retrieval_prompts import AskedPrompt
from kvscope.experiment.retrieval_ways import way_named
from kvscope.prompt.conversation import Message
from kvscope.quality.retrieval.questions import AskedQuestion
from kvscope.record.rows import TRUNCATED_SLUG, AnswerRow, RequestRow

QUESTION = AskedQuestion(id="q1", text="What is the number of gate 7?", expected=("41873",), evidence=("It is 41873.",))
OTHER = AskedQuestion(id="q2", text="Who keeps the lamps?", expected=("Mira Holt",))
GIVEN = "The number of gate 7 is 41873. The number of gate 8 is 90264. Mira Holt keeps the lamps."


def prompt(*, has_evidence: bool | None = True, given: str = GIVEN) -> AskedPrompt:
    return AskedPrompt(
        question=QUESTION,
        messages=(Message(role="user", content=given),),
        given=given,
        passages=(),
        rank=None,
        has_evidence=has_evidence,
        evidence=("The number of gate 7 is 41873.",),
    )


def row(answer: str, asked: AskedPrompt, *, way: str = "passages=3", finish: str = "stop") -> AnswerRow:
    said = Generation(
        events=(TokenEvent(at_s=0.1, text=answer),) if answer else (),
        reads=(),
        completed_s=0.2,
        prompt_tokens=40,
        cached_tokens=0,
        output_tokens=5,
        finish_reason=finish,
    )
    return answer_row(
        index=0, request_index=1, way=way_named(way), prompt=asked, answer=said, questions=(QUESTION, OTHER)
    )


@pytest.mark.parametrize(
    ("answer", "asked", "way", "finish", "reading", "failure"),
    [
        ("It is 41873.", prompt(), "passages=3", "stop", "right", None),
        ("It is 41873.", prompt(has_evidence=False), "nothing", "stop", "right", None),
        ("It is 90264.", prompt(), "passages=3", "stop", "wrong", "buried"),
        ("41873 or 90264", prompt(), "whole", "stop", "wrong", "buried"),
        ("Mira Holt.", prompt(), "whole", "stop", "wrong", "buried"),
        ("It is 55555.", prompt(), "passages=3", "stop", "wrong", "retrieved_not_used"),
        ("The text does not say.", prompt(), "whole", "stop", "wrong", "retrieved_not_used"),
        ("", prompt(), "whole", "stop", "no_answer", "retrieved_not_used"),
        ("It is 90264.", prompt(has_evidence=False), "passages=1", "stop", "wrong", "not_retrieved"),
        ("It is 12345.", prompt(has_evidence=False), "nothing", "stop", "wrong", "not_given"),
        ("The number of the gate", prompt(), "passages=3", "length", "cut_output", "cut"),
        ("It is 90264.", prompt(has_evidence=None), "passages=3", "stop", "wrong", "evidence_unknown"),
    ],
)
def test_the_reason_of_a_failure(
    answer: str, asked: AskedPrompt, way: str, finish: str, reading: str, failure: str | None
) -> None:
    found = row(answer, asked, way=way, finish=finish)
    assert (found.reading, found.facts["failure"]) == (reading, failure)
    assert failure is None or failure in FAILURES


def test_a_question_without_an_answer_is_asked_and_not_scored() -> None:
    bare = replace(prompt(), question=replace(QUESTION, expected=(), evidence=()))
    found = row("It is 90264.", bare)
    assert (found.reading, found.score, found.facts["failure"], found.answer) == (
        "unscored",
        None,
        None,
        "It is 90264.",
    )


def test_that_an_unscored_answer_refuses_is_kept() -> None:
    bare = replace(prompt(), question=replace(QUESTION, expected=(), evidence=()))
    assert row("The text does not say.", bare).facts["refused"] is True
    assert "refused" not in row("It is 90264.", bare).facts


def test_one_of_several_answers_is_enough_where_the_file_says_so() -> None:
    either = replace(prompt(), question=replace(QUESTION, expected=("41873", "gate money"), is_any=True))
    assert row("Gate money.", either).reading == "right"
    assert row("41873", either).reading == "right"
    both = replace(prompt(), question=replace(QUESTION, expected=("41873", "gate money")))
    assert row("41873", both).reading == "wrong"


def test_what_the_question_says_itself_is_no_rival() -> None:
    assert named_rivals(prompt(), "Of gate 7.", (QUESTION, OTHER)) == ()
    assert named_rivals(prompt(), "Of gate 7: 90264.", (QUESTION, OTHER)) == ("90264",)
    assert named_rivals(prompt(), "902641", (QUESTION, OTHER)) == ()  # no whole number of the text


def test_a_prompt_that_the_server_cut_says_nothing_of_the_model() -> None:
    request = RequestRow(
        index=1, role="measured", sent_at_s=0, completed_s=1, prompt_tokens_asked=None, prompt_tokens_ours=40,
        prompt_tokens_server=20, cached_tokens=0, output_tokens_limit=8, output_tokens=5, finish_reason="stop",
        error_slug=TRUNCATED_SLUG,
    )  # fmt: skip
    (found,) = cut_noted([row("It is 90264.", prompt())], [request])
    assert (found.reading, found.score, found.facts["failure"]) == ("truncated_input", None, "cut")
    (kept,) = cut_noted([row("It is 90264.", prompt())], [replace(request, error_slug=None)])
    assert kept.reading == "wrong"
