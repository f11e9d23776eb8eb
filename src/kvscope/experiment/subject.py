"""What is measured: a model on an engine, or whatever a server that runs already has. Each is asked once what it is."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

from kvscope.engine.base import ChatRequest, Engine
from kvscope.engine.registry import EngineChoice, Served
from kvscope.errors import KvscopeError, UsageError
from kvscope.experiment.design import Condition
from kvscope.experiment.own_count import OwnCounter, own_counter
from kvscope.experiment.refusal import Reason, refusal, too_short
from kvscope.experiment.reuse_prediction import NotPredicted, ReusePredictor, SentBefore
from kvscope.experiment.slots import sequences_at_once
from kvscope.experiment.started_with import StartedWith, started_with
from kvscope.experiment.stored_changes import stored_changes
from kvscope.model.spec import ModelSpec
from kvscope.predict.memory import Prediction, predict
from kvscope.predict.prediction import Unknown
from kvscope.prompt.reuse.rules import Reusable
from kvscope.scenario import SettingValue

Warned = tuple[str, str, str]

# Engines whose caches are as long as what they hold: for others, a conversation's length changes nothing.
_HOLD_WHAT_IS_NEEDED = ("transformers", "logical")
_AT_MOST = "a conversation's length is known only when the model has answered: this is the most that so many turns take"
_UNSTATED = "the running server does not state its cache types, batch sizes and buffers: its defaults are taken"

# Of so many conditions the changes are kept at hand.
_MOST_KEPT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """``model`` is None where only a running server knows it. ``served`` is what such a server has, None for an engine
    that kvscope starts. ``started``: with what it was started, as its process says."""

    model: ModelSpec | None
    choice: EngineChoice
    version: str
    build: str
    served: Served | None
    counter: OwnCounter | None
    started: StartedWith | None = None
    # A design repeats its conditions many times, and trying each change of one takes longer than a fast trial.
    _changes: list[tuple[Condition, Prediction, list[dict[str, Any]]]] = field(
        default_factory=list, init=False, repr=False, compare=False
    )

    @classmethod
    def of(cls, model: ModelSpec | None, choice: EngineChoice) -> "Subject":
        """Ask the engine what it is. Raises as ``EngineChoice.version``, and UsageError where there is no model."""
        if model is None and not choice.is_attached:
            raise UsageError(f"Which model {choice.name} shall run is not said.", hint="Give it with --model.")
        served = choice.served() if choice.is_attached and (model is None or not choice.takes_settings) else None
        if served is not None and not choice.takes_settings:  # one model for all trials, and one server
            choice = replace(choice, served_model=served.model, as_served=served)
        if model is not None and served is not None:
            _check_same_model(model, served)
        version, build = choice.version()
        counter = own_counter(model) if model is not None and choice.has_vocabulary else None
        started = None
        if served is not None and not choice.takes_settings:
            started = started_with(choice, served, model)
            if started.settings is not None:
                served = replace(served, for_prediction=started.settings)
        return cls(
            model=model, choice=choice, version=version, build=build, served=served, counter=counter, started=started
        )

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
        """What tells it from other models. Of a server's own: its name, and what the server states of it besides."""
        if self.model is not None:
            return self.model.fingerprint
        assert self.served is not None
        # A folder is one machine's own, and the model may be in another one elsewhere.
        facts = {name: value for name, value in self.served.model_facts.items() if not str(value).startswith("/")}
        return f"served:{self.served_name}" + (f":{_digest(facts)}" if facts else "")

    @property
    def served_facts(self) -> Mapping[str, object]:
        """What of a running server makes its rows comparable. The place of the model's file is kept as a digest: it is
        one machine's own, and of two files of one name and size nothing else tells."""
        if self.served is None:
            return {}
        path = self.served.model_path
        return {
            "served": self.served_name,
            "served_settings": dict(self.served.settings),
            "served_model": dict(self.served.model_facts),
            "served_path": None if path is None else _digest({"path": path}),
            "started_with": dict(self.stated_settings),
        }

    @property
    def stated_settings(self) -> Mapping[str, SettingValue]:
        """All that is known of how a running server was started."""
        if self.served is None:
            return {}
        started = None if self.started is None else self.started.settings
        return {**self.served.settings, **(started or {})}

    def create(self, settings: Mapping[str, SettingValue]) -> Engine:
        """The engine of one trial. Raises as ``EngineChoice.create``, and InvalidSettings where a running server was
        started anew with other settings."""
        if self.started is not None and self.started.settings is not None:
            assert self.served is not None
            self.started.check_same(started_with(self.choice, self.served, self.model))
        return self.choice.create(self.model, settings)

    def predict_reuse(
        self, before: Sequence[SentBefore], request: ChatRequest, engine_settings: Mapping[str, SettingValue]
    ) -> Reusable | NotPredicted:
        """See ``ReusePredictor.predict``."""
        is_shared = self.served is not None and not self.choice.takes_settings
        if is_shared and self.served is not None and self.served.for_prediction is None:
            return NotPredicted(because="the server does not state its settings")
        predictor = ReusePredictor(
            counter=self.counter,
            model=self.model,
            engine=self.choice.rules,
            engine_version=self.version,
            settings=self.served.for_prediction if is_shared and self.served is not None else None,
            is_shared=is_shared,
        )
        return predictor.predict(before, request, engine_settings)

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
            found = predict_condition(self.model, self.choice, condition, served=self.served, version=self.version)
            if self._is_estimate:
                found = _as_estimate(found, "settings", _UNSTATED)
            if condition.is_conversation and condition.num_requests > 1 and self.choice.rules in _HOLD_WHAT_IS_NEEDED:
                found = _as_estimate(found, "conversation_length", _AT_MOST)
            return found
        except UsageError:
            if self.served is None:
                raise
            return None

    def changes(self, condition: Condition, prediction: Prediction | None) -> list[dict[str, Any]]:
        """See ``stored_changes``; nothing where nothing was predicted. Of one condition it is worked out once: do not
        change it."""
        if self.model is None or prediction is None:
            return []
        for known, before, found in self._changes:
            if known == condition and before == prediction:
                return found
        found = stored_changes(self.model, self.choice, condition, prediction, served=self.served, version=self.version)
        self._changes.insert(0, (condition, prediction, found))
        del self._changes[_MOST_KEPT:]
        return found

    def cache_bytes_per_token(self, condition: Condition) -> int | None:
        """What one token takes in a cache by the model's shapes alone, whatever an engine reserves; None where it is
        not known."""
        if self.model is None:
            return None
        try:
            return predict(self.model, engine="logical", tokens=condition.longest_tokens).bytes_per_token
        except KvscopeError:
            return None

    @property
    def _is_estimate(self) -> bool:
        is_known = self.choice.rules == self.choice.name and self.started is not None and self.started.settings
        return self.served is not None and not self.choice.takes_settings and not is_known

    @property
    def warnings(self) -> tuple[Warned, ...]:
        """What of a running server is not known, where its model was given to predict with."""
        if self.model is None or self.served is None or not self._is_estimate:
            return ()
        why_not = (
            "" if self.started is None or self.started.why_not is None else f" Of its process: {self.started.why_not}"
        )
        if self.served.for_prediction is None and self.choice.rules == self.choice.name:
            message = f"Nothing was predicted: the server does not state how large its cache is.{why_not}"
            hint = (
                "A slot's limit is no more than the model was trained for, whatever was reserved; see the server's log."
            )
            return (("not-predicted", message, hint),)
        hint = "Where it was started with others, what it holds differs from what was predicted."
        return (("settings-not-stated", f"The prediction is an estimate: {_UNSTATED}.{why_not}", hint),)

    def refusal(self, condition: Condition, prediction: Prediction | None) -> Reason | None:
        """See ``refusal``. What a running server holds is taken already, and its limit is read from itself."""
        if self.served is not None:
            return None
        reason = too_short(condition, self.counter)
        if prediction is None or reason is not None:
            return reason
        return refusal(condition, prediction, takes_memory=self.choice.takes_memory(self.model))


