"""Korean as far as templates need it: syllables from letters, and particles by the final consonant before them."""

_INITIALS = "ㄱㄲㄴㄷㄸㄹㅁㅂㅃㅅㅆㅇㅈㅉㅊㅋㅌㅍㅎ"
_VOWELS = "ㅏㅐㅑㅒㅓㅔㅕㅖㅗㅘㅙㅚㅛㅜㅝㅞㅟㅠㅡㅢㅣ"
_FINALS: tuple[str, ...] = ("", *"ㄱㄲㄳㄴㄵㄶㄷㄹㄺㄻㄼㄽㄾㄿㅀㅁㅂㅄㅅㅆㅇㅈㅊㅋㅌㅍㅎ")
_FIRST, _LAST = 0xAC00, 0xD7A3  # 가 … 힣; a syllable is (initial × 21 + vowel) × 28 + final behind the first
# Read in Korean, these digits end in a consonant (영 일 삼 육 칠 팔); those of 1, 7 and 8 in ㄹ.
_DIGITS_WITH_FINAL, _DIGITS_WITH_L = "013678", "178"

# What is written after a consonant, after a vowel.
PARTICLES = {
    "이": ("이", "가"),
    "을": ("을", "를"),
    "은": ("은", "는"),
    "과": ("과", "와"),
    "으로": ("으로", "로"),
    "이라": ("이라", "라"),
    "이다": ("이다", "다"),
    "이랑": ("이랑", "랑"),
    "아": ("아", "야"),
    "이나": ("이나", "나"),
}


def syllable(initial: str, vowel: str, final: str = "") -> str:
    """One syllable: ㅎ, ㅏ, ㄴ → 한."""
    index = (_INITIALS.index(initial) * len(_VOWELS) + _VOWELS.index(vowel)) * len(_FINALS) + _FINALS.index(final)
    return chr(_FIRST + index)


def final_consonant(word: str) -> str:
    """The consonant that a word ends in, as it is read aloud; empty: a vowel, or a letter of another script."""
    last: str = word[-1:]
    if last in _DIGITS_WITH_L and last:
        return "ㄹ"
    if last in _DIGITS_WITH_FINAL and last:
        return "ㅇ"
    if last and _FIRST <= ord(last) <= _LAST:
        return _FINALS[(ord(last) - _FIRST) % len(_FINALS)]
    return ""


def with_particle(word: str, particle: str) -> str:
    """``particle`` in its form after a consonant (을, 이, 은, 과, 으로 ...): 책, 을 → 책을; 나무, 을 → 나무를. One that
    has a single form is put behind the word as it is."""
    after_consonant, after_vowel = PARTICLES.get(particle, (particle, particle))
    final = final_consonant(word)
    if particle == "으로" and final == "ㄹ":
        return word + "로"
    return word + (after_consonant if final else after_vowel)


class Word(str):
    """A word that takes its particle in a template: ``f"{Word('책'):을}"`` is 책을."""

    __slots__ = ()

    def __format__(self, particle: str) -> str:
        return with_particle(str(self), particle) if particle else str(self)
