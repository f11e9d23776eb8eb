"""Exact lengths, against counters that behave like tokenizers: bytes, words, pieces that reach across every joint."""

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.errors import BadDesign, PromptLengthUnreachable, UnknownName, UsageError
from kvscope.prompt.conversation import Message
from kvscope.prompt.exact_length.build import build_prompt
from kvscope.prompt.exact_length.search import MAX_COUNT_CALLS
from kvscope.prompt.exact_length.source_text import LANGUAGES, SourceText, load_source_text

TEMPLATE_TOKENS = 24
# Many lengths take a dozen; a key sentence that has to be moved takes a few more each time.
MOST_CALLS = 45
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
        self.longest_text = 0

    def count(self, messages: Sequence[Message]) -> int:
        self.calls += 1
        self.longest_text = max(self.longest_text, len(messages[0].content))
        return TEMPLATE_TOKENS + sum(self._text_tokens(message.content) for message in messages)


@st.composite
def vocabularies(draw: st.DrawFn, language: str) -> list[str]:
    """Real pieces of the real text, of one to twelve characters, and merges of the dots that close a prompt."""
    text = " ".join(load_source_text(language).sentences)
    starts = draw(st.lists(st.integers(min_value=0, max_value=len(text) - 1), min_size=20, max_size=400))
    lengths = draw(st.lists(st.integers(min_value=1, max_value=12), min_size=20, max_size=400))
    pieces = [text[start : start + length] for start, length in zip(starts, lengths, strict=False)]
    return pieces + draw(st.lists(st.sampled_from([" .", " . .", ". .", ".\n\n", ", .", " . . ."]), max_size=6))


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("text_tokens", [count_bytes, count_pieces])
@settings(max_examples=40, deadline=None)
@given(
    prompt_tokens=st.integers(min_value=1, max_value=4000),
    seed=st.integers(min_value=0, max_value=2**31),
    salt=st.text(max_size=5),
)
def test_every_length_is_met_exactly(
    text_tokens: TEXT_TOKENS, language: str, prompt_tokens: int, seed: int, salt: str
) -> None:
    server = Server(text_tokens)
    prompt_tokens += TEMPLATE_TOKENS
    prompt = build_prompt(prompt_tokens=prompt_tokens, count=server.count, language=language, seed=seed, salt=salt)
    calls = server.calls
    assert server.count(prompt.messages) == prompt_tokens == prompt.prompt_tokens
    assert prompt.count_calls == calls <= MOST_CALLS
    assert prompt.template_tokens == TEMPLATE_TOKENS
    key = load_source_text(language).key_sentence
    assert prompt.text.count(key) == (prompt.key_sentence is not None)
    assert (prompt.no_key_because is None) == (prompt.key_sentence == key) == (prompt.key_position is not None)


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
    assert prompt.count_calls <= MOST_CALLS
    assert server.count(prompt.messages) == prompt_tokens
    sentences = [text for text in re.split(r"(?<=\.)\s+", prompt.text) if text != "."]
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
        "from kvscope.prompt.exact_length.build import build_prompt\n"
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


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_instruction_shrinks_with_the_length_then_the_key_sentence_goes(language: str) -> None:
    frames = []
    for prompt_tokens in range(TEMPLATE_TOKENS + 1, 200):
        server = Server(count_pieces)
        prompt = build_prompt(prompt_tokens=prompt_tokens, count=server.count, language=language, seed=prompt_tokens)
        assert server.count(prompt.messages) == prompt_tokens
        assert (load_source_text(language).key_sentence in prompt.text) == (prompt.frame != "bare")
        frames.append(prompt.frame)
    assert frames == sorted(frames, key=["bare", "minimal", "short", "full"].index)
    assert set(frames) == {"bare", "minimal", "short", "full"}


def test_one_token_is_a_label_and_none_is_too_few() -> None:
    prompt = build_prompt(prompt_tokens=TEMPLATE_TOKENS + 1, count=Server(count_pieces).count, language="en", seed=1)
    assert re.fullmatch(r"\w{1,4}", prompt.text), "to this counter four characters are one token"
    assert prompt.key_sentence is None
    assert "no room" in str(prompt.no_key_because)
    least = TEMPLATE_TOKENS + 1
    for prompt_tokens in (1, TEMPLATE_TOKENS):
        with pytest.raises(
            PromptLengthUnreachable, match=f"template takes 24; the least possible is {least}"
        ) as caught:
            build_prompt(prompt_tokens=prompt_tokens, count=Server(count_pieces).count, language="en", seed=1)
        assert f"{least} tokens or more" in str(caught.value.hint)


