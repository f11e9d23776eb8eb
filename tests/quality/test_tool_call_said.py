"""Calls of tools as servers hand them over and as models write them into their text."""

import json
from typing import Any

import pytest
from questions_by_hand import question

from kvscope.quality.reading import Said, read_answer
from kvscope.quality.tool_call_said import calls_said, scored_call

CALL = {"name": "open_locker", "arguments": {"locker_number": 48213, "minutes": 15}}
EXPECTED = json.dumps(CALL)


def of_server(name: str, arguments: Any) -> dict[str, Any]:
    return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}


FROM_SERVER: list[tuple[list[dict[str, Any]], float]] = [
    ([of_server("open_locker", '{"locker_number": 48213, "minutes": 15}')], 1.0),
    ([of_server("open_locker", {"minutes": 15, "locker_number": 48213})], 1.0),
    ([of_server("open_locker", '{"locker_number": "48213", "minutes": "15"}')], 1.0),
    ([of_server("open_locker", '{"locker_number": 48213.0, "minutes": 15}')], 1.0),
    ([of_server("close_locker", '{"locker_number": 48213, "minutes": 15}')], 0.0),
    ([of_server("open_locker", '{"locker_number": 10990, "minutes": 15}')], 0.0),
    ([of_server("open_locker", '{"locker_number": 48213}')], 0.0),
    ([of_server("open_locker", '{"locker_number": 48213, "minutes": 15, "name": "Torvan"}')], 0.0),
    ([of_server("open_locker", "{}")], 0.0),  # "empty arguments", the commonest failure with 4-bit caches
    ([of_server("open_locker", '{"locker_number": 48213, "min')], 0.0),
    ([of_server("open_locker", '{"locker_number": 48213, "minutes": 15}')] * 2, 1.0),
    (
        [
            of_server("open_locker", '{"locker_number": 48213, "minutes": 15}'),
            of_server("open_locker", '{"locker_number": 10990, "minutes": 15}'),
        ],
        0.0,
    ),
]


@pytest.mark.parametrize(("calls", "value"), FROM_SERVER)
def test_calls_that_the_server_read(calls: list[dict[str, Any]], value: float) -> None:
    assert scored_call(EXPECTED, calls, "").value == value


IN_TEXT = [
    (EXPECTED, 1.0),
    (f"```json\n{EXPECTED}\n```", 1.0),
    (f"<tool_call>\n{EXPECTED}\n</tool_call>", 1.0),
    (f"[{EXPECTED}]", 1.0),
    (f"Sure, I open it: {EXPECTED} Done.", 1.0),
    ('{"name": "open_locker", "parameters": {"locker_number": 48213, "minutes": 15}}', 1.0),  # Llama's word
    ('{"function": "open_locker", "arguments": {"locker_number": 48213, "minutes": 15}}', 1.0),
    # Wrapped once, as servers write it: nobody wrote another call. (It was read as none before.)
    (json.dumps({"tool_calls": [of_server("open_locker", CALL["arguments"])]}), 1.0),
    (json.dumps({"tool_call": CALL}), 1.0),
    (json.dumps({"tool_calls": [CALL, {**CALL, "name": "close_locker"}]}), 0.0),
    ('{"name": "open_locker", "arguments": {"locker_number": 48213, "minutes": 15,},}', 1.0),
    (f"{EXPECTED} {EXPECTED.replace('48213', chr(34) + '48213' + chr(34))}", 1.0),  # a number told as text, too
    (EXPECTED.replace("open_locker", "functions.open_locker"), 1.0),
    (f"I will not call {EXPECTED}", 0.0),
    (f"I don’t call {EXPECTED}", 0.0),
    (f"I cannot call tools, so here it is: {EXPECTED}", 1.0),
    # Native forms: Llama 3.2, LFM2; Llama 3.1; Qwen3-Coder; GLM-4.5; Mistral; DeepSeek; gpt-oss.
    ("[open_locker(locker_number=48213, minutes=15)]", 1.0),
    ("```tool_code\nopen_locker(minutes=15, locker_number='48213')\n```", 1.0),
    ("[open_locker(locker_number=48213, minutes=15), open_locker(locker_number=10990, minutes=15)]", 0.0),
    ("[open_locker(locker_number=10990, minutes=15)]", 0.0),
    ("I do not call open_locker(locker_number=48213, minutes=15)", 0.0),
    ('<function=open_locker>{"locker_number": 48213, "minutes": 15}</function>', 1.0),
    (
        "<tool_call>\n<function=open_locker>\n<parameter=locker_number>\n48213\n</parameter>\n<parameter=minutes>\n15\n"
        "</parameter>\n</function>\n</tool_call>",
        1.0,
    ),
    (
        "<tool_call>open_locker\n<arg_key>locker_number</arg_key>\n<arg_value>48213</arg_value>\n"
        "<arg_key>minutes</arg_key>\n<arg_value>15</arg_value>\n</tool_call>",
        1.0,
    ),
    ('[TOOL_CALLS]open_locker[ARGS]{"locker_number": 48213, "minutes": 15}', 1.0),
    ('<｜tool▁sep｜>open_locker\n```json\n{"locker_number": 48213, "minutes": 15}\n```', 1.0),
    ('commentary to=functions.open_locker json{"locker_number": 48213, "minutes": 15}', 1.0),
    ('commentary to=functions.close_locker json{"locker_number": 48213, "minutes": 15}', 0.0),
    (f"{EXPECTED}\n{EXPECTED.replace('48213', '10990')}", 0.0),
    ("open_locker(48213, 15)", 0.0),
    ("The locker 48213 is open for 15 minutes.", 0.0),
    ("{" * 100, 0.0),
    ("", 0.0),
]


