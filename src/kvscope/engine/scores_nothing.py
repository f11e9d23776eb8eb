"""What an engine that states no log-probabilities answers when it is asked for them."""

from kvscope.engine.base import ScoreRequest, TokenScores
from kvscope.errors import UsageError


def no_scores(engine: str) -> UsageError:
    """The error for an engine by this name."""
    return UsageError(
        f"How likely a text is cannot be asked of {engine}: it states no log-probability of a given token.",
        hint="Measure fidelity with llama.cpp (or a running llama.cpp server) or transformers.",
    )


class ScoresNothing:
    """``Engine.tokenize`` and ``Engine.score`` of an engine whose ``Capabilities.scores_tokens`` is False."""

    name: str

    def tokenize(self, text: str, *, with_special: bool) -> tuple[int, ...]:
        """Not done: UsageError is raised."""
        raise no_scores(self.name)

    def score(self, request: ScoreRequest) -> TokenScores:
        """Not done: UsageError is raised."""
        raise no_scores(self.name)
