"""Questions of the real tasks, put to the fake engine with known errors, and read as answers are read: rows as a trial
makes them. What the panel should find in them is what the engine's settings say."""

from collections.abc import Sequence

from kvscope.engine.base import ChatRequest, Message
from kvscope.engine.fake import FakeEngine, VirtualClock
from kvscope.quality.reading import PromptSeen, Said, read_answer
from kvscope.quality.task import Document, DocumentRequest, prompt_text
from kvscope.quality.tasks import task_named
from kvscope.record.rows import AnswerRow
from kvscope.scenario import SettingValue

Documents = Sequence[tuple[Document, Document | None]]


def documents(
    task: str, number: int, *, tokens: int = 500, seed: int = 0, language: str = "en"
) -> list[tuple[Document, Document | None]]:
    """Documents with their twins; a token is a word, as the fake engine counts."""
    return [
        task_named(task).build(
            DocumentRequest(
                seed=seed,
                number=each,
                language="ko" if language == "ko" else "en",
                prompt_tokens=tokens,
                count=lambda text: len(text.split()) + 6,
            )
        )
        for each in range(number)
    ]


def scripted(asked: Documents, **settings: SettingValue) -> list[AnswerRow]:
    """The rows of every question. The engine's own count is believed as a trial believes it: fewer tokens than were
    sent are a cut prompt."""
    engine = FakeEngine(settings={"ttft_s": 0.0, "ttft_s_per_token": 0.0, **settings}, clock=VirtualClock())
    engine.launch()
    engine.load()
    rows: list[AnswerRow] = []
    for pair in asked:
        for document in pair:
            if document is not None:
                rows += _rows(engine, document)
    return rows


def _rows(engine: FakeEngine, document: Document) -> list[AnswerRow]:
    rows: list[AnswerRow] = []
    for question in document.questions:
        text = prompt_text(document, question, "chat")
        messages = (Message(role="user", content=text),)
        sent = engine.count_prompt_tokens(messages)
        answer = engine.generate(
            ChatRequest(messages=messages, max_output_tokens=question.max_output_tokens, ignore_end=False)
        )
        said = Said(content="".join(event.text for event in answer.events), finish_reason=answer.finish_reason)
        seen = PromptSeen(counted_tokens=sent, server_tokens=answer.prompt_tokens, slack_tokens=0)
        read = read_answer(question, said, seen)
        rows.append(
            AnswerRow(
                index=len(rows),
                task=document.task,
                item=question.item,
                document=document.name,
                language=document.language,
                reading=read.reading,
                score=read.score,
                chance=question.chance,
                is_twin=document.is_twin,
                depth_percent=question.depth_percent,
                document_tokens=sent,
                evidence_in_prompt=all(sentence in text for sentence in question.evidence),
                expected="; ".join(question.expected),
                answer=read.answer,
                facts=read.facts,
            )
        )
    return rows
