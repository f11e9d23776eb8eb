"""Files of questions as people make them, and where the evidence of a question stands."""

from pathlib import Path

import pytest

from kvscope.errors import UsageError
from kvscope.quality.retrieval.evidence import MOST_PLACES_OF_AN_ANSWER, Evidence, Place, find_evidence
from kvscope.quality.retrieval.index import make_index
from kvscope.quality.retrieval.passages import Passage, split_all
from kvscope.quality.retrieval.questions import AskedQuestion, Questions, read_questions
from kvscope.quality.retrieval.recall import holds, measure_recall
from kvscope.quality.retrieval.source import SourceDocument


def written(tmp_path: Path, name: str, content: str | bytes) -> Path:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def slugs(questions: Questions) -> list[str]:
    return [each.slug for each in questions.problems]


def test_json_lines(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "q.jsonl",
        '{"id": "a", "question": "How deep?", "answer": 3.50, "evidence": "It is 3.50 m.", "document": "x.md", '
        '"language": "en"}\n\n{"query": "얼마나 깊어?", "answers": ["3", "4"]}\n'
        '{"text": "When?", "any_answer": ["5", "five"]}',
    )
    found = read_questions(path)
    assert found.problems == ()
    assert found.asked == (
        AskedQuestion(
            id="a",
            text="How deep?",
            expected=("3.50",),  # as it was written
            evidence=("It is 3.50 m.",),
            document="x.md",
            language="en",
            line=1,
        ),
        AskedQuestion(id="line-3", text="얼마나 깊어?", expected=("3", "4"), language="ko", line=3),
        AskedQuestion(id="line-4", text="When?", expected=("5", "five"), is_any=True, line=4),
    )


def test_a_list_in_json(tmp_path: Path) -> None:
    path = written(
        tmp_path, "q.json", '[{"id": 7, "question": "A?", "answer": "b"},\n {"question": "C?", "answer": "d"}]'
    )
    assert [(each.id, each.text) for each in read_questions(path).asked] == [("7", "A?"), ("line-2", "C?")]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("q.csv", 'id,Question,answer,evidence\n1,"Deep, how?",3.5,"[""It is"", ""deep""]"\n2,"Two\nlines?",,\n'),
        ("q.csv", 'id;question;answer;evidence\r\n1;Deep, how?;3.5;["It is", "deep"]\r\n2;"Two\nlines?";;\r\n'),
        (
            "q.tsv",
            'id\tquestion\tanswer\tevidence\n1\tDeep, how?\t3.5\t"[""It is"", ""deep""]"\n2\t"Two\nlines?"\t\t\n',
        ),
    ],
)
def test_tables(tmp_path: Path, name: str, content: str) -> None:
    found = read_questions(written(tmp_path, name, content))
    assert [(each.id, each.text, each.expected, each.evidence, each.line) for each in found.asked] == [
        ("1", "Deep, how?", ("3.5",), ("It is", "deep"), 2),
        ("2", "Two\nlines?", (), (), 3),
    ]
    assert slugs(found) == ["questions-without-answers"]
    assert "1 of 2 questions have no answer" in found.problems[0].text


def test_a_table_saved_by_a_korean_spreadsheet(tmp_path: Path) -> None:
    content = "질문,정답,근거\n만조는 몇 시입니까?,세 시,만조는 세 시입니다.\n"
    for number, data in enumerate((content.encode("cp949"), content.encode("utf-8-sig"))):
        (asked,) = read_questions(written(tmp_path, f"{number}.csv", data)).asked
        assert (asked.text, asked.expected, asked.evidence) == (
            "만조는 몇 시입니까?",
            ("세 시",),
            ("만조는 세 시입니다.",),
        )
        assert asked.language == "ko"


def test_one_question_a_line(tmp_path: Path) -> None:
    found = read_questions(written(tmp_path, "q.txt", "What is it?\r\n\r\n  When was it?  \n"))
    assert [(each.id, each.text, each.line) for each in found.asked] == [
        ("line-1", "What is it?", 1),
        ("line-3", "When was it?", 3),
    ]
    assert slugs(found) == ["questions-without-answers"]


