"""What is measured: a model on an engine, or whatever a server that runs already has. Each is asked once what it is."""

from dataclasses import dataclass
from pathlib import PurePosixPath

from kvscope.engine.registry import EngineChoice, Served
from kvscope.errors import UsageError
from kvscope.experiment.design import Condition
from kvscope.experiment.own_count import OwnCounter, own_counter
from kvscope.experiment.refusal import Reason, refusal
from kvscope.model.spec import ModelSpec
from kvscope.predict.memory import Prediction, predict


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """``model`` is None where only a running server knows it. ``served`` is what such a server has, None for an engine
    that kvscope starts."""

    model: ModelSpec | None
    choice: EngineChoice
    version: str
    build: str
    served: Served | None
    counter: OwnCounter | None

    @classmethod
    def of(cls, model: ModelSpec | None, choice: EngineChoice) -> "Subject":
        """Ask the engine what it is. Raises as ``EngineChoice.version``, and UsageError where there is no model."""
        if model is None and not choice.is_attached:
            raise UsageError(f"Which model {choice.name} shall run is not said.", hint="Give it with --model.")
        version, build = choice.version()
        counter = own_counter(model) if model is not None and choice.has_vocabulary else None
        served = choice.served() if choice.is_attached and (model is None or not choice.takes_settings) else None
        return cls(model=model, choice=choice, version=version, build=build, served=served, counter=counter)

    @property
    def model_name(self) -> str:
        """The model's name; of a server's own, the one it is served by."""
        return self.model.name if self.model is not None else self.served_name

    @property
    def model_source(self) -> str:
        """Where its description was read."""
        return self.model.source if self.model is not None else "a server that runs already"

    @property
    def fingerprint(self) -> str:
        """What tells it from other models. Of a server's own no more is known than its name."""
        return self.model.fingerprint if self.model is not None else f"served:{self.served_name}"

    @property
    def served_name(self) -> str:
        """Without folders, where a server calls its model by a file's path (llama.cpp): they are one machine's own."""
        assert self.served is not None
        name = self.served.model
        return PurePosixPath(name).name if name.startswith("/") else name

    def predict(self, condition: Condition) -> Prediction | None:
        """What a trial under this condition should cost; None where no description of the model was given, or a server
        does not state what a prediction needs. Raises UsageError where the engine would refuse its settings."""
        has_rules = self.choice.rules == self.choice.name
        if self.model is None or (self.served is not None and has_rules and self.served.for_prediction is None):
            return None
        try:
            return predict_condition(self.model, self.choice, condition, served=self.served, version=self.version)
        except UsageError:
            if self.served is None:
                raise
            return None

    def refusal(self, condition: Condition, prediction: Prediction | None) -> Reason | None:
        """See ``refusal``. What a running server holds is taken already, and its limit is read from itself."""
        return None if prediction is None or self.served is not None else refusal(condition, prediction)


def predict_condition(
    model: ModelSpec,
    choice: EngineChoice,
    condition: Condition,
    *,
    served: Served | None = None,
    version: str | None = None,
) -> Prediction:
    """What a trial under this condition should cost. ``served``: with what a running server was started. ``version``:
    the engine's, None: it is asked. Raises UsageError where the engine would refuse its settings."""
    has_rules = choice.rules == choice.name
    stated = choice.version()[0] if version is None else version
    given = choice.own_settings(condition.settings) if served is None else served.for_prediction or {}
    settings = {**given, **condition.settings}
    return predict(
        model,
        engine=choice.rules,
        engine_version=stated if has_rules and stated != "unknown" else None,
        # The last output token is produced but never fed back, so it takes no place in the cache.
        tokens=condition.longest_tokens - 1,
        # An engine without rules of its own is predicted by what the tokens need, which no setting changes.
        settings=settings if has_rules else {},
    )
