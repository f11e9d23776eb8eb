"""A model on an Ollama server that runs already. The server is never started, stopped or given other settings; a model
is loaded and unloaded in it, unless another program had it loaded before: that one is used as it is.

Written from Ollama's documents and source (docs/api.md, server/routes.go, server/sched.go of 0.3 to 0.33) and tested
against a stand-in made from them. It has not been run against a real Ollama.
"""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvscope.engine.base import (
    NO_VARIABLES,
    Capabilities,
    ChatRequest,
    EngineReport,
    Generation,
    Load,
    LoadResult,
    Message,
    ReportedBuffer,
)
from kvscope.engine.http_client import PLAIN_TIMEOUT_S, run
from kvscope.engine.listening import is_same_process
from kvscope.engine.load_client import send_load
from kvscope.engine.ollama_errors import NOT_OLLAMA_HINT
from kvscope.engine.ollama_http import prepare_chat, wire_conversation
from kvscope.engine.ollama_report import load_report
from kvscope.engine.ollama_server import (
    REFUSES_LONG_PROMPTS,
    Held,
    OllamaServer,
    own_tokenizer,
    server_process,
    which_ollama,
)
from kvscope.engine.ollama_settings import is_local, load_options, server_url
from kvscope.engine.ollama_sharing import ModelUse, joined
from kvscope.engine.openai_text import check_text
from kvscope.engine.prepared import Prepared, ask
from kvscope.engine.scores_nothing import ScoresNothing
from kvscope.errors import (
    EngineDied,
    EngineError,
    EngineReplyError,
    EngineStartFailed,
    EngineTimeout,
    InvalidSettings,
    UsageError,
)
from kvscope.model.ollama_store import PREFIX
from kvscope.model.spec import ModelSpec
from kvscope.scenario import SettingValue

if TYPE_CHECKING:
    from kvscope.engine.registry import EngineChoice
    from kvscope.prompt.tokenizers.base import Tokenizer

LOAD_TIMEOUT_S = 600.0
UNLOAD_TIMEOUT_S = 60.0
LOOK_TIMEOUT_S = 3.0
# How long Ollama keeps what we loaded, should kvscope be killed before it unloads it. Each request starts it anew.
KEEP_ALIVE = "10m"
_POLL_S = 0.05

CAPABILITIES = Capabilities(
    baseline_before_load=True,
    can_unload=True,
    counts_prompt_tokens=False,
    reports_prompt_tokens=True,
    reports_cached_tokens=False,
    reports_timings=True,
    reports_buffers=False,
    has_pid=False,
    owns_process=False,
    forces_length=False,
    can_clear_cache=False,
    answers_together=True,
    completes_text=True,
    unload_way="keep_alive 0, then waited for until /api/ps does not list the model any more",
)


