"""Searching: the ranking is bm25s' own, Korean is found, equals stay in order, fusion is as it was published."""

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import bm25s
import numpy
import pytest

from kvscope.errors import EngineReplyError, MissingDependency, UnknownName, UsageError
from kvscope.quality.retrieval.index import METHODS, Hit, make_index, searched_text
from kvscope.quality.retrieval.passages import Passage
from kvscope.quality.retrieval.source import Remark
from kvscope.quality.retrieval.term_index import TERMS
from kvscope.quality.retrieval.terms import WORD_PATTERN, bigrams, korean_share, words

KOREAN = [
    "부산 여객선은 오후 네 시에 출발합니다.",
    "주차 요금은 한 시간에 삼천 원입니다.",
    "도서관은 월요일마다 문을 닫습니다.",
    "등대의 높이는 27.5미터입니다.",
    "시장에서는 생선을 새벽에 팝니다.",
]


def passages(texts: Sequence[str], headings: Sequence[str] = ()) -> list[Passage]:
    sections = [tuple(headings[at : at + 1]) for at in range(len(texts))]
    return [
        Passage(document=f"{at}.txt", index=0, text=text, start=0, end=len(text), tokens=1, section=sections[at])
        for at, text in enumerate(texts)
    ]


def found(hits: Sequence[Hit]) -> list[int]:
    return [int(hit.passage.document.removesuffix(".txt")) for hit in hits]


class Embedder:
    """Vectors as they are given."""

    name = "given"

    def __init__(self, vectors: dict[str, list[float]], remarks: tuple[Remark, ...] = ()) -> None:
        self._vectors = vectors
        self._remarks = remarks

    def embed(self, texts: Sequence[str], *, are_questions: bool = False) -> list[list[float]]:
        return [self._vectors[each] for each in texts]

    def remarks_on(self, texts: Sequence[str]) -> tuple[Remark, ...]:
        return self._remarks


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("A Tide of 3.5 m, 1,200 ships", ["a", "tide", "of", "3.5", "m", "1,200", "ships"]),
        ("at 15:30. v2 KX42 don't", ["at", "15:30", "v2", "kx42", "don", "t"]),
        ("서울에 3.5배 늘", ["서울", "울에", "서", "울", "에", "3.5", "배", "늘"]),
        ("GPT4의 값은 12개", ["gpt4", "의", "값은", "값", "은", "12", "개"]),
        ("ＡＢＣ １２．５", ["abc", "12.5"]),
        ("東京タワー", ["東京", "京タ", "タワ", "ワー", "東", "京", "タ", "ワ", "ー"]),
        ("Überfahrt café", ["überfahrt", "café"]),
        ("... !?", []),
    ],
)
def test_terms(text: str, wanted: list[str]) -> None:
    assert bigrams([text]) == [wanted]


def test_bigrams_with_single_characters_are_those_of_the_definition() -> None:
    """Written the plain way, on a text in which words come again."""
    text = "굴밥을 굴밥을 바닷가에서"
    plainly = []
    for word in text.split():
        plainly += [a + b for a, b in pairwise(word)] + list(word)
    assert bigrams([text]) == [plainly]


def test_a_word_of_one_syllable_is_found_whatever_stands_behind_it() -> None:
    """굴을 (oysters, as an object) and 굴밥 (rice with oysters) have no two characters in common."""
    assert found(make_index(passages(["소금은 창고에 있다.", "굴밥은 토요일에 나온다."])).search("굴을", 1)) == [1]


def test_words_are_those_of_bm25s_with_a_better_pattern() -> None:
    text = "A tide of 3.5 m is no 1 wonder: 3 ships, x."
    assert bm25s.tokenize(text, show_progress=False, return_ids=False)[0] == ["tide", "wonder", "ships"]
    by_hand = bm25s.tokenize(text, token_pattern=WORD_PATTERN, stopwords=None, show_progress=False, return_ids=False)
    assert words([text]) == by_hand
    assert {"3.5", "1", "x", "a"} <= set(by_hand[0])


def made_up(number: int, seed: int) -> list[str]:
    chance = random.Random(seed)
    some = [f"{a}{b}" for a in ("ka", "lo", "mi", "항구", "배") for b in ("ra", "to", "nu", "에서", "는", "가")]
    return [" ".join(chance.choices(some, k=chance.randint(5, 40))) + f" {number % 7}.5" for number in range(number)]


