"""vLLM's own server, started with flags made from the settings and spoken to over HTTP.

It loads its model as it starts, so there is no moment between the two. ``command`` is the program of the environment
that vLLM is installed in (/path/venv/bin/vllm, or its python); without one it is the Python that runs kvscope.
The server is a tree of processes (the API, the engine's core, a worker for each device); all are in pids() and below.

Developer's paths are turned on (VLLM_SERVER_DEV_MODE=1): only with them can the prefix cache be dropped.
"""

import os
import socket
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvscope.engine.base import (
    NO_VARIABLES,
    Capabilities,
    ChatRequest,
    ContextLimit,
    EngineReport,
    Generation,
    Load,
    LoadResult,
    Message,
    ReportedBuffer,
)
from kvscope.engine.http_client import Limits, Reply, run
from kvscope.engine.load_client import explained, send_load
from kvscope.engine.openai_http import body_text, json_object
from kvscope.engine.openai_text import prepare_request
from kvscope.engine.prepared import Prepared, ask
from kvscope.engine.process import LOG_TAIL_LINES, EngineProcess
from kvscope.engine.prometheus import Metrics, parse_metrics
from kvscope.engine.scores_nothing import ScoresNothing
from kvscope.engine.server_address import ServerAddress
from kvscope.engine.server_counts import count_by_vllm
from kvscope.engine.server_metrics import statistics_of
from kvscope.engine.vllm_flags import CPU_POOL, environment, flags, settings_of
from kvscope.engine.vllm_log import pool_facts, pool_labels, read_start, why_not_started
from kvscope.engine.vllm_program import Program, find_program
from kvscope.errors import (
    ConnectionLost,
    ConnectionRefused,
    ContextOverflow,
    EngineDied,
    EngineError,
    EngineStartFailed,
    EngineTimeout,
    KvscopeError,
    ModelNotFound,
    ServerError,
)
from kvscope.model.spec import ModelSpec
from kvscope.scenario import SettingValue
from kvscope.units import MIB

if TYPE_CHECKING:
    from kvscope.engine.registry import EngineChoice

NAME = "vllm"
LOAD_TIMEOUT_S = 1800.0
_POLL_S = 0.2
# The outer process needs this long to end itself at most (seen: 2 s), and says so before.
_INNER_DEATH_S = 15.0
_CORE = "EngineCore encountered an issue"
_READY = Limits(timeout_s=5.0, stall_s=5.0, connect_s=2.0)
_SLOW = Limits(timeout_s=120.0, stall_s=120.0)
_ENVIRONMENT = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
# vLLM's own default follows the machine's memory: 92 % of it, which on a CPU is everybody's. GiB:
_CPU_POOL_DEFAULT = 1
_POOL_SETTINGS = (CPU_POOL, "kv_cache_memory_bytes", "gpu_memory_utilization", "num_gpu_blocks_override")