class OllamaEngine(ScoresNothing):
    """``served_model``: the model's name in Ollama. ``settings``: options of its loading (num_ctx ...).
    ``pid``: the server's process, where it is not to be found by its port. ``capabilities`` are known in full after
    ``launch``. Raises InvalidSettings for a process id that is nobody's."""

    name = "ollama"

    def __init__(
        self,
        *,
        url: str,
        served_model: str,
        settings: Mapping[str, SettingValue],
        pid: int | None = None,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.settings: Mapping[str, SettingValue] = dict(settings)
        self._process, self._why_no_process = server_process(url, pid)
        self._can = replace(CAPABILITIES, has_pid=self._process is not None)
        self._server = OllamaServer(url)
        self._served_model = served_model
        self._now, self._sleep = now, sleep
        self._model: Mapping[str, Any] | None = None
        self._options: dict[str, SettingValue] = {}
        self._tokenizer: Tokenizer | None = None
        self._context_tokens: int | None = None
        self._is_loaded = False
        # Our use of a model that kvscope loaded, this one or another; None for another program's.
        self._use: ModelUse | None = None

    @property
    def capabilities(self) -> Capabilities:
        """``can_unload`` holds where nobody else is known to use the model."""
        is_free = self._can.can_unload and not (self._use is not None and self._use.is_shared())
        return replace(self._can, can_unload=is_free)

    # --- its life -------------------------------------------------------------------------------------------------

    def launch(self) -> None:
        """Find the server, and the model on it. Nothing is loaded yet. Raises InvalidSettings, EngineModelError (it
        does not have the model), ConnectionRefused and what else a server can fail by."""
        self._options = load_options(self.settings)
        self._server.ask_version()
        self._model = self._server.find_model(self._served_model)
        if self._server.has(REFUSES_LONG_PROMPTS):
            self._tokenizer = own_tokenizer(self._served_model, self._model)
        theirs, whole = self._held(), self._server.counts_whole_prompt
        if theirs is not None:
            self._take_theirs(theirs)
        self._can = replace(
            self._can,
            counts_prompt_tokens=self._tokenizer is not None or whole,
            counts_by_requests=self._tokenizer is None,
            reports_prompt_tokens=whole,
            baseline_before_load=theirs is None,
            can_unload=theirs is None or self._use is not None,
        )

    def load(self) -> EngineReport:
        """Load the model with our options, or take it as another program loaded it. Raises InvalidSettings,
        EngineModelError, OutOfMemory, EngineDied, EngineTimeout."""
        if self._model is None:
            raise EngineStartFailed("It is not known yet whether Ollama has the model.", hint="Call launch() first.")
        held = self._held()
        if held is not None:
            self._take_theirs(held)
            self._can = replace(self._can, can_unload=self._use is not None)
        else:
            self._leave()
            self._use = ModelUse(self._server.url, self._served_model, self._as_loaded())
            self._server.ask_without_prompt(self._fixed(), LOAD_TIMEOUT_S)
            held = self._held()
            if held is None:
                raise EngineStartFailed("Ollama said the model is loaded, and does not list it.", hint=NOT_OLLAMA_HINT)
        self._is_loaded = True
        self._context_tokens = held.context_tokens
        return load_report(self._server, held, model=self._model, use=self._use, why_no_process=self._why_no_process)

    def unload(self) -> None:
        """keep_alive 0, and wait until Ollama does not list the model any more. How much memory came back is measured,
        not waited for. Raises EngineStartFailed for a model that another uses, EngineTimeout."""
        if self._use is None or not self._is_loaded or self._use.is_shared():
            raise EngineStartFailed(
                "The model is not ours to unload: another program had it loaded or uses it, or it is not loaded.",
                hint="Its memory is released when that program, or its keep_alive, lets it go.",
            )
        self._give_up()

    def _give_up(self) -> None:
        until_s = self._now() + UNLOAD_TIMEOUT_S
        self._is_loaded = False
        if self._held() is not None:
            self._server.ask_without_prompt({"model": self._served_model, "keep_alive": 0}, UNLOAD_TIMEOUT_S)
        while self._held() is not None:
            if self._now() > until_s:
                raise EngineTimeout(
                    f"Ollama still lists the model {UNLOAD_TIMEOUT_S:g} s after it was told to unload it.",
                    hint="Another program may be using it; `ollama ps` shows until when it stays.",
                )
            self._sleep(_POLL_S)
        self._leave()

    def _leave(self) -> None:
        use, self._use, self._is_loaded = self._use, None, False
        if use is not None:
            use.end()

    def stop(self) -> None:
        """Unload what we loaded, unless another kvscope uses it too, which then does; the server goes on. Safe to call
        twice and at any moment."""
        if self._use is not None and not self._use.is_shared():
            with contextlib.suppress(EngineError):
                self._give_up()
        self._leave()

    # --- what is asked of it --------------------------------------------------------------------------------------

    def generate(self, request: ChatRequest) -> Generation:
        """One answer. Ollama cannot be told to go on after the end of a text, nor to reuse nothing: it always keeps
        the last prompt. Raises an EngineError; EngineDied where Ollama does not hold the model as it was any more."""
        self._check_still_held()
        return run(self.generate_async(request))

    async def generate_async(self, request: ChatRequest) -> Generation:
        """As ``generate``; that the model is still held is not asked."""
        return await ask(self._prepare(request))

    def _prepare(self, request: ChatRequest) -> Prepared:
        check_text(request)
        body = self._fixed()
        if request.text is None:
            body |= wire_conversation(request.messages, request.tools, request.template_variables)
        sampling = {"num_predict": request.max_output_tokens, "temperature": 0, "seed": request.seed}
        stop = {"stop": list(request.stop)} if request.stop else {}
        body["options"] = {**body["options"], **sampling, **stop}
        whole = self._server.counts_whole_prompt
        return prepare_chat(self._server.url, body, request, counts_whole_prompt=whole)

    def generate_many(self, load: Load) -> LoadResult:
        """As ``Engine.generate_many``. How many it answers at once is the server's own (OLLAMA_NUM_PARALLEL), which it
        does not state; the others wait. Raises EngineDied where it did not hold the model as it was before."""
        self._check_still_held()
        return send_load(load, self._prepare)

    def count_prompt_tokens(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        template_variables: Mapping[str, Any] = NO_VARIABLES,
    ) -> int:
        """The prompt as Ollama renders it, in its own template, counted by the tokenizer in the model's file. Where
        that file is not on this machine, or the release does not render: what it states of the prompt when it is sent
        (``Capabilities.counts_by_requests``). Raises EngineError where it states no whole prompt either."""
        self._check_loaded()
        if self._tokenizer is None:
            return self._count_by_request(messages, tools, template_variables)
        from kvscope.prompt.prompt_text import ids_of_text

        body = {**self._fixed(), **wire_conversation(messages, tools, template_variables)}
        return len(ids_of_text(self._server.render(body), tokenizer=self._tokenizer).ids)

    def _count_by_request(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], template_variables: Mapping[str, Any]
    ) -> int:
        request = ChatRequest(
            messages=tuple(messages), tools=tuple(tools), template_variables=template_variables, max_output_tokens=1
        )
        counted = self.generate(request).prompt_tokens
        if counted is None:
            raise EngineReplyError(
                f"Ollama {self._server.version} does not state how many tokens a whole prompt has.",
                hint="Ollama 0.4 and newer do, but for 0.30.0. Or give the model's file with --model to count here.",
            )
        return counted

    def statistics(self) -> Mapping[str, float]:
        """What /api/ps says of the model's size. Nothing where it is not loaded."""
        held = self._held()
        if held is None:
            return {}
        stated = {"engine_bytes": held.total_bytes, "engine_device_bytes": held.device_bytes}
        return {name: float(value) for name, value in stated.items() if value is not None}

    def clear_cache(self) -> str | None:
        """Always why not."""
        return "Ollama keeps the last prompt of each slot and has no way to drop it but to unload the model."

    def pids(self) -> tuple[int, ...]:
        """The server's process, where it is on this machine; the runners of its models are its children."""
        process = self._process
        return (process.pid,) if process is not None and is_same_process(process) else ()

    def memory_probe(self) -> None:
        """None: the process is there to be watched, or nothing is."""

    def host_cache(self) -> ReportedBuffer | None:
        """None: Ollama does not state it."""
        return None

    def checkpoints(self) -> Sequence[ReportedBuffer]:
        """None are stated."""
        return ()

    def active_requests(self) -> int | None:
        """None: Ollama does not say."""
        return None

    def log_tail(self, lines: int = 60) -> str:
        """Empty: the log is where the server was started."""
        return ""

    # --- what it holds --------------------------------------------------------------------------------------------

    def _held(self) -> Held | None:
        return self._server.held(self._served_model)

    def _fixed(self) -> dict[str, Any]:
        """What every request says alike, so that the model is not loaded anew. Of another program's model only what
        /api/ps states is repeated, and its keep_alive is left as it is."""
        body: dict[str, Any] = {"model": self._served_model, "options": dict(self._options)}
        if self._server.may_refuse_long_prompts:
            body["truncate"] = False
        return body if self._use is None else {**body, **self._use.loaded_as}

    def _as_loaded(self) -> dict[str, Any]:
        """How we load the model, for every request after it."""
        loaded_as: dict[str, Any] = {"options": dict(self._options), "keep_alive": KEEP_ALIVE}
        if self._server.may_refuse_long_prompts:
            loaded_as["shift"] = False  # since 0.30 it is decided when the model is loaded
        return loaded_as

    def _take_theirs(self, held: Held) -> None:
        """Use a model that is loaded already. Raises InvalidSettings where it is not what was asked for: Ollama would
        load it anew."""
        asked, by_us = dict(self._options), self._use or joined(self._server.url, self._served_model)
        known = {"num_ctx": held.context_tokens} if by_us is None else by_us.options
        differing = [name for name in asked if known.get(name) != asked[name]]
        unsaid = [name for name in differing if name not in known]
        if held.context_tokens is None and by_us is None:
            differs = f"Ollama {self._server.version} does not say with which context (0.10 and newer do)"
        elif unsaid and by_us is None:
            differs = f"Ollama does not say with which {', '.join(unsaid)}"
        elif differing:
            differs = "; ".join(
                f"its {name} is {known.get(name)}, and {asked[name]} was asked for" for name in differing
            )
        else:
            self._options, self._use = dict(known), by_us
            return
        if by_us is not None:
            by_us.end()
        until = f" Ollama keeps it until {held.expires_at}." if held.expires_at else ""
        raise InvalidSettings(
            f"{held.name} is loaded by another {'program' if by_us is None else 'kvscope'}: {differs}. It is not "
            "loaded anew under those who use it.",
            hint=f"Leave the setting out, or unload it first (`ollama stop {held.name}`).{until}",
        )

    def _check_loaded(self) -> None:
        if not self._is_loaded:
            raise EngineStartFailed("The engine has no model loaded.", hint="Call load() first.")

    def _check_still_held(self) -> None:
        """Raises EngineDied where a request would load the model anew, and its time to the first token hold that."""
        self._check_loaded()
        held = self._held()
        if held is not None and held.context_tokens == self._context_tokens:
            return
        now = "does not hold the model any more" if held is None else "holds the model loaded anew, in another way"
        self._leave()
        raise EngineDied(
            f"Ollama {now}: its runner ended, its keep_alive ran out, or another program needed the memory.",
            hint="Repeat the trial while nothing else uses this server; Ollama's log says more.",
            evidence={
                "known_by": "counters",
                "counters": {"context_length": [self._context_tokens, held and held.context_tokens]},
            },
        )


