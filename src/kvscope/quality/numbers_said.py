"""Numbers that an answer names: digits with separators, digits one by one, with a sign, and small ones in words."""

import re
import unicodedata
from decimal import Decimal

from kvscope.quality.number_words import in_digits

# 48,213 · 48 213 · 48'213 · 48_213. A point is left alone: 48.213 may be a fraction.
_GROUPED = re.compile(r"(?<![\d.,])\d{1,3}(?:[,'’_\u00a0\u2009\u202f ]\d{3})+(?!\d)(?![,.]\d)")
# "4 8 2 1 3", "4-8-2-1-3": five digits told one by one.
_SPELT = re.compile(r"(?<![\d\w])\d(?:(?: |-|, |,)\d){3,}(?![\d\w])")
_TEN_THOUSANDS = re.compile(r"(?<!\d)(\d{1,4})만\s?(\d{1,4})?(?!\d)")
# The minus and the fraction's bar as they are typed; no marks without a width.
_AS_TYPED = {0x2212: "-", 0x2044: "/", 0x200B: None, 0x200C: None, 0x200D: None, 0x2060: None, 0xFEFF: None}
_POWERS = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9}
_IN_POWERS = re.compile(rf"(?<![\d.,])(\d+(?:\.\d+)?)\s?({'|'.join(_POWERS)}|dozen)\b", re.IGNORECASE)
# A minus is a sign where no letter or digit stands before it: "-5", not "3-5". A fraction is one number, and so is a
# power of ten.
_NUMBER = re.compile(
    r"(?:(?<![^\W_])-)?(?:\d+(?:\.\d+)?(?:e[+-]?\d{1,3}(?![^\W_]))?|(?<![^\W_])\.\d+)(?:/\d+(?![\d/]))?", re.IGNORECASE
)
# "7 + 8 + 9 = 24" says 24: what stands before the sign of equality is how it was reached.
_SUM = re.compile(r"(?<!\d)\d{1,20}(?:\s?[+*×x-]\s?\d{1,20}){1,20}\s?=")


def numbers_said(text: str, *, in_words: bool = False) -> tuple[str, ...]:
    """The numbers of a text in their order, each once, as digits without leading zeros: "48,213" is "48213".

    ``in_words``: where there is no digit at all, numbers in words up to 99 are read too ("seven", "스물네 개"); to be
    asked for only where a small number is the answer, since words like "one" stand in many sentences."""
    plain = joined_numbers(text)
    if in_words and not any(letter.isdigit() for letter in plain):
        plain = joined_numbers(in_digits(plain))
    return tuple(dict.fromkeys(_bare(number) for number in _NUMBER.findall(_SUM.sub(" ", plain))))


def joined_numbers(text: str) -> str:
    """The text (NFKC) with each number in plain digits: without separators, told digit by digit, with 만 or million;
    its minus a hyphen."""
    plain = unicodedata.normalize("NFKC", text).translate(_AS_TYPED)
    plain = _GROUPED.sub(lambda found: re.sub(r"\D", "", found[0]), plain)
    plain = _TEN_THOUSANDS.sub(lambda found: str(int(found[1]) * 10_000 + int(found[2] or 0)), plain)
    plain = _IN_POWERS.sub(_multiplied, plain)
    return _SPELT.sub(lambda found: re.sub(r"\D", "", found[0]), plain)


def without_numbers(value: str) -> str:
    """What is left of a text (NFKC) beside its numbers and their signs."""
    return _NUMBER.sub("", joined_numbers(value))


def _multiplied(found: re.Match[str]) -> str:
    power = _POWERS.get(found[2].lower())
    return f"{Decimal(found[1]) * (12 if power is None else 10**power):f}"


def _bare(number: str) -> str:
    """Without zeros before it or behind its point: "007" is "7", "3.50" is "3.5", "12.0" is "12", "1e3" is "1000"."""
    number, slash, below = number.partition("/")
    if "e" in number.lower():
        number = f"{Decimal(number):f}"
    sign, number = ("-", number[1:]) if number.startswith("-") else ("", number)
    whole, _, fraction = number.partition(".")
    fraction = fraction.rstrip("0")
    return sign + (whole.lstrip("0") or "0") + (f".{fraction}" if fraction else "") + slash + below
