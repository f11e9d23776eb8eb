"""What both ways of running llama.cpp share: its HTTP interface and its log."""

import os
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvscope.engine.base import (
    NO_VARIABLES,
    ChatRequest,
    EngineReport,
    Generation,
    Load,
    LoadResult,
    Message,
    ReportedBuffer,
    ScoreRequest,
    TokenScores,
)
from kvscope.engine.http_client import Reply, request, run
from kvscope.engine.kept_connection import KeptConnection
from kvscope.engine.llama_limits import ask_context_limit, read_slots
from kvscope.engine.llama_log import (
    load_is_logged,
    read_checkpoints,
    read_host_cache,
    read_report,
    states_what_is_kept,
)
from kvscope.engine.llama_scores import TOKENIZE_TIMEOUT_S, LlamaScores, tokenize
from kvscope.engine.load_client import explained, send_load
from kvscope.engine.openai_http import body_text, post_json, wire_conversation
from kvscope.engine.openai_text import prepare_request
from kvscope.engine.prepared import ask
from kvscope.engine.process import LOG_TAIL_LINES, EngineProcess
from kvscope.engine.prometheus import parse_metrics
from kvscope.engine.server_metrics import statistics_of
from kvscope.errors import (
    ConnectionLost,
    ConnectionRefused,
    EngineError,
    EngineReplyError,
    EngineStartFailed,
    KvscopeError,
)
from kvscope.scenario import SettingValue

LOAD_TIMEOUT_S = 600.0
# Made for measuring: nothing that depends on the machine's free memory or that runs before the first request, and a
# log in which the buffers appear.
DEFAULT_SETTINGS: Mapping[str, SettingValue] = {
    "n_parallel": 1,
    "fit_params": False,
    "warmup": False,
    "verbosity": 4,
    "endpoint_slots": True,
    "endpoint_metrics": True,
}
# On an assertion, llama.cpp would start a debugger to print where it was.
ENVIRONMENT = {"GGML_NO_BACKTRACE": "1"}

# A server erases its slots only where it could save them too, so it is given a folder; nothing is saved.
SLOT_FOLDER = tempfile.gettempdir() + os.sep

# What the server answers where something is turned off (--metrics was not given), and where it has no such path.
_TURNED_OFF = (501, 404)
_LOG_QUIET_S = 0.05
_LOG_WAIT_S = 2.0
# Lines about what is kept of earlier prompts: a few for each request.
_MOST_KEPT_LINES = 20_000