def test_where_a_label_is_two_tokens_another_is_taken() -> None:
    def count(messages: Sequence[Message]) -> int:
        """As SentencePiece vocabularies that write the space before a text, and no digit together with it."""
        text = messages[0].content
        return 1 + count_pieces(text) + text[:1].isdigit()

    texts = {
        build_prompt(prompt_tokens=2, count=count, language="en", seed=seed, is_raw=True).text for seed in range(62)
    }
    assert all(count([Message(role="user", content=text)]) == 2 for text in texts)
    with pytest.raises(PromptLengthUnreachable, match="the least possible is 2"):
        build_prompt(prompt_tokens=1, count=count, language="en", seed=1)


@pytest.mark.parametrize("bos", [0, 1])
def test_of_a_raw_text_every_length_from_one_is_met(bos: int) -> None:
    def count(messages: Sequence[Message]) -> int:
        return bos + count_pieces(messages[0].content)

    for prompt_tokens in range(1, 80):
        prompt = build_prompt(prompt_tokens=prompt_tokens, count=count, language="ko", seed=1, is_raw=True)
        assert count(prompt.messages) == prompt_tokens
        assert prompt.is_raw
        assert (prompt.text == "") == (prompt_tokens == bos)


@pytest.mark.parametrize("wish", [{"key_sentence": "The tin is blue."}, {"key_percent": 50.0}])
def test_too_short_for_a_key_sentence_asked_for_says_what_is_enough(wish: dict[str, Any]) -> None:
    with pytest.raises(PromptLengthUnreachable, match=f"chat template takes {TEMPLATE_TOKENS}") as caught:
        build_prompt(prompt_tokens=30, count=Server(count_pieces).count, language="en", seed=1, **wish)
    needed = int(re.findall(r"\d+", str(caught.value.hint))[0])
    for seed in range(40):
        server = Server(count_pieces)
        prompt = build_prompt(prompt_tokens=needed, count=server.count, language="en", seed=seed, **wish)
        assert server.count(prompt.messages) == needed
        assert prompt.text.count(str(prompt.key_sentence)) == 1


LONGEST_PIECE_TOKENS = {
    language: max(map(count_pieces, load_source_text(language).sentences)) for language in LANGUAGES
}


@settings(max_examples=80, deadline=None)
@given(
    language=st.sampled_from(LANGUAGES),
    percent=st.one_of(st.sampled_from([0.0, 50.0, 100.0]), st.floats(min_value=0, max_value=100)),
    prompt_tokens=st.integers(min_value=300, max_value=6000),
    seed=st.integers(0, 10**6),
)
def test_the_key_sentence_stands_within_one_sentence_of_where_it_was_wanted(
    language: str, percent: float, prompt_tokens: int, seed: int
) -> None:
    server = Server(count_pieces)
    prompt = build_prompt(
        prompt_tokens=prompt_tokens, count=server.count, language=language, seed=seed, key_percent=percent
    )
    assert server.count(prompt.messages) == prompt_tokens
    position, key = prompt.key_position, str(prompt.key_sentence)
    assert position is not None
    assert position.percent is not None
    before, _, after = prompt.text.partition(key)
    assert position.tokens_before is None, "counts of texts alone do not say it"
    assert position.asked_percent == percent
    # What is reported, derived anew: the instruction ends at the first empty line, the request begins at the last.
    head, body = before.partition("\n\n")[0], before.partition("\n\n")[2].rstrip()
    tokens_before = count_pieces(f"{head}\n\n{body}".rstrip()) - count_pieces(head)
    tokens_after = count_pieces(after.rpartition("\n\n")[0])
    assert position.percent == pytest.approx(100 * tokens_before / (tokens_before + tokens_after), abs=0.5)
    around = tokens_before + tokens_after
    assert abs(position.percent - percent) / 100 * around <= LONGEST_PIECE_TOKENS[language] + 2
    if percent in (0.0, 100.0):
        assert position.percent == percent


def test_a_key_sentence_of_ones_own_stands_where_the_languages_own_would() -> None:
    own = "Wednesday's password is plum."
    server = Server(count_pieces)
    prompt = build_prompt(prompt_tokens=2000, count=server.count, language="en", seed=4, key_sentence=own)
    assert prompt.text.count(own) == 1
    assert load_source_text("en").key_sentence not in prompt.text
    assert prompt.key_sentence == own
    for wrong in ("", " x", "x\n"):
        with pytest.raises(UsageError, match="key sentence"):
            build_prompt(prompt_tokens=2000, count=server.count, language="en", seed=4, key_sentence=wrong)


