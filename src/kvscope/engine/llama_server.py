"""A llama-server program of the user's own, started with flags made from the settings and spoken to over HTTP.

It loads its model as it starts, so there is no moment between the two, and it cannot give the model up and live on.
"""

import functools
import os
import re
import shlex
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from kvscope.engine.base import Capabilities, EngineReport
from kvscope.engine.http_client import run
from kvscope.engine.llama_cpp import model_file
from kvscope.engine.llama_flags import check_model, flags, not_predicted, settings_of
from kvscope.engine.llama_http import ENVIRONMENT, LOAD_TIMEOUT_S, SLOT_FOLDER, LlamaHttp
from kvscope.engine.llama_log import read_address, why_aborted, why_not_loaded
from kvscope.engine.openai_http import get_text
from kvscope.engine.process import EngineProcess
from kvscope.errors import (
    ConnectionLost,
    ConnectionRefused,
    EngineError,
    EngineNotFound,
    EngineStartFailed,
    EngineTimeout,
    InvalidSettings,
    ModelNotFound,
    OutOfMemory,
    ServerError,
)
from kvscope.model.spec import ModelSpec
from kvscope.scenario import SettingValue

if TYPE_CHECKING:
    from kvscope.engine.registry import EngineChoice

_POLL_S = 0.05
_VERSION_TIMEOUT_S = 20.0
_MOST_VERSION_BYTES = 1024**2
# No load says so much: what does has lost itself, and would fill the disk.
_MOST_LOAD_LOG_BYTES = 1024**3


class LlamaServerEngine(LlamaHttp):
    """``command``: the program and flags of one's own. Flags made from ``settings`` follow them, and the last wins."""

    capabilities = Capabilities(
        baseline_before_load=False,
        can_unload=False,
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
        command: str,
        model: ModelSpec,
        settings: Mapping[str, SettingValue],
        port: int = 0,
        load_timeout_s: float = LOAD_TIMEOUT_S,
    ) -> None:
        self._command = split_command(command)
        self._own = settings_of(self._command, os.environ)
        super().__init__(settings={**self._own, **settings})
        self._model_path = model_file(model)
        check_model(self._command, self._model_path)
        self._port = port
        self._load_timeout_s = load_timeout_s
        self._address: str | None = None
        self._address_read_to = 0

    def launch(self) -> None:
        """Start the program; it begins to load its model at once. Raises EngineNotFound, InvalidSettings."""
        arguments = ("--model", self._model_path, "--host", "127.0.0.1", "--port", str(self._port))
        slots = () if "--slot-save-path" in self._command else ("--slot-save-path", SLOT_FOLDER)
        # What the command sets itself is not said again: another version may spell it in another way.
        added = {n: value for n, value in self.settings.items() if n not in self._own or self._own[n] != value}
        command = (*self._command, *arguments, *slots, *flags(added))
        self._process = EngineProcess(command, name="llama-server", talks=False, environment=ENVIRONMENT)
        self._process.start()

    def load(self) -> EngineReport:
        """Wait until the server answers. Raises InvalidSettings, EngineModelError, OutOfMemory, EngineStartFailed,
        EngineTimeout, EngineDied."""
        process = self._process
        if process is None or process.pid is None:
            raise EngineStartFailed("llama-server is not running.", hint="Call launch() first.")
        until_s = time.monotonic() + self._load_timeout_s
        while (url := self._answering()) is None:
            if not process.alive():
                raise self._why_it_ended(process)
            if time.monotonic() > until_s:
                self.stop()
                raise EngineTimeout(
                    f"llama-server was not ready within {self._load_timeout_s:g} s.",
                    hint="A large model on a slow disk can need longer. Its log is kept with the trial.",
                )
            if process.log_size() > _MOST_LOAD_LOG_BYTES:
                self.stop()
                raise EngineStartFailed(
                    f"llama-server has logged more than {_MOST_LOAD_LOG_BYTES:,} bytes and is still not ready.",
                    hint="Look at the end of its log, kept with the trial; is the verbosity too high?",
                    evidence={"known_by": "message"},
                )
            time.sleep(_POLL_S)
        self._url = url
        report = self._report(_version_of(process.log_text()))
        unknown = not_predicted(self._command)
        if not unknown:
            return report
        warning = (
            "flags-not-predicted",
            f"The engine's command has {', '.join(unknown)}: what they change in its memory is not predicted.",
            "Differences from the prediction, and what is left unexplained, include it.",
        )
        return replace(report, warnings=(*report.warnings, warning))

    def _answering(self) -> str | None:
        """The server's URL once it is healthy: it listens before the model is loaded, and answers 503 until then."""
        self._look_for_address()
        url = self._address
        if url is None:
            return None
        try:
            run(get_text(f"{url}/health"))
        except (ServerError, ConnectionRefused, ConnectionLost):
            return None
        return url

    def _look_for_address(self) -> None:
        """In what was logged since the last look, and there at most what was logged when this one begins."""
        process = self._process
        assert process is not None
        until = process.log_size()
        while self._address_read_to < until:
            lines, end = process.log_lines(self._address_read_to)
            if end == self._address_read_to:
                return
            self._address_read_to = end
            self._address = read_address(lines) or self._address

    def _why_it_ended(self, process: EngineProcess) -> EngineError:
        log = process.log_text()
        if (refused := _refused_flag(log)) is not None:
            return InvalidSettings(
                f"llama-server refuses its command line: {refused}",
                hint="Compare the flags with `llama-server --help`: this version may spell it differently.",
                evidence={"known_by": "message", "log_line": refused},
            )
        death = process.death(while_doing="loading")
        if isinstance(death, OutOfMemory):
            return death
        if (reason := why_aborted(log)) is not None:
            return EngineStartFailed(
                f"llama-server gave up while loading: {reason}",
                hint="Most often a setting it cannot work with (a very small n_ctx, n_batch 0 ...). Change it.",
                evidence={**death.evidence, "known_by": "message", "log_line": reason},
            )
        why = why_not_loaded(log, port=self._port, engine="llama-server")
        if type(why) is EngineStartFailed:
            return death
        why.evidence = {**death.evidence, **why.evidence}
        return why

    def unload(self) -> None:
        """Not possible: EngineStartFailed is raised."""
        raise EngineStartFailed(
            "llama-server cannot give up its model and live on.", hint="Its memory is released when it is stopped."
        )

    def stop(self) -> None:
        """End the program: SIGTERM, then by force. Safe to call twice and at any moment."""
        self._url = None
        if self._process is not None:
            self._process.stop(grace_s=self.stop_grace_s)


