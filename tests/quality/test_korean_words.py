"""Particles by the final consonant, held against sentences as Koreans write them."""

import unicodedata

import pytest

from kvscope.quality.korean import Word, final_consonant, syllable, with_particle

# (word, particle, both together), written by hand.
WRITTEN = [
    ("책", "을", "책을"),
    ("나무", "을", "나무를"),
    ("산", "이", "산이"),
    ("바다", "이", "바다가"),
    ("강", "은", "강은"),
    ("비", "은", "비는"),
    ("물", "과", "물과"),
    ("소", "과", "소와"),
    ("서울", "으로", "서울로"),
    ("부산", "으로", "부산으로"),
    ("제주", "으로", "제주로"),
    ("책", "이다", "책이다"),
    ("나무", "이다", "나무다"),
    ("책", "에서", "책에서"),
    # Digits as they are read: 영 일 이 삼 사 오 육 칠 팔 구.
    ("10", "이다", "10이다"),
    ("21", "이다", "21이다"),
    ("32", "이다", "32다"),
    ("43", "을", "43을"),
    ("54", "을", "54를"),
    ("65", "이", "65가"),
    ("76", "이", "76이"),
    ("87", "으로", "87로"),
    ("98", "으로", "98로"),
    ("19", "은", "19는"),
    ("20", "으로", "20으로"),
]


@pytest.mark.parametrize(("word", "particle", "together"), WRITTEN)
def test_particles_as_they_are_written(word: str, particle: str, together: str) -> None:
    assert with_particle(word, particle) == together
    assert f"{Word(word):{particle}}" == together


def test_the_final_consonant_of_every_syllable_is_unicodes() -> None:
    for code in range(0xAC00, 0xD7A4):
        parts = unicodedata.normalize("NFD", chr(code))
        final = final_consonant(chr(code))
        assert bool(final) == (len(parts) == 3), chr(code)


def test_a_syllable_is_put_together_as_unicode_does() -> None:
    assert syllable("ㅎ", "ㅏ", "ㄴ") + syllable("ㄱ", "ㅡ", "ㄹ") + syllable("ㅇ", "ㅣ") == "한글이"


def test_what_is_no_korean_ends_in_no_consonant() -> None:
    assert [final_consonant(word) for word in ("", "abc", "5", "?")] == ["", "", "", ""]
