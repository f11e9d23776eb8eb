"""A judge that the user named: what it says is kept, what it does not say clearly is not scored."""

import pytest
from questions_by_hand import question

from kvscope.quality.judge import judged
from kvscope.quality.reading import Said, read_answer

ASKED = question("48213", "10990", text="What is the number of the crate Torvan?")
WRONG = read_answer(ASKED, Said(content="forty-eight thousand two hundred and thirteen"))


def test_the_judge_sees_question_expected_and_answer_and_is_recorded() -> None:
    seen: list[str] = []

    def ask(prompt: str) -> str:
        seen.append(prompt)
        return "Right."

    read = judged(ASKED, WRONG, ask, judge="some-model-7b")
    assert WRONG.reading == "wrong"
    assert (read.reading, read.score) == ("right", 1.0)
    assert all(part in seen[0] for part in (ASKED.text, "48213", "forty-eight thousand"))
    assert read.facts["judge"] == "some-model-7b"
    assert read.facts["verdict"] == "Right."
    assert read.facts["strict_score"] == 0.0


@pytest.mark.parametrize(
    ("verdict", "reading"),
    [
        ("right", "right"),
        ("WRONG", "wrong"),
        ("**Correct**", "right"),
        ("incorrect.", "wrong"),
        ("Verdict: right", "right"),
        ("<think>It could be wrong</think>right", "right"),
        ("정답", "right"),
        ("오답입니다", "wrong"),  # was no verdict, as clear as it is
        ("정답입니다", "right"),
        ("맞습니다.", "right"),
        ("틀렸습니다", "wrong"),
        ("정답이 아닙니다", "failed"),
        ("맞지 않습니다", "failed"),
        ("The given answer is right.", "right"),
        ("Right, because it names the same number as the right answer.", "right"),
        ("Wrong: it is another number, said in many words.", "wrong"),
        ("Right, but it also says something that is wrong.", "failed"),
        ("Yes, that is not right", "failed"),
        ("It isn’t right.", "failed"),
        ("not right", "failed"),
        ("right or wrong", "failed"),
        ("The answer is right because it names the same number.", "failed"),
        ("7/10", "failed"),
        ("", "failed"),
    ],
)
def test_only_a_clear_word_is_a_verdict(verdict: str, reading: str) -> None:
    read = judged(ASKED, WRONG, lambda _: verdict, judge="j")
    assert read.reading == reading
    assert (read.score is None) == (reading == "failed")
    assert read.facts["verdict"] == verdict


def test_the_judge_sees_a_call_that_the_server_read() -> None:
    seen: list[str] = []
    asked = question('{"name": "f", "arguments": {"a": 1}}', scoring="tool_call")
    read = read_answer(asked, Said(content="", tool_calls=({"function": {"name": "f", "arguments": '{"a": 1}'}},)))
    judged(asked, read, lambda prompt: seen.append(prompt) or "right", judge="j")
    assert 'Given answer: {"name": "f", "arguments": {"a": 1}}' in seen[0]


def test_what_is_no_answer_is_not_judged() -> None:
    def ask(_: str) -> str:
        raise AssertionError("asked")

    for said in (
        Said(content=""),
        Said(content="", error_slug="timed-out"),
        Said(content="The", finish_reason="length"),
    ):
        read = read_answer(ASKED, said)
        assert judged(ASKED, read, ask, judge="j") is read