def check(choice: "EngineChoice") -> None:
    """Raises EngineNotFound where the command is none, or states no version."""
    try:
        version(choice)
    except EngineError as error:
        raise EngineNotFound(error.message, hint=error.hint) from error


def version(choice: "EngineChoice") -> tuple[str, str]:
    """As ``command_version``."""
    assert choice.command is not None
    return command_version(choice.command)


def command_settings(choice: "EngineChoice") -> Mapping[str, SettingValue]:
    """What the command's own flags and the environment set."""
    assert choice.command is not None
    return settings_of(split_command(choice.command), os.environ)


def own_settings(
    choice: "EngineChoice", settings: Mapping[str, SettingValue], model: ModelSpec | None
) -> Mapping[str, SettingValue]:
    """As ``command_settings``, where these settings do not say otherwise."""
    return {name: value for name, value in command_settings(choice).items() if name not in settings}


def create(choice: "EngineChoice", model: ModelSpec | None, settings: Mapping[str, SettingValue]) -> LlamaServerEngine:
    """As ``EngineChoice.create``."""
    assert choice.command is not None
    if model is None:
        raise ModelNotFound("llama-server needs a model to run.", hint="Give the path of its .gguf file.")
    return LlamaServerEngine(command=choice.command, model=model, settings=settings, port=choice.port)


def try_start(choice: "EngineChoice") -> str:
    """The program says its version and ends."""
    return version(choice)[0]


def split_command(command: str) -> tuple[str, ...]:
    """A command as a shell would read it. Raises InvalidSettings."""
    try:
        parts = tuple(shlex.split(command))
    except ValueError as error:
        raise InvalidSettings(f"The engine's command cannot be read: {error}.", hint="Check its quotes.") from error
    if not parts:
        raise InvalidSettings("The engine's command is empty.", hint="Give the path of llama-server.")
    return parts


@functools.cache
def command_version(command: str) -> tuple[str, str]:
    """(version, build) as the program's own --version states them; asked once. Raises EngineNotFound."""
    program = split_command(command)
    said = _stated_version(program)
    found = re.search(r"version: (\S+ ?(?:\(\S+\))?)", said)
    if found is None:
        first = said.strip().partition("\n")[0][:200]
        raise EngineNotFound(
            f"{program[0]!r} --version does not state a version{first and f', but: {first}'}.",
            hint="Is it llama-server?",
        )
    build = " ".join(line.strip() for line in said.splitlines() if "version" in line or "built" in line)
    return found[1].strip(), build


def _stated_version(program: tuple[str, ...]) -> str:
    """All that the program says to --version. One that does not end is ended, with what it has started. Raises
    EngineNotFound, EngineStartFailed."""
    process = EngineProcess((*program, "--version"), name=program[0], talks=False)
    process.start()
    until_s = time.monotonic() + _VERSION_TIMEOUT_S
    try:
        while not process.exits_within(_POLL_S):
            if time.monotonic() > until_s or process.log_size() > _MOST_VERSION_BYTES:
                raise EngineNotFound(
                    f"{program[0]!r} did not answer --version within {_VERSION_TIMEOUT_S:g} s and "
                    f"{_MOST_VERSION_BYTES:,} bytes.",
                    hint="Is it llama-server?",
                )
        return process.log_text()
    finally:
        process.stop(grace_s=0.5)


def _version_of(log: str) -> str:
    found = re.search(r"build_info: (\S+)", log) or re.search(r"build: (\d+ \(\S+\))", log)
    return found[1] if found else "unknown"


def _refused_flag(log: str) -> str | None:
    """What the argument parser said, where it was that which failed."""
    for line in log.splitlines():
        if line.startswith("error: ") or "error while handling argument" in line:
            return line.removeprefix("error: ").strip()
    return None
