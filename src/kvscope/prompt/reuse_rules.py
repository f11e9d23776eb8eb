"""Two prompts share a beginning: how much of it the engine will not compute again. The door to the engines' rules."""

from collections.abc import Callable, Mapping

from kvscope.errors import UnknownName
from kvscope.model.spec import ModelSpec
from kvscope.prompt.reuse_engines import llama_cpp
from kvscope.prompt.reuse_engines.base import Reusable as Reusable
from kvscope.prompt.reuse_engines.base import ReuseQuestion
from kvscope.scenario import SettingValue

_RULES: Mapping[str, Callable[[ReuseQuestion], Reusable]] = {"llama.cpp": llama_cpp.reusable}
ENGINES = tuple(_RULES)


def reusable_tokens(
    common_prefix_tokens: int,
    *,
    held_tokens: int,
    prompt_tokens: int,
    engine: str,
    engine_version: str | None,
    model: ModelSpec | None,
    settings: Mapping[str, SettingValue],
    first_prompt_tokens: int | None = None,
    user_starts: tuple[int, ...] | None = None,
) -> Reusable:
    """What of a prompt of ``prompt_tokens`` is reused when its first ``common_prefix_tokens`` are those of the
    ``held_tokens`` that the engine holds of the request before (prompt, and the answer's tokens that were fed back).

    ``first_prompt_tokens`` and ``user_starts`` are needed where a cache forgets (sliding windows, recurrent states):
    the length of the first prompt, and where in it users' messages start. Raises UnknownName for an engine without a
    rule.
    """
    rule = _RULES.get(engine)
    if rule is None:
        raise UnknownName("engine", engine, ENGINES)
    return rule(
        ReuseQuestion(
            common_prefix_tokens=common_prefix_tokens,
            held_tokens=held_tokens,
            prompt_tokens=prompt_tokens,
            engine_version=engine_version,
            model=model,
            settings=settings,
            first_prompt_tokens=first_prompt_tokens,
            user_starts=user_starts,
        )
    )
