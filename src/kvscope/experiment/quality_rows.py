"""What came back of a quality task's questions, as rows: first whether the prompts reached the model whole, by all
counts of the attempt together, then what each answer is read as."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvscope.engine.base import Generation
from kvscope.experiment.attempt_rows import AttemptRows
from kvscope.experiment.quality_cut import without_lost_end
from kvscope.experiment.retrieval_answers import said
from kvscope.prompt.counting.server_count import compare_counts
from kvscope.quality.markers import MARKER_TASK
from kvscope.quality.reading import NOTHING_KNOWN, PromptSeen, Said, read_answer
from kvscope.quality.task import Document, Form, Question
from kvscope.record.rows import QUALITY, TRUNCATED_SLUG, AnswerRow, RequestRow


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedItem:
    """One question as it is sent. ``answer``: what came; None where it failed. ``request_index``: its request's."""

    document: Document
    question: Question
    form: Form
    text: str
    answer: Generation | None = None
    request_index: int = 0


def answer_rows(
    items: Sequence[AskedItem], rows: AttemptRows, *, first_index: int = 0, engine: str = ""
) -> list[AnswerRow]:
    """A row for each item. Prompts that were cut are marked in their requests' rows too, and warned of. ``engine``: its
    name, which may say what its counts are of."""
    if not items:
        return []
    _note_cut(rows)
    requests = {row.index: row for row in rows.requests}
    read = [_row(item, requests[item.request_index], index) for index, item in enumerate(items, start=first_index)]
    return without_lost_end(read, rows, engine=engine)


def _note_cut(rows: AttemptRows) -> None:
    """Hold the counts of the questions' prompts against the server's, beside those of all other requests: short ones
    that agree show what a difference of long ones means."""
    answered = [row for row in rows.requests if row.error_slug is None]
    cut: set[int] = set()
    for finding in compare_counts([rows.count_sample(row) for row in answered]):
        if finding.is_cut:
            cut |= {answered[place].index for place in finding.requests if answered[place].role == QUALITY}
    cut |= {
        row.index
        for row in answered
        if row.role == QUALITY and row.prompt_tokens_server is None and rows.surely_over.get(row.index)
    }
    if not cut:
        return
    # One that lacks about as many tokens as were reused looks like a server that leaves these out. This one cuts.
    cut |= {row.index for row in answered if row.role == QUALITY and _lacks_tokens(row)}
    rows.requests = [replace(row, error_slug=TRUNCATED_SLUG) if row.index in cut else row for row in rows.requests]
    asked = sum(row.role == QUALITY for row in rows.requests)
    rows.warn(
        "quality-truncated",
        f"The server cut {len(cut)} of {asked} prompts of questions without a word: what it answered says nothing of "
        "the model, and is left out of the score.",
        "Load the model with a larger context, or ask about shorter documents (--input-tokens).",
    )


def _lacks_tokens(row: RequestRow) -> bool:
    ours, server = row.prompt_tokens_ours, row.prompt_tokens_server
    return PromptSeen(counted_tokens=ours, server_tokens=server).is_cut


def _row(item: AskedItem, request: RequestRow, index: int) -> AnswerRow:
    question, document = item.question, item.document
    is_cut = request.error_slug == TRUNCATED_SLUG
    came = Said(content="") if item.answer is None else said(item.answer)
    seen = PromptSeen(
        counted_tokens=request.prompt_tokens_ours, server_tokens=request.prompt_tokens_server, slack_tokens=0
    )
    read = read_answer(
        question, replace(came, error_slug=request.error_slug), seen if is_cut else NOTHING_KNOWN, form=item.form
    )
    return AnswerRow(
        index=index,
        task=MARKER_TASK if "/marker-" in question.item else document.task,
        item=question.item,
        document=document.name,
        language=document.language,
        reading=read.reading,
        score=read.score,
        chance=question.chance,
        is_twin=document.is_twin,
        depth_percent=question.depth_percent,
        document_tokens=request.prompt_tokens_ours,
        evidence_in_prompt=all(sentence in item.text for sentence in question.evidence),
        request_index=request.index,
        expected="; ".join(question.expected),
        answer=read.answer,
        facts={"form": item.form, **read.facts},
    )
