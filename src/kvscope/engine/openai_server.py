"""A server that runs already and speaks OpenAI's interface: used as it is, by its address.

Nothing is started, ended, signalled or set. Read are its list of models, what it says of itself (``served_facts.py``)
and, where its process is on this machine, that process's memory. The adapters for a running llama.cpp, vLLM or SGLang
are this one and what they can do besides.
"""

import asyncio
import uuid
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, TypeVar

from kvscope.engine.api_key import read_api_key
from kvscope.engine.base import (
    NO_VARIABLES,
    Capabilities,
    ChatRequest,
    EngineReport,
    Generation,
    Load,
    LoadAnswer,
    LoadResult,
    Message,
    ReportedBuffer,
    ScoreRequest,
    TokenScores,
)
from kvscope.engine.http_client import run
from kvscope.engine.load_client import explained, send_load
from kvscope.engine.openai_dialect import (
    OTHER_WORDS,
    first_of_several,
    has_no_chat,
    neither,
    not_greedy,
    refused_field,
)
from kvscope.engine.openai_http import llama_cpp_fields, prepare_completion
from kvscope.engine.openai_text import check_text, prepare_request
from kvscope.engine.prepared import Prepared, ask
from kvscope.engine.prometheus import parse_metrics
from kvscope.engine.registry import Served
from kvscope.engine.served_facts import LLAMA_CPP, SGLANG, TGI, VLLM, ServedFacts, ask_facts
from kvscope.engine.server_address import ServerAddress
from kvscope.engine.server_counts import COUNTERS, plain_text
from kvscope.engine.server_metrics import statistics_of
from kvscope.engine.server_process import (
    ServerProcess,
    Warned,
    check_named,
    find_process,
    too_small,
    with_its_shards,
)
from kvscope.engine.server_texts import COMPLETES_TEXT, SCORES_TOKENS, score_served, tokenize_served
from kvscope.errors import (
    ConnectionLost,
    ConnectionRefused,
    EngineError,
    EngineReplyError,
    EngineStartFailed,
    InvalidSettings,
    KvscopeError,
    UsageError,
)
from kvscope.model.spec import ModelSpec
from kvscope.scenario import SettingValue

if TYPE_CHECKING:
    from kvscope.engine.registry import EngineChoice

T = TypeVar("T")
# Servers that obey ``ignore_eos``, by their sources.
_OBEYS_IGNORE_EOS = (LLAMA_CPP, VLLM, SGLANG)
_HAS_METRICS = (LLAMA_CPP, VLLM, SGLANG)
_FIRST_WORDS = ChatRequest(messages=(Message(role="user", content="Hello."),), max_output_tokens=1)
_UNTIL_KNOWN = Capabilities(
    baseline_before_load=False,
    can_unload=False,
    counts_prompt_tokens=False,
    reports_prompt_tokens=False,
    reports_cached_tokens=False,
    reports_timings=False,
    reports_buffers=False,
    has_pid=False,
    owns_process=False,
    forces_length=False,
    answers_together=True,
)


