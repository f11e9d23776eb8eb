"""Counts of single texts: in templates that leave a text as it is, and in those that do not; BOS once."""

import random
from functools import cache
from pathlib import Path

import mistral_common
import pytest

from kvscope.errors import ChatTemplateError, UsageError
from kvscope.prompt.chat_template.template import ChatTemplate
from kvscope.prompt.conversation import Message
from kvscope.prompt.exact_length.build import build_prompt
from kvscope.prompt.exact_length.one_text import TextCount, load_text_count
from kvscope.prompt.exact_length.source_text import LANGUAGES
from kvscope.prompt.prompt_text import ids_of_text
from kvscope.prompt.tokenizers.bytes import BytesTokenizer

PLAIN = "{% for m in messages %}<u>{{ m.content }}</u>{% endfor %}"
TEXTS = ["", "두 줄\n\n 끝 <&>{{ x }}"]


@cache  # each template is rendered in a process of its own
def count_with(template: str) -> TextCount:
    return TextCount(BytesTokenizer(), ChatTemplate(text=template, source="test"))


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (PLAIN, lambda text: f"<u>{text}</u>"),
        (PLAIN.replace("m.content", "m.content | trim"), lambda text: f"<u>{text}</u>"),
        (PLAIN.replace("m.content", "m.content | upper"), lambda text: f"<u>{text.upper()}</u>"),
        (PLAIN.replace("m.content", "m.content | tojson"), None),
        (PLAIN + "{{ messages[0].content | length }}", lambda text: f"<u>{text}</u>{len(text)}"),
        (PLAIN + "{{ messages[0].content }}", lambda text: f"<u>{text}</u>{text}"),
    ],
    ids=["plain", "trimmed", "upper case", "escaped", "its length too", "twice"],
)
def test_the_count_is_that_of_the_whole_rendered_text(template: str, expected: object, text: str) -> None:
    count = count_with(template)
    message = Message(role="user", content=text)
    assert count.template is not None
    whole = expected(text) if callable(expected) else count.rendered(text)
    assert count.rendered(text) == whole
    assert count([message]) == count.tokens(text) == len(whole.encode())


def test_places_are_counted_from_the_beginning_of_the_prompt() -> None:
    text = "한a끝"  # three bytes, one, three
    assert count_with(PLAIN).tokens_before(text, [0, 1, 2, 3]) == [3, 6, 7, 10]
    assert TextCount(BytesTokenizer(), None).tokens_before(text, [0, 2]) == [0, 4]
    twice = count_with(PLAIN + "{{ messages[0].content }}")
    assert twice.tokens_before(text, [0]) is None
    assert count_with(PLAIN.replace("m.content", "m.content | upper")).tokens_before(text, [0]) is None


def test_bos_is_counted_once() -> None:
    class WithBos(BytesTokenizer):
        bos_id = ord("^")
        adds_bos = True

    raw = TextCount(WithBos(), None)
    assert [raw.tokens(text) for text in ("", "a", "^a")] == [1, 2, 2]
    assert raw.tokens_before("ab", [0, 1, 2]) == [1, 2, 3]
    assert raw.tokens_before("^b", [0, 1, 2]) == [0, 1, 2]
    written = TextCount(WithBos(), ChatTemplate(text="^" + PLAIN, source="test"))
    assert written.tokens("a") == len("^<u>a</u>")


def test_it_counts_one_users_message_and_nothing_else() -> None:
    count = count_with(PLAIN)
    for messages in ([], [Message(role="system", content="x")], [Message(role="user", content="x")] * 2):
        with pytest.raises(UsageError, match="one user message"):
            count(messages)


def test_a_template_that_refuses_says_so_at_once() -> None:
    with pytest.raises(ChatTemplateError, match="no"):
        count_with("{{ raise_exception('no') }}")


@pytest.mark.parametrize("name", ["tekken_240911.json", "mistral_instruct_tokenizer_241114.model.v7"])
@pytest.mark.parametrize("language", LANGUAGES)
def test_exact_lengths_under_vocabularies_of_other_kinds(name: str, language: str) -> None:
    """The shortest, short ones, and some longer: those of SmolLM2 and Gemma 3 are held against a real engine."""
    count = load_text_count(str(Path(mistral_common.__file__).parent / "data" / name), is_raw=True)
    rng = random.Random(name + language)
    for prompt_tokens in [*range(1, 12), *rng.sample(range(12, 200), 12), *rng.sample(range(200, 3000), 5)]:
        prompt = build_prompt(
            prompt_tokens=prompt_tokens, count=count, language=language, seed=1, is_raw=True, locate=count.tokens_before
        )
        assert len(ids_of_text(prompt.text, tokenizer=count.tokenizer).ids) == prompt_tokens
        assert (prompt.key_sentence is not None) or prompt_tokens < 100


def test_a_raw_count_needs_no_template() -> None:
    assert load_text_count("bytes:", is_raw=True).tokens("한") == 3
