"""An engine that obeys laws it is given: known memory and known times, for learning the tool, for documents and tests.

It loads no model and holds no memory. Every number is computed from ``FakeLaw``, so what a measurement should find is
known in advance. It behaves like llama.cpp: the cache is paid at load, the compute buffer when the first prompt fills
it, and copies of earlier conversations stay in host memory up to a limit.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Protocol

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
    ScoreRequest,
    TokenScores,
)
from kvscope.engine.fake_answers import answer_pieces
from kvscope.engine.fake_law import FakeLaw as FakeLaw
from kvscope.engine.fake_law import fake_law as fake_law
from kvscope.engine.fake_load import Given, ManyAtOnce
from kvscope.engine.fake_memory import FakeMemory as FakeMemory
from kvscope.engine.fake_scores import scores_of, tokens_of
from kvscope.engine.openai_text import check_prompt, check_text
from kvscope.errors import (
    ContextOverflow,
    EngineDied,
    EngineStartFailed,
)
from kvscope.scenario import SettingValue
from kvscope.units import MIB

if TYPE_CHECKING:
    from kvscope.engine.registry import EngineChoice
    from kvscope.model.spec import ModelSpec

LAW_VERSION = "1"
_STARTED_S = time.perf_counter()
# What the fake chat template adds to each message, and once to open the answer.
TEMPLATE_TOKENS_PER_MESSAGE = 4
TEMPLATE_TOKENS_TO_OPEN = 2


class Clock(Protocol):
    """Seconds that only go forward, and a way to let them pass."""

    def now(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class RealClock:
    """The machine's own, from the start of kvscope."""

    def now(self) -> float:
        return time.perf_counter() - _STARTED_S

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class VirtualClock:
    """Time that passes only when somebody sleeps: a whole study in no time."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def now(self) -> float:
        return self._now_s

    def sleep(self, seconds: float) -> None:
        self._now_s += seconds


class FakeEngine:
    """See ``kvscope.engine.base`` for the order of calls, ``FakeLaw`` for the settings."""

    name = "fake"
    capabilities = Capabilities(
        baseline_before_load=True,
        can_unload=True,
        counts_prompt_tokens=True,
        reports_prompt_tokens=True,
        reports_cached_tokens=True,
        reports_timings=True,
        reports_buffers=True,
        has_pid=False,
        answers_together=True,
        completes_text=True,
        scores_tokens=True,
    )

    def __init__(self, *, settings: Mapping[str, SettingValue], clock: Clock | None = None) -> None:
        self.settings: Mapping[str, SettingValue] = dict(settings)
        self.law = fake_law(settings)
        self.memory = FakeMemory(self.law)
        self._clock: Clock = RealClock() if clock is None else clock
        self._requests = 0
        self._last_words: dict[int, list[str]] = {}
        self._log: list[str] = []

    def launch(self) -> None:
        """The fake process exists."""
        self.memory = FakeMemory(self.law, running=True, noise_bytes=self.law.noise().launch_bytes())
        self._log.append("launched")

    def load(self) -> EngineReport:
        """The fake model is loaded; reported is what the law says."""
        self._needs(self.memory.running, "Call launch() first.")
        self._clock.sleep(self.law.load_s)
        self.memory.loaded = True
        self._log.append(f"loaded, n_ctx = {self.law.n_ctx}")
        cache_bytes = self.law.bytes_per_token * self.law.n_ctx
        return EngineReport(
            version=LAW_VERSION,
            build="fake",
            buffers=(
                _reported("weights", "file", self.law.weights_bytes),
                _reported("kv_cache", "full", cache_bytes, cells=self.law.n_ctx),
                _reported("compute_buffer", "fake", self.law.compute_bytes),
            ),
            effective={
                "n_ctx": self.law.n_ctx,
                "n_ctx_seq": self.law.slot_tokens,
                "n_ubatch": self.law.n_ubatch,
                "n_parallel": self.law.n_parallel,
            },
            slots=(self.law.slot_tokens,) * self.law.n_parallel,
            context_limit=ContextLimit(
                tokens=self.law.slot_tokens,
                source="the law: n_ctx" + (" ÷ n_parallel" if self.law.n_parallel > 1 else ""),
            ),
        )

    def pids(self) -> tuple[int, ...]:
        """Empty: there is no process."""
        return ()

    def memory_probe(self) -> FakeMemory:
        """The law's own memory."""
        return self.memory

    def count_prompt_tokens(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        template_variables: Mapping[str, Any] = NO_VARIABLES,
    ) -> int:
        """One token for each word (split at white space), and the fake template's own, which has no variables. Tools
        stand first, as JSON."""
        return len(_words(messages, tools)) + TEMPLATE_TOKENS_PER_MESSAGE * len(messages) + TEMPLATE_TOKENS_TO_OPEN

    def generate(self, request: ChatRequest) -> Generation:
        """An answer whose every moment follows the law. Raises ContextOverflow, and EngineDied or EngineStalled where
        the settings say so."""
        self._needs(self.memory.loaded, "Call load() first.")
        given = self._begin(request, range(self.law.n_parallel))
        if given.stalls:
            self._clock.sleep(request.stall_s)
            raise given.stalled()
        self._compute(given)
        self._clock.sleep(given.steps_s[-1])
        self._finish(given)
        answer = given.generation(given.steps_s)
        return replace(answer, health=self.law.client_health()) if self.law.client_lag_s else answer

    def tokenize(self, text: str, *, with_special: bool) -> tuple[int, ...]:
        """One token for each word, after the BOS."""
        return tokens_of(text, with_special=with_special)

    def score(self, request: ScoreRequest) -> TokenScores:
        """See ``fake_scores``: a distribution whose divergence from that of an engine without ``score_kl`` is known."""
        self._needs(self.memory.loaded, "Call load() first.")
        check_prompt(request)
        num_tokens = len(request.prompt) + len(request.continuation)
        if num_tokens > self.law.slot_tokens:
            raise self._overflow(num_tokens)
        self._clock.sleep(self.law.itl_s * len(request.continuation))
        return scores_of(request, self.law.score_kl)

    def generate_many(self, load: Load) -> LoadResult:
        """As ``Engine.generate_many``, every moment by the law. Those under way when the engine dies fail with it, and
        so do those that are sent after that."""
        self._needs(self.memory.loaded, "Call load() first.")
        return ManyAtOnce(
            load,
            slots=self.law.n_parallel,
            slowdown=self.law.slowdown_per_request,
            sleep=self._clock.sleep,
            begin=self._begin,
            compute=self._compute,
            finish=self._finish,
            health=self.law.client_health(),
        ).result()

    def _begin(self, request: ChatRequest, free: Sequence[int]) -> Given:
        """The request in one of the free slots. Raises ContextOverflow, and EngineDied where the settings say so."""
        check_text(request)
        self._requests += 1
        num_prompt = self._prompt_tokens(request)
        if self._requests == self.law.die_at_request:
            self.stop()
            raise EngineDied("The fake engine ended while answering: told to, at this request.", hint="As asked.")
        return self._given_slot(request, num_prompt, free)

    def _prompt_tokens(self, request: ChatRequest) -> int:
        num_prompt = self._sent_tokens(request)
        if num_prompt > self.law.slot_tokens:
            raise self._overflow(num_prompt)
        limits = (self.law.prompt_limit_tokens, self.law.cuts_at_tokens)
        return min((num_prompt, *(limit for limit in limits if limit is not None)))

    def _sent_tokens(self, request: ChatRequest) -> int:
        if request.text is not None:
            return len(self.tokenize(request.text, with_special=True))
        return self.count_prompt_tokens(request.messages, request.tools, request.template_variables)

    def _overflow(self, num_tokens: int) -> ContextOverflow:
        return ContextOverflow(
            f"The prompt has {num_tokens} tokens; the engine's context holds {self.law.slot_tokens}.",
            hint="Shorten the prompt, or load with a larger context (n_ctx).",
        )

    def _stated_tokens(self, request: ChatRequest, num_read: int) -> int | None:
        """What it says that the prompt had. What ``prompt_limit_tokens`` cuts is stated as it was read."""
        if self.law.cuts_at_tokens is None or (num_sent := self._sent_tokens(request)) <= self.law.cuts_at_tokens:
            return num_read + self.law.counts_more_tokens - self.law.counts_fewer_tokens
        return {0: None, 1: num_read}.get(self.law.cut_states, num_sent)

    def _answer(self, request: ChatRequest, num_read: int) -> tuple[str, ...]:
        """The texts of the tokens of what it answers; none where its settings do not have it read."""
        if not self.law.reads:
            return ()
        prompt = request.text if request.text is not None else "".join(m.content for m in request.messages[-1:])
        question = prompt.rpartition("\n\n")[2]
        beside = self._sent_tokens(request) - len(prompt.split())
        reader = self.law.reader(text_words=max(0, num_read - beside - len(question.split())))
        return answer_pieces(reader.answer(prompt), request.stop)

    def _given_slot(self, request: ChatRequest, num_prompt: int, free: Sequence[int]) -> Given:
        """The slot that the request gets, and what it has to do there."""
        words = _sent_words(request)
        common = {slot: _common_beginning(words, self._last_words.get(slot, [])) for slot in free}
        slot = max(free, key=lambda each: (common[each], -each))
        cached = min(common[slot], num_prompt - 1) if request.reuse_prefix else 0
        law = self.law
        limit = min(request.max_output_tokens, max(law.slot_tokens - num_prompt, 1))
        answer = self._answer(request, num_prompt)
        natural = None if request.ignore_end else len(answer) or law.natural_end_tokens
        num_output = limit if natural is None else min(limit, natural)
        first, later = law.noise().time_factors(self._requests, words, self._clock.now())
        at_s = first * law.first_token_s(num_prompt - cached)
        steps = [at_s]
        for number in range(1, num_output):
            at_s += later * (law.itl_s + law.itl_s_per_token * (num_prompt + number))
            steps.append(at_s)
        return Given(
            request=request,
            number=self._requests,
            slot=slot,
            num_prompt=num_prompt,
            cached=cached,
            steps_s=tuple(steps),
            num_stated=self._stated_tokens(request, num_prompt),
            answer=answer,
            finish_reason="stop" if natural is not None and num_output == natural else "length",
            stalls=self._requests == law.stall_at_request,
        )

    def _compute(self, given: Given) -> None:
        self.memory.computed_tokens = max(self.memory.computed_tokens, given.num_prompt - given.cached)
        self.memory.note_peak()

    def _finish(self, given: Given) -> None:
        num_output = len(given.steps_s)
        self.memory.num_requests += 1
        self._keep_copy(given.num_prompt + num_output, given)
        self.memory.note_peak()
        self._log.append(f"request {given.number}: {given.num_prompt} prompt tokens, {num_output} output tokens")

    def _keep_copy(self, num_tokens: int, given: Given) -> None:
        self._last_words[given.slot] = _sent_words(given.request)
        copies = [*self.memory.copies, self.law.bytes_per_token * num_tokens]
        while copies and sum(copies) > self.law.cache_ram_mib * MIB:
            copies.pop(0)
        self.memory.copies = copies

    def host_cache(self) -> ReportedBuffer | None:
        """Copies of earlier conversations; None where the law keeps none, or states none."""
        if not self.law.cache_ram_mib or not self.law.states_copies:
            return None
        copies = self.memory.copies
        return _reported("host_cache", f"prompt cache, {len(copies)} prompts", sum(copies))

    def checkpoints(self) -> tuple[ReportedBuffer, ...]:
        """None: the fake cache has no windows."""
        return ()

    def active_requests(self) -> int | None:
        """0: a request is over when ``generate`` returns."""
        return 0

    def statistics(self) -> Mapping[str, float]:
        """None: the fake engine's laws are its settings."""
        return {}

    def clear_cache(self) -> str | None:
        """Not offered."""
        return "The fake engine keeps nothing that could be dropped apart from its model."

    def unload(self) -> None:
        """Give up the fake model; ``fixed_bytes`` stay with the process."""
        if self.memory.loaded:
            self.memory.kept_bytes = self.law.fixed_bytes
        self.memory.loaded = False
        self.memory.copies = []
        self.memory.computed_tokens = 0
        self._log.append("unloaded")

    def stop(self) -> None:
        """The fake process ends. Safe to call twice and at any moment."""
        self.memory.running = False
        self.memory.loaded = False

    def log_tail(self, lines: int = 60) -> str:
        """What happened, one line each."""
        return "\n".join(self._log[-lines:])

    def _needs(self, fulfilled: bool, hint: str) -> None:
        if not fulfilled:
            raise EngineStartFailed("The fake engine is not ready.", hint=hint)


