"""Documents whose texts are scored: what is planted and continued, sizes, and that a seed gives the same again."""

import pytest

from kvscope.errors import BadDesign
from kvscope.quality.task import Document, DocumentRequest, Question, prompt_text
from kvscope.quality.tasks import task_named


def words(text: str) -> int:
    """A tokenizer that anyone can follow: one token for each word."""
    return len(text.split())


def request(**changes: object) -> DocumentRequest:
    fields: dict[str, object] = {"seed": 3, "number": 0, "language": "en", "prompt_tokens": 400, "count": words}
    return DocumentRequest(form="cue", **{**fields, **changes})  # type: ignore[arg-type]


def whole(document: Document, question: Question) -> str:
    return prompt_text(document, question, "cue") + (question.continuation or "")


@pytest.mark.parametrize("language", ["en", "ko"])
def test_passages_are_copied_from_each_third_and_values_from_their_own_sentences(language: str) -> None:
    document, twin = task_named("fidelity").build(request(language=language))
    assert twin is None
    kinds = [question.item.rsplit("/", 1)[1] for question in document.questions]
    assert kinds == ["copy-head", "copy-middle", "copy-tail", "value-0", "value-1", "value-2", "value-3", "new"]
    for question in document.questions:
        told = f"{question.cue}{question.continuation}"
        assert (told in document.text) is (not question.item.endswith("/new"))
        assert all(sentence in document.text for sentence in question.evidence)
    depths = [question.depth_percent or 0.0 for question in document.questions[:3]]
    assert depths == sorted(depths)
    firsts = {(question.continuation or "").strip()[0] for question in document.questions[3:7]}
    assert len(firsts) == 4  # so candidates differ in their first token where digits are tokens


@pytest.mark.parametrize("language", ["en", "ko"])
@pytest.mark.parametrize("task", ["fidelity", "copy_gain"])
def test_prompt_and_continuation_fill_the_asked_size_and_never_pass_it(task: str, language: str) -> None:
    for size in (200, 400, 1000):
        pair = task_named(task).build(request(language=language, prompt_tokens=size))
        for document in filter(None, pair):
            longest = max(words(whole(document, question)) for question in document.questions)
            assert 0.85 * size < longest <= size


@pytest.mark.parametrize("task", ["fidelity", "copy_gain"])
def test_a_seed_gives_the_same_and_another_number_another(task: str) -> None:
    build = task_named(task).build
    assert build(request()) == build(request())
    texts = {build(request(number=number))[0].text for number in range(4)} | {build(request(seed=4))[0].text}
    assert len(texts) == 5


@pytest.mark.parametrize("language", ["en", "ko"])
def test_the_twin_lacks_every_fact_that_is_scored_and_is_otherwise_alike(language: str) -> None:
    document, twin = task_named("copy_gain").build(request(language=language))
    assert twin is not None
    assert twin.is_twin
    assert twin.name == document.name
    for question in document.questions:
        (number,) = question.expected
        assert question.continuation == f" {number}"
        assert number in document.text
        assert number not in twin.text
        assert f"{question.cue}" in document.text
        assert f"{question.cue}" not in twin.text
    sentences = [text.replace("!", ".").split(". ") for text in (document.text, twin.text)]
    changed = sum(a != b for a, b in zip(*sentences, strict=True))
    assert changed == len(document.questions)


def test_too_few_tokens_are_refused_with_the_number_that_is_needed() -> None:
    with pytest.raises(BadDesign, match="fidelity") as refused:
        task_named("fidelity").build(request(prompt_tokens=40))
    assert "prompt tokens" in str(refused.value.hint)
