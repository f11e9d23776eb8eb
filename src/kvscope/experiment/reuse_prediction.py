"""What the next request of a trial will reuse, said before it is sent: by the engine's own rule, from the model's
files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kvscope.engine.base import ChatRequest, Generation
from kvscope.errors import KvscopeError
from kvscope.experiment.own_count import OwnCounter
from kvscope.model.spec import ModelSpec
from kvscope.prompt.reuse.rules import ENGINES, Reusable, SentPrompt, reused_in_order
from kvscope.scenario import SettingValue

# A token of an answer whose id is not known. Only how many there are matters: no later prompt holds the answer.
_SOME_TOKEN = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class SentBefore:
    """A request that the engine has answered."""

    request: ChatRequest
    answer: Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class NotPredicted:
    """Why nothing is said of reuse."""

    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReusePredictor:
    """``settings``: those of a running server, as it states them; None: those the engine was started with.
    ``is_shared``: the engine ran before, and others may have used it."""

    counter: OwnCounter | None
    model: ModelSpec | None
    engine: str
    engine_version: str | None
    settings: Mapping[str, SettingValue] | None = None
    is_shared: bool = False

    def predict(
        self, before: Sequence[SentBefore], request: ChatRequest, engine_settings: Mapping[str, SettingValue]
    ) -> Reusable | NotPredicted:
        """What ``request`` reuses of what was sent ``before`` to an engine that was just started, in that order. The
        answers are taken to be in none of the prompts."""
        if self.engine not in ENGINES:
            return NotPredicted(because="this engine has no rule that is known here")
        if self.counter is None:
            return NotPredicted(because="the model's files are not known, so its tokens are not")
        settings = engine_settings if self.settings is None else self.settings
        if self.is_shared and self.engine == "llama.cpp" and settings.get("n_parallel") not in (None, 1):
            return NotPredicted(because="which of the server's slots is free depends on what others sent to it")
        prompts = self.counter.prompts([*(each.request for each in before), request])
        if prompts is None:
            return NotPredicted(because="the model's files do not give the tokens of these prompts")
        sent = [_answered(prompt, each.answer) for prompt, each in zip(prompts, before, strict=False)]
        try:
            answer = reused_in_order(
                [*sent, prompts[-1]],
                engine=self.engine,
                engine_version=self.engine_version if self.engine_version != "unknown" else None,
                model=self.model,
                settings=settings,
            )[-1]
        except KvscopeError as error:
            return NotPredicted(because=error.message)
        return answer if answer.tokens is not None else NotPredicted(because=answer.because)


def _answered(prompt: SentPrompt, answer: Generation) -> SentPrompt:
    """The prompt with as many tokens of an answer as the server states, or else as many as pieces came."""
    num_tokens = answer.output_tokens if answer.output_tokens is not None else len(answer.events)
    return replace(prompt, answer_ids=(_SOME_TOKEN,) * max(1, num_tokens))
