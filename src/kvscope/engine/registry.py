"""Name → engine adapter, imported only when asked for.

Each adapter is a module with four functions, which this one calls: ``check(choice)`` raises where it cannot be run
here; ``version(choice)`` is (version, build); ``create(choice, model, settings)`` an engine that is not launched yet;
``try_start(choice)`` starts its program without a model, ends it again and says its version ("" where there is nothing
to start).
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, cast

from kvscope.engine.base import Engine
from kvscope.errors import KvscopeError, UnknownName, UsageError
from kvscope.model.spec import ModelSpec
from kvscope.scenario import SettingValue

ENGINES = ("llama.cpp", "transformers", "vllm", "sglang", "ollama", "openai", "fake")
# Engine → its adapter, where kvscope starts it; where a command of one's own does; where it runs already.
_STARTED = {
    "llama.cpp": "llama_cpp",
    "transformers": "transformers",
    "vllm": "vllm",
    "fake": "fake",
}
_BY_COMMAND = {"llama.cpp": "llama_server", "vllm": "vllm"}
_ATTACHED = {
    "llama.cpp": "llama_attached",
    "vllm": "vllm_attached",
    "sglang": "sglang_attached",
    "ollama": "ollama",
    "openai": "openai_server",
}
# Where an engine that is never started by kvscope listens when nothing else was said.
_USUAL_URL = {"ollama": "http://127.0.0.1:11434"}


class Adapter(Protocol):
    """What the module of an adapter has."""

    def check(self, choice: "EngineChoice") -> None: ...

    def version(self, choice: "EngineChoice") -> tuple[str, str]: ...

    def create(
        self, choice: "EngineChoice", model: ModelSpec | None, settings: Mapping[str, SettingValue]
    ) -> Engine: ...

    def try_start(self, choice: "EngineChoice") -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What a server that runs already has: the name of the model that is asked for, and the settings that it states.
    ``for_prediction``: those that decide what it takes, by the names that ``kvscope.predict`` knows; None where it does
    not state them. ``version``, ``build``: None where it was not asked. ``model_facts``, ``model_path``: what it states
    of the model beside its name. ``is_chosen``: whether the model was asked for by name."""

    model: str
    settings: Mapping[str, SettingValue] = field(default_factory=dict)
    for_prediction: Mapping[str, SettingValue] | None = None
    version: str | None = None
    build: str | None = None
    model_facts: Mapping[str, SettingValue] = field(default_factory=dict)
    model_path: str | None = None
    is_chosen: bool = True

    def changed(self, now: "Served") -> list[str]:
        """What is said otherwise ``now``, in words; what is not stated at both times is no difference."""
        before, after = self._stated(), now._stated()
        return [
            f"{name} was {value} and is {after[name]}"
            for name, value in before.items()
            if name in after and after[name] != value
        ]

    def _stated(self) -> dict[str, SettingValue]:
        named = {"model": self.model, "version": self.version, "build": self.build, "model_path": self.model_path}
        known = {name: value for name, value in named.items() if value not in (None, "unknown")}
        return {**known, **self.model_facts, **self.settings}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineChoice:
    """Which engine, and how it is reached. ``command``: a program of one's own instead of the built-in one. ``port``
    0: any free one. ``url``: a server that runs already; it is used as it is, and nothing is started or ended. For
    such a server: ``pid`` is the process whose memory is watched (None: the one that listens there, if it is on this
    machine), ``served_model`` the name of the model to ask for (None: its first), ``api_key_env`` the environment
    variable that holds the key to send (None: none is sent), ``as_served`` what it said of itself before: not used
    where it says otherwise (None: whatever it is)."""

    name: str
    command: str | None = None
    port: int = 0
    url: str | None = None
    pid: int | None = None
    served_model: str | None = None
    api_key_env: str | None = None
    as_served: Served | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        texts = {"url": self.url, "served_model": self.served_model, "api_key_env": self.api_key_env}
        for name, value in texts.items():
            if value is not None and not isinstance(value, str):
                raise UsageError(f"{name} is {value!r}; a text was expected.")
        if self.pid is not None and type(self.pid) is not int:
            raise UsageError(f"pid is {self.pid!r}; the number of a process was expected.")

    @property
    def rules(self) -> str:
        """The name under which ``kvscope.predict`` knows this engine's memory. The fake one has no rules but the
        tokens' own, nor has a server of which no more is known than that it speaks OpenAI's interface."""
        return "logical" if self.name in ("fake", "openai") else self.name

    @property
    def is_attached(self) -> bool:
        """Whether the engine runs already and is only used."""
        return self.server_url is not None

    @property
    def has_vocabulary(self) -> bool:
        """Whether it reads a model's tokens; the fake engine reads words."""
        return self.name != "fake"

    @property
    def takes_settings(self) -> bool:
        """Whether its settings are kvscope's to set: not those of a server that was given them when it was started.
        Ollama is given them with each load."""
        return not self.is_attached or self.name == "ollama"

    @property
    def server_url(self) -> str | None:
        """Where the running server is: ``url``, or the engine's usual address where kvscope never starts it."""
        return self.url if self.url is not None else _USUAL_URL.get(self.name)

    def check(self) -> None:
        """Raises UnknownName, UsageError, MissingDependency or EngineNotFound when it cannot be run here."""
        _adapter(self).check(self)

    def version(self) -> tuple[str, str]:
        """(version, build), without starting a model: with the model and the settings they make results comparable.
        Raises as ``check``."""
        return _adapter(self).version(self)

    def own_settings(
        self, settings: Mapping[str, SettingValue], model: ModelSpec | None = None
    ) -> Mapping[str, SettingValue]:
        """Settings that the adapter adds, or finds the model loaded with, where these leave open how much memory is
        taken: a prediction has to know them too. Raises as ``check``."""
        adapter = _adapter(self)
        added = getattr(adapter, "own_settings", None)
        return {} if added is None else cast(Mapping[str, SettingValue], added(self, settings, model))

    def command_settings(self) -> Mapping[str, SettingValue]:
        """Settings that a command of one's own makes by its flags. Raises as ``check``, and InvalidSettings where the
        command cannot be read."""
        found = getattr(_adapter(self), "command_settings", None) if self.command is not None else None
        return {} if found is None else cast(Mapping[str, SettingValue], found(self))

    def takes_memory(self, model: ModelSpec | None) -> bool:
        """Whether a load takes memory of this machine that is not taken yet: not on another's, nor of a model that is
        loaded already. Raises as ``check``."""
        asked = getattr(_adapter(self), "takes_memory", None)
        return asked is None or bool(asked(self, model))

    def served(self) -> Served:
        """What a server that runs already has. Raises as ``check``."""
        if self.name == "ollama":
            if self.served_model is None:
                raise UsageError(
                    "Which of Ollama's models is to be measured is not said.",
                    hint="Give its name with --served-model NAME, or the model as --model ollama:NAME.",
                )
            return Served(model=self.served_model)
        from kvscope.engine.openai_server import served

        return served(self)

    def create(self, model: ModelSpec | None, settings: Mapping[str, SettingValue]) -> Engine:
        """An engine that is not launched yet. ``model`` None: whatever a running server has loaded. Raises as
        ``check``, and InvalidSettings, ModelNotFound."""
        return _adapter(self).create(self, model, settings)


