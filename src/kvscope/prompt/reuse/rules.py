"""Two prompts share a beginning: how much of it the engine will not compute again. The door to the engines' rules."""

from collections.abc import Callable, Mapping, Sequence

from kvscope.errors import UnknownName, UsageError
from kvscope.model.spec import ModelSpec
from kvscope.prompt.reuse_engines import hosted, llama_cpp, ollama, sglang, transformers, vllm
from kvscope.prompt.reuse_engines.base import Reusable as Reusable
from kvscope.prompt.reuse_engines.base import ReuseQuestion
from kvscope.prompt.reuse_engines.base import SentPrompt as SentPrompt
from kvscope.scenario import SettingValue

_RULES: Mapping[str, Callable[[ReuseQuestion], Reusable]] = {
    "llama.cpp": llama_cpp.reusable,
    "vllm": vllm.reusable,
    "sglang": sglang.reusable,
    "ollama": ollama.reusable,
    "transformers": transformers.reusable,
    "openai-api": hosted.openai_api,
    "anthropic-api": hosted.anthropic_api,
    "deepseek-api": hosted.deepseek_api,
}
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

    ``engine_version`` None: the version whose rule is known. ``settings`` have the engine's own names and types.
    ``first_prompt_tokens`` and ``user_starts`` are needed where a cache forgets (sliding windows, recurrent states):
    the length of the first prompt, and where in it users' messages start. Raises UnknownName for an engine without a
    rule, UsageError for numbers that cannot be and for settings that are none.
    """
    first = held_tokens if first_prompt_tokens is None else first_prompt_tokens
    longest = min(held_tokens, prompt_tokens)
    if not (0 <= common_prefix_tokens <= longest and prompt_tokens >= 1 and 1 <= first <= held_tokens):
        raise UsageError(
            f"{common_prefix_tokens} common tokens, {held_tokens} held, {first} of them the first prompt's, and a "
            f"prompt of {prompt_tokens} cannot all be."
        )
    return _rule(engine)(
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


def reused_in_order(
    prompts: Sequence[SentPrompt],
    *,
    engine: str,
    engine_version: str | None,
    model: ModelSpec | None,
    settings: Mapping[str, SettingValue],
) -> list[Reusable]:
    """What each of several prompts reuses, sent one after the other to an engine that was just started.

    llama.cpp's slots are followed from request to request. For other engines each prompt is compared with every one
    before it, and the most that one of them gives is taken. Raises as ``reusable_tokens``.
    """
    if engine == "llama.cpp":
        return llama_cpp.reused_in_order(prompts, engine_version=engine_version, model=model, settings=settings)
    rule = _rule(engine)
    found = []
    for index, prompt in enumerate(prompts):
        held = [(each.ids + each.answer_ids[:-1], len(each.ids)) for each in prompts[:index]] or [((), 0)]
        answers = [
            rule(
                ReuseQuestion(
                    common_prefix_tokens=llama_cpp.common_prefix(ids, prompt.ids),
                    held_tokens=len(ids),
                    prompt_tokens=len(prompt.ids),
                    engine_version=engine_version,
                    model=model,
                    settings=settings,
                    first_prompt_tokens=first,
                )
            )
            for ids, first in held
        ]
        unknown = [each for each in answers if each.tokens is None]
        found.append(unknown[0] if unknown else max(answers, key=lambda each: each.tokens or 0))
    return found


def _rule(engine: str) -> Callable[[ReuseQuestion], Reusable]:
    rule = _RULES.get(engine)
    if rule is None:
        raise UnknownName("engine", engine, ENGINES)
    return rule
