"""The key for a server that asks for one: out of the environment variable that was named, and from nowhere else.

It is sent in one header and kept nowhere: what a server says is searched for it before it can reach a message, a log or
the record, because servers quote what they refuse.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from kvscope.errors import KvscopeError, UsageError

_HIDDEN = "[the key]"
# What a bearer token may be made of: RFC 6750, 2.1.
_TOKEN = re.compile(r"[A-Za-z0-9\-._~+/]+=*")
# A shorter one is looked for as a whole word only: it could be a part of any word.
_CERTAIN_LENGTH = 8


class ApiKey:
    """A key that does not show itself."""

    def __init__(self, value: str) -> None:
        self._value = value
        spellings = f"{re.escape(value)}|{re.escape(value.replace('/', chr(92) + '/'))}"  # JSON may write / as \/
        whole = len(value) >= _CERTAIN_LENGTH
        self._found = re.compile(spellings if whole else rf"(?<![A-Za-z0-9])(?:{spellings})(?![A-Za-z0-9])")

    def __repr__(self) -> str:
        return "ApiKey(hidden)"

    def headers(self) -> dict[str, str]:
        """The header that carries it."""
        return {"Authorization": f"Bearer {self._value}"}

    def hide(self, found: Any) -> Any:
        """The same without the key: a text, or a mapping or list that holds texts."""
        match found:
            case str():
                return self._found.sub(_HIDDEN, found)
            case Mapping():
                return {self.hide(name): self.hide(value) for name, value in found.items()}
            case list() | tuple():
                return type(found)(self.hide(value) for value in found)
            case _:
                return found

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
            one.args = self.hide(one.args)
            if isinstance(one, KvscopeError):
                one.message, one.hint, one.evidence = self.hide((one.message, one.hint, one.evidence))
            left += [one.__cause__, one.__context__]


def read_api_key(variable: str | None) -> ApiKey | None:
    """The key in that environment variable; None where none was named. Raises UsageError where it holds none."""
    if variable is None:
        return None
    value = os.environ.get(variable, "").strip()
    if not value:
        raise UsageError(
            f"The environment variable {variable} is not set, or is empty.", hint=f"Set it: export {variable}=..."
        )
    if _TOKEN.fullmatch(value) is None:
        raise UsageError(
            f"What the environment variable {variable} holds cannot be sent as a key (it is not shown here).",
            hint="A key is letters, digits and - . _ ~ + / = without spaces. Was more than the key copied?",
        )
    return ApiKey(value)