def test_bad_lines_are_named_and_the_rest_is_used(tmp_path: Path) -> None:
    lines = [
        '{"question": "Good?", "answer": "a", "note": "x"}',
        "{broken",
        '"only a text"',
        '{"answer": "no question"}',
        '{"question": "  "}',
        '{"question": "A?", "query": "B?"}',
        '{"question": {"a": 1}}',
        '{"question": "A?", "answer": true}',
        '{"id": "line-1", "question": "Again?"}',
        '{"question": "A?", "answer": "a", "any_answer": ["b"]}',
        '{"question": ["A?", "B?"]}',
        '{"question": "A?", "id": ["a", "b"]}',
        "[" * 100_000,
        '{"question": "Last?", "answer": "z"}',
    ]
    found = read_questions(written(tmp_path, "q.jsonl", "\n".join(lines)))
    assert [each.text for each in found.asked] == ["Good?", "Last?"]
    texts = [each.text for each in found.problems]
    for line, reason in [
        (2, "no JSON"),
        (3, "no JSON object"),
        (4, "no question in it"),
        (5, "no question in it"),
        (6, "mean the same"),
        (7, 'question is {"a": "1"}, not a text'),
        (8, "answer is true, not a text"),
        (9, "the id 'line-1' of line 1 again"),
        (10, "both answer and any_answer"),
        (11, "several questions"),
        (12, "several values of id"),
        (13, ""),
    ]:
        assert any(text.startswith(f"Line {line} is left out: ") and reason in text for text in texts), (line, texts)
    assert slugs(found) == ["question-left-out"] * 12 + ["unknown-field"]


def test_rows_with_too_many_cells(tmp_path: Path) -> None:
    found = read_questions(written(tmp_path, "q.csv", 'question,answer\nGood?,a\nHow, why?,b\n"Bad"x,c\nLast?,d\n'))
    assert [each.text for each in found.asked] == ["Good?", "Last?"]
    assert [each.text.partition(":")[0] for each in found.problems] == ["Line 3 is left out", "Line 4 is left out"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("q.jsonl", "", "It is empty"),
        ("q.txt", "\n \n", "It is empty"),
        ("q.jsonl", "{}", "Line 1 is left out"),
        ("q.json", "[1", "no JSON"),
        ("q.csv", "a,b\n1,2\n", "no column called question"),
        ("q.csv", '"question,answer\n1,2\n', "no column called question"),
        ("q.txt", b"\x00\x01", "binary"),
        ("q.txt", "Café?".encode("latin-1"), "not UTF-8"),
    ],
)
def test_a_file_without_questions_is_an_error(tmp_path: Path, name: str, content: str | bytes, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_questions(written(tmp_path, name, content))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_questions(tmp_path / "none.jsonl")
    with pytest.raises(UsageError, match="cannot be read"):
        read_questions(tmp_path)


def document(name: str, text: str) -> SourceDocument:
    return SourceDocument(name=name, path=name, text=text, kind="text")


DOCUMENTS = [
    document(
        "ports/busan.md", "Busan is a port. Its depth is **12.5 m** here.\nThe ferry\nleaves at 15:30. It has 33 piers."
    ),
    document("ulsan.md", "Ulsan is near 동부산. 부산은 크다. It has 3 piers. It has 3.5 km of them."),
]


def texts_of(evidence: Evidence) -> list[tuple[str, str]]:
    texts = {each.name: each.text for each in DOCUMENTS}
    return [(place.document, texts[place.document][place.start : place.end]) for place in evidence.places]


def one(asked: AskedQuestion) -> Evidence:
    (found,) = find_evidence([asked], DOCUMENTS)[asked.id]
    return found


@pytest.mark.parametrize(
    ("evidence", "wanted"),
    [
        ("Busan is a port.", [("ports/busan.md", "Busan is a port.")]),
        ("busan IS a  port.", [("ports/busan.md", "Busan is a port.")]),
        ("Its depth is 12.5 m here.", [("ports/busan.md", "Its depth is **12.5 m** here.")]),
        ("The ferry leaves", [("ports/busan.md", "The ferry\nleaves")]),
        ("It has", [("ports/busan.md", "It has"), ("ulsan.md", "It has"), ("ulsan.md", "It has")]),
        ("Nowhere.", []),
    ],
)
def test_stated_evidence_is_found(evidence: str, wanted: list[tuple[str, str]]) -> None:
    found = one(AskedQuestion(id="1", text="?", expected=("x",), evidence=(evidence,)))
    assert found.is_stated
    assert texts_of(found) == wanted


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        ("15:30", [("ports/busan.md", "The ferry\nleaves at 15:30.")]),
        ("3", [("ulsan.md", "It has 3 piers.")]),  # neither 33 nor 3.5
        ("12.5 m", [("ports/busan.md", "Its depth is **12.5 m** here.")]),
        ("부산", [("ulsan.md", "부산은 크다.")]),  # with its particle, and not inside of 동부산
        ("pier", []),
        ("port", [("ports/busan.md", "Busan is a port.")]),
    ],
)
def test_an_answer_stands_for_its_sentence(answer: str, wanted: list[tuple[str, str]]) -> None:
    found = one(AskedQuestion(id="1", text="?", expected=(answer,)))
    assert not found.is_stated
    assert texts_of(found) == wanted