def _digest(facts: Mapping[str, SettingValue]) -> str:
    return hashlib.sha256(json.dumps(dict(facts), sort_keys=True).encode()).hexdigest()[:12]


def _as_estimate(found: Prediction, what: str, why: str) -> Prediction:
    status = "estimated" if found.status == "exact" else found.status
    return replace(found, status=status, unknown=(*found.unknown, Unknown(what=what, why=why)))


def _check_same_model(model: ModelSpec, served: Served) -> None:
    """Raises UsageError where the server states of its model what is not true of this one (llama.cpp: the sums of its
    file's table of tensors, and the width of its embeddings)."""
    stated = served.model_facts
    ours: dict[str, int | None] = {"n_embd": model.hidden_size}
    if model.file_path is not None and model.file_path.endswith(".gguf") and model.tensors:
        ours |= {"n_params": model.num_parameters, "size": sum(tensor.num_bytes for tensor in model.tensors)}
    differing = [
        f"{name} is {stated[name]:,} there and {value:,} here"
        for name, value in ours.items()
        if value is not None and isinstance(stated.get(name), int) and stated[name] != value
    ]
    if differing:
        raise UsageError(
            f"The server's model is not {model.name}: {'; '.join(differing)}.",
            hint="Give the file that the server runs with --model, or leave --model out and nothing is predicted.",
        )


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
    given = choice.own_settings(condition.settings, model) if served is None else served.for_prediction or {}
    settings = {**given, **condition.settings}
    # llama.cpp is started with one slot where none are asked for.
    default_slots = 1 if choice.name == "llama.cpp" and served is None else None
    return predict(
        model,
        engine=choice.rules,
        engine_version=stated if has_rules and stated != "unknown" else None,
        # The last output token is produced but never fed back, so it takes no place in the cache.
        tokens=condition.longest_tokens - 1,
        sequences=sequences_at_once(condition, settings, default_slots=default_slots),
        # An engine without rules of its own is predicted by what the tokens need, which no setting changes.
        settings=settings if has_rules else {},
    )