class VllmEngine(ScoresNothing):
    """See ``kvscope.engine.base`` for the order of calls. ``settings``: ``vllm_flags.known_settings``."""

    name = NAME
    # How long each step of stopping is given: SIGTERM, SIGKILL. Its processes end one after the other.
    stop_grace_s = 20.0

    def __init__(
        self,
        *,
        program: Program,
        model: ModelSpec,
        settings: Mapping[str, SettingValue],
        port: int = 0,
        load_timeout_s: float = LOAD_TIMEOUT_S,
    ) -> None:
        self._program = program
        self._model_folder = model_folder(model)
        self.settings: Mapping[str, SettingValue] = {**_own_settings(program, settings), **settings}
        self._flags = tuple(flags(self.settings))
        self._port = port
        self._load_timeout_s = load_timeout_s
        self._process: EngineProcess | None = None
        self._server: ServerAddress | None = None
        self._served_model = ""
        can_sleep = self.settings.get("enable_sleep_mode") is True and not program.is_cpu
        self.capabilities = Capabilities(
            baseline_before_load=False,
            can_unload=can_sleep,
            counts_prompt_tokens=True,
            reports_prompt_tokens=True,
            reports_cached_tokens=True,
            reports_timings=False,
            reports_buffers=True,
            has_pid=True,
            can_clear_cache=True,
            answers_together=True,
            unload_way="POST /sleep?level=2: weights and cache are dropped" if can_sleep else "",
            completes_text=True,
        )

    # --- life -----------------------------------------------------------------------------------------------------

    def launch(self) -> None:
        """Start the program; it begins to load its model at once. Raises EngineNotFound."""
        port = self._port or _free_port()
        # Without it, how much of a prompt was found in the cache is not stated.
        said = ("--enable-prompt-tokens-details", "--host", "127.0.0.1", "--port", str(port))
        command = (*self._program.serve(str(self._model_folder)), *said, *self._flags)
        own = {**_ENVIRONMENT, **environment(self.settings)}
        self._process = EngineProcess(command, name="vLLM", talks=False, environment=own)
        self._process.start()
        self._server = ServerAddress(f"http://127.0.0.1:{port}")

    def load(self) -> EngineReport:
        """Wait until the server answers. Raises InvalidSettings, EngineModelError, OutOfMemory, EngineStartFailed,
        EngineTimeout, EngineDied."""
        process = self._process
        if process is None or process.pid is None or self._server is None:
            raise EngineStartFailed("vLLM is not running.", hint="Call launch() first.")
        until_s = time.monotonic() + self._load_timeout_s
        while (listed := self._listed_models()) is None:
            if not process.alive():
                raise _why_it_ended(process)
            if time.monotonic() > until_s:
                self.stop()
                raise EngineTimeout(
                    f"vLLM was not ready within {self._load_timeout_s:g} s.",
                    hint="A large model on a slow disk can need longer. Its log is kept with the trial.",
                )
            time.sleep(_POLL_S)
        self._served_model = str(listed["id"])
        return self._report(process, listed)

    def _listed_models(self) -> dict[str, Any] | None:
        """What /v1/models says of the model, once the server answers: it listens when the model is loaded."""
        assert self._server is not None
        try:
            found = run(self._server.json("GET", "/v1/models", limits=_READY))["data"][0]
            return dict(found)
        except (EngineError, KeyError, IndexError, TypeError, ValueError):
            return None

    def _report(self, process: EngineProcess, listed: Mapping[str, Any]) -> EngineReport:
        metrics = self._metrics()
        length = listed.get("max_model_len")
        effective = {**read_start(process.log_text()), **pool_facts(metrics)}
        if isinstance(length, int):
            effective["max_model_len"] = length
        return EngineReport(
            version=self._version(),
            build=self._program.build,
            buffers=_buffers(pool_labels(metrics)),
            effective=effective,
            slots=(),
            context_limit=ContextLimit(tokens=length, source="GET /v1/models: max_model_len")
            if isinstance(length, int)
            else None,
        )

    def _version(self) -> str:
        try:
            return str(run(self._address().json("GET", "/version"))["version"])
        except (EngineError, KeyError):
            return self._program.version

    def unload(self) -> None:
        """Sleep mode, level 2. Raises EngineStartFailed where it was not turned on (enable_sleep_mode), and on a CPU,
        where it gives nothing back."""
        if not self.capabilities.can_unload:
            raise EngineStartFailed(
                "This vLLM cannot give up its model and live on.",
                hint="On a GPU it can, with enable_sleep_mode=true. Otherwise stopping it releases its memory.",
            )
        body_text(self._ask("POST", "/sleep?level=2", limits=_SLOW))

    def stop(self) -> None:
        """End the program and all that it started: SIGTERM, then by force. Safe to call twice and at any moment."""
        self._server = None
        if self._process is not None:
            self._process.stop(grace_s=self.stop_grace_s)

    def pids(self) -> tuple[int, ...]:
        """The server's process while it runs; its children (engine's core, workers) are for the probe to find."""
        process = self._process
        return (process.pid,) if process is not None and process.pid is not None and process.alive() else ()

    def memory_probe(self) -> None:
        """None: the processes are there to be watched."""

    # --- answering ------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """Where the server answers. Raises EngineStartFailed before it is launched."""
        return self._address().url

    def _address(self) -> ServerAddress:
        if self._server is None:
            raise EngineStartFailed("The engine has no model loaded.", hint="Call load() first.")
        return self._server

    def count_prompt_tokens(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        template_variables: Mapping[str, Any] = NO_VARIABLES,
    ) -> int:
        """Tokens of the conversation in the server's own template and tokenizer (POST /tokenize)."""
        return run(self.count_prompt_tokens_async(messages, tools, template_variables))

    async def count_prompt_tokens_async(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        template_variables: Mapping[str, Any] = NO_VARIABLES,
    ) -> int:
        """As ``count_prompt_tokens``."""
        request = ChatRequest(
            messages=tuple(messages), tools=tuple(tools), template_variables=template_variables, max_output_tokens=1
        )
        try:
            return await count_by_vllm(self._address(), self._served_model, request, is_chat=True)
        except (ConnectionLost, ConnectionRefused) as error:
            raise self._explained(error) from error

    def generate(self, request: ChatRequest) -> Generation:
        """Send one request and wait for its answer. Raises an EngineError, EngineDied if the process has gone."""
        return run(self.generate_async(request))

    async def generate_async(self, request: ChatRequest) -> Generation:
        """As ``generate``, for many at once."""
        try:
            return await ask(self._prepare(request))
        except ContextOverflow as error:
            raise await with_count(error, self._address(), self._served_model, request) from error
        except (ConnectionLost, ConnectionRefused) as error:
            raise self._explained(error) from error
        except ServerError as error:
            if _CORE not in error.message:
                raise
            # Said by the outer process when an inner one has died; it then ends itself.
            raise self._explained(error, wait_s=_INNER_DEATH_S) from error

    def generate_many(self, load: Load) -> LoadResult:
        """As ``Engine.generate_many``."""
        result = explained(send_load(load, self._prepare), self._why_lost)
        return with_counts(result, load, self._address(), self._served_model)

    def _prepare(self, request: ChatRequest) -> Prepared:
        return prepare_request(self.url, request, model=self._served_model, fields=request_fields(request))

    def _why_lost(self, error: KvscopeError) -> KvscopeError:
        if isinstance(error, ConnectionLost | ConnectionRefused):
            return self._explained(error)
        if isinstance(error, ServerError) and _CORE in error.message:
            return self._explained(error, wait_s=_INNER_DEATH_S)
        return error

    def _explained(self, error: EngineError, *, wait_s: float = 2.0) -> EngineError:
        """A lost connection to a process of ours that has died is its death."""
        process = self._process
        if process is not None and process.exits_within(wait_s):
            death = process.death(while_doing="answering")
            death.evidence = {**error.evidence, **death.evidence}
            return death
        return error

    # --- what it says of itself -----------------------------------------------------------------------------------

    def _ask(self, method: str, path: str, *, limits: Limits | None = None) -> Reply:
        try:
            return run(self._address().ask(method, path, limits=limits or _SLOW))
        except (ConnectionLost, ConnectionRefused) as error:
            raise self._explained(error) from error

    def _metrics(self) -> Metrics:
        return parse_metrics(body_text(self._ask("GET", "/metrics")))

    def statistics(self) -> Mapping[str, float]:
        """The server's own counters (/metrics)."""
        return statistics_of(self._metrics(), NAME)

    def active_requests(self) -> int | None:
        """Requests being computed or waiting; None where the server does not say."""
        stated = self.statistics()
        running, waiting = stated.get("requests_running"), stated.get("requests_waiting")
        return None if running is None or waiting is None else int(running + waiting)

    def clear_cache(self) -> str | None:
        """Drop the prefix cache (POST /reset_prefix_cache). What the pool holds is the same before and after."""
        reply = self._ask("POST", "/reset_prefix_cache")
        if reply.status == 404:
            return "This vLLM has no /reset_prefix_cache (it needs VLLM_SERVER_DEV_MODE=1)."
        text = body_text(reply)
        if text.strip() and json_object(text).get("success") is False:
            return "vLLM says that it could not: blocks are still held by requests."
        return None

    def host_cache(self) -> ReportedBuffer | None:
        """None: vLLM keeps no copies of prompts in host memory by itself."""
        return None

    def checkpoints(self) -> tuple[ReportedBuffer, ...]:
        """None: states of recurrent models are in the pool."""
        return ()

    def log_tail(self, lines: int = LOG_TAIL_LINES) -> str:
        """The last lines of the engine's log; after stop, of what was kept of it."""
        return "" if self._process is None else self._process.log_tail(lines)


