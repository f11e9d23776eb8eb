"""What marks a user's message for llama.cpp's server: seen in where the real server (b11549) broke its batches."""

from pathlib import Path

import pytest

from kvscope.prompt.chat_template.template import ChatTemplate
from kvscope.prompt.reuse_engines.llama_cpp_turns import has_marks_of_its_own, places_of, user_marker

TEMPLATES = Path(__file__).parent / "data" / "chat_templates"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gemma", "<start_of_turn>user"),
        ("mistral", "[INST]"),
        ("qwen3", "<|im_start|>user"),
        # It writes a system message where there is none. The server takes that for a part of the mark, which then
        # stands before the first user's message at most.
        ("chatml", "<|im_start|>system\nAnswer briefly.<|im_end|>\n<|im_start|>user"),
        # The first user's message begins otherwise than the later ones, and the server knows the first alone.
        ("llama3", None),
    ],
)
def test_the_mark_of_a_users_message(name: str, expected: str | None) -> None:
    text = (TEMPLATES / f"{name}.jinja").read_text()
    template = ChatTemplate(text=text, source=name, special_tokens={"bos_token": "<s>", "eos_token": "</s>"})
    assert user_marker(template) == expected


def test_a_template_that_refuses_a_plain_conversation_shows_no_mark() -> None:
    assert user_marker(ChatTemplate(text="{{ raise_exception('no') }}", source="refuses")) is None
    assert user_marker(ChatTemplate(text="nothing of what is said", source="is silent")) is None


def test_a_mark_is_found_wherever_it_stands() -> None:
    assert places_of([1, 2], [1, 2, 1, 1, 2]) == (0, 3)
    assert places_of([1, 1], [1, 1, 1]) == (0, 1)
    assert places_of([1, 2], [1]) == ()


@pytest.mark.parametrize(("name", "expected"), [("gemma", False), ("qwen3", False), ("mistral", False)])
def test_a_family_that_the_server_knows_is_told(name: str, expected: bool) -> None:
    assert has_marks_of_its_own((TEMPLATES / f"{name}.jinja").read_text()) is expected


def test_gpt_oss_and_qwen_coder_have_marks_that_were_not_compared() -> None:
    assert has_marks_of_its_own("<|start|>{{ role }}<|channel|>final<|message|>")
    assert has_marks_of_its_own("<tool_call><function={{ name }}><parameter={{ key }}>")
    assert not has_marks_of_its_own("<tool_call>{{ call }}")
