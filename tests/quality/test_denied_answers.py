"""What an answer denies, asks or calls untold is not its answer; what stands beside a denial is."""

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from questions_by_hand import question

from kvscope.quality.denials import affirmed, says_no
from kvscope.quality.scoring import scored
from kvscope.quality.task import DocumentRequest
from kvscope.quality.tasks import task_named

NUMBER = question("48213", "51777", "90412")
NAME = question("Torvan", "Selna", "Birdol")
KOREAN = question("타루빈", "보미탄", "고노기")

NUMBERS_DENIED = [
    "It is not 48213.",
    "48213? No, I made that up; the text does not say.",
    "I cannot say whether it is 48213.",
    "I can’t say if it’s 48213",
    "The crate is not numbered; 48213 belongs to another crate.",
    "It wasn’t 48213.",
    "48213 is not the number of the crate Torvan.",
    "48213 isn't the number.",
    "Neither 48213 nor 51777",
    "The text does not mention 48213.",
    "There is no 48213.",
    "I don't think it is 48213",
    "The number is unknown, 48213 is a guess",
    "less than 48213",
    "More than 48213.",
    "at least 48213",
    "Anything but 48213",
    "Is it 48213?",
    "-48213",
    "48213/2",
    "48213 or 51777",
    "48213번이 아닙니다",
    "번호는 48213번이 아닙니다.",
    "48213이 아닌 것 같습니다",
    "48213번은 아니고요",
    "48213은 본문에 나오지 않습니다",
    "48213 이상입니다",
]
NUMBERS_SAID = [
    "48213, not 51777",
    "It is not 51777 but 48213.",
    "It's 48213; it isn't 51777.",
    "Not 51777. 48213.",
    "Unlike 51777, the number is 48213.",
    "The answer is 48213 and not 51777.",
    "It can't be 51777, so it is 48213.",
    "The text does not say much, but the number is 48213.",
    "There is no doubt: 48213",
    "I'm not sure, but I think it is 48213.",
    "Although the text does not name the owner, the crate has the number 48213.",
    "48213. The text does not say who owns it.",
    "The number of the crate, which is not named elsewhere, is 48213.",
    "No other crate is mentioned. 48213",
    "The crate that was not opened has the number 48213.",
    "What is the number of the crate Torvan? It is 48213.",
    "Sure! The number of the crate is 48213. If this isn't what you need, let me know.",
    "48213 is the number that does not repeat.",
    "48213 is not a big number.",
    "51777번이 아니라 48213번입니다.",
    "51777이 아닌 48213입니다",
    "본문에 이름은 나와 있지 않지만 번호는 48213번입니다.",
    "아니요, 48213번입니다.",
    "48213번입니다. 다른 정보는 없습니다.",
]
# Where the rules end: they read these as wrong, though a person would not.
NUMBERS_MISSED = [
    "The number is over 9000 and 48213 is not the end of it.",
    "There are no crates with 51777; the crate Torvan has 48213.",
    "The crate has the number 48213 and 5 sacks, then 700, then 9000.",
]


@pytest.mark.parametrize("answer", NUMBERS_DENIED)
def test_a_number_that_is_denied_is_no_answer(answer: str) -> None:
    assert scored(NUMBER, answer).value == 0.0


@pytest.mark.parametrize("answer", NUMBERS_SAID)
def test_a_number_beside_a_denial_is_the_answer(answer: str) -> None:
    assert scored(NUMBER, answer).value == 1.0


@pytest.mark.parametrize("answer", NUMBERS_MISSED)
def test_the_rules_err_to_the_strict_side(answer: str) -> None:
    assert scored(NUMBER, answer).value == 0.0


