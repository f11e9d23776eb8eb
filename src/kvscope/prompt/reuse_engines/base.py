"""What is asked of an engine's rule, and what it answers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from kvscope.model.spec import ModelSpec
from kvscope.scenario import SettingValue

Status = Literal["exact", "estimated", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reusable:
    """Tokens of a prompt that the engine need not compute again; None where the rule does not decide it.

    ``status``: exact (the rule was held against the engine of this version, and equal every time), estimated (the rule
    is the engine's or vendor's own statement, not measured here), unknown (``because`` says what decides it).
    ``granularity_tokens``: reuse comes in multiples of it. ``minimum_prefix_tokens``: a shorter common prefix is not
    used at all. ``notes``: why it is not exact, where that lies in the requests and not in the rule.
    """

    tokens: int | None
    status: Status
    because: str
    source: str
    granularity_tokens: int = 1
    minimum_prefix_tokens: int = 1
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReuseQuestion:
    """Two requests in order, the second alone with the engine. ``held_tokens``: what the engine holds of the first
    (its prompt, and the answer's tokens that were fed back). ``first_prompt_tokens``: of these, the prompt's; None
    where it is not known. ``user_starts``: places in the first prompt at which a user's message starts, as the engine
    finds them in the rendered text; None where they are not known."""

    common_prefix_tokens: int
    held_tokens: int
    prompt_tokens: int
    engine_version: str | None
    model: ModelSpec | None
    settings: Mapping[str, SettingValue]
    first_prompt_tokens: int | None = None
    user_starts: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SentPrompt:
    """One request as the engine saw it. ``answer_ids``: the tokens it generated for it, the last of which it never
    read. ``user_starts``: places in ``ids`` at which users' messages start, None where they are not known. ``reuse``:
    whether the request allows it, None where it leaves that to the engine. ``slot``: the one it asks for. ``fits``:
    into the context; one that does not is refused. ``is_answer_sure``: the answer is the one that the model wrote, and
    not taken from a later request. ``doubt``: why the engine may have seen another prompt, or use it otherwise."""

    ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    user_starts: tuple[int, ...] | None = ()
    reuse: bool | None = None
    slot: int | None = None
    fits: bool = True
    is_answer_sure: bool = True
    doubt: str | None = None
