"""Name → engine adapter, imported only when asked for."""

import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from kvscope.engine.base import Engine
from kvscope.errors import EngineError, EngineNotFound, KvscopeError, MissingDependency, UnknownName, UsageError
from kvscope.model.spec import ModelSpec
from kvscope.scenario import SettingValue

ENGINES = ("llama.cpp", "fake")
# Known, and not run by this release.
PLANNED_ENGINES = ("transformers", "vllm", "sglang", "ollama")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineChoice:
    """Which engine, and how it is started. ``command``: one's own llama-server with its flags instead of the built-in
    llama.cpp. ``port`` 0: any free one."""

    name: str
    command: str | None = None
    port: int = 0

    @property
    def rules(self) -> str:
        """The name under which ``kvscope.predict`` knows this engine's memory; the fake one has no rules but the
        tokens' own."""
        return "logical" if self.name == "fake" else self.name

    def check(self) -> None:
        """Raises UnknownName, UsageError, MissingDependency or EngineNotFound when it cannot be run here."""
        if self.name in PLANNED_ENGINES:
            raise UsageError(
                f"This release of kvscope cannot run {self.name} yet.", hint=f"It runs: {', '.join(ENGINES)}."
            )
        if self.name not in ENGINES:
            raise UnknownName("engine", self.name, ENGINES)
        if self.name == "llama.cpp" and self.command is None and not _is_installed("xllamacpp"):
            raise MissingDependency("Running llama.cpp inside kvscope", "llama-cpp", "xllamacpp")
        if self.command is not None:
            try:
                self.version()
            except EngineError as error:
                raise EngineNotFound(error.message, hint=error.hint) from error

    def version(self) -> tuple[str, str]:
        """(version, build), without starting a model: with the model and the settings they make results comparable.
        Raises as ``check``."""
        if self.name == "fake":
            from kvscope.engine.fake import LAW_VERSION

            return LAW_VERSION, "fake"
        if self.command is not None:
            from kvscope.engine.llama_server import command_version

            return command_version(self.command)
        return _package_version("xllamacpp")

    def create(self, model: ModelSpec, settings: Mapping[str, SettingValue]) -> Engine:
        """An engine that is not launched yet. Raises as ``check``, and InvalidSettings, ModelNotFound."""
        return create_engine(self.name, model=model, settings=settings, command=self.command, port=self.port)


def create_engine(
    name: str,
    *,
    model: ModelSpec,
    settings: Mapping[str, SettingValue],
    command: str | None = None,
    port: int = 0,
) -> Engine:
    """The engine called ``name``, not launched yet. ``settings``: by the engine's own names.

    Raises UnknownName, MissingDependency, ModelNotFound (the model has no file to run) and InvalidSettings.
    """
    if name == "fake":
        from kvscope.engine.fake import FakeEngine

        return FakeEngine(settings=settings)
    if name != "llama.cpp":
        raise UnknownName("engine", name, ENGINES)
    if command is not None:
        from kvscope.engine.llama_server import LlamaServerEngine

        return LlamaServerEngine(command=command, model=model, settings=settings, port=port)
    EngineChoice(name=name).check()
    from kvscope.engine.llama_cpp import LlamaCppEngine

    return LlamaCppEngine(model=model, settings=settings, port=port)


def available_engines() -> list[tuple[str, str | None, str | None]]:
    """(name, version, None) of each engine that works here, (name, None, why not) of each that does not. Works means:
    its program was started and ended again, without a model."""
    found: list[tuple[str, str | None, str | None]] = []
    for name in ENGINES:
        try:
            found.append((name, _tried(name), None))
        except KvscopeError as error:
            found.append((name, None, f"{error.message} {error.hint or ''}".strip()))
    return found + [(name, None, "Not supported yet by this release.") for name in PLANNED_ENGINES]


def _tried(name: str) -> str:
    choice = EngineChoice(name=name)
    choice.check()
    if name != "llama.cpp":
        return choice.version()[0]
    from kvscope.engine.llama_cpp import check_start

    return check_start()


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ImportError:  # an import hook of the user's own may refuse a package by raising
        return False


def _package_version(package: str) -> tuple[str, str]:
    """Version of an installed package, and the hash of its compiled part as its installer recorded it: builds of one
    version for different processors are different engines. Nothing is imported."""
    import importlib.metadata  # costs more than all else here

    try:
        distribution = importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown", f"{package}, installed without its metadata, Python {sys.version_info[0]}"
    hashes = [file.hash for file in distribution.files or () if file.name.endswith(".so") and file.hash is not None]
    build = f"{hashes[0].mode}:{hashes[0].value}" if hashes else "unknown"
    return distribution.version, f"{package} {build}"
