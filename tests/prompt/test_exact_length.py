"""Exact lengths, against counters that behave like tokenizers: bytes, words, pieces that reach across every joint."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.errors import BadDesign, PromptLengthUnreachable, UnknownName
from kvscope.prompt.conversation import Message
from kvscope.prompt.exact_length import MAX_COUNT_CALLS, build_prompt
from kvscope.prompt.source_text import load_source_text

TEMPLATE_TOKENS = 24
TEXT_TOKENS = Callable[[str], int]


def count_bytes(text: str) -> int:
    return len(text.encode())


def count_pieces(text: str) -> int:
    """Pieces of up to five letters, and punctuation one by one: near what subword tokenizers do with English."""
    return len(re.findall(r" ?\w{1,5}|[^\w\s]|\n+", text))


def greedy_pieces(vocabulary: Sequence[str]) -> TEXT_TOKENS:
    """Longest match from the left over the whole text. Pieces may begin and end anywhere, spaces and full stops
    included, so what one word costs depends on what stands before it."""
    ordered = sorted(set(vocabulary), key=len, reverse=True)
    pattern = re.compile("|".join([*map(re.escape, ordered), r"[\s\S]"]))
    return lambda text: len(pattern.findall(text))


class Server:
    """Counts like a server would: its template's own tokens and the text's. Keeps the number of questions."""

    def __init__(self, text_tokens: TEXT_TOKENS) -> None:
        self._text_tokens = text_tokens
        self.calls = 0

    def count(self, messages: Sequence[Message]) -> int:
        self.calls += 1
        return TEMPLATE_TOKENS + sum(self._text_tokens(message.content) for message in messages)


@st.composite
def vocabularies(draw: st.DrawFn, language: str) -> list[str]:
    """Real pieces of the real text, of one to twelve characters, and merges of the dots that close a prompt."""
    text = " ".join(load_source_text(language).sentences)
    starts = draw(st.lists(st.integers(min_value=0, max_value=len(text) - 1), min_size=20, max_size=400))
    lengths = draw(st.lists(st.integers(min_value=1, max_value=12), min_size=20, max_size=400))
    pieces = [text[start : start + length] for start, length in zip(starts, lengths, strict=False)]
    return pieces + draw(st.lists(st.sampled_from([" .", " . .", ". .", ".\n\n", ", .", " . . ."]), max_size=6))


@pytest.mark.parametrize("language", ["en", "ko"])
@pytest.mark.parametrize("text_tokens", [count_bytes, count_pieces])
@settings(max_examples=40, deadline=None)
@given(
    prompt_tokens=st.integers(min_value=300, max_value=4000),
    seed=st.integers(min_value=0, max_value=2**31),
    salt=st.text(max_size=5),
)
def test_every_length_is_met_exactly(
    text_tokens: TEXT_TOKENS, language: str, prompt_tokens: int, seed: int, salt: str
) -> None:
    server = Server(text_tokens)
    prompt = build_prompt(prompt_tokens=prompt_tokens, count=server.count, language=language, seed=seed, salt=salt)
    calls = server.calls
    assert server.count(prompt.messages) == prompt_tokens == prompt.prompt_tokens
    assert prompt.count_calls == calls <= 25
    assert prompt.template_tokens == TEMPLATE_TOKENS
    assert prompt.messages[0].content.count(prompt.key_sentence) == 1


@settings(max_examples=60, deadline=None)
@given(data=st.data(), prompt_tokens=st.integers(min_value=450, max_value=3000), seed=st.integers(0, 10**6))
def test_tokens_that_merge_across_joints_do_not_matter(data: st.DataObject, prompt_tokens: int, seed: int) -> None:
    language = data.draw(st.sampled_from(["en", "ko"]))
    server = Server(greedy_pieces(data.draw(vocabularies(language))))
    prompt = build_prompt(prompt_tokens=prompt_tokens, count=server.count, language=language, seed=seed)
    assert prompt.count_calls == server.calls <= MAX_COUNT_CALLS
    assert server.count(prompt.messages) == prompt_tokens


@pytest.mark.parametrize("language", ["en", "ko"])
@pytest.mark.parametrize("prompt_tokens", [8192, 32768])
def test_long_prompts_take_no_more_counts_than_short_ones(language: str, prompt_tokens: int) -> None:
    server = Server(count_pieces)
    prompt = build_prompt(prompt_tokens=prompt_tokens, count=server.count, language=language, seed=5)
    assert prompt.count_calls <= 25
    assert server.count(prompt.messages) == prompt_tokens
    sentences = re.split(r"(?<=\.)\s+", prompt.messages[0].content)
    assert len(sentences) == len(set(sentences)), "nothing is said twice in the same words"


def first_words(**varied: int | str) -> str:
    arguments: dict[str, int | str] = {"prompt_tokens": 600, "seed": 0, "salt": ""} | varied
    prompt = build_prompt(count=Server(count_pieces).count, language="en", **arguments)  # type: ignore[arg-type]
    return prompt.messages[0].content


def test_no_two_of_62_neighbouring_seeds_share_even_the_first_character() -> None:
    assert len({first_words(seed=seed)[0] for seed in range(100, 162)}) == 62


def test_another_seed_salt_or_length_gives_another_first_word_and_another_order() -> None:
    texts = [first_words(), first_words(seed=1), first_words(salt="warm-up"), first_words(prompt_tokens=601)]
    assert len({text.split()[0] for text in texts}) == 4
    assert len({text.split("\n\n")[1].split(".")[0] for text in texts}) == 4


def test_the_same_question_gives_the_same_text_in_another_process() -> None:
    program = (
        "from kvscope.prompt.exact_length import build_prompt\n"
        "count = lambda messages: len(messages[0].content.encode())\n"
        "print(ascii(build_prompt(prompt_tokens=3000, count=count, language='ko', seed=9, salt='s').messages))\n"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(answers) == 1
    assert "Message(role='user'" in answers.pop()


def test_sizes_are_those_of_the_text() -> None:
    prompt = build_prompt(prompt_tokens=900, count=Server(count_pieces).count, language="ko", seed=2)
    assert prompt.characters == len(prompt.messages[0].content)
    assert prompt.bytes == len(prompt.messages[0].content.encode())
    assert prompt.bytes > prompt.characters


@pytest.mark.parametrize("language", ["en", "ko"])
def test_the_instruction_shrinks_with_the_length_and_the_key_sentence_never_does(language: str) -> None:
    frames = []
    for prompt_tokens in range(2, 200):
        server = Server(count_pieces)
        try:
            prompt = build_prompt(
                prompt_tokens=prompt_tokens, count=server.count, language=language, seed=prompt_tokens
            )
        except PromptLengthUnreachable:
            assert not frames, "once a length is long enough, every longer one is"
            continue
        assert server.count(prompt.messages) == prompt_tokens
        assert load_source_text(language).key_sentence in prompt.messages[0].content
        frames.append(prompt.frame)
    assert frames == sorted(frames, key=["minimal", "short", "full"].index)
    assert set(frames) == {"minimal", "short", "full"}


def test_too_short_says_what_it_needs_and_that_is_enough() -> None:
    with pytest.raises(PromptLengthUnreachable, match=f"chat template takes {TEMPLATE_TOKENS}") as caught:
        build_prompt(prompt_tokens=30, count=Server(count_pieces).count, language="en", seed=1)
    needed = int(re.findall(r"\d+", str(caught.value.hint))[0])
    for seed in range(40):
        server = Server(count_pieces)
        prompt = build_prompt(prompt_tokens=needed, count=server.count, language="en", seed=seed)
        assert server.count(prompt.messages) == needed


@pytest.mark.parametrize(
    "strange",
    [
        pytest.param(lambda text: 0, id="a count that never grows"),
        pytest.param(lambda text: count_pieces(text) // 2 * 2, id="even numbers only"),
    ],
)
def test_a_count_that_cannot_be_met_ends_in_a_clear_error(strange: TEXT_TOKENS) -> None:
    server = Server(strange)
    with pytest.raises(PromptLengthUnreachable, match="No text of exactly 501 tokens") as caught:
        build_prompt(prompt_tokens=501, count=server.count, language="en", seed=1)
    assert server.calls <= MAX_COUNT_CALLS
    assert caught.value.exit_code == 2
    assert caught.value.hint


def test_an_error_of_the_server_passes_through() -> None:
    def broken(messages: Sequence[Message]) -> int:
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError, match="gone"):
        build_prompt(prompt_tokens=500, count=broken, language="en", seed=1)


def test_impossible_questions_are_refused_before_anything_is_counted() -> None:
    server = Server(count_pieces)
    with pytest.raises(BadDesign):
        build_prompt(prompt_tokens=0, count=server.count, language="en", seed=1)
    with pytest.raises(UnknownName):
        build_prompt(prompt_tokens=500, count=server.count, language="de", seed=1)
    assert server.calls == 0
