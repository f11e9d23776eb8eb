"""Every failure has one reason: the table of what was given, what was answered, and why it is not right."""

from dataclasses import replace

import pytest

from kvscope.engine.base import Generation, TokenEvent
from kvscope.experiment.retrieval_answers import answer_row, cut_noted
from kvscope.experiment.retrieval_asked import RetrievalAsked
from kvscope.experiment.retrieval_failures import FAILURES, named_rivals
from kvscope.experiment.retrieval_prompts import AskedPrompt
from kvscope.experiment.retrieval_rivals import standing_answers
from kvscope.experiment.retrieval_ways import way_named
from kvscope.prompt.conversation import Message
from kvscope.quality.retrieval.questions import AskedQuestion
from kvscope.quality.retrieval.source import SourceDocument
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


STANDING = ("41873", "Mira Holt")


def row(
    answer: str,
    asked: AskedPrompt,
    *,
    way: str = "passages=3",
    finish: str = "stop",
    standing: tuple[str, ...] = STANDING,
) -> AnswerRow:
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
        index=0,
        request_index=1,
        way=way_named(way),
        prompt=asked,
        answer=said,
        questions=(QUESTION, OTHER),
        standing=standing,
    )


@pytest.mark.parametrize(
    ("answer", "asked", "way", "finish", "reading", "failure"),
    [
        ("It is 41873.", prompt(), "passages=3", "stop", "right", None),
        ("It is 41873.", prompt(has_evidence=False), "nothing", "stop", "right", None),
        ("It is 90264.", prompt(), "passages=3", "stop", "wrong", "buried"),
        # It names the right value, and another: of the text given, of no text, or of what was not given.
        ("41873 or 90264", prompt(), "whole", "stop", "wrong", "partly_right"),
        (
            "41873, or 55555",
            prompt(given="The number of gate 7 is 41873."),
            "passages=3",
            "stop",
            "wrong",
            "partly_right",
        ),
        ("Mira Holt.", prompt(), "whole", "stop", "wrong", "buried"),
        ("It is 55555.", prompt(), "passages=3", "stop", "wrong", "retrieved_not_used"),
        ("The text does not say.", prompt(), "whole", "stop", "wrong", "retrieved_not_used"),
        ("", prompt(), "whole", "stop", "no_answer", "no_answer"),
        ("", prompt(has_evidence=False), "nothing", "stop", "no_answer", "no_answer"),
        ("It is 90264.", prompt(has_evidence=False), "passages=1", "stop", "wrong", "not_retrieved"),
        ("It is 12345.", prompt(has_evidence=False), "nothing", "stop", "wrong", "not_given"),
        ("The number of the gate", prompt(), "passages=3", "length", "cut_output", "cut_answer"),
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


KEEPER = AskedQuestion(id="k", text="Who keeps the lamp house?", expected=("Anna Berg",))
MASTER = AskedQuestion(id="m", text="Who is master of the tug?", expected=("Olof Lind",))
SWIM = AskedQuestion(id="s", text="May one swim in the basin?", expected=("yes",))
DOGS = AskedQuestion(id="d", text="May dogs be on the quay?", expected=("no",))
KOREAN = AskedQuestion(id="o", text="수영해도 되나요?", expected=("예",))
DOCUMENTS = tuple(
    SourceDocument(name=name, path=name, text=text, kind="text")
    for name, text in (
        ("a.txt", "The keeper of the lamp house is Anna Berg."),
        ("b.txt", "The master of the harbour tug is Olof Lind."),
        ("c.txt", "Swimming in the basin is allowed: yes. Dogs on the quay: no."),
    )
)
ASKED = RetrievalAsked(
    documents=DOCUMENTS, questions=(KEEPER, MASTER, SWIM, DOGS, KOREAN, replace(KEEPER, id="x", expected=("Nobody",)))
)


def read(question: AskedQuestion, said: str, given: str = DOCUMENTS[0].text) -> AnswerRow:
    return row(said, replace(prompt(given=given), question=question, evidence=()), standing=standing_answers(ASKED))


def test_what_an_answer_is_held_against_stands_in_the_documents() -> None:
    assert standing_answers(ASKED) == ("Anna Berg", "Olof Lind")


@pytest.mark.parametrize("given", [DOCUMENTS[0].text, "\n".join(each.text for each in DOCUMENTS), ""])
def test_a_name_of_a_document_that_was_not_given_is_one_too_many_too(given: str) -> None:
    assert read(KEEPER, "Anna Berg.", given).reading == "right"
    found = read(KEEPER, "Anna Berg; the master is Olof Lind.", given)
    assert (found.reading, found.facts["failure"]) == ("wrong", "partly_right")


@pytest.mark.parametrize(
    ("question", "said", "reading"),
    [
        (SWIM, "Yes, there is no rule against it.", "right"),
        (SWIM, "No. One would think yes.", "wrong"),
        (SWIM, "It is not known.", "wrong"),  # neither: "not" is no "no"
        (DOGS, "No.", "right"),
        (DOGS, "Yes, no doubt.", "wrong"),
        (KOREAN, "예, 금지하는 규칙은 아니요.", "right"),
        (KOREAN, "아니요.", "wrong"),
        (KOREAN, "예전에는 금지.", "wrong"),  # a longer word
    ],
)
def test_of_yes_and_no_the_first_counts(question: AskedQuestion, said: str, reading: str) -> None:
    found = read(question, said)
    assert found.reading == reading
    assert "also_named" not in found.facts
