"""The key for a server that asks for one: out of the environment variable that was named, and from nowhere else.

It is sent in one header and kept nowhere: what a server says is searched for it before it can reach a message, a log or
the record, because servers quote what they refuse. It is found as ``secret_spellings`` says, spread over the pieces of
an answer, and cut off where a text was cut.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

from kvscope.errors import KvscopeError, UsageError
from kvscope.secret_spellings import Secret, spelling

_HIDDEN = "[the key]"
# What a bearer token may be made of: RFC 6750, 2.1.
_TOKEN = re.compile(r"[A-Za-z0-9\-._~+/]+=*")
# What a variable may be called: POSIX, Base Definitions 8.1.
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# As variables of keys are called. A key may look like another name ("hf_..."), and is not shown.
_USUAL_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]{0,39}")
# A shorter one is looked for as a whole word only: it could be a part of any word.
_CERTAIN_LENGTH = 8
# Of a key that was cut off, this many characters may be told.
_FEW_CHARACTERS = 3
# Where ``http_client`` cuts a text, and its end.
_CUT = re.compile(r" … \(|\Z")
_UNFINISHED = re.compile(r"(?:\\+(?:u[0-9A-Fa-f]{0,3})?|%(?:25?)?[0-9A-Fa-f]?|&(?:#[xX]?[0-9A-Fa-f]*)?)?\Z")
_LONGEST_SPELLING = 9


class ApiKey:
    """A key that does not show itself."""

    def __init__(self, value: str) -> None:
        self._value = value
        self._spelled = [re.compile(spelling(character)) for character in value]
        self._secret = Secret(value) if len(value) >= _CERTAIN_LENGTH else None
        spellings = "".join(one.pattern for one in self._spelled)
        self._as_a_word = re.compile(rf"(?<![A-Za-z0-9]){spellings}(?![A-Za-z0-9])")

    def __repr__(self) -> str:
        return "ApiKey(hidden)"

    def headers(self) -> dict[str, str]:
        """The header that carries it."""
        return {"Authorization": f"Bearer {self._value}"}

    def hide(self, found: Any) -> Any:
        """The same without the key: a text, or a mapping or list that holds texts."""
        match found:
            case str():
                if self._secret is None:
                    return self._as_a_word.sub(_HIDDEN, found)
                return self._secret.hidden(found, _HIDDEN)
            case Mapping():
                return {self.hide(name): self.hide(value) for name, value in found.items()}
            case list() | tuple():
                return type(found)(self.hide(value) for value in found)
            case _:
                return found

    def hide_in_pieces(self, pieces: Sequence[str]) -> list[str]:
        """The pieces of one text without the key: a piece that holds a part of it says so in its place."""
        whole = "".join(pieces)
        hidden = list(pieces)
        starts = [0, *accumulate(len(piece) for piece in pieces)]
        for first, end in reversed(self._spans(whole)):
            for number, piece in enumerate(pieces):
                low, high = first - starts[number], end - starts[number]
                if low < len(piece) and high > 0:
                    hidden[number] = hidden[number][: max(low, 0)] + _HIDDEN + hidden[number][max(high, 0) :]
        return hidden

    def _spans(self, text: str) -> list[tuple[int, int]]:
        if self._secret is None:
            return [match.span() for match in self._as_a_word.finditer(text)]
        return self._secret.spans(text)

    @contextmanager
    def hidden_in_errors(self) -> Iterator[None]:
        """What is raised inside, and what that was raised from, does not hold the key."""
        try:
            yield
        except BaseException as error:
            self._hide_in(error)
            raise

    def _hide_in(self, error: BaseException | None) -> None:
        seen: set[int] = set()
        left = [error]
        while left:
            one = left.pop()
            if one is None or id(one) in seen:
                continue
            seen.add(id(one))
            one.args = self._hide_cut(self.hide(one.args))
            if isinstance(one, KvscopeError):
                told = self.hide((one.message, one.hint, one.evidence))
                one.message, one.hint, one.evidence = self._hide_cut(told)
            left += [one.__cause__, one.__context__]

    def _hide_cut(self, found: Any) -> Any:
        """The same without the beginning of the key where a text was cut."""
        match found:
            case str():
                for cut in reversed(list(_CUT.finditer(found))):
                    start = self._begins_before(found, cut.start())
                    if start is not None:
                        found = found[:start] + _HIDDEN + found[cut.start() :]
                return found
            case Mapping():
                return {name: self._hide_cut(value) for name, value in found.items()}
            case list() | tuple():
                return type(found)(self._hide_cut(value) for value in found)
            case _:
                return found

    def _begins_before(self, text: str, end: int) -> int | None:
        """Where the key begins that the cut at ``end`` left the rest of off; None where there is none."""
        for start in range(max(0, end - _LONGEST_SPELLING * len(self._spelled)), end):
            place, num_found = start, 0
            for spelled in self._spelled:
                match = spelled.match(text, place, end)
                if match is None:
                    break
                place, num_found = match.end(), num_found + 1
            if num_found > _FEW_CHARACTERS and _UNFINISHED.match(text, place, end) is not None:
                return start
        return None


def read_api_key(variable: str | None) -> ApiKey | None:
    """The key in that environment variable; None where none was named. Raises UsageError where it holds none, or the
    name can be none."""
    if variable is None:
        return None
    if not isinstance(variable, str) or _VARIABLE.fullmatch(variable) is None:
        raise UsageError(
            "What was given for --api-key-env cannot be the name of an environment variable (it is not shown here).",
            hint="Give the name of the variable that holds the key, not the key: export MY_KEY=..., then "
            "--api-key-env MY_KEY.",
        )
    value = os.environ.get(variable, "").strip()
    if not value:
        if _USUAL_VARIABLE.fullmatch(variable) is None:
            raise UsageError(
                "The environment variable that --api-key-env names is not set, or is empty (its name is not shown, for "
                "it may be a key).",
                hint="Give the name of the variable that holds the key, not the key: export MY_KEY=..., then "
                "--api-key-env MY_KEY.",
            )
        raise UsageError(
            f"The environment variable {variable} is not set, or is empty.", hint=f"Set it: export {variable}=..."
        )
    if _TOKEN.fullmatch(value) is None:
        raise UsageError(
            f"What the environment variable {variable} holds cannot be sent as a key (it is not shown here).",
            hint="A key is letters, digits and - . _ ~ + / = without spaces. Was more than the key copied?",
        )
    return ApiKey(value)
