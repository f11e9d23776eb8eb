"""The levels of ``given``: what of the documents a model is given with each question, and in which order."""

import re
from dataclasses import dataclass
from typing import Literal

from kvscope.errors import BadDesign, UnknownName
from kvscope.quality.retrieval.passages import LEAST_PASSAGE_TOKENS

Gives = Literal["whole", "passages", "evidence", "nothing"]
WHOLE = "whole"
_NAMED: tuple[Gives, ...] = ("whole", "evidence", "nothing")
_PASSAGES = re.compile(r"passages=(\d{1,4})")
_SIZE = re.compile(r"size=(\d{1,6})")
# What stands first instead of what is the same for every question: then nothing of a text can be reused.
_FIRST = {"whole": "question-first", "passages": "passages-first"}
EXAMPLES = (*_NAMED, "passages=3", "passages=3/size=64", "passages=3/passages-first", "whole/question-first")


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """``gives``: all documents, the passages that a search found (``passages`` of them at most, of ``passage_tokens``
    tokens each; None: as the study has it), the passages that hold the evidence, or nothing. ``is_volatile_first``:
    what differs between questions stands before what is the same for all, so that no text is shared."""

    name: str
    gives: Gives
    passages: int = 0
    passage_tokens: int | None = None
    is_volatile_first: bool = False


def way_named(name: object) -> Way:
    """``whole``, ``nothing``, ``evidence``, ``passages=3``, with ``/size=64``, ``/passages-first`` or
    ``/question-first`` behind it. Raises UnknownName, with the nearest, and BadDesign for what is no way."""
    if not isinstance(name, str):
        raise BadDesign(f"{name!r} is no way to give documents.", hint=f"Use names, like {', '.join(EXAMPLES[:4])}.")
    first, *options = name.split("/")
    found = _PASSAGES.fullmatch(first)
    if found is None and first not in _NAMED:
        raise UnknownName("way to give documents", name, EXAMPLES)
    gives: Gives = "passages" if found is not None else next(each for each in _NAMED if each == first)
    passages = 0 if found is None else int(found[1])
    if found is not None and passages < 1:
        raise BadDesign("No passages at all are what nothing gives.", hint="Use passages=1 or more, or nothing.")
    size, is_first = _options(name, gives, options)
    return Way(name=name, gives=gives, passages=passages, passage_tokens=size, is_volatile_first=is_first)


def _options(name: str, gives: Gives, options: list[str]) -> tuple[int | None, bool]:
    """The size of passages and whether the volatile text stands first."""
    size: int | None = None
    is_first = False
    for option in options:
        sized = _SIZE.fullmatch(option)
        if sized is not None and gives in ("passages", "evidence") and size is None:
            size = int(sized[1])
        elif option == _FIRST.get(gives) and not is_first:
            is_first = True
        else:
            raise UnknownName("way to give documents", name, EXAMPLES)
    if size is not None and size < LEAST_PASSAGE_TOKENS:
        raise BadDesign(
            f"Passages of {size} tokens are too short to hold a sentence.",
            hint=f"Use /size={LEAST_PASSAGE_TOKENS} or more.",
        )
    return size, is_first
