"""llama.cpp inside a child process of ours, through the xllamacpp package: memory can be read before the model is
loaded, and after llama.cpp itself has given it up."""

import importlib.util
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvscope.engine.base import Capabilities, EngineReport
from kvscope.engine.failure import unexplained_start
from kvscope.engine.llama_http import ENVIRONMENT, LOAD_TIMEOUT_S, SLOT_FOLDER, LlamaHttp
from kvscope.engine.llama_log import states_error, why_aborted, why_not_loaded
from kvscope.engine.process import EngineProcess, python_command
from kvscope.engine.statistics import STATISTICS
from kvscope.errors import (
    EngineDied,
    EngineNotFound,
    EngineReplyError,
    EngineStartFailed,
    EngineTimeout,
    InvalidSettings,
    MissingDependency,
    ModelNotFound,
)
from kvscope.model.spec import ModelSpec
from kvscope.scenario import SettingValue

if TYPE_CHECKING:
    from kvscope.engine.registry import EngineChoice

START_TIMEOUT_S = 60.0
UNLOAD_TIMEOUT_S = 30.0
_REASON_WAIT_S = 2.0
_REASON_STEP_S = 0.02
_EXIT = json.dumps({"do": "exit"})
_WORKER = Path(__file__).with_name("worker.py")


class LlamaCppEngine(LlamaHttp):
    """See ``kvscope.engine.base`` for the order of calls. ``settings``: llama.cpp's names (n_ctx, n_parallel,
    cache_type_k ...); what is not given here is left to llama.cpp, apart from ``llama_http.DEFAULT_SETTINGS``."""

    capabilities = Capabilities(
        baseline_before_load=True,
        can_unload=True,
        counts_prompt_tokens=True,
        reports_prompt_tokens=True,
        reports_cached_tokens=True,
        reports_timings=True,
        reports_buffers=True,
        has_pid=True,
        can_clear_cache=True,
        answers_together=True,
        completes_text=True,
        scores_tokens=True,
    )

    def __init__(
        self,
        *,
        model: ModelSpec,
        settings: Mapping[str, SettingValue],
        port: int = 0,
        load_timeout_s: float = LOAD_TIMEOUT_S,
        unload_timeout_s: float = UNLOAD_TIMEOUT_S,
    ) -> None:
        super().__init__(settings=settings)
        self._model_path = model_file(model)
        self._port = port
        self._load_timeout_s = load_timeout_s
        self._unload_timeout_s = unload_timeout_s
        self._version = "unknown"

    def launch(self) -> None:
        """Start the child; xllamacpp is imported in it and no model is loaded. Raises MissingDependency, EngineNotFound
        (xllamacpp is there but does not work)."""
        self._process, self._version = _start_worker()

    def load(self) -> EngineReport:
        """Load the model and wait until the server answers. Raises InvalidSettings, EngineModelError, OutOfMemory,
        EngineStartFailed, EngineTimeout, EngineDied."""
        process = self._running()
        self._load_begins_at = process.log_size()
        command = {
            "model": self._model_path,
            "settings": {"slot_save_path": SLOT_FOLDER, **self.settings},
            "port": self._port,
        }
        try:
            process.send(json.dumps({"do": "load", **command}))
            ready = self._answer(self._load_timeout_s, doing="loading the model")
        except EngineDied as error:
            raise self._aborted(error) from error
        except EngineTimeout:
            self.stop()
            raise
        self._url = str(ready["url"])
        return self._report(self._version)

    def unload(self) -> None:
        """llama.cpp's own release; the child lives on, empty. A release that hangs ends the child: EngineTimeout."""
        process = self._running()
        self._url = None
        process.send(json.dumps({"do": "unload"}))
        try:
            self._answer(self._unload_timeout_s, doing="giving up its model")
        except EngineTimeout:
            self.stop()
            raise

    def statistics(self) -> Mapping[str, float]:
        """The server's own counters while a model is loaded, and what the C library's allocator and Python's hold in
        the child, at any time."""
        of_server = super().statistics() if self._url is not None else {}
        self._running().send(json.dumps({"do": "heap"}))
        said = self._answer(START_TIMEOUT_S, doing="counting its heap")
        return {**of_server, **{name: float(value) for name, value in said.items() if name in STATISTICS}}

    def stop(self) -> None:
        """End the child: told to exit, then by force. Safe to call twice and at any moment."""
        self._url = None
        if self._process is not None:
            self._process.stop(farewell=_EXIT, grace_s=self.stop_grace_s)

    def _running(self) -> EngineProcess:
        if self._process is None or self._process.pid is None:
            raise EngineStartFailed("The engine is not running.", hint="Call launch() first.")
        return self._process

    def _answer(self, timeout_s: float, *, doing: str) -> dict[str, Any]:
        return _answer(self._running(), timeout_s, doing=doing, log_begins_at=self._load_begins_at, port=self._port)

    def _aborted(self, error: EngineDied) -> EngineDied | EngineStartFailed:
        """A process that gave itself up during load, with its own reason for it."""
        reason = why_aborted(self._running().log_text(self._load_begins_at))
        if reason is None:
            return error
        return EngineStartFailed(
            f"llama.cpp gave up while loading: {reason}",
            hint="Most often a setting it cannot work with (a very small n_ctx, n_batch 0 ...). Change it.",
            evidence={**error.evidence, "known_by": "message", "log_line": reason},
        )


