"""One drawing for all languages: two drawings of one chart differ in their words and in where its key stands."""

import re
from collections.abc import Mapping

# What a drawing is made of: a text with its words, an element that holds nothing, or the beginning or end of a group.
_PIECE = re.compile(r"<(?:text|title|desc)\b[^>]*>.*?</(?:text|title|desc)>|<[^>]+>", re.DOTALL)
_WHOLE = re.compile(r"<(text|title|desc)\b|<(\w+)[^>]*/>", re.DOTALL)
_NAMED = re.compile(r'<(title|desc) id="[^"]*"')
_LABEL = re.compile(r'aria-labelledby="[^"]*"')
_OPENING = re.compile(r"<\w+")


def one_drawing(versions: Mapping[str, str]) -> str | None:
    """Language → SVG, as one SVG in which what differs is there in each language, marked with it. None where they
    differ in more than whole elements: in their size, say."""
    pieces = {name: _PIECE.findall(svg) for name, svg in versions.items()}
    is_whole = all("".join(pieces[name]) == svg for name, svg in versions.items())
    if not is_whole or len({len(each) for each in pieces.values()}) > 1:
        return None
    made = []
    for each in zip(*pieces.values(), strict=True):
        if len(set(each)) == 1:
            made.append(each[0])
        elif all(_WHOLE.match(piece) for piece in each):
            made += [_marked(piece, name) for name, piece in zip(pieces, each, strict=True)]
        else:
            return None
    return "".join(made)


def labelled(svg: str, label: str) -> str:
    """A drawing named by the sentences that stand beside it in the page (``label``-title, ``label``-desc): those follow
    the reader's language, and an id has room for one."""
    return _LABEL.sub(f'aria-labelledby="{label}-title {label}-desc"', _NAMED.sub(r"<\1", svg), count=1)


def _marked(piece: str, language: str) -> str:
    return _OPENING.sub(lambda tag: f'{tag[0]} lang="{language}"', piece, count=1)
