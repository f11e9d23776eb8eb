"""Thinking taken out of a text, as the models write it that think; refusals; the first sentence of a continuation."""

import pytest

from kvscope.quality.answer_text import first_sentence, goes_round, is_refusal, without_thinking

THINKING = [
    ("<think>It says 10990, no, 48213.</think>\n\n48213", "48213"),
    ("<think>\n\n</think>\n\n48213", "48213"),
    ("It says 10990.\n</think>\n48213", "48213"),  # the template had put the begin mark into the prompt
    ("<think>It says 10990 or", ""),
    ("48213 <think>or 10990?", "48213"),
    ("<thinking>10990</thinking>48213", "48213"),
    ("<thought>10990</thought> 48213", "48213"),  # EXAONE
    ("<seed:think>10990</seed:think>48213", "48213"),
    ("[THINK]10990[/THINK]48213", "48213"),  # Magistral
    ("◁think▷10990◁/think▷48213", "48213"),  # Kimi
    ("<|START_THINKING|>10990<|END_THINKING|><|START_RESPONSE|>48213<|END_RESPONSE|>", "48213"),  # Command A
    ("<|channel|>analysis<|message|>10990<|end|><|start|>assistant<|channel|>final<|message|>48213<|return|>", "48213"),
    ("<|channel|>analysis<|message|>10990 perhaps", ""),
    ("<|channel|>final<|message|>48213", "48213"),
    ("analysisWe look for 10990.assistantfinal48213", "48213"),  # the same where marks were dropped
    ("Here is my thought process: 10990. Here is my response: 48213", "48213"),  # Granite
    ("<|begin_of_thought|>10990<|end_of_thought|><|begin_of_solution|>48213<|end_of_solution|>", "48213"),
    ("<Think>10990</THINK>48213", "48213"),
    ("<analysis>10990</analysis>48213", "48213"),
    ("<scratchpad>10990</scratchpad>48213", "48213"),
    ("<|thinking|>10990<|/thinking|>48213", "48213"),
    ("<unused94>thought\n10990<unused95>48213", "48213"),  # MedGemma
    ("<|inner_prefix|>10990<|inner_suffix|>48213", "48213"),  # Apertus
    ("Here are my reasoning steps:\n10990\n[BEGIN FINAL RESPONSE]\n48213\n[END FINAL RESPONSE]", "48213"),  # Apriel
    ("10990 " * 20_000 + "</think>48213", "48213"),
    ("<think>a</think>x<think>b</think>y", "x\ny"),
    ("<answer>48213</answer>", "48213"),
    ("48213<|im_end|>", "48213"),
]


@pytest.mark.parametrize(("text", "answer"), THINKING)
def test_thinking_is_no_answer(text: str, answer: str) -> None:
    assert without_thinking(text)[0] == answer
    assert without_thinking(text)[1] == ("10990" in text or "think>" in text)


@pytest.mark.parametrize(
    "text",
    [
        "48213",
        "I think it is 48213.",
        "The analysis says 48213",
        "Here is my thought: 48213",
        "x < 3 and y > 4",
        "a</b>c",
        "The tag `<think>` is written. 48213",
        'It says "<think>", and 48213.',
    ],
)
def test_plain_text_stays_as_it_is(text: str) -> None:
    assert without_thinking(text) == (text, False)


def test_a_very_long_text_is_read_in_time() -> None:
    for text in (
        "<think>" * 20_000,
        "analysis" * 20_000,
        "<|channel|>" * 20_000,
        "not " * 20_000,
        "<|channel|>analysis" * 9_000,
    ):
        kept = without_thinking(text)[0]
        assert len(kept) <= len(text)
        assert not is_refusal(kept)


@pytest.mark.parametrize(
    ("text", "sentence", "is_whole"),
    [
        (" 48213. The number of the crate Ulm is 10990.", "48213.", True),
        ("\n 48213\nThe number", "48213", True),
        (" 48213", "48213", False),
        (" 3.5 metres. More", "3.5 metres.", True),
        (" No. 48213. The", "No. 48213.", True),
        (" No. The crate", "No.", True),
        (" approx. 48213. The", "approx. 48213.", True),
        (" Mr. Torvan. Then", "Mr. Torvan.", True),
        (" ... 48213. Then", "... 48213.", True),
        (" 번호는 48213이다. 다음", "번호는 48213이다.", True),
        (" “Torvan.” Then", "“Torvan.”", True),
        ("", "", False),
    ],
)
def test_the_first_sentence_of_a_continuation(text: str, sentence: str, is_whole: bool) -> None:
    assert first_sentence(text) == (sentence, is_whole)


@pytest.mark.parametrize(
    "text",
    [
        "The text does not mention the crate Torvan.",
        "It doesn't say.",
        "I don't know.",
        "This is not specified in the text.",
        "The number is not given.",
        "There is no crate called Torvan.",
        "I cannot find it in the document.",
        "Unknown.",
        "The astronomer is unknown.",
        "No information is provided.",
        "I'm unable to determine that.",
        "본문에 나와 있지 않습니다.",
        "알 수 없습니다.",
        "해당 정보가 없습니다.",
        "글에서 찾을 수 없다.",
        "언급되지 않았습니다",
        "모르겠습니다.",
        "I’m sorry, but I can’t help with that.",
        "I don’t know",
        "I couldn’t find it.",
        "It isn't stated in the text.",
        "No number is given for this crate.",
        "The text never says.",
        "The passage says nothing about the crate.",
        "There's no crate called Torvan.",
        "Cannot be determined.",
        "I have no idea.",
        "Insufficient information.",
        "It is impossible to say.",
        "That crate doesn't exist.",
        "없음",
        "모름",
        "찾지 못했습니다",
        "확인되지 않습니다",
        "명시되지 않았습니다",
        "제공되지 않았습니다",
        "글에는 그런 상자가 없다",
        "글에 안 나와요",
    ],
)
def test_refusals(text: str) -> None:
    assert is_refusal(text)


@pytest.mark.parametrize(
    "text",
    [
        "48213",
        "It is 48213, not 10990.",
        "The number of the crate is 48213.",
        "The word givatlaston is the only one that is not the first word in the text.",  # SmolLM2 said so
        "The crate could not be opened.",
        "There is no doubt: 48213",
        "The quarry, which has no record of accidents, employs 48213 men.",
        "The quarry employs 48213 men, which has no record of accidents.",
        "None of them is bigger; it is 48213.",
        "No such luck, 48213",
        "열쇠가 없습니다. 48213번입니다",
        "No other number is mentioned; it is 48213.",
        "타루빈",
        "번호는 48213이다.",
        "",
    ],
)
def test_answers_are_no_refusals(text: str) -> None:
    assert not is_refusal(text)


@pytest.mark.parametrize(
    ("text", "round_and_round"),
    [
        ("The value of Nolvul is the same as the value of Nolvul. " * 4 + "The value of", True),  # SmolLM2 said so
        ("Torvan and Belkis\n\n" * 5 + "Torv", True),
        ("그런데 그런데 그런데 그런데", True),
        ("The first mark is a. The second mark is b. The third mark is c.", False),
        ("The number of the crate is 11111", False),
        ("no, no", False),
        ("", False),
    ],
)
def test_a_text_that_goes_round_in_circles(text: str, round_and_round: bool) -> None:
    assert goes_round(text) is round_and_round