def create_engine(
    name: str,
    *,
    model: ModelSpec | None,
    settings: Mapping[str, SettingValue],
    command: str | None = None,
    port: int = 0,
) -> Engine:
    """The engine called ``name``, not launched yet. ``settings``: by the engine's own names.

    Raises UnknownName, MissingDependency, ModelNotFound (the model has no file to run) and InvalidSettings.
    """
    choice = EngineChoice(name=name, command=command, port=port)
    if command is None:
        choice.check()
    return choice.create(model, settings)


def available_engines() -> list[tuple[str, str | None, str | None]]:
    """(name, version, None) of each engine that works here, (name, None, why not) of each that does not. Works means:
    its program was started and ended again, without a model. One that is only ever reached by an address has neither
    version nor reason. Whatever one of them fails by is its reason, and the others are still asked."""
    found: list[tuple[str, str | None, str | None]] = []
    for name in ENGINES:
        try:
            found.append((name, _tried(name), None))
        except KvscopeError as error:
            found.append((name, None, f"{error.message} {error.hint or ''}".strip()))
        except (Exception, SystemExit) as error:  # a fault of ours, or of a library
            found.append((name, None, f"Looking for it failed ({type(error).__name__}: {str(error)[:300]})."))
    return found


def _tried(name: str) -> str | None:
    if name not in _STARTED and name not in _USUAL_URL:
        _load(_ATTACHED[name], name)
        return None
    choice = EngineChoice(name=name)
    if name not in _USUAL_URL:  # a server that may be slow is asked once, not twice
        choice.check()
    return _adapter(choice).try_start(choice) or None


def _adapter(choice: EngineChoice) -> Adapter:
    """The module that runs what was chosen. Raises UnknownName, UsageError."""
    name = choice.name
    if name not in ENGINES:
        raise UnknownName("engine", name, ENGINES)
    if choice.is_attached:
        if choice.command is not None:
            raise UsageError(
                "A server that runs already cannot be given a command too.", hint="Give --url or --engine-command."
            )
        if choice.port:
            raise UsageError("A server that runs already has its port in its address.", hint="Leave --port out.")
        if name not in _ATTACHED:
            others = ", ".join(sorted(_ATTACHED))
            raise UsageError(f"{name} has no server to be reached by --url.", hint=f"These have: {others}.")
        return _load(_ATTACHED[name], name)
    for option, value in (
        ("--pid", choice.pid),
        ("--served-model", choice.served_model),
        ("--api-key-env", choice.api_key_env),
    ):
        if value is not None:
            raise UsageError(f"{option} is for a server that runs already.", hint="Give its address with --url.")
    if choice.command is not None:
        if name not in _BY_COMMAND:
            raise UsageError(
                f"{name} is not started by a command of your own.", hint=f"These are: {', '.join(sorted(_BY_COMMAND))}."
            )
        return _load(_BY_COMMAND[name], name)
    if name not in _STARTED:
        raise UsageError(f"kvscope does not start {name} itself.", hint="Start it, and give its address with --url.")
    return _load(_STARTED[name], name)


def _load(module: str, name: str) -> Adapter:
    path = f"kvscope.engine.{module}"
    try:
        return cast(Adapter, importlib.import_module(path))
    except ModuleNotFoundError as error:
        if error.name != path:
            raise
        raise UsageError(
            f"This build of kvscope has no adapter for {name} used in this way.", hint="Update kvscope."
        ) from error
