"""The order and the beginning of a prompt's text."""

from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope.prompt.exact_length.draft import FRAMES, Draft, Frame, _ordered_sentences, label
from kvscope.prompt.exact_length.source_text import load_source_text

SEEDS = st.integers(min_value=-(2**63), max_value=2**63)


def english(num_words: int, seed: int = 1, *, frame: Frame = FRAMES["en"][0], **more: Any) -> str:
    draft = Draft(load_source_text("en"), seed=seed, variant="en|1000|")
    return draft.text(frame, num_words=num_words, **more).text


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


def longest(language: str) -> int:
    return max(map(len, load_source_text(language).sentences))


@pytest.mark.parametrize("language", ["en", "ko", "code"])
@pytest.mark.parametrize("place", [0.0, 0.1, 0.3, 0.5, 0.77, 1.0])
def test_the_key_sentence_stands_between_the_two_sentences_nearest_to_its_place(language: str, place: float) -> None:
    draft = Draft(load_source_text(language), seed=1, variant="v")
    key = load_source_text(language).key_sentence
    for num_words in (40, 400, 2000, 12000):
        found = draft.text(FRAMES[language][0], num_words=num_words, key_place=place)
        assert found.key_begins is not None
        assert found.key_ends is not None
        assert found.text[found.key_begins : found.key_ends] == key
        before = found.key_begins - found.body_begins
        around = before + found.body_ends - found.key_ends
        # The joints are a sentence apart, so the nearest is half of one away, and a joint is two characters more.
        assert abs(before - place * around) <= longest(language) / 2 + 3
        assert found.text[found.key_begins - 1] in " \n"
        assert (place == 0.0) <= (found.key_begins == found.body_begins)
        assert (place == 1.0) <= (found.key_ends == found.body_ends)


def test_places_are_those_of_the_text() -> None:
    for frame in FRAMES["en"]:
        found = Draft(load_source_text("en"), seed=1, variant="v").text(frame, num_words=30)
        assert found.text[: found.body_begins].endswith(frame.before)
        assert found.text[found.body_ends :] == frame.after
        assert (found.key_begins is not None) == frame.has_key


def test_without_the_key_sentence_the_same_words_stand_in_the_same_order() -> None:
    bare = FRAMES["en"][-1]
    key = load_source_text("en").key_sentence
    with_key = english(50).removeprefix(english(0).partition(key)[0]).removesuffix(FRAMES["en"][0].after)
    without = english(50, frame=bare)
    assert without[:2] == english(50)[0] + " "
    assert without[2:].split() == with_key.replace(key, "").split()


def test_it_is_closed_with_spaced_dots_before_the_request() -> None:
    after = FRAMES["en"][0].after
    plain = english(5, key_place=0.0)
    assert plain.endswith(after)
    assert english(5, key_place=0.0, num_dots=3) == plain.removesuffix(after) + " . . ." + after
    assert english(5, key_place=0.0, num_dots=1, opening=",") == plain.removesuffix(after) + ", ." + after
    assert english(0, frame=FRAMES["en"][-1], num_dots=2) == english(0)[0] + " . ."


def test_code_keeps_its_lines_and_is_closed_with_a_comment() -> None:
    source = load_source_text("code")
    frame = FRAMES["code"][0]
    body = (
        Draft(source, seed=1, variant="v")
        .text(frame, num_words=300, num_dots=2, opening="\n#")
        .text.removesuffix(frame.after)
    )
    assert body.endswith("\n# . .")
    assert sum(piece in body for piece in source.sentences) >= 4


def test_a_key_sentence_out_of_the_text_itself_is_said_once() -> None:
    source = load_source_text("ko")
    key = source.sentences[7]
    draft = Draft(source, seed=1, variant="v", key_sentence=key)
    text = draft.text(FRAMES["ko"][0], num_words=10**4).text
    assert text.count(key) == 1
    assert source.key_sentence not in text


def test_a_text_does_not_depend_on_what_was_asked_before() -> None:
    draft = Draft(load_source_text("en"), seed=3, variant="v")
    frame = FRAMES["en"][0]
    long = draft.text(frame, num_words=9000)
    draft.text(frame, num_words=12)
    assert draft.text(frame, num_words=9000) == long
    assert Draft(load_source_text("en"), seed=3, variant="v").text(frame, num_words=9000) == long