def check(choice: "EngineChoice") -> None:
    """Raises MissingDependency where xllamacpp is not installed."""
    if not _is_installed("xllamacpp"):
        raise MissingDependency("Running llama.cpp inside kvscope", "llama-cpp", "xllamacpp")


def version(choice: "EngineChoice") -> tuple[str, str]:
    """Version of the package, and the hash of its compiled part."""
    return _package_version("xllamacpp")


def create(choice: "EngineChoice", model: ModelSpec | None, settings: Mapping[str, SettingValue]) -> LlamaCppEngine:
    """As ``EngineChoice.create``."""
    if model is None:
        raise ModelNotFound("llama.cpp needs a model to run.", hint="Give the path of its .gguf file.")
    return LlamaCppEngine(model=model, settings=settings, port=choice.port)


def try_start(choice: "EngineChoice") -> str:
    """Start the child and end it again: whether xllamacpp works here. Its version. Raises as ``launch``."""
    process, stated = _start_worker()
    process.stop(farewell=_EXIT)
    return stated


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


def _start_worker() -> tuple[EngineProcess, str]:
    process = EngineProcess(python_command(_WORKER), name="llama.cpp", talks=True, environment=ENVIRONMENT)
    process.start()
    try:
        return process, str(_answer(process, START_TIMEOUT_S, doing="starting")["version"])
    except BaseException:
        process.stop()
        raise


def _answer(
    process: EngineProcess, timeout_s: float, *, doing: str, log_begins_at: int = 0, port: int = 0
) -> dict[str, Any]:
    """The worker's next message. Raises the error that it describes."""
    message = process.receive_message(timeout_s, doing=doing)
    if message.get("event") != "error":
        return message
    match message.get("kind"):
        case "missing_dependency":
            raise MissingDependency("Running llama.cpp inside kvscope", "llama-cpp", "xllamacpp")
        case "broken_dependency":
            raise EngineNotFound(
                f"The package xllamacpp is installed but cannot be loaded: {message['message']}.",
                hint="Install the system library it names, or reinstall: pip install --force-reinstall xllamacpp",
            )
        case "invalid_settings":
            raise InvalidSettings(
                message["message"], hint="Correct it and start again.", evidence={"known_by": "message"}
            )
        case "load_failed":
            why = why_not_loaded(_log_with_reason(process, log_begins_at), port=port, engine="llama.cpp")
            if not why.evidence:  # the log says nothing
                why = unexplained_start("llama.cpp", str(message.get("message")), process.memory_limits())
            raise why
    raise EngineReplyError(f"kvscope's llama.cpp process failed: {message.get('message')}", hint="This is a bug.")


def _log_with_reason(process: EngineProcess, begins_at: int) -> str:
    """The log of a load that failed. llama.cpp writes it in a thread of its own, so the reason may come a little
    after the failure."""
    until_s = time.monotonic() + _REASON_WAIT_S
    while not states_error(log := process.log_text(begins_at)) and time.monotonic() < until_s:
        time.sleep(_REASON_STEP_S)
    return log


def model_file(model: ModelSpec) -> str:
    """The path that an engine is given. Raises ModelNotFound when the model was read from a description alone."""
    if model.file_path is None:
        raise ModelNotFound(
            f"{model.name} has no weights here: it was read from {model.source}.",
            hint="To run it, give the path of its .gguf file.",
        )
    return model.file_path
