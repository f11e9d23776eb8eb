"""One question's answer as a row of the record: what it was read as, what it was given, and why it is not right."""

from collections.abc import Sequence
from dataclasses import replace

from kvscope.engine.base import Generation
from kvscope.errors import KvscopeError
from kvscope.experiment.retrieval_failures import CUT, failure_of, named_rivals, standing_in
from kvscope.experiment.retrieval_prompts import AskedPrompt, question_language
from kvscope.experiment.retrieval_rivals import polarity, polarity_patterns
from kvscope.experiment.retrieval_ways import Way
from kvscope.quality.answer_text import is_refusal
from kvscope.quality.reading import ReadAnswer, Said, read_answer
from kvscope.quality.retrieval.questions import AskedQuestion
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


def questions_of(prompt: AskedPrompt, standing: Sequence[str]) -> list[Question]:
    """The question as answers are read: right is who names its answer, and none of the other questions' answers that
    stand in the documents (``standing``), whichever of them were given. Where one of several answers is enough, one
    question for each of them. Of yes and no, the first that is said counts."""
    asked = prompt.question
    own = " ".join((asked.text, *asked.expected, *prompt.evidence))
    is_own = set(standing_in(standing, own))
    question = Question(
        item=asked.id,
        text=asked.text,
        expected=asked.expected,
        scoring="normalised",
        chance=0.0,
        evidence=prompt.evidence,
        max_output_tokens=1,
        rivals=tuple(value for value in standing if value not in is_own),
    )
    if not asked.is_any:
        return [_by_polarity(question)]
    return [_by_polarity(replace(question, expected=(value,))) for value in asked.expected]


def _by_polarity(question: Question) -> Question:
    says = polarity(question.expected[0]) if len(question.expected) == 1 else None
    if says is None:
        return question
    right, wrong = polarity_patterns(says)
    return replace(question, scoring="regex", expected=(right,), rivals=(wrong,))


def _read(prompt: AskedPrompt, came: Said, standing: Sequence[str]) -> ReadAnswer:
    if not prompt.question.expected:
        refused = {"refused": True} if is_refusal(came.content) else {}
        return ReadAnswer(reading=UNSCORED, score=None, answer=came.content or None, facts=refused)
    questions = questions_of(prompt, standing)
    each = [_without_patterns(question, read_answer(question, came)) for question in questions]
    return next((read for read in each if read.reading == "right"), each[0])


def _without_patterns(question: Question, read: ReadAnswer) -> ReadAnswer:
    """A pattern is no value that an answer names, and who says yes or no does not refuse."""
    if question.scoring != "regex" or "also_named" not in read.facts:
        return read
    return replace(
        read, facts={name: value for name, value in read.facts.items() if name not in ("also_named", "refused")}
    )


def answer_row(
    *,
    index: int,
    request_index: int,
    way: Way,
    prompt: AskedPrompt,
    answer: Generation,
    questions: Sequence[AskedQuestion],
    standing: Sequence[str],
) -> AnswerRow:
    """The row of one question. ``questions``: all of the study; ``standing``: their answers that stand in the
    documents."""
    read = _read(prompt, said(answer), standing)
    failure = failure_of(read, way, prompt, questions)
    rivals = named_rivals(prompt, read.answer or "", questions) if read.reading == "wrong" else ()
    named: dict[str, object] = {"named_instead": list(rivals)} if rivals else {}
    return _row(index, request_index, way, prompt, replace(read, facts={**read.facts, **named, "failure": failure}))


def failed_row(*, index: int, request_index: int, way: Way, prompt: AskedPrompt, error: KvscopeError) -> AnswerRow:
    """The row of a question that ended in an error."""
    read = read_answer(questions_of(prompt, ())[0], Said(content="", error_slug=error.slug))
    failure = failure_of(read, way, prompt, ()) if prompt.question.expected else None
    return _row(index, request_index, way, prompt, replace(read, facts={**read.facts, "failure": failure}))


def _row(index: int, request_index: int, way: Way, prompt: AskedPrompt, read: ReadAnswer) -> AnswerRow:
    asked = prompt.question
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
        },
    )


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