@pytest.mark.parametrize("percent", [-1.0, 100.5, float("nan")])
def test_a_place_that_is_none_is_refused(percent: float) -> None:
    with pytest.raises(BadDesign, match="no place"):
        build_prompt(prompt_tokens=99, count=Server(count_pieces).count, language="en", seed=1, key_percent=percent)


def test_a_short_text_of_ones_own_is_repeated_with_numbers() -> None:
    source = SourceText(language="en", sentences=("One.", "Two."), key_sentence="K.", sha256="", name="mine.txt")
    server = Server(count_pieces)
    prompt = build_prompt(prompt_tokens=400, count=server.count, source=source, seed=1)
    assert server.count(prompt.messages) == 400
    assert re.search(r"\(3\) (One|Two)\. \(4\) (One|Two)\.", prompt.text)
    assert "everyday things" not in prompt.text


def test_a_text_that_is_the_key_sentence_alone_is_refused() -> None:
    source = SourceText(language="en", sentences=("One.",), key_sentence="K.", sha256="", name="mine.txt")
    with pytest.raises(UsageError, match="nothing in the text"):
        build_prompt(prompt_tokens=400, count=Server(count_pieces).count, source=source, seed=1, key_sentence="One.")


def test_where_only_the_key_sentence_cannot_be_fitted_in_that_is_what_is_said() -> None:
    def strange(text: str) -> int:
        """With the key sentence in it a text never counts to an odd number."""
        tokens = count_pieces(text)
        return tokens + tokens % 2 if "blue tin" in text else tokens

    prompt_tokens = TEMPLATE_TOKENS + 201
    prompt = build_prompt(prompt_tokens=prompt_tokens, count=Server(strange).count, language="en", seed=1)
    assert prompt.frame == "bare"
    assert prompt.no_key_because == "No text of exactly 225 tokens with the key sentence in it was found."


# SHA-256 of the texts with one token a byte: what a seed gives must be the same on every machine, and next year.
GOLDEN = {
    ("en", 2000): "983f3c6e6194c3a378211da71e7f00811e724367535493b43e707e8a5e99822d",
    ("ko", 2000): "334a92d9592ca79de3cc5c80fef784301a80f21f17b636985ba55416c94b3a12",
    ("code", 2000): "cf0feba8296cf0742873e282d8cd9a674f792d0d58feb0cd726b94e9ffe6ea0f",
    ("en", 40): "79658f98e384aaac0bf151e426d38b43d2fe027edd97b064422c774b3a2c15c0",
}


@pytest.mark.parametrize(("language", "prompt_tokens"), GOLDEN)
def test_what_a_seed_gives_never_changes(language: str, prompt_tokens: int) -> None:
    count = lambda messages: count_bytes(messages[0].content)  # noqa: E731
    prompt = build_prompt(prompt_tokens=prompt_tokens, count=count, language=language, seed=11, salt="s")
    assert hashlib.sha256(prompt.text.encode()).hexdigest() == GOLDEN[language, prompt_tokens]


@pytest.mark.parametrize(
    "strange",
    [
        pytest.param(lambda text: 0, id="a count that never grows"),
        pytest.param(lambda text: count_pieces(text) // 2 * 2, id="even numbers only"),
        pytest.param(lambda text: min(count_pieces(text), 300), id="cut at a limit"),
    ],
)
def test_a_count_that_cannot_be_met_ends_in_a_clear_error(strange: TEXT_TOKENS) -> None:
    server = Server(strange)
    with pytest.raises(PromptLengthUnreachable, match="No text of exactly 501 tokens") as caught:
        build_prompt(prompt_tokens=501, count=server.count, language="en", seed=1)
    assert server.calls <= MAX_COUNT_CALLS
    assert server.longest_text < 501 * 8 * 20, "it is not sent more and more"
    assert caught.value.exit_code == 2
    assert caught.value.hint


@pytest.mark.parametrize("answer", [-1, 3.5, None, True, "12"])
def test_an_answer_that_is_no_number_of_tokens_is_named(answer: Any) -> None:
    with pytest.raises(PromptLengthUnreachable, match=f"{answer!r}, which is no number of tokens"):
        build_prompt(prompt_tokens=500, count=lambda messages: answer, language="en", seed=1)


def test_a_count_that_changes_its_mind_is_named() -> None:
    seen: set[str] = set()

    def count(messages: Sequence[Message]) -> int:
        text = messages[0].content
        again = text in seen
        seen.add(text)
        return count_pieces(text) + again

    with pytest.raises(PromptLengthUnreachable, match="counted as 500 tokens and then as 501"):
        build_prompt(prompt_tokens=500, count=count, language="en", seed=1)


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
