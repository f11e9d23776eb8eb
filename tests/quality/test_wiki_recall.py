"""What a search finds of the bundled wiki's questions: by bm25s used directly, and by our parts, which score alike."""

import re

import bm25s
import pytest

from kvscope.quality.retrieval.evidence import find_evidence
from kvscope.quality.retrieval.index import make_index
from kvscope.quality.retrieval.passages import Passage, split_all
from kvscope.quality.retrieval.recall import measure_recall
from kvscope.quality.retrieval.terms import bigrams
from kvscope.quality.wiki import LANGUAGES, wiki


def _words(text: str) -> int:
    """A count of our own, so that no tokenizer is needed: English words, Korean in pairs of characters."""
    return sum(max(1, len(word) // 2) if "가" <= word[0] <= "힣" else 1 for word in re.findall(r"\w+", text))


def _terms(text: str) -> list[str]:
    """Words and numbers in lower case, of Korean every two characters, and each: written here without our own."""
    terms: list[str] = []
    for piece in re.findall(r"[가-힣]+|\d+(?:[.,:]\d+)+|[^\W가-힣]+", text.lower()):
        korean = "가" <= piece[0] <= "힣"
        pairs = [piece[at : at + 2] for at in range(len(piece) - 1)]
        terms += [*pairs, *piece] if korean and pairs else [piece]
    return terms


def _found_directly(passages: tuple[Passage, ...], question: str, k: int) -> list[Passage]:
    searcher = bm25s.BM25()
    searcher.index([_terms(passage.text) for passage in passages], show_progress=False)
    known = searcher.vocab_dict
    wanted = [term for term in _terms(question) if term in known]
    numbers, _ = searcher.retrieve([wanted], k=k, show_progress=False, sorted=True)
    return [passages[int(number)] for number in numbers[0]]


def _below_headings(passage: Passage) -> str:
    """What is searched of a passage, written here without our own."""
    return "\n".join([*(each for each in passage.section if each not in passage.text), passage.text])


@pytest.mark.parametrize(("language", "least"), [("ko", 0.95), ("en", 0.80)])
def test_three_passages_hold_the_evidence(language: str, least: float) -> None:
    pages = wiki("large", language)
    passages = split_all(pages.corpus.documents, _words, 80)
    found = {}
    for question in pages.questions.asked:
        if question.expected:
            text = "\n".join(passage.text for passage in _found_directly(passages, question.text, 3))
            found[question.id] = all(evidence in text for evidence in question.evidence)
    assert len(found) == 27
    assert sum(found.values()) / len(found) >= least, [each for each, is_found in found.items() if not is_found]


@pytest.mark.parametrize("language", LANGUAGES)
def test_our_search_scores_as_bm25s_does(language: str) -> None:
    pages = wiki("medium", language)
    passages = split_all(pages.corpus.documents, _words, 80)
    index = make_index(passages)
    searcher = bm25s.BM25()
    below_headings = [
        "\n".join([*(each for each in passage.section if each not in passage.text), passage.text])
        for passage in passages
    ]
    searcher.index(bigrams(below_headings), show_progress=False)
    for question in pages.questions.asked:
        wanted = [term for term in bigrams([question.text])[0] if term in searcher.vocab_dict]
        _, scores = searcher.retrieve([wanted], k=3, show_progress=False)
        hits = index.search(question.text, 3)
        assert [hit.score for hit in hits] == pytest.approx([float(score) for score in scores[0]], rel=1e-5), (
            question.id
        )


def test_of_both_languages_together_nothing_is_lost_to_the_other() -> None:
    """By our parts, over all passages."""
    pages = wiki("large")
    passages = split_all(pages.corpus.documents, _words, 80)
    evidence = find_evidence(pages.questions.asked, pages.corpus.documents)
    recall = measure_recall(make_index(passages), pages.questions.asked, evidence)
    assert recall.known == 54
    assert sorted(recall.unknown) == sorted(each for each, kind in pages.kinds.items() if kind == "not_answerable")
    korean = [each for each in recall.each if each.is_known and each.id.startswith("ko")]
    assert sum((each.evidence_rank or 99) <= 3 for each in korean) >= 25