@pytest.mark.parametrize(("text", "value"), IN_TEXT)
def test_calls_that_stand_in_the_text(text: str, value: float) -> None:
    assert scored_call(EXPECTED, (), text).value == value


def test_calls_of_the_server_come_before_what_the_text_says() -> None:
    calls, source = calls_said([of_server("open_locker", "{}")], EXPECTED)
    assert (calls, source) == ([("open_locker", {})], "tool_calls")


BEGUN = '{"name": "open_locker", "arguments": {"minutes": 15, "locker_number":'
CUT = [
    (" 48213}}", "right"),
    (" 48213", "cut_output"),
    (' 48213, "locker', "cut_output"),  # both arguments are right; what begins behind them is not told yet
    (' 48213, "locker_name": "48213", "locker_type": "lock', "wrong"),  # Gemma 3 270M wrote these two
    (' "1", "locker_type": "locker"}, "date": "1998', "wrong"),
    (" 482", "cut_output"),
    (' 10990, "a', "wrong"),
]


@pytest.mark.parametrize(("text", "reading"), CUT)
def test_a_call_that_breaks_off_is_wrong_only_where_it_cannot_become_right(text: str, reading: str) -> None:
    asked = question(EXPECTED, scoring="tool_call", cue=f"The command:\n{BEGUN}")
    said = Said(content=text, finish_reason="length")
    assert read_answer(asked, said, form="cue").reading == reading


def test_a_call_without_any_text_is_an_answer() -> None:
    asked = question(EXPECTED, scoring="tool_call")
    said = Said(content="", tool_calls=(of_server("open_locker", CALL["arguments"]),), finish_reason="tool_calls")
    read = read_answer(asked, said)
    assert (read.reading, read.score, read.facts["read_from"]) == ("right", 1.0, "tool_calls")
    assert json.loads(read.answer or "") == CALL  # for the record, and for a judge


def test_a_call_that_the_server_could_not_read_is_kept_as_it_came() -> None:
    begun = of_server("open_locker", '{"locker_number": 48213, "min')
    read = read_answer(question(EXPECTED, scoring="tool_call"), Said(content="", tool_calls=(begun,)))
    assert read.reading == "wrong"
    assert json.loads(read.answer or "") == begun


@pytest.mark.parametrize(
    "header",
    [
        "<|channel|>commentary to=functions.open_locker <|constrain|>json<|message|>",
        "<|channel|>analysis<|message|>The locker is 10990?<|end|><|start|>assistant<|channel|>commentary "
        "to=functions.open_locker <|constrain|>json<|message|>",
        "<|start|>assistant to=functions.open_locker<|channel|>commentary <|constrain|>json<|message|>",
    ],
)
def test_what_gpt_oss_says_to_a_tool_is_no_thinking(header: str) -> None:
    said = Said(content=header + '{"locker_number": 48213, "minutes": 15}<|call|>', finish_reason="stop")
    assert read_answer(question(EXPECTED, scoring="tool_call"), said).reading == "right"


@pytest.mark.parametrize(
    "text", ["{" * 20_000, "f(a=" * 20_000, "f(a=1," * 5_000, "<function=f>" * 20_000, "[" * 20_000]
)
def test_text_that_only_looks_like_calls_is_read_in_time(text: str) -> None:
    assert calls_said((), text)[0] == []
