"""Texts cut into parts that are encoded apart, many at once, and counted by kind of content; for one tokenizer."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from kvscope.prompt.counting.cut_points import Cut, is_stable, last_cut
from kvscope.prompt.counting.cut_rules import cuts_of
from kvscope.prompt.counting.text_sources import Unreadable
from kvscope.prompt.tokenizers.base import Tokenizer

_PART = 1 << 14  # characters of a part, about; longer ones are slower to merge
_SEEN = 1 << 10  # characters behind a cut that are waited for
_NEAR = 400  # characters beside the meeting of two kinds in which a certain cut is looked for
LONGEST_UNCUT = 1 << 21  # characters; their encoding takes about a gigabyte
_TOO_LONG = (
    f"more than {LONGEST_UNCUT:,} characters of it can be cut nowhere without changing the count, and whole they would "
    "take gigabytes: split the file"
)


@dataclass(slots=True)
class KindTokens:
    """Tokens of one text by kind. ``failure``: why it could not be counted."""

    by_kind: dict[str, int] = field(default_factory=dict)
    failure: str | None = None


@dataclass(slots=True)
class _Part:
    """``runs``: (kind, characters), in order. ``is_linked``: the part behind it was cut off inside of one piece, and
    the cut is still to be shown safe."""

    tokens: KindTokens
    text: str
    runs: list[tuple[str, int]]
    is_linked: bool = False

    def is_of(self, other: "_Part") -> bool:
        """Whether both are of one text."""
        return self.tokens is other.tokens

    def joined(self, behind: "_Part") -> "_Part":
        """Both as one."""
        return _Part(self.tokens, self.text + behind.text, [*self.runs, *behind.runs], behind.is_linked)

    def count_as(self, kind: str, count: int) -> None:
        self.tokens.by_kind[kind] = self.tokens.by_kind.get(kind, 0) + count

    def count_by_kind(self, starts: Sequence[int]) -> None:
        """Each token counts for the kind of the character that it begins with."""
        end, counted = 0, 0
        for kind, characters in self.runs:
            end += characters
            upto = bisect_left(starts, end)
            self.count_as(kind, upto - counted)
            counted = upto


class PartCounter:
    """``open_text`` a text, ``add`` its stretches in order, ``close_text``; ``encoding`` at any time gives what counts
    the parts there are into what their text was opened with."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._cuts = cuts_of(tokenizer)
        self._parts: list[_Part] = []
        self._held: tuple[_Part, list[int], list[int]] | None = None
        self._tokens = KindTokens()
        self._text = ""
        self._runs: list[tuple[str, int]] = []

    def open_text(self, tokens: KindTokens) -> None:
        """Begins a text."""
        self._tokens, self._text, self._runs = tokens, "", []

    def add(self, kind: str, text: str) -> None:
        """The next stretch. Raises Unreadable where too much of it cannot be cut."""
        if self._runs and self._runs[-1][0] != kind:
            text = self._meet(text)
        if text:
            self._append(kind, text)
        if len(self._runs) > 1:
            self._end_mixed()
        if len(self._text) > _PART + _SEEN:
            self._cut_long()

    def close_text(self) -> None:
        """Ends the text."""
        self._emit(len(self._text))

    def _append(self, kind: str, text: str) -> None:
        if self._runs and self._runs[-1][0] == kind:
            self._runs[-1] = (kind, self._runs[-1][1] + len(text))
        else:
            self._runs.append((kind, len(text)))
        self._text += text

    def _meet(self, text: str) -> str:
        """Cuts where a stretch of another kind begins, if that is certain; else as near before it as it is. What is
        left of ``text`` is returned."""
        if self._cuts is None:
            return text
        cut = self._cuts.between(self._text, text)
        if cut is not None:
            if cut.position:
                self._append(self._runs[-1][0], text[: cut.position])
            self._emit(len(self._text))
            return text[cut.position + cut.dropped :]
        low = max(1, len(self._text) - _NEAR)
        found = None
        for found in self._cuts.certain(self._text, low, len(self._text) - 1):  # noqa: B007  the last of them
            pass
        if found is not None:
            self._emit(found.position, found)
        return text

    def _cut_long(self) -> None:
        """Parts of the waiting text while it is long."""
        if self._cuts is None:
            self._check_length()
            return
        while len(self._text) > _PART + _SEEN:
            cut = last_cut(self._cuts, self._text, _PART)
            at = _PART
            while cut is None and at + _SEEN < len(self._text):
                at = min(at * 2, len(self._text) - _SEEN)
                cut = last_cut(self._cuts, self._text, at)
            if cut is None:
                self._check_length()
                return
            self._emit(cut.position, cut)

    def _end_mixed(self) -> None:
        """Cuts behind the meeting of two kinds, so that few characters have to be told apart one by one."""
        if self._cuts is None:
            return
        begins = len(self._text) - self._runs[-1][1]
        cut = next(self._cuts.certain(self._text, begins + 1, min(begins + _NEAR, len(self._text) - 1)), None)
        if cut is not None:
            self._emit(cut.position, cut)

    def _check_length(self) -> None:
        if len(self._text) > LONGEST_UNCUT:
            raise Unreadable(_TOO_LONG)

    def _emit(self, end: int, cut: Cut | None = None) -> None:
        if end == len(self._text):
            if end:
                self._parts.append(_Part(self._tokens, self._text, self._runs))
                self._text, self._runs = "", []
            return
        if end:
            runs, self._runs = _split_runs(self._runs, end)
            is_linked = cut is not None and not cut.is_certain
            self._parts.append(_Part(self._tokens, self._text[:end], runs, is_linked))
            self._text = self._text[end:]
        if cut is not None and cut.dropped:
            _, self._runs = _split_runs(self._runs, cut.dropped)
            self._text = self._text[cut.dropped :]

    def encoding(self) -> Callable[[], None]:
        """What counts all parts so far, when it is called: perhaps on another thread, but in the order of asking."""
        parts, self._parts = self._parts, []
        return partial(self._encode, parts)

    def _encode(self, parts: Sequence[_Part]) -> None:
        plain: list[_Part] = []
        follows = self._held is not None
        for part in parts:
            if follows or part.is_linked:
                self._link(part)
            elif len(part.runs) > 1:
                part.count_by_kind(self._tokenizer.encode_with_starts(part.text)[1])
            else:
                plain.append(part)
            follows = part.is_linked
        for part, count in zip(plain, self._tokenizer.count_batch([part.text for part in plain]), strict=True):
            part.count_as(part.runs[0][0], count)

    def _link(self, part: _Part) -> None:
        """Counts what is held if the cut behind it is safe; else joins ``part`` to it. Holds what is linked again."""
        ids, starts = self._tokenizer.encode_with_starts(part.text)
        if self._held is not None:
            before, before_ids, before_starts = self._held
            if not before.is_of(part) or self._is_stable(before, before_ids, part, ids):
                before.count_by_kind(before_starts)
            else:
                part = before.joined(part)
                ids, starts = [], []
                if len(part.text) > LONGEST_UNCUT:
                    part.tokens.failure = _TOO_LONG
                else:
                    ids, starts = self._tokenizer.encode_with_starts(part.text)
        self._held = (part, ids, starts) if part.is_linked else None
        if self._held is None:
            part.count_by_kind(starts)

    def _is_stable(self, before: _Part, before_ids: list[int], part: _Part, ids: list[int]) -> bool:
        assert self._cuts is not None
        return is_stable(self._cuts, self._tokenizer, before.text, before_ids, part.text, ids)


def _split_runs(runs: Sequence[tuple[str, int]], end: int) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    before: list[tuple[str, int]] = []
    behind: list[tuple[str, int]] = []
    for kind, characters in runs:
        taken = min(characters, end)
        if taken:
            before.append((kind, taken))
        if characters > taken:
            behind.append((kind, characters - taken))
        end -= taken
    return before, behind