@pytest.mark.parametrize(
    "answer",
    [
        "Not Torvan",
        "It isn’t Torvan",
        "I don't know who Torvan is.",
        "Anyone but Torvan",
        "Selna, not Torvan",
        "The text does not name the dentist. Torvan is the baker.",
        "Torvan is not the dentist.",
        "The dentist is not Torvan.",
        "The word Torvan is the only one that is not the answer to the question.",  # SmolLM2 said so
        "more than Torvan",
    ],
)
def test_a_name_that_is_denied_is_no_answer(answer: str) -> None:
    assert scored(NAME, answer).value == 0.0


@pytest.mark.parametrize(
    "answer",
    [
        "Torvan, not Selna",
        "It was Torvan rather than Selna",
        "Torvan instead of Selna",
        "Torvan brought sacks 5 times, more than Selna.",
        "Selna isn't the dentist, Torvan is.",
        "The dentist is not Selna but Torvan.",
        "The dentist is Torvan, who does not bake bread.",
        "Torvan입니다",
    ],
)
def test_a_name_beside_a_denial_is_the_answer(answer: str) -> None:
    assert scored(NAME, answer).value == 1.0


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("보미탄이 아니라 타루빈", 1.0),
        ("타루빈이지 보미탄이 아닙니다.", 1.0),
        ("보미탄 말고 타루빈입니다", 1.0),
        ("타루빈이 아닙니다", 0.0),
        ("타루빈은 아니다", 0.0),
        ("타루빈 씨가 아닙니다", 0.0),
        ("타루빈뿐만 아니라 보미탄", 0.0),
        ("타루빈이 누구인지 모르겠습니다", 0.0),
    ],
)
def test_korean_denials(answer: str, value: float) -> None:
    assert scored(KOREAN, answer).value == value


@pytest.mark.parametrize(
    ("asked", "expected", "answer"),
    [
        ("On which day is it closed?", "Monday", "It is open every day except Monday."),
        ("On which day is it closed?", "Monday", "It does not open on Monday."),
        ("How long must one wait?", "30 minutes", "At least 30 minutes."),
        ("How heavy may it be?", "20 kg", "It has to weigh less than 20 kg."),
        ("Which animals are not allowed?", "dogs", "Dogs are not the animals that are allowed."),
        ("How long is it?", "twenty minutes", "No more than twenty minutes"),
    ],
)
def test_an_answer_of_the_users_own_may_hold_a_no(asked: str, expected: str, answer: str) -> None:
    assert scored(question(expected, text=asked), answer).value == 1.0


@pytest.mark.parametrize(
    ("expected", "answer"),
    [
        ("unknown", "The author is unknown."),
        ("not allowed", "Dogs are not allowed."),
        ("none", "None."),
        ("no", "No, it does not."),
        ("기록이 없다", "기록이 없다"),
    ],
)
def test_where_the_right_answer_is_itself_a_no_nothing_is_taken_out(expected: str, answer: str) -> None:
    assert scored(question(expected), answer).value == 1.0


@given(st.lists(st.sampled_from(["not", "no", "Torvan", "48213", "?", ",", ".", "아니", "is", "but"]), max_size=40))
def test_nothing_is_added_by_taking_out(words: list[str]) -> None:
    assert set(affirmed(" ".join(words)).split()) <= {*words}


def test_a_long_text_is_read_in_time() -> None:
    for text in (
        "is not " * 3_000,
        "아니 " * 7_000,
        "than " * 4_000,
        ", " * 10_000,
        "a" * 20_000,
        "no x is " * 2_500,
        "1+1" * 6_000,
    ):
        assert scored(NUMBER, affirmed(text)).value == 0.0


@pytest.mark.parametrize("name", ["needle", "keys", "variables", "count", "reworded"])
@pytest.mark.parametrize("language", ["en", "ko"])
def test_no_question_of_a_task_asks_for_a_no(name: str, language: Literal["en", "ko"]) -> None:
    """Denials are read in all of them."""
    request = DocumentRequest(
        seed=1, number=0, language=language, prompt_tokens=900, count=lambda text: len(text.split()) + 6
    )
    document, _ = task_named(name).build(request)
    assert not any(says_no(text) for each in document.questions for text in (each.text, *each.expected))