@pytest.mark.parametrize("method", ["words", "bigrams", "morphemes"])
def test_the_ranking_is_that_of_bm25s_called_by_hand(method: Any) -> None:
    """bm25s' own whole path, retrieve() included, over the same terms."""
    texts, questions = made_up(300, 1), made_up(40, 2)
    index = make_index(passages(texts), method)
    by_hand = bm25s.BM25()
    by_hand.index(TERMS[method](texts), show_progress=False)
    numbers, scores = by_hand.retrieve(TERMS[method](questions), k=10, show_progress=False)
    for question, theirs, their_scores in zip(questions, numbers, scores, strict=True):
        hits = index.search(question, 10)
        assert [hit.score for hit in hits] == pytest.approx(list(their_scores))
        # Among equal scores bm25s takes any: ours are equal to theirs but for those.
        by_score = {round(float(score), 5) for score in their_scores}
        assert len(by_score) < 10 or found(hits) == list(theirs)


def test_words_through_bm25s_own_tokenizer_rank_the_same() -> None:
    texts, questions = made_up(200, 3), made_up(20, 4)
    index = make_index(passages(texts), "words")
    options: dict[str, Any] = {"token_pattern": WORD_PATTERN, "stopwords": None, "show_progress": False}
    by_hand = bm25s.BM25()
    by_hand.index(bm25s.tokenize(texts, **options), show_progress=False)
    for question in questions:
        terms = bm25s.tokenize(question, return_ids=False, **options)[0]
        scores = by_hand.get_scores(terms)
        assert [hit.score for hit in index.search(question, 5)] == pytest.approx(sorted(scores, reverse=True)[:5])


@pytest.mark.parametrize(
    ("question", "right"),
    [
        ("여객선이 출발하는 시각은?", 0),
        ("주차하는 데 드는 요금이 얼마인가요?", 1),
        ("도서관이 닫는 날은 언제야?", 2),
        ("등대는 높이가 얼마나 돼?", 3),
        ("생선은 언제 살 수 있나?", 4),
    ],
)
@pytest.mark.parametrize("method", ["bigrams", "morphemes"])
def test_korean_is_found_whatever_its_particles(method: Any, question: str, right: int) -> None:
    assert found(make_index(passages(KOREAN), method).search(question, 1)) == [right]


def test_korean_by_words_is_said_to_be_a_bad_idea() -> None:
    index = make_index(passages(KOREAN), "words")
    assert [each.slug for each in index.remarks] == ["words-and-korean"]
    assert index.search("도서관이 닫는 날은 언제야?", 3) == ()
    assert make_index(passages(["Only English."]), "words").remarks == ()
    assert make_index(passages(KOREAN)).remarks == ()


def test_a_number_and_a_word_of_one_letter_are_found() -> None:
    index = make_index(passages(["Depth is 3.5 m.", "Depth is 5 m.", "Plan B is secret.", "Plan C is secret."]))
    assert found(index.search("which is 3.5?", 1)) == [0]
    assert found(index.search("Plan B", 1)) == [2]


