"""The order and the beginning of a prompt's text."""

from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from kvscope.prompt.draft import FRAMES, Draft, _ordered_sentences, label
from kvscope.prompt.source_text import load_source_text

SEEDS = st.integers(min_value=-(2**63), max_value=2**63)


def english(num_words: int, seed: int = 1, **closing: int) -> str:
    draft = Draft(load_source_text("en"), seed=seed, variant="en|1000|")
    return draft.text(FRAMES["en"][0], num_words=num_words, **closing)


@given(first=SEEDS, second=SEEDS, variant=st.text(max_size=8))
def test_labels_differ_in_their_first_character(first: int, second: int, variant: str) -> None:
    if (first - second) % 62:
        assert label(first, variant)[0] != label(second, variant)[0]


@given(seed=SEEDS, other=st.integers(min_value=1, max_value=62**4 - 1), variant=st.text(max_size=8))
def test_two_seeds_never_share_a_label(seed: int, other: int, variant: str) -> None:
    assert label(seed, variant) != label(seed + other, variant)


def test_a_salt_changes_the_label() -> None:
    assert len({label(1, f"en|1000|{salt}") for salt in range(200)}) == 200


def test_the_pool_is_used_up_before_anything_is_said_again() -> None:
    pool = load_source_text("ko").sentences
    taken = list(islice(_ordered_sentences(pool, "x"), 3 * len(pool)))
    first, second, third = (taken[turn * len(pool) : (turn + 1) * len(pool)] for turn in range(3))
    assert sorted(first) == sorted(pool)
    assert first != list(pool)
    again = [sentence.split(" ", 1)[1] for sentence in second]
    assert sorted(again) == sorted(pool)
    assert again != first
    assert second[0].startswith(f"({len(pool) + 1}) ")
    assert len(set(taken)) == 3 * len(pool)
    assert [sentence.split(" ", 1)[1] for sentence in third] != again


def test_words_are_added_one_at_a_time() -> None:
    key = load_source_text("en").key_sentence
    frame_words = len(english(0).split())
    for num_words in (0, 1, 2, 7, 50, 999):
        text = english(num_words)
        assert len(text.split()) == frame_words + num_words
        assert text.count(key) == 1


def test_the_key_sentence_stands_in_the_middle() -> None:
    key = load_source_text("en").key_sentence
    for num_words in (400, 2000, 12000):
        text = english(num_words)
        assert 0.45 < (text.index(key) + len(key) / 2) / len(text) < 0.55


def test_it_is_closed_with_spaced_dots_before_the_request() -> None:
    after = FRAMES["en"][0].after
    plain = english(5)
    assert plain.endswith(after)
    assert english(5, num_dots=3) == plain.removesuffix(after) + " . . ." + after
    assert english(5, num_dots=1, comma=True) == plain.removesuffix(after) + ", ." + after


def test_a_text_does_not_depend_on_what_was_asked_before() -> None:
    draft = Draft(load_source_text("en"), seed=3, variant="v")
    frame = FRAMES["en"][0]
    long = draft.text(frame, num_words=9000)
    draft.text(frame, num_words=12)
    assert draft.text(frame, num_words=9000) == long
    assert Draft(load_source_text("en"), seed=3, variant="v").text(frame, num_words=9000) == long
