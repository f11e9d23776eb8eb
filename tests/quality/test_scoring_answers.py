"""Scores of hand-made answers: what is right, and what was said too much."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from questions_by_hand import question

from kvscope.quality.named import is_named
from kvscope.quality.scoring import scored

RIVALS = ("10990", "73906")

NUMBER_ANSWERS = [
    ("48213", 1.0),
    ("The number of the crate Torvan is 48213.", 1.0),
    ("48,213", 1.0),
    ("4 8 2 1 3", 1.0),
    ("1. 48213", 1.0),  # a list of one
    ("48213번입니다.", 1.0),
    ("48213, 48213, 48213", 1.0),
    ("10990", 0.0),
    ("48213 or 10990", 0.0),
    ("48213, 10990, 73906", 0.0),
    ("48213 or 48214", 0.0),  # no number of the text, and no answer either
    ("4821", 0.0),
    ("148213", 0.0),
    ("The crate Torvan", 0.0),
    ("", 0.0),
]


@pytest.mark.parametrize(("answer", "value"), NUMBER_ANSWERS)
def test_a_number_is_named_alone_or_the_answer_is_wrong(answer: str, value: float) -> None:
    assert scored(question("48213", *RIVALS), answer).value == value


def test_numbers_of_the_question_may_be_said_again() -> None:
    asked = question("48213", *RIVALS, text="What is in crate 55555?")
    assert scored(asked, "Crate 55555 holds 48213.").value == 1.0


def test_a_small_number_stands_alone_among_all_numbers() -> None:
    asked = question("3", text="How often did Torvan come?")
    right = ("3", "3 times.", "three", "Torvan came three times.", "세 번", "03", "3번입니다")
    wrong = ("4", "13", "3 or 4", "2, 3", "between two and three", "1, 2, 3, 4, 5", "many", "삼백")
    assert [scored(asked, answer).value for answer in right] == [1.0] * len(right)
    assert [scored(asked, answer).value for answer in wrong] == [0.0] * len(wrong)


def test_what_else_was_named_is_among_the_facts() -> None:
    facts = scored(question("48213", *RIVALS), "48213 or 10990").facts
    assert facts == {"also_named": ["10990"], "precision": 0.5, "recall": 1.0}


NAME_ANSWERS = [
    ("Torvan", 1.0),
    ("It was torvan.", 1.0),
    ("TORVAN!", 1.0),
    ("Torvan's brother", 1.0),
    ("**Torvan**", 1.0),
    ("Ｔｏｒｖａｎ", 1.0),
    ("Torvanel", 0.0),
    ("Astorvan", 0.0),
    ("Torvan and Belkis", 0.0),
    ("Belkis", 0.0),
    ("the man next door", 0.0),
]


@pytest.mark.parametrize(("answer", "value"), NAME_ANSWERS)
def test_a_name_is_a_word_of_its_own(answer: str, value: float) -> None:
    assert scored(question("Torvan", "Belkis"), answer).value == value


KOREAN_ANSWERS = [
    ("타루빈", 1.0),
    ("타루빈입니다.", 1.0),
    ("타루빈이다", 1.0),
    ("정답은 ‘타루빈’이다.", 1.0),
    ("그 사람은 타루빈이라고 한다.", 1.0),
    ("타루빈 씨", 1.0),
    ("타루빈씨입니다", 1.0),
    ("타루빈에게서 왔다", 1.0),
    ("타루빈만이 그렇다", 1.0),
    ("타루빈이었습니다.", 1.0),
    ("타루빈이었어요", 1.0),
    ("타루빈이죠", 1.0),
    ("타루빈이지요", 1.0),
    ("타루빈이네요", 1.0),
    ("타루빈인데요", 1.0),
    ("타루빈이랍니다", 1.0),
    ("타루빈이었고, 그는", 1.0),
    ("타루빈이었으며", 1.0),
    ("타루빈으로서", 1.0),
    ("타루빈일 것입니다", 1.0),
    ("타루빈뿐입니다", 1.0),
    ("타루빈입니다만", 1.0),
    ("타루빈이거든요", 1.0),
    ("타루빈님입니다", 1.0),
    ("타루빈이모", 0.0),
    ("타루빈이노", 0.0),
    ("타루빈나", 0.0),
    ("타루빈델", 0.0),
    ("마타루빈", 0.0),
    ("미로단", 0.0),
    ("타루빈과 미로단", 0.0),
    ("타루빈, 미로단", 0.0),
    ("모르겠습니다", 0.0),
]


@pytest.mark.parametrize(("answer", "value"), KOREAN_ANSWERS)
def test_a_korean_name_takes_particles(answer: str, value: float) -> None:
    assert scored(question("타루빈", "미로단"), answer).value == value


def test_korean_spacing_is_free() -> None:
    assert is_named("가죽 가방", "가죽가방을 찾았다")
    assert is_named("가죽 가방", "가죽  가방이다")
    assert not is_named("leather case", "leathercase")


def test_numbers_with_a_unit_are_the_same_however_they_are_written() -> None:
    assert is_named("1,200원", "모두 1200원입니다")
    assert scored(question("3.5"), "It is 3.50 metres.").value == 1.0
    assert scored(question("1,200"), "1200").value == 1.0


def test_a_set_scores_precision_times_recall() -> None:
    asked = question(("Torvan", "Belkis"), "Ulmon", "Sarkin", scoring="set")
    assert scored(asked, "Belkis and Torvan").value == 1.0
    assert scored(asked, "Torvan").value == 0.5
    assert scored(asked, "Torvan, Belkis, Ulmon, Sarkin").value == 0.5
    assert scored(asked, "Ulmon").value == 0.0
    assert scored(asked, "nobody").value == 0.0
    assert scored(asked, "Torvan and Ulmon").facts == {"also_named": ["Ulmon"], "precision": 0.5, "recall": 0.5}


def test_all_of_several_expected_must_be_named() -> None:
    asked = question(("Torvan", "Belkis"), "Ulmon")
    answers = ("Torvan, Belkis", "Torvan", "Torvan, Belkis, Ulmon")
    assert [scored(asked, answer).value for answer in answers] == [1.0, 0.0, 0.0]


REST = "left the spare key and a straw hat in Lindol."
COPIES = [
    (REST, 1.0),
    (f"Torvan and Belkis {REST}", 1.0),
    (f"“Torvan and Belkis {REST}”", 1.0),
    (f"The sentence is: Torvan and Belkis {REST}", 1.0),
    ("Torvan and Belkis left the spare key and a straw hat in Lindol", 1.0),
    ("Torvan and Belkis left  the spare key\nand a straw hat in Lindol.", 1.0),
    ("Torvan and Belkis left the spare key and a straw hat in Lindal.", 0.0),
    ("Torvan and Belkis Left the spare key and a straw hat in Lindol.", 0.0),
    ("Torvan and Belkis left a straw hat and the spare key in Lindol.", 0.0),
    (f"Torvan and Belkis {REST} The dog barked twice.", 0.0),
    (f"The dog barked twice. Torvan and Belkis {REST}", 0.0),
    ("Torvan and Belkis", 0.0),
    (f"> Torvan and Belkis {REST}", 1.0),
    (f"- Torvan and Belkis {REST}", 1.0),
    (f"```text\nTorvan and Belkis {REST}\n```", 1.0),
    (f"The sentence is:\n\n> Torvan and Belkis {REST}", 1.0),
    (f"…{REST}", 1.0),
    (f"... {REST}", 1.0),
    (f"> {REST}\n> The dog barked.", 0.0),
    ("", 0.0),
]


@pytest.mark.parametrize(("answer", "value"), COPIES)
def test_a_copy_is_exact(answer: str, value: float) -> None:
    assert scored(question(REST, scoring="exact", evidence=(f"Torvan and Belkis {REST}",)), answer).value == value


def test_a_copy_among_other_text_is_told_apart_from_none() -> None:
    asked = question(REST, scoring="exact", evidence=(f"Torvan and Belkis {REST}",))
    assert scored(asked, f"Torvan and Belkis {REST} The dog barked.").facts == {"also_said": True}
    assert scored(asked, "The dog barked.").facts == {}


def test_patterns() -> None:
    asked = question(r"\b4 ?8213\b", r"\b10990\b", scoring="regex")
    answers = ("it is 4 8213", "48213", "48213 and 10990", "10990", "")
    assert [scored(asked, answer).value for answer in answers] == [1.0, 1.0, 0.0, 0.0, 0.0]


@given(
    st.lists(st.integers(10_000, 99_999), min_size=2, max_size=12, unique=True), st.sampled_from([", ", "\n", " or "])
)
def test_who_names_every_number_is_never_right(numbers: list[int], between: str) -> None:
    values = [str(number) for number in numbers]
    answer = between.join(values)
    assert scored(question(values[0], *values[1:]), answer).value == 0.0
    assert scored(question(values[0], *values[1:], scoring="set"), answer).value == pytest.approx(1 / len(values))


@given(st.lists(st.sampled_from("Torvan Belkis Ulmon Sarkin Dolet Fevenn".split()), min_size=2, unique=True))
def test_who_names_every_name_is_never_right(names: list[str]) -> None:
    answer = " and ".join(names)
    assert scored(question(names[0], *names[1:]), answer).value == 0.0
    assert scored(question(names[0], *names[1:], scoring="set"), answer).value == pytest.approx(1 / len(names))


@given(st.text(max_size=80))
def test_no_text_breaks_scoring(answer: str) -> None:
    for asked in (
        question("48213", "10990"),
        question("타루빈", "미로단", scoring="set"),
        question(REST, scoring="exact", evidence=(f"Torvan {REST}",)),
    ):
        assert 0.0 <= scored(asked, answer).value <= 1.0
