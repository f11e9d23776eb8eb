"""What every engine must do, whoever makes it: one suite, run against each adapter (see the test modules beside it)."""

from collections.abc import Callable, Iterator

import pytest

from kvscope.engine.base import ChatRequest, Engine, Message
from kvscope.errors import ContextOverflow, EngineError, EngineStartFailed, InvalidSettings
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
    """Subclasses give ``make``: an engine that is not launched, with these settings over ones that suit it."""

    # Anonymous bytes that CONTEXT_TOKENS of cache take in the model that ``make`` uses.
    cache_bytes: int

    @pytest.fixture
    def make(self) -> Iterator[Callable[..., Engine]] | Callable[..., Engine]:
        raise NotImplementedError

    @pytest.fixture
    def engine(self, make: Callable[..., Engine]) -> Engine:
        engine = make()
        engine.launch()
        engine.load()
        return engine

    def test_a_whole_life(self, make: Callable[..., Engine]) -> None:
        engine = make()
        assert engine.pids() == ()
        engine.launch()
        pids = engine.pids()
        assert bool(pids) == engine.capabilities.has_pid
        before = held_bytes(engine) if engine.capabilities.baseline_before_load else 0
        report = engine.load()
        assert report.effective["n_ctx"] == CONTEXT_TOKENS
        assert report.slots == (CONTEXT_TOKENS,)
        assert report.context_limit is not None
        assert report.context_limit.tokens == CONTEXT_TOKENS
        assert report.context_limit.source
        assert {buffer.component for buffer in report.buffers} >= {"weights", "kv_cache", "compute_buffer"}
        loaded = held_bytes(engine)
        assert loaded - before >= self.cache_bytes
        answer = engine.generate(ChatRequest(messages=user("Hello."), max_output_tokens=4))
        assert answer.output_tokens == 4
        assert engine.active_requests() == 0
        if engine.capabilities.can_unload:
            loaded = held_bytes(engine)
            engine.unload()
            assert loaded - held_bytes(engine) >= self.cache_bytes
            assert engine.pids() == pids
        engine.stop()
        assert engine.pids() == ()
        assert not [pid for pid in pids if process_exists(pid)]

    @pytest.mark.parametrize("text", TEXTS)
    def test_tokens_counted_are_tokens_the_server_says_it_was_sent(self, engine: Engine, text: str) -> None:
        counted = engine.count_prompt_tokens(user(text))
        answer = engine.generate(ChatRequest(messages=user(text), max_output_tokens=1))
        assert answer.prompt_tokens == counted

    def test_a_conversation_of_several_turns_is_counted_too(self, engine: Engine) -> None:
        messages = (
            Message(role="system", content="Be brief."),
            Message(role="user", content="One?"),
            Message(role="assistant", content="Yes."),
            Message(role="user", content="둘?"),
        )
        answer = engine.generate(ChatRequest(messages=messages, max_output_tokens=1))
        assert answer.prompt_tokens == engine.count_prompt_tokens(messages)

    def test_tools_and_their_calls_are_sent_and_counted(self, engine: Engine) -> None:
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
        assert answer.output_tokens == 12
        assert answer.finish_reason == "length"
        assert all(event.text for event in answer.events)

    def test_an_answer_is_cut_where_the_context_ends(self, make: Callable[..., Engine]) -> None:
        # As small as llama.cpp makes one, and filled but for a few tokens: what is asked for is more than is left.
        engine = self.bring_up(make, n_ctx=256)
        room = 256 - 8 - engine.count_prompt_tokens(user(""))
        text = "word" + " word" * (room - 1)
        counted = engine.count_prompt_tokens(user(text))
        assert counted == 256 - 8
        answer = engine.generate(ChatRequest(messages=user(text), max_output_tokens=64))
        assert answer.output_tokens is not None
        assert 256 <= counted + answer.output_tokens <= 256 + 1  # the last token is never fed back

    def test_nothing_is_reused_unless_asked_for(self, engine: Engine) -> None:
        messages = user("Why does memory grow when a conversation gets longer? Explain it step by step.")
        request = ChatRequest(messages=messages, max_output_tokens=2)
        engine.generate(request)
        assert engine.generate(request).cached_tokens == 0
        again = engine.generate(ChatRequest(messages=messages, max_output_tokens=2, reuse_prefix=True))
        assert again.cached_tokens is not None
        assert again.cached_tokens > 5

    def test_a_prompt_over_the_limit(self, engine: Engine) -> None:
        text = "word " * (2 * CONTEXT_TOKENS)
        counted = engine.count_prompt_tokens(user(text))
        with pytest.raises(ContextOverflow) as caught:
            engine.generate(ChatRequest(messages=user(text), max_output_tokens=1))
        assert str(counted) in caught.value.message
        assert str(CONTEXT_TOKENS) in caught.value.message
        # It still answers afterwards.
        assert engine.generate(ChatRequest(messages=user("Hello."), max_output_tokens=1)).output_tokens == 1

    def test_a_setting_that_does_not_exist(self, make: Callable[..., Engine]) -> None:
        with pytest.raises(InvalidSettings, match="n_contex"):
            self.bring_up(make, n_contex=1)

    def test_a_value_of_the_wrong_kind(self, make: Callable[..., Engine]) -> None:
        with pytest.raises(InvalidSettings, match="ctx"):
            self.bring_up(make, n_ctx="many")

    def bring_up(self, make: Callable[..., Engine], **settings: object) -> Engine:
        engine = make(**settings)
        engine.launch()
        engine.load()
        return engine

    def test_out_of_order_calls_are_refused(self, make: Callable[..., Engine]) -> None:
        engine = make()
        with pytest.raises(EngineStartFailed):
            engine.load()
        engine.launch()
        if engine.capabilities.baseline_before_load:
            with pytest.raises(EngineError):
                engine.generate(ChatRequest(messages=user("Hello."), max_output_tokens=1))

    def test_stop_at_any_moment_and_twice(self, make: Callable[..., Engine]) -> None:
        make().stop()  # never launched
        launched = make()
        launched.launch()
        launched.stop()
        launched.stop()
        loaded = self.bring_up(make)
        loaded.stop()  # a server destroyed right after it was made can hang
        loaded.stop()
        assert loaded.pids() == ()

    def test_two_at_once_do_not_mix(self, make: Callable[..., Engine]) -> None:
        one, two = self.bring_up(make), self.bring_up(make)
        first, second = held_bytes(one), held_bytes(two)
        assert not set(one.pids()) & set(two.pids())
        one.stop()
        assert two.generate(ChatRequest(messages=user("Hello."), max_output_tokens=2)).output_tokens == 2
        assert min(first, second) >= self.cache_bytes

    def test_settings_are_told(self, make: Callable[..., Engine]) -> None:
        assert make().settings["n_ctx"] == CONTEXT_TOKENS
