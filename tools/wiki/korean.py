"""Korean particles that follow the sound before them: 은/는, 이/가, 을/를, 과/와, 으로/로 and their like."""

import re

_PAIRS = {"은/는", "이/가", "을/를", "과/와", "으로/로", "이라/라", "이나/나", "이다/다", "이며/며", "이었/였"}
_MARKED = re.compile(r"(\S?)([*`'’”]*)\(([^()\s/]+/[^()\s/]+)\)")
# How the last sound of digits, letters and signs is read: with a final consonant, ending in ㄹ, or neither.
_CLOSED = set("0136LMNRlmnr")
_LIQUID = set("178LRlr")
_CLOSED |= _LIQUID


def with_particles(text: str) -> str:
    """Each mark such as ``(은/는)`` made the form that the sound before it asks for."""
    return _MARKED.sub(_form, text)


def final_sound(character: str) -> str:
    """``open`` (a vowel), ``liquid`` (ㄹ) or ``closed``; of signs and letters, as they are read aloud."""
    if "가" <= character <= "힣":
        final = (ord(character) - ord("가")) % 28
        return "open" if final == 0 else "liquid" if final == 8 else "closed"
    if character in _LIQUID:
        return "liquid"
    return "closed" if character in _CLOSED else "open"


def _form(found: re.Match[str]) -> str:
    before, signs, pair = found[1], found[2], found[3]
    if pair not in _PAIRS:
        return found[0]
    closed, opened = pair.split("/")
    sound = final_sound(before)
    takes_closed = sound == "closed" or (sound == "liquid" and pair != "으로/로")
    return before + signs + (closed if takes_closed else opened)
