"""What a template adds: the pieces cover the text exactly, and are the ones that the template's own words say."""

import json
import random
from typing import Any

import pytest
from test_chat_template import CASES, EXPECTED, NAMES, conversation_of, standing_clock, template_named

from kvscope.errors import ChatTemplateError
from kvscope.prompt.chat_template.cost import TemplateCost, template_cost
from kvscope.prompt.chat_template.template import ChatTemplate
from kvscope.prompt.conversation import Conversation, Message

BY_NAME = {case["name"]: case for case in CASES}


def cost_of(name: str) -> TemplateCost:
    case = BY_NAME[name]
    return template_cost(
        template_named(case["template"]),
        conversation_of(case),
        add_generation_prompt=case["add_generation_prompt"],
        clock=standing_clock,
        **case["extra"],
    )


def check_cover(cost: TemplateCost) -> None:
    ends = [0, *(piece.end for piece in cost.pieces)]
    assert [piece.start for piece in cost.pieces] == ends[:-1]
    assert ends[-1] == len(cost.text)
    assert all(piece.start < piece.end for piece in cost.pieces)


def shown(cost: TemplateCost) -> list[tuple[Any, ...]]:
    return [(p.kind, p.message if p.tool is None else p.tool, cost.text[p.start : p.end]) for p in cost.pieces]


@pytest.mark.parametrize("template", NAMES)
@pytest.mark.parametrize("case", ["Korean with a system message", "reasoning", "tools on offer"])
def test_pieces_cover_the_text_of_transformers(template: str, case: str) -> None:
    name = f"{template}: {case}"
    cost = cost_of(name)
    check_cover(cost)
    assert cost.text == EXPECTED[name]["text"]
    for index, message in enumerate(BY_NAME[name]["messages"]):
        (content,) = [cost.text[p.start : p.end] for p in cost.pieces if (p.kind, p.message) == ("content", index)]
        as_json = json.dumps(message["content"], ensure_ascii=False)[1:-1]
        assert content in (message["content"], message["content"].strip(), as_json)


def test_chatml_adds_its_own_system_message_and_the_same_to_each_message() -> None:
    assert shown(cost_of("chatml: users twice")) == [
        ("template", None, "<|im_start|>system\nAnswer briefly.<|im_end|>\n"),
        ("template", 0, "<|im_start|>user\n"),
        ("content", 0, "a"),
        ("template", 0, "<|im_end|>\n"),
        ("template", 1, "<|im_start|>user\n"),
        ("content", 1, "b"),
        ("template", 1, "<|im_end|>\n"),
        ("generation_prompt", None, "<|im_start|>assistant\n"),
    ]


def test_each_tool_and_each_call_has_a_piece_of_its_own() -> None:
    cost = cost_of("mistral: two tools, two calls")
    weather, search = (
        json.dumps(t["function"], ensure_ascii=False) for t in BY_NAME["mistral: tools on offer"]["tools"][::-1]
    )
    call = '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "부산"}, "id": "call00001"}, '
    call += json.dumps({"name": "search", "arguments": '{"words": ["비"]}', "id": "call00002"}, ensure_ascii=False)
    assert shown(cost)[:8] == [
        ("template", None, "<s>"),
        ("tools", None, "[AVAILABLE_TOOLS]["),
        ("tool", 0, weather),
        ("tools", None, ", "),
        ("tool", 1, search),
        ("tools", None, "][/AVAILABLE_TOOLS]"),
        ("template", 0, "[INST]"),
        ("content", 0, "both"),
    ]
    assert call in cost.text
    assert cost.characters("tool", tool=0) == len(weather)


def test_tools_that_are_not_json_are_told_apart_too() -> None:
    tools = {
        piece[1]: piece[2] for piece in shown(cost_of("typescript_tools: two tools, two calls")) if piece[0] == "tool"
    }
    assert tools[0].startswith("// The weather of a city")
    assert tools[0].endswith("}) => any;")
    assert tools[1].startswith("// Finds passages.\n// In any language.\ntype search")


def test_reasoning_is_a_piece_only_where_the_template_keeps_it() -> None:
    cost = cost_of("qwen3: reasoning, no generation prompt")
    assert [(p.message, cost.text[p.start : p.end]) for p in cost.pieces if p.kind == "reasoning"] == [(3, "Easy.")]


def test_a_message_that_only_calls_tools_has_its_own_pieces_whatever_the_template_does_with_a_last_one() -> None:
    cost = cost_of("qwen3: a tool and its answer")
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "서울", "unit": "celsius"}}\n</tool_call>'
    assert [piece for piece in shown(cost) if piece[1] in (2, 3)] == [
        ("template", 2, "<|im_start|>assistant\n"),
        ("tool_calls", 2, call),
        ("template", 2, "<|im_end|>\n"),
        ("template", 3, "<|im_start|>user\n<tool_response>\n"),
        ("content", 3, '{"sky": "맑음"}'),
        ("template", 3, "\n</tool_response><|im_end|>\n"),
    ]


def test_a_generation_prompt_is_counted_once_and_only_where_asked_for() -> None:
    assert cost_of("llama3: Korean with a system message").characters("generation_prompt") == len(
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    assert cost_of("llama3: no generation prompt").characters("generation_prompt") == 0


@pytest.mark.parametrize(
    "text",
    [
        "{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}",
        "{{ messages | length }}",
        "{% for m in messages | reverse %}[{{ m.content | upper }}]{% endfor %}",
        "{{ messages[0].content[:2] }}|{{ add_generation_prompt }}",
    ],
)
def test_a_template_that_cannot_be_taken_apart_still_sums_to_its_text(text: str) -> None:
    conversation = Conversation(messages=(Message(role="user", content="abc"), Message(role="user", content="def")))
    cost = template_cost(ChatTemplate(text=text, source="t"), conversation)
    check_cover(cost)
    assert {piece.kind for piece in cost.pieces} <= {"template", "content"}


def test_parts_sum_to_the_text_for_random_conversations() -> None:
    rng = random.Random(4)
    words = ["강은 흐른다.", " ", "\n", "<think>", "</think>", "a", "😀", "<|im_end|>", "{{", '"', "\ue000", "tool"]
    for template in ("chatml", "qwen3", "mistral", "llama3", "documents"):
        for _ in range(4):
            messages = tuple(
                Message(
                    role=rng.choice(["user", "assistant"]), content="".join(rng.choices(words, k=rng.randint(0, 5)))
                )
                for _ in range(rng.randint(1, 6))
            )
            tools = tuple(BY_NAME["qwen3: tools on offer"]["tools"][: rng.randint(0, 2)])
            cost = template_cost(template_named(template), Conversation(messages=messages, tools=tools))
            check_cover(cost)


def test_a_refusal_is_an_error_here_too() -> None:
    case = BY_NAME["gemma: users twice"]
    with pytest.raises(ChatTemplateError, match="take turns"):
        template_cost(template_named("gemma"), conversation_of(case))
