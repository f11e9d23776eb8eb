"""Texts at which an answer ends (``ChatRequest.stop``), for an engine that is told to end by us."""

from collections.abc import Sequence


class StopTexts:
    """Watches one answer, piece by piece."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._longest = max((len(stop) for stop in self._stops), default=0)
        self._tail = ""

    def add(self, piece: str) -> bool:
        """Whether one of the texts is there, now that ``piece`` has come."""
        text = self._tail + piece
        self._tail = text[max(0, len(text) - self._longest + 1) :] if self._longest else ""
        return any(stop in text for stop in self._stops)


def cut_at_stop(pieces: Sequence[str], stops: Sequence[str]) -> list[str] | None:
    """The pieces of an answer as far as the first of these texts, which is no part of it: the last piece is the one
    that made it whole, or what is left of that one. None where there is none of them."""
    watch, text = StopTexts(stops), ""
    for index, piece in enumerate(pieces):
        text += piece
        if watch.add(piece):
            left = min(found for stop in stops if stop and (found := text.find(stop)) >= 0)
            return _first(pieces[: index + 1], left)
    return None


def _first(pieces: Sequence[str], characters: int) -> list[str]:
    kept = []
    for piece in pieces:
        kept.append(piece[:characters])
        characters -= len(kept[-1])
    return kept
