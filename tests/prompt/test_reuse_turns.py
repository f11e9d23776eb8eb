"""What marks a user's message for llama.cpp's server: seen in where the real server (b11549) broke its batches."""

from pathlib import Path

import pytest

from kvscope.prompt.chat_template.template import ChatTemplate
from kvscope.prompt.reuse_engines.llama_cpp_turns import places_of, user_marker

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
