"""What every engine must do, whoever makes it: one suite, run against each adapter (see the test modules beside it).

What an engine cannot do, its ``capabilities`` say and the class attributes of its test; then it must say so itself
(None, an error), which is asserted in place of the number.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar

import pytest

from kvscope.engine.base import (
    ChatRequest,
    Engine,
    EngineReport,
    Generation,
    Load,
    LoadResult,
    Message,
    ScoreRequest,
)
from kvscope.engine.statistics import STATISTICS
from kvscope.errors import ContextOverflow, EngineError, EngineStartFailed, InvalidSettings, UsageError
from kvscope.probe.proc import ProcessTreeProbe, process_exists

CONTEXT_TOKENS = 512
# What a token count must survive: plain words, other scripts, what looks like the template's own marks.
TEXTS = (
    "Hello.",
    "The quick brown fox jumps over the lazy dog, twice.",
    "안녕하세요. 대화가 길어지면 왜 메모리가 늘어날까요?",
    "emoji 😀🎉 and accents éü",
    "<|im_start|>user\nhi<|im_end|>",
    "<bos><start_of_turn>model </s> [INST]",
    "  spaces before and after  \n\nnew lines\n",
    "def f(x):\n\treturn {x: 1.5e-3}",
)

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "What the weather will be in a town on a day.",
        "parameters": {"type": "object", "properties": {"town": {"type": "string"}, "day": {"type": "string"}}},
    },
}
TOOL_CONVERSATION = (
    Message(role="user", content="Will it rain in Busan?"),
    Message(
        role="assistant",
        content="",
        reasoning="I have to look it up.",
        tool_calls=(
            {
                "id": "call00001",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"town": "Busan", "day": "today"}'},
            },
        ),
    ),
    Message(role="tool", content="비, 14 °C", tool_call_id="call00001", name="weather"),
    Message(role="assistant", content="Yes, bring an umbrella."),
    Message(role="user", content="And\ntomorrow?", blocks=("And", "tomorrow?")),
)


def user(text: str) -> tuple[Message, ...]:
    return (Message(role="user", content=text),)


def held_bytes(engine: Engine) -> int:
    probe = engine.memory_probe() or ProcessTreeProbe(engine.pids)
    reading = probe.read()
    return reading["anon_bytes"] + reading["swap_bytes"]


class EngineContract:
    """Subclasses give ``make``: an engine that is not launched, with these settings over ones that suit it. Where the
    engine is a server that runs already, they are the settings that the server is started with."""

    # Anonymous bytes that are taken at load at least (with a reserved cache: CONTEXT_TOKENS of it), in the model that
    # ``make`` uses; what ``unload`` must give back where the engine can.
    cache_bytes: int
    # What load reports, where the engine reports buffers.
    effective: ClassVar[Mapping[str, object]] = {"n_ctx": CONTEXT_TOKENS}
    slots: ClassVar[tuple[int, ...]] = (CONTEXT_TOKENS,)
    buffers: ClassVar[frozenset[str]] = frozenset({"weights", "kv_cache", "compute_buffer"})
    # The most one sequence may hold; None: the engine does not say.
    context_limit_tokens: int | None = CONTEXT_TOKENS
    # The engine's own name for it, and as small as it can be made; None: it is not a setting.
    context_setting: str | None = "n_ctx"
    smallest_context = 256
    # Settings that are refused, each with what the message must name.
    refused_settings: ClassVar[Mapping[str, tuple[object, str]]] = {
        "n_contex": (1, "n_contex"),
        "n_ctx": ("many", "ctx"),
    }
    # Whether it states how many requests it is working on.
    reports_active_requests = True
    # Whether tools and values for the template reach the chat template.
    takes_tools = True
    # Whether a request can ask that nothing be reused.
    reuse_is_asked_for = True
    # Whether a prompt over the limit is refused, rather than cut without a word.
    refuses_long_prompts = True
    # Settings with which it works on two requests at once; None: it does not, or not by a setting.
    two_at_once: ClassVar[Mapping[str, object] | None] = None

    @pytest.fixture
    def make(self) -> Iterator[Callable[..., Engine]] | Callable[..., Engine]:
        raise NotImplementedError

    @pytest.fixture
    def engine(self, make: Callable[..., Engine]) -> Engine:
        return self.bring_up(make)

    def bring_up(self, make: Callable[..., Engine], **settings: object) -> Engine:
        engine = make(**settings)
        engine.launch()
        engine.load()
        return engine

    def check_output(self, engine: Engine, answer: Generation, asked: int) -> None:
        """As many tokens as were asked for, where the engine can be made to give them."""
        assert answer.output_tokens is not None
        if engine.capabilities.forces_length:
            assert answer.output_tokens == asked
            assert answer.finish_reason == "length"
        else:
            assert 1 <= answer.output_tokens <= asked

    def check_report(self, engine: Engine, report: EngineReport) -> None:
        assert report.version
        assert report.build
        if engine.capabilities.reports_buffers:
            assert {name: report.effective.get(name) for name in self.effective} == self.effective
            assert report.slots == self.slots
            assert {buffer.component for buffer in report.buffers} >= self.buffers
        else:
            assert report.buffers == ()
        if self.context_limit_tokens is None:
            assert report.context_limit is None
        else:
            assert report.context_limit is not None
            assert report.context_limit.tokens == self.context_limit_tokens
            assert report.context_limit.source

    def test_a_whole_life(self, make: Callable[..., Engine]) -> None:
        engine = make()
        assert engine.pids() == () or not engine.capabilities.owns_process
        engine.launch()
        can = engine.capabilities
        pids = engine.pids()
        assert bool(pids) == can.has_pid
        watched = can.has_pid or engine.memory_probe() is not None
        before = held_bytes(engine) if can.baseline_before_load else 0
        self.check_report(engine, engine.load())
        assert not watched or held_bytes(engine) - before >= self.cache_bytes
        answer = engine.generate(ChatRequest(messages=user("Hello."), max_output_tokens=4))
        self.check_output(engine, answer, 4)
        assert engine.active_requests() == (0 if self.reports_active_requests else None)
        if can.can_unload:
            loaded = held_bytes(engine) if watched else 0
            engine.unload()
            assert not watched or loaded - held_bytes(engine) >= self.cache_bytes
            assert engine.pids() == pids
        engine.stop()
        if can.owns_process:
            assert engine.pids() == ()
            assert not [pid for pid in pids if process_exists(pid)]
        else:
            assert all(process_exists(pid) for pid in pids)

    def test_a_running_server_outlives_its_use(self, make: Callable[..., Engine]) -> None:
        first = make()
        if first.capabilities.owns_process:
            pytest.skip("kvscope starts it")
        first.launch()
        first.load()
        pids = first.pids()
        first.stop()
        again = self.bring_up(make)
        assert again.pids() == pids
        self.check_output(again, again.generate(ChatRequest(messages=user("Hello."), max_output_tokens=2)), 2)

    @pytest.mark.parametrize("text", TEXTS)
    def test_tokens_counted_are_tokens_the_server_says_it_was_sent(self, engine: Engine, text: str) -> None:
        answer = engine.generate(ChatRequest(messages=user(text), max_output_tokens=1))
        self.check_count(engine, answer, user(text))

    def check_count(self, engine: Engine, answer: Generation, messages: tuple[Message, ...]) -> None:
        if not engine.capabilities.counts_prompt_tokens:
            with pytest.raises(EngineError):
                engine.count_prompt_tokens(messages)
        elif engine.capabilities.reports_prompt_tokens:
            assert answer.prompt_tokens == engine.count_prompt_tokens(messages)
        else:
            assert answer.prompt_tokens is None
            assert engine.count_prompt_tokens(messages) > 0

    def test_a_conversation_of_several_turns_is_counted_too(self, engine: Engine) -> None:
        messages = (
            Message(role="system", content="Be brief."),
            Message(role="user", content="One?"),
            Message(role="assistant", content="Yes."),
            Message(role="user", content="둘?"),
        )
        self.check_count(engine, engine.generate(ChatRequest(messages=messages, max_output_tokens=1)), messages)

    def test_tools_and_their_calls_are_sent_and_counted(self, engine: Engine) -> None:
        if not (self.takes_tools and engine.capabilities.counts_prompt_tokens):
            pytest.skip("it takes no tools, or counts nothing")
        variables = {"enable_thinking": False}
        counted = engine.count_prompt_tokens(TOOL_CONVERSATION, (TOOL,), variables)
        request = ChatRequest(
            messages=TOOL_CONVERSATION, tools=(TOOL,), template_variables=variables, max_output_tokens=1
        )
        assert engine.generate(request).prompt_tokens == counted
        # A template may leave tools out (SmolLM2's does), so what they add is each engine's own.
        assert counted >= engine.count_prompt_tokens(TOOL_CONVERSATION)

    def test_times_of_an_answer(self, engine: Engine) -> None:
        answer = engine.generate(ChatRequest(messages=user("Count to ten."), max_output_tokens=12))
        times = [event.at_s for event in answer.events]
        assert times == sorted(times)
        assert times[0] > 0
        assert times[-1] <= answer.completed_s
        assert sum(read.num_events for read in answer.reads) == len(answer.events)
        self.check_output(engine, answer, 12)
        assert all(event.text or event.kind == "token" for event in answer.events)

    def test_an_answer_is_cut_where_the_context_ends(self, make: Callable[..., Engine]) -> None:
        if self.context_setting is None:
            pytest.skip("its context cannot be set")
        # As small as the engine makes one, and filled but for a few tokens: what is asked for is more than is left.
        limit = self.smallest_context
        engine = self.bring_up(make, **{self.context_setting: limit})
        if not (engine.capabilities.counts_prompt_tokens and engine.capabilities.forces_length):
            pytest.skip("it cannot be filled exactly")
        room = limit - 8 - engine.count_prompt_tokens(user(""))
        text = "word" + " word" * (room - 1)
        counted = engine.count_prompt_tokens(user(text))
        assert counted == limit - 8
        answer = engine.generate(ChatRequest(messages=user(text), max_output_tokens=64))
        assert answer.output_tokens is not None
        assert limit <= counted + answer.output_tokens <= limit + 1  # the last token is never fed back

    def test_nothing_is_reused_unless_asked_for(self, engine: Engine) -> None:
        messages = user("Why does memory grow when a conversation gets longer? Explain it step by step.")
        request = ChatRequest(messages=messages, max_output_tokens=2)
        engine.generate(request)
        second = engine.generate(request)
        again = engine.generate(ChatRequest(messages=messages, max_output_tokens=2, reuse_prefix=True))
        if not engine.capabilities.reports_cached_tokens:
            assert second.cached_tokens is None
            assert again.cached_tokens is None
            return
        assert second.cached_tokens == 0 or not self.reuse_is_asked_for
        assert again.cached_tokens is not None
        assert again.cached_tokens > 5
        why_not = engine.clear_cache()
        assert (why_not is None) == engine.capabilities.can_clear_cache
        if why_not is None:
            request = ChatRequest(messages=messages, max_output_tokens=2, reuse_prefix=True)
            assert engine.generate(request).cached_tokens == 0

    def test_a_prompt_over_the_limit(self, engine: Engine) -> None:
        if self.context_limit_tokens is None or not self.refuses_long_prompts:
            pytest.skip("it has no limit, or cuts prompts at it without a word")
        text = "word " * (2 * self.context_limit_tokens)
        with pytest.raises(ContextOverflow) as caught:
            engine.generate(ChatRequest(messages=user(text), max_output_tokens=1))
        if engine.capabilities.counts_prompt_tokens:
            assert str(engine.count_prompt_tokens(user(text))) in caught.value.message
        assert str(self.context_limit_tokens) in caught.value.message
        # It still answers afterwards.
        assert engine.generate(ChatRequest(messages=user("Hello."), max_output_tokens=1)).output_tokens == 1

    def test_what_it_states_of_itself_has_known_names_and_is_a_number(self, engine: Engine) -> None:
        engine.generate(ChatRequest(messages=user("Hello."), max_output_tokens=1))
        stated = engine.statistics()
        assert set(stated) <= set(STATISTICS)
        assert all(math.isfinite(value) and value >= 0 for value in stated.values())

    def test_settings_that_are_refused(self, make: Callable[..., Engine]) -> None:
        if not make().capabilities.owns_process:
            pytest.skip("it was given its settings when it was started")
        for name, (value, says) in self.refused_settings.items():
            with pytest.raises(InvalidSettings, match=says):
                self.bring_up(make, **{name: value})

    def test_out_of_order_calls_are_refused(self, make: Callable[..., Engine]) -> None:
        engine = make()
        with pytest.raises(EngineStartFailed):
            engine.load()
        engine.launch()
        if engine.capabilities.baseline_before_load:
            with pytest.raises(EngineError):
                engine.generate(ChatRequest(messages=user("Hello."), max_output_tokens=1))
        if not engine.capabilities.can_unload:
            with pytest.raises(EngineStartFailed):
                engine.unload()

    def test_stop_at_any_moment_and_twice(self, make: Callable[..., Engine]) -> None:
        make().stop()  # never launched
        launched = make()
        launched.launch()
        launched.stop()
        launched.stop()
        loaded = self.bring_up(make)
        loaded.stop()  # a server destroyed right after it was made can hang
        loaded.stop()
        assert loaded.pids() == () or not loaded.capabilities.owns_process

    def test_two_at_once_do_not_mix(self, make: Callable[..., Engine]) -> None:
        one, two = self.bring_up(make), self.bring_up(make)
        if one.capabilities.has_pid or one.memory_probe() is not None:
            assert min(held_bytes(one), held_bytes(two)) >= self.cache_bytes
        assert not set(one.pids()) & set(two.pids()) or not one.capabilities.owns_process
        one.stop()
        self.check_output(two, two.generate(ChatRequest(messages=user("Hello."), max_output_tokens=2)), 2)

    def test_settings_are_told(self, make: Callable[..., Engine]) -> None:
        engine = make()
        if not engine.capabilities.owns_process:
            assert engine.settings == {}
        elif self.context_setting is not None:
            assert engine.settings[self.context_setting] == CONTEXT_TOKENS

    # --- texts, and how likely they are -------------------------------------------------------------------------------

    def test_a_text_is_sent_as_it_is(self, engine: Engine) -> None:
        can = engine.capabilities
        if not can.completes_text:
            pytest.skip("it takes no text without a chat template")
        for text in TEXTS:
            answer = engine.generate(ChatRequest(messages=(), text=text, max_output_tokens=1))
            if not can.reports_prompt_tokens:
                assert answer.prompt_tokens is None
            elif can.scores_tokens:
                assert answer.prompt_tokens == len(engine.tokenize(text, with_special=True))
            else:
                assert answer.prompt_tokens is not None
        with pytest.raises(UsageError):
            engine.generate(ChatRequest(messages=user("Hello."), text="Hello.", max_output_tokens=1))

    def test_the_tokens_of_a_text_are_scored(self, engine: Engine) -> None:
        if not engine.capabilities.scores_tokens:
            with pytest.raises(UsageError):
                engine.tokenize("Hello.", with_special=True)
            with pytest.raises(UsageError):
                engine.score(ScoreRequest(prompt=(1,), continuation=(2,)))
            return
        prompt = engine.tokenize("The quick brown fox jumps over the", with_special=True)
        continuation = engine.tokenize(" lazy dog. 안녕하세요", with_special=False)
        request = ScoreRequest(prompt=prompt, continuation=continuation, num_top=4)
        scores, again = engine.score(request), engine.score(request)
        assert tuple(each.token for each in scores.tokens) == continuation
        assert [each.logprob for each in again.tokens] == [each.logprob for each in scores.tokens]
        assert again.pattern == scores.pattern
        for each in scores.tokens:
            assert each.logprob <= 0
            assert len(set(each.top_tokens)) == len(each.top_tokens) == len(each.top_logprobs) == 4
            assert list(each.top_logprobs) == sorted(each.top_logprobs, reverse=True)
            assert sum(math.exp(top) for top in each.top_logprobs) < 1.001
            listed = dict(zip(each.top_tokens, each.top_logprobs, strict=True))
            assert each.logprob <= each.top_logprobs[0]
            assert listed.get(each.token, each.logprob) == each.logprob
        assert len({each.logprob for each in scores.tokens}) > 1
        fresh = engine.score(ScoreRequest(prompt=prompt, continuation=continuation, num_top=4, is_fresh=True))
        assert fresh.pattern != scores.pattern
        assert fresh.cached_tokens in (0, None)
        for ours, anew in zip(scores.tokens, fresh.tokens, strict=True):
            assert anew.logprob == pytest.approx(ours.logprob, abs=0.5)  # another batch shape

    def test_what_cannot_be_scored_is_refused(self, engine: Engine) -> None:
        if not engine.capabilities.scores_tokens:
            pytest.skip("it scores nothing")
        with pytest.raises(UsageError):
            engine.score(ScoreRequest(prompt=(), continuation=(2,)))
        if self.context_limit_tokens is not None and self.refuses_long_prompts:
            with pytest.raises(ContextOverflow):
                engine.score(ScoreRequest(prompt=(3,) * (self.context_limit_tokens + 1), continuation=(4, 5)))

    # --- several at once ------------------------------------------------------------------------------------------

    def ask_many(self, engine: Engine, texts: Sequence[str], output: int, concurrency: int) -> LoadResult:
        requests = tuple(ChatRequest(messages=user(text), max_output_tokens=output) for text in texts)
        return engine.generate_many(Load(requests=requests, concurrency=concurrency))

    def test_several_are_answered_in_the_order_of_the_list(self, engine: Engine) -> None:
        texts = ("Hello.", "Count to ten, slowly and with care.", "Why?")
        if not engine.capabilities.answers_together:
            with pytest.raises(UsageError, match="one request at a time"):
                self.ask_many(engine, texts, 4, 3)
            return
        result = self.ask_many(engine, texts, 4, 3)
        assert [answer.index for answer in result.answers] == [0, 1, 2]
        alone = [engine.generate(ChatRequest(messages=user(text), max_output_tokens=4)) for text in texts]
        for answer, by_itself in zip(result.answers, alone, strict=True):
            assert answer.error is None
            assert answer.generation is not None
            assert answer.generation.prompt_tokens == by_itself.prompt_tokens
            self.check_output(engine, answer.generation, 4)
            assert 0 <= answer.sent_s <= answer.sent_s + answer.generation.completed_s <= result.wall_s + 0.1
        assert {answer.stream for answer in result.answers} == {0, 1, 2}

    def test_two_are_really_under_way_at_once(self, make: Callable[..., Engine]) -> None:
        if self.two_at_once is None:
            pytest.skip("it works on one request at a time, or how many is not a setting")
        engine = self.bring_up(make, **self.two_at_once)
        # Long enough that the second is not over before the first has begun, however the machine's threads are given.
        result = self.ask_many(engine, ("Tell a long story.", "Tell another one."), 48, 2)
        spans = []
        for answer in result.answers:
            assert answer.generation is not None
            times = [answer.sent_s + event.at_s for event in answer.generation.events]
            spans.append((times[0], times[-1]))
        (begin, end), (other_begin, other_end) = spans
        assert max(begin, other_begin) < min(end, other_end)  # tokens of both came in the same time

    def test_the_error_of_one_is_its_own(self, engine: Engine) -> None:
        can = engine.capabilities
        if not can.answers_together or self.context_limit_tokens is None or not self.refuses_long_prompts:
            pytest.skip("it answers one at a time, has no limit, or cuts prompts at it without a word")
        result = self.ask_many(engine, ("Hello.", "word " * (2 * self.context_limit_tokens), "Why?"), 2, 2)
        assert [type(answer.error) for answer in result.answers] == [type(None), ContextOverflow, type(None)]
        assert result.answers[1].generation is None
        with pytest.raises(ContextOverflow) as alone:
            engine.generate(ChatRequest(messages=user("word " * (2 * self.context_limit_tokens)), max_output_tokens=2))
        assert str(result.answers[1].error) == str(alone.value)

    def test_a_load_at_a_rate_is_sent_when_it_is_due(self, engine: Engine) -> None:
        if not engine.capabilities.answers_together:
            pytest.skip("it answers one at a time")
        requests = tuple(ChatRequest(messages=user(f"Hello {n}."), max_output_tokens=1) for n in range(3))
        result = engine.generate_many(Load(requests=requests, arrival="constant", rate_per_s=20.0))
        assert [answer.due_s for answer in result.answers] == pytest.approx([0.0, 0.05, 0.1])
        for answer in result.answers:
            assert answer.generation is not None
            assert answer.due_s is not None
            assert answer.sent_s >= answer.due_s