# --- what the registry calls --------------------------------------------------------------------------------------


def check(choice: "EngineChoice") -> None:
    """Raises EngineNotFound where no Ollama answers, UsageError for what it cannot be given."""
    if choice.api_key_env is not None:
        raise UsageError("Ollama asks for no key.", hint="Leave --api-key-env out; use --engine openai for a gateway.")
    version(choice)


def version(choice: "EngineChoice") -> tuple[str, str]:
    """(version, where it answers). Raises EngineNotFound."""
    return which_ollama(server_url(choice.url), PLAIN_TIMEOUT_S)


def create(choice: "EngineChoice", model: ModelSpec | None, settings: Mapping[str, SettingValue]) -> OllamaEngine:
    """The engine, not launched. The model's name is ``served_model``, else that of an "ollama:NAME" model. Raises
    InvalidSettings where there is neither."""
    served = _name_of(choice, model)
    if served is None:
        raise InvalidSettings(
            "Which of Ollama's models is to be measured is not said.",
            hint="Give its name with --served-model NAME, or the model as ollama:NAME.",
        )
    return OllamaEngine(url=server_url(choice.url), served_model=served, settings=settings, pid=choice.pid)


def _name_of(choice: "EngineChoice", model: ModelSpec | None) -> str | None:
    if choice.served_model is None and model is not None and model.source.startswith(PREFIX):
        return model.source.removeprefix(PREFIX)
    return choice.served_model


def own_settings(
    choice: "EngineChoice", settings: Mapping[str, SettingValue], model: ModelSpec | None
) -> Mapping[str, SettingValue]:
    """The context of a model that another program has loaded: it is used as it is. Nothing where one is asked for, or
    none is known."""
    name = _name_of(choice, model)
    if name is None or "num_ctx" in settings or "n_ctx" in settings:
        return {}
    try:
        held = OllamaServer(server_url(choice.url)).held(name)
    except EngineError:  # whatever it is, the trial will meet it
        return {}
    return {} if held is None or held.context_tokens is None else {"num_ctx": held.context_tokens}


def takes_memory(choice: "EngineChoice", model: ModelSpec | None) -> bool:
    """Where the server is on this machine, and does not hold the model yet."""
    url, name = server_url(choice.url), _name_of(choice, model)
    if not is_local(url) or name is None:
        return is_local(url)
    try:
        return OllamaServer(url).held(name) is None
    except EngineError:  # whatever it is, the trial will meet it
        return True


def try_start(choice: "EngineChoice") -> str:
    """The version of the Ollama that answers, and soon: who asks looks at all engines. Nothing is started. Raises
    EngineNotFound."""
    return which_ollama(server_url(choice.url), LOOK_TIMEOUT_S)[0]