class OpenAIServer:
    """See the module. ``capabilities`` are what is known of the server so far: all of it once it is loaded."""

    name = "openai"
    # The program that must be at the address; None: any.
    kind: str | None = None

    def __init__(
        self,
        server: ServerAddress,
        *,
        served_model: str | None = None,
        pid: int | None = None,
        as_served: Served | None = None,
    ) -> None:
        self.settings: Mapping[str, SettingValue] = {}
        self.capabilities = _UNTIL_KNOWN
        self.server = server
        self._served_model = served_model
        self._pid = pid
        self._as_served = as_served
        self._facts: ServedFacts | None = None
        self._process = ServerProcess(identity=None)
        self._is_chat = True
        self._other_words: dict[str, str | None] = {}

    @classmethod
    def of(cls, choice: "EngineChoice") -> Self:
        """The server that was chosen. Raises UsageError for an address that is none, or a key that is not there."""
        url = choice.server_url
        if url is None:
            raise UsageError(f"{choice.name} is a server that runs already.", hint="Give its address with --url.")
        address = ServerAddress(url, read_api_key(choice.api_key_env))
        return cls(address, served_model=choice.served_model, pid=choice.pid, as_served=choice.as_served)

    @property
    def url(self) -> str:
        """Where the server answers."""
        return self.server.url

    @property
    def facts(self) -> ServedFacts:
        """What the server says of itself. Raises EngineStartFailed before ``launch``."""
        if self._facts is None:
            raise EngineStartFailed("The server was not asked what it is yet.", hint="Call launch() first.")
        return self._facts

    # --- the life of an engine --------------------------------------------------------------------------------------

    def launch(self) -> None:
        """Ask the server what it is, and find its process. Raises an EngineError where it does not answer, UnknownName
        for a model that it does not have, EngineDied or UsageError for a named process that is not there, and
        InvalidSettings where it is not what it was before."""
        self._facts = self.ask_facts()
        self._check_unchanged(self._facts)
        self._process = find_process(self._pid, self.server.host, self.server.port)
        kind = self._facts.kind
        if kind == TGI and self._pid is None:
            self._process = with_its_shards(self._process)
        self.capabilities = replace(
            _UNTIL_KNOWN,
            has_pid=self._process.identity is not None,
            forces_length=kind in _OBEYS_IGNORE_EOS,
            completes_text=kind in COMPLETES_TEXT,
            scores_tokens=kind in SCORES_TOKENS,
        )

    def _check_unchanged(self, facts: ServedFacts) -> None:
        changed = [] if self._as_served is None else self._as_served.changed(_as_served(facts))
        if changed:
            raise InvalidSettings(
                f"The server is not what it was when this design was begun: {'; '.join(changed)}.",
                hint="Run the same command again: what the server is now is measured as a design of its own.",
            )

    def ask_facts(self) -> ServedFacts:
        """What the server says of itself now. Raises as ``launch``, EngineReplyError where it is another program than
        was chosen."""
        with self.server.hidden_in_errors():
            facts = run(ask_facts(self.server, self._served_model))
        if self.kind is not None and facts.kind != self.kind:
            raise EngineReplyError(
                f"The server at {self.url} does not say that it is {self.name}.",
                hint="Check the address, or use --engine openai, which takes any server with OpenAI's interface.",
            )
        return facts

    def load(self) -> EngineReport:
        """The server's model is loaded already: one request of one token shows what its answers state. Raises an
        EngineError where it is not answered."""
        answer = self._first_answer()
        can_count = self.facts.kind in COUNTERS
        self.capabilities = replace(
            self.capabilities,
            counts_prompt_tokens=can_count or answer.prompt_tokens is not None,
            counts_by_requests=not can_count,
            reports_prompt_tokens=answer.prompt_tokens is not None,
            reports_cached_tokens=answer.cached_tokens is not None,
            reports_timings=bool(answer.engine_timings),
            completes_text=self.capabilities.completes_text or not self._is_chat,
        )
        return self.report()

    def _first_answer(self) -> Generation:
        """Asked again without each field that the server refuses, as it then is for all requests."""
        for _ in OTHER_WORDS:
            try:
                return self.generate(_FIRST_WORDS)
            except EngineError as error:
                refused = refused_field(error)
                if refused is None or refused in self._other_words:
                    raise
                self._other_words[refused] = OTHER_WORDS[refused]
        return self.generate(_FIRST_WORDS)

    def report(self) -> EngineReport:
        """What is known of the server, as ``load`` gives it."""
        facts = self.facts
        return EngineReport(
            version=facts.version,
            build=facts.build,
            buffers=(),
            effective={"served_model": facts.model, "interface": self._interface, **facts.effective},
            slots=facts.slots,
            context_limit=facts.limit,
            warnings=(
                *self._process.warnings,
                *self._too_small(),
                *first_of_several(facts, self._served_model if self._is_chosen else None),
                *not_greedy(self._other_words),
            ),
        )

    def _too_small(self) -> tuple[Warned, ...]:
        size = self.facts.model_facts.get("size")
        return too_small(self._process, size) if isinstance(size, int) else ()

    @property
    def _is_chosen(self) -> bool:
        return self._as_served is None or self._as_served.is_chosen

    @property
    def _interface(self) -> str:
        return "/v1/chat/completions" if self._is_chat else "/v1/completions"

    def unload(self) -> None:
        """Not done: EngineStartFailed is raised."""
        raise EngineStartFailed(
            "The server was running before kvscope and keeps its model.", hint="Stop it yourself to see what it frees."
        )

    def stop(self) -> None:
        """Nothing is ended."""

    # --- what it is asked -------------------------------------------------------------------------------------------

    def generate(self, request: ChatRequest) -> Generation:
        """Send one request and wait for its answer. Raises an EngineError, EngineDied if its process has gone."""
        return run(self.generate_async(request))

    async def generate_async(self, request: ChatRequest) -> Generation:
        """As ``generate``, for many at once."""
        with self.server.hidden_in_errors():
            answer = await self._generate(request)
        return replace(answer, model=self.server.hide(answer.model))

    def generate_many(self, load: Load) -> LoadResult:
        """As ``Engine.generate_many``."""
        result = explained(send_load(load, self.prepare), self.explain)
        return replace(result, answers=tuple(self._without_key(answer) for answer in result.answers))

    def prepare(self, request: ChatRequest) -> Prepared:
        """The request as it is sent to this server. Raises UsageError for what it cannot be sent."""
        facts, known = self.facts, {"headers": self.server.headers, "fields": self._fields(request)}
        check_text(request)
        if self._is_chat or request.text is not None:
            prepared = prepare_request(self.url, request, model=facts.model, **known)
        elif request.tools:
            raise UsageError("This server has no chat, so it cannot be offered tools.", hint="Measure without tools.")
        else:
            text = plain_text(request.messages)
            prepared = prepare_completion(self.url, request, text, model=facts.model, **known)
        # llama.cpp's server gives each connection a thread, of a few, for as long as it is open.
        return replace(prepared, keeps_alive=facts.kind != LLAMA_CPP)

    def explain(self, error: KvscopeError) -> KvscopeError:
        """The error of a request, or the death of the server's process behind it."""
        if isinstance(error, ConnectionLost | ConnectionRefused | EngineReplyError):
            with self.server.hidden_in_errors():
                return run(self._death(error)) or error
        return error

    def _without_key(self, answer: LoadAnswer) -> LoadAnswer:
        generation = answer.generation
        if generation is None:
            return answer
        return replace(answer, generation=replace(generation, model=self.server.hide(generation.model)))

    async def _generate(self, request: ChatRequest) -> Generation:
        try:
            try:
                return await ask(self.prepare(request))
            except EngineError as error:
                if not self._is_chat or request.text is not None or not has_no_chat(error):
                    raise
            return await self._as_completion(request)
        # An answer whose body ends with the connection breaks off like one that is whole.
        except (ConnectionLost, ConnectionRefused, EngineReplyError) as error:
            raise await self._death(error) or error from error

    async def _as_completion(self, request: ChatRequest) -> Generation:
        """The conversation as one text, to a server or a model that has no chat: so all are sent from then on."""
        self._is_chat = False
        try:
            return await ask(self.prepare(request))
        except KvscopeError as error:
            self._is_chat = True
            if not isinstance(error, EngineError) or not has_no_chat(error):
                raise
            raise neither(self.url, error) from error

    async def _death(self, broken: EngineError) -> EngineError | None:
        """As ``ServerProcess.death``. A process that is killed closes its connections a little before it has ended."""
        for wait_s in (0.02, 0.05, 0.1, 0.2):
            death = self._process.death(broken)
            if death is not None or not self._process.pids():
                return death
            await asyncio.sleep(wait_s)
        return self._process.death(broken)

    def _fields(self, request: ChatRequest) -> Mapping[str, Any]:
        replaced = {new: request.max_output_tokens for new in self._other_words.values() if new is not None}
        return {**self.own_fields(request), **dict.fromkeys(self._other_words), **replaced}

    def own_fields(self, request: ChatRequest) -> Mapping[str, Any]:
        """Fields of the request that only some servers know. Others are sent none: hosted ones refuse unknown names."""
        kind = self.facts.kind
        if kind == LLAMA_CPP:
            return llama_cpp_fields(request)
        if kind in (VLLM, SGLANG):
            # A salt of its own keeps a request from finding what others left in the prefix cache.
            salt = {} if request.reuse_prefix else {"cache_salt": uuid.uuid4().hex}
            return {"ignore_eos": request.ignore_end, **salt}
        return {}

    def count_prompt_tokens(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        template_variables: Mapping[str, Any] = NO_VARIABLES,
    ) -> int:
        """Tokens of the conversation as the server counts them: by its tokenizer where it can be asked, otherwise by a
        request of one token. Raises EngineReplyError where it states no number."""
        request = ChatRequest(
            messages=tuple(messages),
            tools=tuple(tools),
            template_variables=template_variables,
            max_output_tokens=1,
        )
        counter = COUNTERS.get(self.facts.kind)
        if counter is not None:
            with self.server.hidden_in_errors():
                return run(counter(self.server, self.facts.model, request, is_chat=self._is_chat))
        tokens = self.generate(request).prompt_tokens
        if tokens is None:
            raise EngineReplyError(
                "The server does not state how many tokens a prompt has.",
                hint="Give the model's own file with --model: prompts are then counted by it.",
            )
        return tokens

    def tokenize(self, text: str, *, with_special: bool) -> tuple[int, ...]:
        """As ``Engine.tokenize``, of llama.cpp's server."""
        return run(self._scored(tokenize_served(self.server, self.facts, text, with_special=with_special)))

    def score(self, request: ScoreRequest) -> TokenScores:
        """As ``Engine.score``, of llama.cpp's server."""
        return run(self._scored(score_served(self.server, self.facts, request)))

    async def _scored(self, asking: Coroutine[Any, Any, T]) -> T:
        try:
            return await asking
        except (ConnectionLost, ConnectionRefused) as error:
            raise await self._death(error) or error from error

    # --- what is seen of it -----------------------------------------------------------------------------------------

    def pids(self) -> tuple[int, ...]:
        """The server's process while it runs; its children are for the probe to find."""
        return self._process.pids()

    def memory_probe(self) -> None:
        """None: the process is there to be watched, or there is none."""

    def host_cache(self) -> ReportedBuffer | None:
        """None: the log of a server that runs already is not read."""
        return None

    def checkpoints(self) -> tuple[ReportedBuffer, ...]:
        """None: the log of a server that runs already is not read."""
        return ()

    def active_requests(self) -> int | None:
        """Requests being computed or waiting, from the server's metrics; None where it does not state both."""
        stated = self.statistics()
        running, waiting = stated.get("requests_running"), stated.get("requests_waiting")
        return None if running is None or waiting is None else int(running + waiting)

    def statistics(self) -> Mapping[str, float]:
        """The server's own counters, where it has metrics that are known here. Raises an EngineError where it has
        gone."""
        if self.facts.kind not in _HAS_METRICS:
            return {}
        try:
            reply = run(self.server.ask("GET", "/metrics"))
            if reply.status != 200:  # they may be turned off, as llama.cpp's are unless it was told --metrics
                return {}
            metrics = parse_metrics(reply.body.decode(errors="replace"))
            return statistics_of(metrics, self.facts.kind, model=self.facts.model)
        except EngineReplyError:
            return {}
        except (ConnectionLost, ConnectionRefused) as error:
            raise self._process.death(error) or error from error

    def clear_cache(self) -> str | None:
        """Not done: it would take it from whoever else uses the server."""
        return "The server was running before kvscope; what it keeps is left alone."

    def log_tail(self, lines: int = 60) -> str:
        """Empty: the log of a server that runs already is not read."""
        return ""