class LlamaHttp:
    """A llama.cpp server in a process of ours. Subclasses start it and say how it ends."""

    name = "llama.cpp"
    # How long each step of stopping is given: told to end, SIGTERM, SIGKILL.
    stop_grace_s = 5.0

    def __init__(self, *, settings: Mapping[str, SettingValue]) -> None:
        self.settings: Mapping[str, SettingValue] = {**DEFAULT_SETTINGS, **settings}
        self._process: EngineProcess | None = None
        self._url: str | None = None
        self._load_begins_at = 0
        self._kept_lines: deque[str] = deque(maxlen=_MOST_KEPT_LINES)
        self._kept_read_to = 0
        self._pool_tokens: int | None = None
        self._stated_version = "unknown"

    def pids(self) -> tuple[int, ...]:
        """The server's process while it runs; its children are for the probe to find."""
        process = self._process
        return (process.pid,) if process is not None and process.pid is not None and process.alive() else ()

    def memory_probe(self) -> None:
        """None: the process is there to be watched."""

    @property
    def url(self) -> str:
        """Where the server answers. Raises EngineStartFailed before it is loaded."""
        if self._url is None:
            raise EngineStartFailed("The engine has no model loaded.", hint="Call load() first.")
        return self._url

    def count_prompt_tokens(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        template_variables: Mapping[str, Any] = NO_VARIABLES,
    ) -> int:
        """Tokens of the conversation in the server's own template and tokenizer: what it will say it was sent."""
        return run(self.count_prompt_tokens_async(messages, tools, template_variables))

    async def count_prompt_tokens_async(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        template_variables: Mapping[str, Any] = NO_VARIABLES,
    ) -> int:
        """As ``count_prompt_tokens``."""
        wire = wire_conversation(messages, tools, template_variables)
        try:
            prompt = (await post_json(f"{self.url}/apply-template", wire)).get("prompt")
            # The server tokenizes its own prompt in the same way: special tokens read as such, BOS where the model
            # wants one (the template never writes it).
            body = {"content": prompt, "add_special": True, "parse_special": True}
            tokens = (await post_json(f"{self.url}/tokenize", body)).get("tokens")
        except (ConnectionLost, ConnectionRefused) as error:
            raise self._explained(error, doing="counting a prompt") from error
        if not isinstance(tokens, list):
            raise EngineReplyError("The server's reply to /tokenize holds no tokens.", hint="Is it llama.cpp's server?")
        return len(tokens)

    def generate(self, request: ChatRequest) -> Generation:
        """Send one request and wait for its answer. Raises an EngineError, EngineDied if the process has gone."""
        return run(self.generate_async(request))

    async def generate_async(self, request: ChatRequest) -> Generation:
        """As ``generate``, for many at once."""
        try:
            return await ask(prepare_request(self.url, request))
        except (ConnectionLost, ConnectionRefused) as error:
            raise self._explained(error) from error

    def generate_many(self, load: Load) -> LoadResult:
        """As ``Engine.generate_many``."""
        url = self.url
        # Its server gives each connection a thread, of a few, for as long as it is open.
        result = send_load(load, lambda chat: replace(prepare_request(url, chat), keeps_alive=False))
        return explained(result, self._why_lost)

    def tokenize(self, text: str, *, with_special: bool) -> tuple[int, ...]:
        """As ``Engine.tokenize``, by the server's /tokenize."""
        return run(self._tokenize(text, with_special))

    async def _tokenize(self, text: str, with_special: bool) -> tuple[int, ...]:
        async with KeptConnection(self.url) as server:
            try:
                return await tokenize(server.post, text, with_special=with_special, timeout_s=TOKENIZE_TIMEOUT_S)
            except (ConnectionLost, ConnectionRefused) as error:
                raise self._explained(error, doing="splitting a text into tokens") from error

    def score(self, request: ScoreRequest) -> TokenScores:
        """As ``Engine.score``, one forced token a request (``llama_scores.py``)."""
        return run(self._score(request))

    async def _score(self, request: ScoreRequest) -> TokenScores:
        async with KeptConnection(self.url) as server:
            try:
                return await LlamaScores(server.post, version=self._stated_version).score(request)
            except (ConnectionLost, ConnectionRefused) as error:
                raise self._explained(error, doing="scoring a text") from error

    def _why_lost(self, error: KvscopeError) -> KvscopeError:
        return self._explained(error) if isinstance(error, ConnectionLost | ConnectionRefused) else error

    def _explained(self, error: ConnectionLost | ConnectionRefused, *, doing: str = "answering") -> EngineError:
        """A lost connection to a process of ours that has died is its death."""
        process = self._process
        if process is not None and process.exits_within(1.0):
            death = process.death(while_doing=doing, since=self._load_begins_at)
            death.evidence = {**error.evidence, **death.evidence}  # such as how much of the answer had come
            return death
        return error

    def active_requests(self) -> int | None:
        """Requests being processed or waiting, from /metrics; None where the server does not say."""
        found = statistics_of(parse_metrics(self._stated("/metrics") or ""), self.name)
        try:
            return int(found["requests_running"] + found["requests_waiting"])
        except KeyError:
            return None

    def statistics(self) -> Mapping[str, float]:
        """The server's own counters, what its slots hold, and the tokens that its context was made for."""
        found = statistics_of(parse_metrics(self._stated("/metrics") or ""), self.name)
        slots = read_slots(self._stated("/slots")) or {}
        held = [tokens for tokens in slots.values() if tokens is not None]
        if slots and len(held) == len(slots):
            found["kv_cache_used_tokens"] = sum(held)
        if self._pool_tokens is not None:
            found["kv_cache_pool_tokens"] = self._pool_tokens
        return found

    def clear_cache(self) -> str | None:
        """Erase what each slot holds of earlier prompts. Copies in the host prompt cache stay: nothing drops them."""
        slots = read_slots(self._stated("/slots"))
        if slots is None:
            return "The server does not list its slots (--slots)."
        for slot in slots:
            reply = self._asked("POST", f"/slots/{slot}?action=erase", {})
            if reply.status in _TURNED_OFF:
                return "The server erases no slots: it was not started with --slot-save-path."
            body_text(reply)
        kept = self.host_cache()
        if kept is not None and float(kept.printed_mib) > 0:
            return f"The slots are erased. The host prompt cache stays ({kept.printed_mib} MiB): nothing drops it."
        return None

    def _stated(self, path: str) -> str | None:
        """What the server answers to a GET; None where that is turned off."""
        reply = self._asked("GET", path)
        return None if reply.status in _TURNED_OFF else body_text(reply)

    def _asked(self, method: str, path: str, payload: object = None) -> Reply:
        try:
            return run(request(method, self.url + path, payload))
        except (ConnectionLost, ConnectionRefused) as error:
            doing = "stating its counters" if method == "GET" else "clearing its cache"
            raise self._explained(error, doing=doing) from error

    def host_cache(self) -> ReportedBuffer | None:
        """The server's copies of earlier conversations, as last logged since load; None if it never said."""
        return read_host_cache(self._said_of_kept())

    def checkpoints(self) -> tuple[ReportedBuffer, ...]:
        """Context checkpoints as logged since load (sliding-window and recurrent models)."""
        return read_checkpoints(self._said_of_kept())

    def log_tail(self, lines: int = LOG_TAIL_LINES) -> str:
        """The last lines of the engine's log; after stop, of what was kept of it."""
        return "" if self._process is None else self._process.log_tail(lines)

    def _report(self, version: str) -> EngineReport:
        process = self._process
        assert process is not None
        until_s = time.monotonic() + _LOG_WAIT_S
        while not load_is_logged(process.log_text(self._load_begins_at)) and time.monotonic() < until_s:
            time.sleep(_LOG_QUIET_S)
        self._settle_log()
        self._stated_version = version
        report = read_report(process.log_text(self._load_begins_at), version=version)
        cells = report.effective.get("n_ctx")
        self._pool_tokens = cells if isinstance(cells, int) else None
        return replace(report, context_limit=run(ask_context_limit(self.url, report.slots)))

    def _said_of_kept(self) -> str:
        """The lines since load about what is kept of earlier prompts. Read on from where the last look ended."""
        process = self._process
        if process is None:
            return ""
        self._settle_log()
        if self._kept_read_to < self._load_begins_at:  # loaded anew
            self._kept_lines.clear()
            self._kept_read_to = self._load_begins_at
        until = process.log_size()
        while self._kept_read_to < until:
            lines, end = process.log_lines(self._kept_read_to)
            if end == self._kept_read_to:
                break
            self._kept_read_to = end
            self._kept_lines.extend(line for line in lines.splitlines() if states_what_is_kept(line))
        return "\n".join(self._kept_lines)

    def _settle_log(self) -> None:
        """Wait until nothing has been added to the log for a moment: it is written with a small delay."""
        process = self._process
        assert process is not None
        until_s = time.monotonic() + _LOG_WAIT_S
        size = -1
        while process.log_size() != size and time.monotonic() < until_s:
            size = process.log_size()
            time.sleep(_LOG_QUIET_S)