def request_fields(request: ChatRequest) -> dict[str, Any]:
    """Fields of a request that are vLLM's own. A salt of its own keeps it from finding what others left in the prefix
    cache. Tools are shown to the model, and what it writes stays text: to make calls of it, the server would have to
    be told how this model writes them (--tool-call-parser)."""
    salt = {} if request.reuse_prefix else {"cache_salt": uuid.uuid4().hex}
    return {"ignore_eos": request.ignore_end, **salt, **({"tool_choice": "none"} if request.tools else {})}


async def with_count(
    error: ContextOverflow, server: ServerAddress, model: str, request: ChatRequest
) -> ContextOverflow:
    """A refusal with the prompt's number of tokens: vLLM itself stops counting one token behind its limit."""
    try:
        tokens = await count_by_vllm(server, model, request, is_chat=True)  # of its text, where it has one
    except EngineError:
        return error
    return ContextOverflow(
        f"The prompt has {tokens} tokens, {request.max_output_tokens} are asked for. {error.message}",
        hint="Shorten the prompt or the answer, or start vLLM with a larger max_model_len.",
        evidence=error.evidence,
    )


def with_counts(result: LoadResult, load: Load, server: ServerAddress, model: str) -> LoadResult:
    """``with_count`` of every refusal of a load that is over."""
    answers = tuple(
        replace(answer, error=run(with_count(answer.error, server, model, load.requests[answer.index])))
        if isinstance(answer.error, ContextOverflow)
        else answer
        for answer in result.answers
    )
    return replace(result, answers=answers)


