"""What a model is given of the documents, in which order, and whether the evidence is in it. Tokens are words here."""

from dataclasses import replace
from pathlib import Path

import pytest
from retrieval_material import HOUSES, NUMBERS, fact, write_documents, write_questions

from kvscope.experiment.retrieval_asked import RetrievalAsked, read_material
from kvscope.experiment.retrieval_prompts import AskedPrompt, RetrievalPrompts
from kvscope.experiment.retrieval_ways import way_named


def count(text: str) -> int:
    return len(text.split())


@pytest.fixture
def asked(tmp_path: Path) -> RetrievalAsked:
    folder, questions = write_documents(tmp_path / "docs"), write_questions(tmp_path / "q.jsonl")
    return read_material(str(folder), str(questions), passage_tokens=20)


def prompts(asked: RetrievalAsked, way: str, salt: str = "") -> tuple[AskedPrompt, ...]:
    return RetrievalPrompts(asked, count, salt).of_way(way_named(way))


def texts(asked: RetrievalAsked, way: str, salt: str = "") -> list[str]:
    return [prompt.messages[-1].content for prompt in prompts(asked, way, salt)]


def shared(each: list[str]) -> str:
    """What all of them begin with."""
    first, last = min(each), max(each)
    length = next((n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return first[:length]


def test_the_whole_is_all_documents_and_the_same_for_every_question(asked: RetrievalAsked) -> None:
    sent = texts(asked, "whole")
    assert len(sent) == len(HOUSES)
    for house in HOUSES:
        assert fact(house) in shared(sent)
        assert shared(sent).count(f"# {house}") == 1
    for house, text in zip(HOUSES, sent, strict=True):
        assert text.endswith(f"Question: What is the storage number of the {house} house?")


def test_with_the_question_first_nothing_of_the_documents_is_shared(asked: RetrievalAsked) -> None:
    sent = texts(asked, "whole/question-first")
    assert not any(fact(house) in shared(sent) for house in HOUSES)
    assert sorted(sent[0]) == sorted(texts(asked, "whole")[0])  # the same text in another order


def test_passages_are_those_that_a_search_finds_in_the_order_of_the_documents(asked: RetrievalAsked) -> None:
    for house, prompt in zip(HOUSES, prompts(asked, "passages=3"), strict=True):
        assert len(prompt.passages) == 3
        places = [(each.document, each.index) for each in prompt.passages]
        assert places == sorted(places)
        assert prompt.has_evidence is (fact(house) in prompt.messages[-1].content)
        assert prompt.rank is not None


LOG = """# Harbour log

## Monday

- 15:27 The grey visitor came in under sail and was given the inner berth.

## Friday

- 15:27 The grey visitor left again and took two loaves of bread with her.
"""


def test_a_passage_is_shown_behind_the_title_and_headings_that_it_is_searched_with(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    (folder / "log.md").write_text(LOG, encoding="utf-8")
    (folder / "plain.txt").write_text("Bread is baked on Sunday.\n", encoding="utf-8")
    (tmp_path / "q.jsonl").write_text('{"question": "When did the grey visitor leave with bread?"}\n')
    asked = read_material(str(folder), str(tmp_path / "q.jsonl"), passage_tokens=40)
    made = RetrievalPrompts(asked, len)  # characters: no row fits under its heading into 40 of them
    way = way_named("passages=9")
    given = made.of_way(way)[0].given
    row = next(part for part in given.split("\n\n") if "bread with her" in part)
    assert row.startswith("[Harbour log > Friday] ")
    assert "[plain.txt] Bread is baked on Sunday." in given
    assert made.most_given_tokens(way) + (way.passages - 1) * len("\n\n") >= len(given)


def test_a_heading_that_a_passage_begins_with_is_not_told_twice(asked: RetrievalAsked) -> None:
    for prompt in prompts(asked, "passages=9"):
        assert "[Alder > Alder]" not in prompt.given
        assert "[Alder] # Alder" in prompt.given


def test_the_rank_says_from_how_many_passages_on_the_evidence_is_there(asked: RetrievalAsked) -> None:
    ranks = [prompt.rank for prompt in prompts(asked, "passages=1")]
    for number in (1, 2, 3):
        for rank, prompt in zip(ranks, prompts(asked, f"passages={number}"), strict=True):
            assert rank is not None
            assert prompt.has_evidence is (rank <= number)


def test_passages_first_begin_with_them_and_end_with_the_instruction(asked: RetrievalAsked) -> None:
    first, stable = texts(asked, "passages=2/passages-first")[0], texts(asked, "passages=2")[0]
    assert sorted(first) == sorted(stable)
    assert stable.startswith("Read this text.")
    assert first.startswith("[")
    assert first.endswith("in a few words.")


def test_the_evidence_alone_is_the_passages_that_hold_it(asked: RetrievalAsked) -> None:
    for house, prompt in zip(HOUSES, prompts(asked, "evidence"), strict=True):
        assert prompt.has_evidence is True
        assert fact(house) in " ".join(each.text for each in prompt.passages)
        assert not any(fact(other) in prompt.given for other in HOUSES if other != house)


def test_nothing_is_nothing(asked: RetrievalAsked) -> None:
    for prompt in prompts(asked, "nothing"):
        assert prompt.has_evidence is False
        assert not any(number in prompt.messages[-1].content for number in NUMBERS.values())


def test_the_size_of_a_level_is_that_of_its_passages(asked: RetrievalAsked) -> None:
    for way, most in (("passages=3", 20), ("passages=3/size=16", 16)):
        assert all(each.tokens <= most for prompt in prompts(asked, way) for each in prompt.passages)


def test_a_salt_stands_before_all_of_it(asked: RetrievalAsked) -> None:
    assert all(text.startswith("(abc)\n\n") for text in texts(asked, "whole", "(abc)"))


def test_where_the_evidence_is_not_known_nothing_is_said_of_it(asked: RetrievalAsked) -> None:
    bare = replace(asked, questions=tuple(replace(q, expected=(), evidence=()) for q in asked.questions))
    assert {prompt.has_evidence for prompt in prompts(bare, "whole")} == {None}
    assert {prompt.has_evidence for prompt in prompts(bare, "nothing")} == {False}


def test_korean_questions_are_asked_in_korean(asked: RetrievalAsked) -> None:
    korean = replace(asked.questions[0], text="창고 번호가 몇 번입니까?", language=None)
    (text,) = texts(replace(asked, questions=(korean,)), "whole")
    assert text.startswith("이 글을 읽으세요.")
    assert text.endswith("질문: 창고 번호가 몇 번입니까?")


def test_where_nothing_is_found_the_question_stands_alone(asked: RetrievalAsked) -> None:
    strange = replace(asked, questions=(replace(asked.questions[0], text="Xylophon qwrtz?"),))
    (found,) = prompts(strange, "passages=2")
    (closed,) = prompts(strange, "nothing")
    assert found.passages == ()
    assert found.has_evidence is False
    assert found.messages == closed.messages