def test_equal_passages_come_in_the_order_of_the_documents() -> None:
    index = make_index(passages(["same words here"] * 50 + ["others"]))
    assert found(index.search("same words", 5)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("method", ["bigrams", "words"])
def test_nothing_in_common_is_no_hit(method: Any) -> None:
    index = make_index(passages(["one two", "three"]), method)
    assert index.search("four five", 3) == ()
    assert index.search("", 3) == ()
    assert index.search("?!", 3) == ()
    assert found(index.search("three", 3)) == [1]


def test_passages_without_any_term_are_never_found() -> None:
    assert make_index(passages(["...", "---"])).search("what", 3) == ()
    assert found(make_index(passages(["...", "what now"])).search("what", 3)) == [1]


def test_the_headings_above_a_passage_are_searched_with_it() -> None:
    """Until questions that the search had not been tuned for were asked, they were so on demand only."""
    texts = passages(["It is deep.", "It is high."], ["Part 0", "Part 1"])
    assert found(make_index(texts).search("part 1", 1)) == [1]
    assert make_index(texts, with_sections=False).search("part 1", 3) == ()


def test_a_heading_that_is_in_the_passage_counts_once() -> None:
    (one,) = passages(["# Part 0\nIt is deep."], ["Part 0"])
    assert searched_text(one) == one.text


def test_dense_is_the_cosine() -> None:
    vectors = {"a": [1.0, 0.0], "b": [3.0, 4.0], "c": [0.0, 0.0], "?": [0.0, 2.0]}
    index = make_index(passages(["a", "b", "c"]), "dense", embedder=Embedder(vectors))
    hits = index.search("?", 3)
    assert found(hits) == [1, 0, 2]
    assert [hit.score for hit in hits] == pytest.approx([0.8, 0.0, 0.0])


def test_dense_agrees_with_numpy_on_many() -> None:
    chance = numpy.random.default_rng(7)
    matrix = chance.normal(size=(200, 24))
    question = chance.normal(size=24)
    texts = [str(at) for at in range(200)]
    embedder = Embedder(dict(zip(texts, matrix.tolist(), strict=True)) | {"?": question.tolist()})
    cosine = matrix @ question / numpy.linalg.norm(matrix, axis=1) / numpy.linalg.norm(question)
    hits = make_index(passages(texts), "dense", embedder=embedder).search("?", 10)
    assert found(hits) == list(numpy.argsort(-cosine)[:10])
    assert [hit.score for hit in hits] == pytest.approx(sorted(cosine, reverse=True)[:10], abs=1e-6)


@pytest.mark.parametrize(
    ("vectors", "words_of_error"),
    [
        ({"a": [1.0], "b": [1.0, 2.0]}, "of one length"),
        ({"a": [], "b": []}, "of one length"),
        ({"a": [1.0], "b": [float("nan")]}, "NaN"),
    ],
)
def test_vectors_that_are_none(vectors: dict[str, list[float]], words_of_error: str) -> None:
    with pytest.raises(EngineReplyError) as caught:
        make_index(passages(["a", "b"]), "dense", embedder=Embedder(vectors))
    assert words_of_error in f"{caught.value} {caught.value.hint}"


def test_a_model_that_changed_is_noticed() -> None:
    index = make_index(passages(["a"]), "dense", embedder=Embedder({"a": [1.0, 0.0], "?": [1.0]}))
    with pytest.raises(EngineReplyError, match="vectors of 2 numbers for the passages and of 1 for a question"):
        index.search("?", 1)


def test_hybrid_adds_up_the_reciprocals_of_ranks() -> None:
    """By hand: bigrams rank 1, 0 (2 has no term of it); embeddings 2, 0, 1."""
    texts = ["tide high", "tide tide table", "water"]
    vectors = {"tide high": [0.8, 0.6], "tide tide table": [0.0, 1.0], "water": [1.0, 0.0], "tide table": [1.0, 0.0]}
    remark = Remark(slug="x", text="X.")
    index = make_index(passages(texts), "hybrid", embedder=Embedder(vectors, (remark,)))
    hits = index.search("tide table", 3)
    assert {at: hit.score for at, hit in zip(found(hits), hits, strict=True)} == pytest.approx(
        {0: 1 / 62 + 1 / 62, 1: 1 / 61 + 1 / 63, 2: 1 / 61}
    )
    assert found(hits) == [1, 0, 2]
    assert index.remarks == (remark,)
    assert index.method == "hybrid"


def test_what_cannot_be_asked() -> None:
    with pytest.raises(UnknownName, match="bigram"):
        make_index(passages(["a"]), "bigram")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no passage"):
        make_index([])
    for method in ("dense", "hybrid"):
        with pytest.raises(UsageError, match="needs a model"):
            make_index(passages(["a"]), method)  # type: ignore[arg-type]
    assert METHODS[0] == "bigrams"


def test_morphemes_without_kiwi_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvscope.quality.retrieval.morphemes import _kiwi

    _kiwi.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "kiwipiepy", None)
    with pytest.raises(MissingDependency) as caught:
        make_index(passages(["a"]), "morphemes")
    assert "kvscope[korean]" in str(caught.value.hint)


def test_share_of_korean() -> None:
    assert korean_share("가나 ab 12") == 0.5
    assert korean_share("12 !") == 0.0