def check(choice: "EngineChoice") -> None:
    """It runs everywhere."""


def version(choice: "EngineChoice") -> tuple[str, str]:
    """Version of its law."""
    return LAW_VERSION, "fake"


def create(choice: "EngineChoice", model: "ModelSpec | None", settings: Mapping[str, SettingValue]) -> FakeEngine:
    """As ``EngineChoice.create``."""
    return FakeEngine(settings=settings)


def try_start(choice: "EngineChoice") -> str:
    """There is no program to start."""
    return LAW_VERSION


def _common_beginning(words: Sequence[str], others: Sequence[str]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(words, others, strict=False)))


def _sent_words(request: ChatRequest) -> list[str]:
    return request.text.split() if request.text is not None else _words(request.messages, request.tools)


def _words(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[str]:
    texts = [json.dumps(tool, ensure_ascii=False) for tool in tools]
    for message in messages:
        calls = (json.dumps(call, ensure_ascii=False) for call in message.tool_calls)
        texts += [message.name or "", message.reasoning or "", message.content, *calls, message.tool_call_id or ""]
    return [word for text in texts for word in text.split()]


def _reported(component: str, name: str, num_bytes: int, *, cells: int | None = None) -> ReportedBuffer:
    printed = f"{num_bytes / MIB:.2f}"
    return ReportedBuffer(
        component=component, name=name, printed_mib=printed, cells=cells, line=f"fake: {component} = {printed} MiB"
    )