def test_a_named_document_is_the_only_one_looked_into() -> None:
    for name in ("ports/busan.md", "busan.md", "busan"):
        found = one(AskedQuestion(id="1", text="?", evidence=("It has",), document=name))
        assert [place.document for place in found.places] == ["ports/busan.md"]
    assert one(AskedQuestion(id="1", text="?", evidence=("It has",), document="other")).places == ()


def test_an_answer_in_many_sentences_says_nothing() -> None:
    many = [document("many", "It is red. " * (MOST_PLACES_OF_AN_ANSWER + 1))]
    (found,) = find_evidence([AskedQuestion(id="1", text="?", expected=("red",))], many)["1"]
    assert found.places == ()


def test_all_answers_are_needed_or_any() -> None:
    both = find_evidence([AskedQuestion(id="1", text="?", expected=("15:30", "12.5"))], DOCUMENTS)["1"]
    assert [len(each.places) for each in both] == [1, 1]
    either = find_evidence([AskedQuestion(id="1", text="?", expected=("15:30", "12.5"), is_any=True)], DOCUMENTS)["1"]
    assert [len(each.places) for each in either] == [2]
    assert find_evidence([AskedQuestion(id="1", text="?")], DOCUMENTS) == {"1": ()}


def passage(name: str, start: int, end: int) -> Passage:
    return Passage(document=name, index=0, text="x" * (end - start), start=start, end=end, tokens=1)


def test_evidence_is_held_only_whole() -> None:
    evidence = [Evidence(text="x", places=(Place(document="a", start=10, end=30),), is_stated=True)]
    assert holds([passage("a", 10, 30)], evidence)
    assert not holds([passage("a", 0, 29)], evidence)
    assert not holds([passage("b", 0, 99)], evidence)
    assert holds([passage("a", 20, 40), passage("a", 0, 20)], evidence)  # neighbours, whatever their order
    assert not holds([passage("a", 0, 20), passage("a", 21, 40)], evidence)
    two = [*evidence, Evidence(text="y", places=(Place(document="b", start=0, end=5),), is_stated=True)]
    assert not holds([passage("a", 0, 99)], two)
    assert holds([passage("a", 0, 99), passage("b", 0, 5)], two)
    assert holds([], [])


def test_recall_by_hand() -> None:
    """Five passages of one sentence each; what bigrams rank first is plain from their words."""
    documents = [
        document("a", "The red ferry leaves at three. The red ferry costs nine coins. Ferries are wet."),
        document("b", "The museum opens at ten. The museum has a cellar."),
    ]
    found = split_all(documents, lambda text: 10 * text.count(".") + 1, 16)
    assert [each.text.strip() for each in found] == [
        "The red ferry leaves at three.",
        "The red ferry costs nine coins.",
        "Ferries are wet.",
        "The museum opens at ten.",
        "The museum has a cellar.",
    ]
    questions = [
        AskedQuestion(id="first", text="red ferry costs", expected=("nine",)),
        AskedQuestion(id="second", text="red ferry leaves costs nine", expected=("three",)),
        AskedQuestion(id="both", text="museum ten cellar", expected=("ten", "cellar")),
        AskedQuestion(id="never", text="museum", expected=("wet",)),
        AskedQuestion(id="nothing", text="xyz", expected=("coins",)),
        AskedQuestion(id="unknown", text="museum", expected=("nowhere",)),
        AskedQuestion(id="unanswered", text="museum"),
    ]
    recall = measure_recall(make_index(found), questions, find_evidence(questions, documents), ks=(1, 2))
    ranks = {each.id: (each.evidence_rank, each.document_rank) for each in recall.each}
    assert ranks == {
        "first": (1, 1),
        "second": (2, 1),
        "both": (2, 1),
        "never": (None, None),
        "nothing": (None, None),
        "unknown": (None, None),
        "unanswered": (None, None),
    }
    assert recall.known == 5
    assert recall.by_evidence == {1: 1, 2: 3}
    assert recall.by_document == {1: 3, 2: 3}
    assert recall.mean_reciprocal_rank == pytest.approx((1 + 1 / 2 + 1 / 2) / 5)
    assert recall.without_hits == ("nothing",)
    assert recall.unknown == ("unknown", "unanswered")


def test_recall_of_nothing() -> None:
    index = make_index([passage("a", 0, 5)])
    recall = measure_recall(index, [], {})
    assert (recall.known, recall.mean_reciprocal_rank, recall.by_evidence) == (0, None, {1: 0, 3: 0, 5: 0})
