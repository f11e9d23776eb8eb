"""Numbers in and out of text: parse "32k" and "24GiB", print MiB and ms. The only place numbers become text."""

import re
from math import floor, log10

from kvscope.errors import UsageError

KIB = 1024
MIB = 1024**2
GIB = 1024**3

# Token counts are written in powers of two by the field ("32k" of context is 32,768).
_TOKEN_SUFFIX = {"": 1, "k": 1024, "m": 1024**2}
# A bare G is read as GiB, as engines' own flags do; GB is the decimal unit, as its definition says.
_BYTE_SUFFIX = {
    "": 1, "b": 1,
    "k": KIB, "kib": KIB, "kb": 10**3,
    "m": MIB, "mib": MIB, "mb": 10**6,
    "g": GIB, "gib": GIB, "gb": 10**9,
    "t": 1024**4, "tib": 1024**4, "tb": 10**12,
}  # fmt: skip
# Python refuses to read a number of thousands of digits; no count here has more than a few.
_NUMBER = re.compile(r"\s*(\d{1,30}(?:\.\d{1,30})?)\s*([A-Za-z]*)\s*")
_SHARE = re.compile(r"\s*(\d{1,30}(?:\.\d{1,30})?)\s*(%?)\s*")


def _parse(text: str, suffixes: dict[str, int], example: str, what: str) -> int:
    match = _NUMBER.fullmatch(text.replace(",", "").replace("_", ""))
    factor = suffixes.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise UsageError(f"{text!r} is not {what}.", hint=f"Write it like {example}.")
    whole, _, fraction = match[1].partition(".")
    # Integer arithmetic, so that 1.5GiB is exact.
    scaled = int(whole + fraction) * factor
    divisor: int = 10 ** len(fraction)
    if scaled % divisor:
        raise UsageError(f"{text!r} is not a whole number of units.", hint=f"Write it like {example}.")
    return scaled // divisor


def parse_tokens(text: str) -> int:
    """Tokens from ``8192``, ``8,192``, ``8k`` (8 × 1024) or ``1m``. Raises UsageError."""
    return _parse(text, _TOKEN_SUFFIX, "8192 or 8k", "a number of tokens")


def parse_bytes(text: str) -> int:
    """Bytes from ``1024``, ``24GiB``, ``24G`` (GiB) or ``24GB`` (10⁹). Raises UsageError."""
    return _parse(text, _BYTE_SUFFIX, "24GiB or 512MiB", "a number of bytes")


def parse_share(text: str) -> float:
    """A share of one from ``5%`` or ``0.05``. Raises UsageError, also for a number above 1 without a percent sign,
    which is hardly meant as so many times the whole."""
    found = _SHARE.fullmatch(text)
    if found is None:
        raise UsageError(f"{text!r} is not a share.", hint="Write it like 5% or 0.05.")
    if not found[2] and float(found[1]) > 1:
        raise UsageError(
            f"{text!r} is {float(found[1]) * 100:g} %, as it stands.",
            hint=f"Write {found[1]}% if that is what you mean.",
        )
    return float(found[1]) / (100 if found[2] else 1)


def format_mib(num_bytes: int | float, *, signed: bool = False) -> str:
    """Bytes as MiB with one decimal: ``180.0 MiB``; with ``signed``, ``+3.4 MiB``. Zero is never negative."""
    value = round(num_bytes / MIB, 1) + 0.0
    return f"{value:+,.1f} MiB" if signed else f"{value:,.1f} MiB"


def format_bytes(num_bytes: int | float) -> str:
    """Bytes in the largest unit that keeps at least one digit before the point: ``22.5 KiB``."""
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1024
    return f"{value:,.1f} TiB"


def format_seconds(seconds: float) -> str:
    """Seconds as ``850 ms`` or ``2.31 s``."""
    if abs(seconds) < 1:
        return f"{seconds * 1000:,.3g} ms" if abs(seconds) < 0.1 else f"{seconds * 1000:,.0f} ms"
    return f"{seconds:,.2f} s"


def format_count(value: int) -> str:
    """An integer with comma groups: ``8,192``."""
    return f"{value:,}"


def format_percent(share: float, digits: int = 1) -> str:
    """A share of one as percent: ``99.4 %``."""
    return f"{share * 100:.{digits}f} %"


def format_number(value: float, digits: int) -> str:
    """A number alone, for a column whose title has the unit: ``1,234.50``. What rounds to zero has no sign."""
    return f"{round(value, digits) + 0.0:,.{digits}f}"


def format_digits(value: float, digits: int = 2) -> str:
    """A number of unknown size with two digits that say something: ``0.047``, ``0.0021``, ``1.3``; what is below a
    millionth reads ``0``."""
    if abs(value) < 1e-6:
        return "0"
    places = digits - 1 - floor(log10(abs(value)))
    return f"{value:,.{min(max(places, 0), 7)}f}"