def check_attached(engine: type[OpenAIServer], choice: "EngineChoice") -> None:
    """What ``check`` does for a server that runs already. Raises UsageError, UnknownName, and an EngineError where it
    does not answer or is another program."""
    server = engine.of(choice)
    with nothing_measured():
        server.ask_facts()
    if choice.pid is not None:
        check_named(choice.pid)


@contextmanager
def nothing_measured() -> Iterator[None]:
    """An error inside is one of the command, before anything was measured: its exit code is 2."""
    try:
        yield
    except EngineError as error:
        error.exit_code = UsageError.exit_code
        raise


def attached_version(engine: type[OpenAIServer], choice: "EngineChoice") -> tuple[str, str]:
    """(version, build) as the server states them, "unknown" where it does not."""
    with nothing_measured():
        facts = engine.of(choice).ask_facts()
    return facts.version, facts.build


def create_attached(
    engine: type[OpenAIServer], choice: "EngineChoice", settings: Mapping[str, SettingValue]
) -> OpenAIServer:
    """An engine for the server. Raises InvalidSettings for any setting: it was given its own when it was started."""
    if settings:
        raise InvalidSettings(
            f"A server that runs already keeps the settings it was started with; these cannot be set: "
            f"{', '.join(sorted(settings))}.",
            hint="Start the server with them yourself, or let kvscope start the engine (without --url).",
        )
    return engine.of(choice)


def served(choice: "EngineChoice") -> Served:
    """What the server has, by its own words. Raises as ``check``."""
    with nothing_measured():
        found = _as_served(OpenAIServer.of(choice).ask_facts())
    return found if choice.served_model is not None else replace(found, is_chosen=False)


def _as_served(facts: ServedFacts) -> Served:
    return Served(
        model=facts.model,
        settings=facts.stated_settings,
        for_prediction=facts.predicted_settings,
        version=facts.version,
        build=facts.build,
        model_facts=facts.model_facts,
        model_path=facts.model_path,
    )


def check(choice: "EngineChoice") -> None:
    """As ``check_attached``."""
    check_attached(OpenAIServer, choice)


def version(choice: "EngineChoice") -> tuple[str, str]:
    """As ``attached_version``."""
    return attached_version(OpenAIServer, choice)


def create(choice: "EngineChoice", model: ModelSpec | None, settings: Mapping[str, SettingValue]) -> OpenAIServer:
    """As ``create_attached``. ``model`` is for predictions alone: what runs is what the server has."""
    return create_attached(OpenAIServer, choice, settings)


def try_start(choice: "EngineChoice") -> str:
    """There is nothing to start."""
    return ""