def _buffers(pool: Mapping[str, str]) -> tuple[ReportedBuffer, ...]:
    """The pool, where vLLM states the bytes it was made of (on a CPU, and where kv_cache_memory_bytes was set) and did
    not make another number of blocks. It is made of whole blocks, so up to one block of them is not used."""
    stated = pool.get("kv_cache_memory_bytes", "")
    if not stated.isdecimal() or pool.get("num_gpu_blocks_override", "None") != "None":
        return ()
    line = f"vllm:cache_config_info: kv_cache_memory_bytes={stated}, num_gpu_blocks={pool.get('num_gpu_blocks')}"
    printed = f"{int(stated) / MIB:.7f}"
    return (ReportedBuffer(component="kv_cache", name="pool", printed_mib=printed, line=line),)


def _why_it_ended(process: EngineProcess) -> EngineError:
    """Out of its whole log: the reason stands far above the end, in the words of an inner process."""
    death = process.death(while_doing="loading")
    why = why_not_started(process.log_text(), evidence=death.evidence)
    if type(why) is EngineStartFailed and not (type(death) is EngineDied and why.evidence):
        return death
    return why


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def model_folder(model: ModelSpec) -> Path:
    """The folder that vLLM is given. Raises ModelNotFound for a model that is not one."""
    path = Path(model.source).expanduser()
    folder = path if path.is_dir() else path.parent
    if not path.exists() or not (folder / "config.json").is_file():
        raise ModelNotFound(
            f"vLLM runs a folder with a config.json, and {model.name} was read from {model.source}.",
            hint="Pass the folder that its config.json, tokenizer and safetensors are in, downloaded beforehand.",
        )
    return folder


def _own_settings(program: Program, settings: Mapping[str, SettingValue]) -> dict[str, SettingValue]:
    by_command = {name: value for name, value in settings_of(program.words).items() if name not in settings}
    if not program.is_cpu or any(name in {**by_command, **settings} for name in _POOL_SETTINGS):
        return by_command
    exported = os.environ.get(CPU_POOL, "")
    return {**by_command, CPU_POOL: int(exported) if exported.isdecimal() else _CPU_POOL_DEFAULT}


def command_settings(choice: "EngineChoice") -> Mapping[str, SettingValue]:
    """What the flags of a command of one's own set. Raises as ``check``."""
    return settings_of(find_program(choice.command).words)


def own_settings(
    choice: "EngineChoice", settings: Mapping[str, SettingValue], model: ModelSpec | None = None
) -> Mapping[str, SettingValue]:
    """What the command sets; on a CPU a pool of VLLM_CPU_KVCACHE_SPACE GiB, 1 where the environment does not say it."""
    return _own_settings(find_program(choice.command), settings)


def check(choice: "EngineChoice") -> None:
    """Raises EngineNotFound where there is no such program, or no vLLM installed for it."""
    find_program(choice.command)


def version(choice: "EngineChoice") -> tuple[str, str]:
    """(version, build) of the installed vLLM, without starting it."""
    program = find_program(choice.command)
    return program.version, program.build


def create(choice: "EngineChoice", model: ModelSpec | None, settings: Mapping[str, SettingValue]) -> VllmEngine:
    """As ``EngineChoice.create``."""
    if model is None:
        raise ModelNotFound("vLLM needs a model to run.", hint="Give the folder of its files with --model.")
    return VllmEngine(program=find_program(choice.command), model=model, settings=settings, port=choice.port)


def try_start(choice: "EngineChoice") -> str:
    """Its version. Nothing is started: vLLM's program takes half a minute to say anything."""
    return find_program(choice.command).version
