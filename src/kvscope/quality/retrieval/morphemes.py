"""Korean texts taken apart into their morphemes by Kiwi (kiwipiepy, the extra ``korean``: 120 MB, half a GB of memory).

Particles and endings are left out. Words of other scripts come out as they are.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

from kvscope.errors import MissingDependency
from kvscope.quality.retrieval.terms import plain

# Kiwi's tags: nouns, verbs and adjectives, roots, adverbs, determiners, foreign words, numbers, Chinese characters,
# serial numbers and addresses. Left out: particles (J), endings (E), affixes (X but XR), signs (S, W in part).
_CONTENT = ("N", "VV", "VA", "XR", "MA", "MM", "SL", "SN", "SH", "W_")


def morphemes(texts: Sequence[str]) -> list[list[str]]:
    """The morphemes of each text that carry meaning. Lists are worked on in parallel. Raises MissingDependency."""
    kiwi = _kiwi()
    return [
        [token.form for token in tokens if token.tag.startswith(_CONTENT)]
        for tokens in kiwi.tokenize([plain(text) for text in texts])
    ]


@cache
def _kiwi() -> Any:
    """Loading takes seconds: once for all indexes of a process."""
    try:
        from kiwipiepy import Kiwi
    except ImportError:
        raise MissingDependency("Searching Korean by morphemes", "korean", "kiwipiepy") from None
    return Kiwi()
