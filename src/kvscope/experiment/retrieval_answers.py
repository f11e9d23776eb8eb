"""One question's answer as a row of the record: what it was read as, what it was given, and why it is not right."""

from collections.abc import Sequence
from dataclasses import replace

from kvscope.engine.base import Generation
from kvscope.experiment.retrieval_failures import CUT, failure_of, named_rivals
from kvscope.experiment.retrieval_prompts import AskedPrompt, question_language
from kvscope.experiment.retrieval_ways import Way
from kvscope.quality.answer_text import is_refusal
from kvscope.quality.reading import ReadAnswer, Said, read_answer
from kvscope.quality.retrieval.questions import AskedQuestion
from kvscope.quality.scoring import is_named
from kvscope.quality.task import Question
from kvscope.record.rows import TRUNCATED_SLUG, AnswerRow, RequestRow

TASK = "retrieval"
# Of a question whose right answer is not known: it was asked, and nothing is held against it.
UNSCORED = "unscored"


def said(answer: Generation) -> Said:
    """What came back, by kind of piece."""
    return Said(
        content="".join(event.text for event in answer.events if event.kind in ("content", "token")),
        reasoning="".join(event.text for event in answer.events if event.kind == "reasoning"),
        tool_calls=answer.tool_calls,
        finish_reason=answer.finish_reason,
    )


def questions_of(prompt: AskedPrompt, questions: Sequence[AskedQuestion]) -> list[Question]:
    """The question as answers are read: right is who names its answer, and none of the other questions' answers that
    stand in what was given. Where one of several answers is enough, one question for each of them."""
    asked = prompt.question
    own = " ".join((asked.text, *asked.expected, *prompt.evidence))
    others = dict.fromkeys(value for each in questions for value in each.expected)
    question = Question(
        item=asked.id,
        text=asked.text,
        expected=asked.expected,
        scoring="normalised",
        chance=0.0,
        evidence=prompt.evidence,
        max_output_tokens=1,
        rivals=tuple(value for value in others if is_named(value, prompt.given) and not is_named(value, own)),
    )
    return [replace(question, expected=(value,)) for value in asked.expected] if asked.is_any else [question]


def _read(prompt: AskedPrompt, came: Said, questions: Sequence[AskedQuestion]) -> ReadAnswer:
    if not prompt.question.expected:
        refused = {"refused": True} if is_refusal(came.content) else {}
        return ReadAnswer(reading=UNSCORED, score=None, answer=came.content or None, facts=refused)
    each = [read_answer(question, came) for question in questions_of(prompt, questions)]
    return next((read for read in each if read.reading == "right"), each[0])


def answer_row(
    *,
    index: int,
    request_index: int,
    way: Way,
    prompt: AskedPrompt,
    answer: Generation,
    questions: Sequence[AskedQuestion],
) -> AnswerRow:
    """The row of one question. ``questions``: all of the study."""
    asked = prompt.question
    read = _read(prompt, said(answer), questions)
    failure = failure_of(read.reading, way, prompt, read.answer or "", questions)
    return AnswerRow(
        index=index,
        task=TASK,
        item=asked.id,
        document=asked.document or (prompt.evidence_documents or ("",))[0],
        language=question_language(asked),
        reading=read.reading,
        score=read.score,
        chance=0.0 if asked.expected else None,
        evidence_in_prompt=prompt.has_evidence,
        request_index=request_index,
        expected=(" or " if asked.is_any else "; ").join(asked.expected) or None,
        answer=read.answer,
        facts={
            **read.facts,
            "question": asked.text,
            "given": way.name,
            "passages": [f"{each.document}#{each.index}" for each in prompt.passages],
            "evidence_rank": prompt.rank,
            **({} if prompt.embedder is None else {"embedder": prompt.embedder}),
            "failure": failure,
            **_rivals(read, prompt, questions),
        },
    )


def _rivals(read: ReadAnswer, prompt: AskedPrompt, questions: Sequence[AskedQuestion]) -> dict[str, object]:
    found = named_rivals(prompt, read.answer or "", questions) if read.reading == "wrong" else ()
    return {"named_instead": list(found)} if found else {}


def cut_noted(answers: Sequence[AnswerRow], requests: Sequence[RequestRow]) -> list[AnswerRow]:
    """The rows once the counts of all requests are judged: of a prompt that the server cut in silence, nothing is said
    of the model."""
    cut = {request.index for request in requests if request.error_slug == TRUNCATED_SLUG}
    return [
        replace(row, reading="truncated_input", score=None, facts={**row.facts, "failure": CUT})
        if row.task == TASK and row.request_index in cut
        else row
        for row in answers
    ]
