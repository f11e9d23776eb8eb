"""What must hold for every model, engine and length, whatever the numbers are."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvscope.model.spec import FullAttention, ModelSpec, SlidingWindow
from kvscope.predict.memory import predict
from kvscope.predict.question import Question
from kvscope.predict.solve import Search

MANY = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=120)
# (model, engine, settings): real headers on llama.cpp, published configs without an engine and on transformers.
CASES = [
    ("smollm2-135m-instruct-q4_1", "llama.cpp", {}),
    ("smollm2-135m-instruct-q4_1", "llama.cpp", {"flash_attn": "off"}),
    ("gemma3-270m-q4_k_m", "llama.cpp", {}),
    ("gemma3-270m-q4_k_m", "llama.cpp", {"cache_type_k": "q8_0", "kv_unified": True}),
    ("tiny-qwen3", "llama.cpp", {}),
    ("tiny-deci", "llama.cpp", {}),
    ("llama-3.1-8b", "logical", {}),
    ("llama-3.1-8b", "transformers", {}),
    ("mistral-7b-v0.1", "logical", {}),
    ("mistral-7b-v0.1", "transformers", {}),
]
cases = st.sampled_from(CASES)
lengths = st.integers(0, 40_000)
COMPONENTS = (
    "weights", "kv_cache", "recurrent_state", "index_cache", "compute_buffer", "output_buffer", "runtime", "host_cache",
)  # fmt: skip


def ask(models: dict[str, ModelSpec], case: tuple[str, str, dict[str, Any]], tokens: int, sequences: int = 1) -> Any:
    name, engine, given_settings = case
    question = Question(model=models[name], engine=engine, settings=given_settings)
    return question.holding(tokens, sequences).ask()


@MANY
@given(case=cases, tokens=lengths, sequences=st.integers(1, 6))
def test_totals_are_sums_of_items(models: dict[str, ModelSpec], case: Any, tokens: int, sequences: int) -> None:
    found = ask(models, case, tokens, sequences).to_dict()
    for component in COMPONENTS:
        total = found["totals"][f"{component}_bytes"]
        items = [item["allocated_bytes"] for item in found["items"] if item["component"] == component]
        assert total == sum(items) or (total is None and not items)
    assert found["totals"]["total_bytes"] == sum(item["allocated_bytes"] for item in found["items"])
    assert found["totals"]["cache_bytes"] == sum(layer["cache_bytes"] for layer in found["layers"])


@MANY
@given(case=cases, first=lengths, second=lengths, sequences=st.integers(1, 4))
def test_never_less_with_more_tokens(
    models: dict[str, ModelSpec], case: Any, first: int, second: int, sequences: int
) -> None:
    shorter, longer = (ask(models, case, tokens, sequences) for tokens in sorted((first, second)))
    assert shorter.total_bytes <= longer.total_bytes
    assert shorter.needed_at(min(first, second)) <= longer.needed_at(max(first, second))


@MANY
@given(case=cases, tokens=lengths, sequences=st.integers(1, 6))
def test_sequences_scale(models: dict[str, ModelSpec], case: Any, tokens: int, sequences: int) -> None:
    """What equal sequences need is so many times what one needs; slope and state are of one sequence."""
    one, many = ask(models, case, tokens), ask(models, case, tokens, sequences)
    assert many.needed_at(tokens) == sequences * one.needed_at(tokens)
    assert many.bytes_per_token == one.bytes_per_token
    assert many.bytes_per_sequence == one.bytes_per_sequence
    if case[1] != "llama.cpp":
        assert many.cache_bytes == sequences * one.cache_bytes


@MANY
@given(case=cases, tokens=lengths)
def test_a_slope_is_what_the_next_token_needs(models: dict[str, ModelSpec], case: Any, tokens: int) -> None:
    found = ask(models, case, tokens)
    assert found.bytes_per_token == found.needed_at(tokens + 1) - found.needed_at(tokens)


@pytest.mark.parametrize("window", [2, 100, 4096, 5000])
@pytest.mark.parametrize("engine", ["logical", "transformers"])
def test_a_knee_is_where_the_window_says(window: int, engine: str) -> None:
    """Before it every layer grows, from it on none: transformers keeps one token less than the window."""
    import kvscope

    model = kvscope.load_model({"model_type": "mistral", "sliding_window": window, "torch_dtype": "bfloat16"})
    found = predict(model, engine=engine, tokens=100)
    place = window if engine == "logical" else window - 1
    (knee,) = found.knees
    assert (knee.tokens, knee.why) == (place, "sliding window full")
    assert found.slope_at(place - 1) == 32 * 2 * 8 * 128 * 2
    assert found.slope_at(place) == 0


def test_a_knee_in_every_real_model_with_a_window(models: dict[str, ModelSpec]) -> None:
    for name, model in models.items():
        windows = {layer.cache.window_tokens for layer in model.layers if isinstance(layer.cache, SlidingWindow)}
        has_full = any(isinstance(layer.cache, FullAttention) for layer in model.layers)
        found = predict(model, engine="logical", tokens=10)
        assert {knee.tokens for knee in found.knees} == windows, name
        for window in windows:
            assert found.slope_at(window) < found.slope_at(window - 1)
            assert (found.slope_at(max(windows)) > 0) == has_full


def test_a_knee_beyond_the_context_limit_is_never_reached(models: dict[str, ModelSpec]) -> None:
    """Gemma 3's window of 512 in a context of 256 cells."""
    model = models["gemma3-270m-q4_k_m"]
    assert predict(model, engine="llama.cpp", settings={"n_ctx": 256}).knees == ()
    assert [knee.tokens for knee in predict(model, engine="llama.cpp", settings={"n_ctx": 512}).knees] == [512]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[1]}-{'-'.join(map(str, case[2]))}")
def test_what_fits_fits_and_one_block_more_does_not(models: dict[str, ModelSpec], case: Any) -> None:
    """10,000 budgets in ten cases, from too little for one block to more than the trained context takes: 1,500 each
    where the context comes in blocks of 256, 250 each where every token is tried."""
    name, engine, given_settings = case
    model = models[name]
    trained = model.trained_context_tokens
    assert trained is not None
    sequences = 3 if "kv_unified" in given_settings else 1
    search = Search(question=Question(model=model, engine=engine, sequences=sequences, settings=given_settings), room=0)
    block = search.block_tokens()
    assert block == (256 if engine == "llama.cpp" else 1)
    least, most = search.bytes_at(block, sequences), search.bytes_at(trained, sequences)
    seen = set()
    budgets = 1500 if engine == "llama.cpp" else 250
    for step in range(budgets):
        search.room = least - 1 + (most - least + 2) * step // (budgets - 1)
        found, limited_by = search.largest_context(block)
        assert found is not None
        seen.add(found)
        if found:
            assert search.bytes_at(found, sequences) <= search.room
        if limited_by == "budget":
            assert search.bytes_at(found + block, sequences) > search.room
        else:
            assert found == trained
    assert {0, trained} <= seen
    assert len(seen) >= min(budgets, trained // block) // 2


def test_knees_name_what_stops_growing() -> None:
    """Six kinds in one model, float16, three sequences. Bytes for each token of one sequence: full attention 2 × 4 × 64
    × 2 = 1,024; window, chunk and the attention beside a state the same; hidden states 2 × 100; entries of 512
    elements, one for every 4 tokens, 256 each, beside a window of single ones, 1,024. States do not grow."""
    import dataclasses

    import kvscope
    from kvscope.model import spec

    heads = {"num_kv_heads": 4, "key_dim": 64, "value_dim": 64}
    state = spec.RecurrentState(form="mamba2", states=(spec.StateTensor(name="ssm", shape=(8, 16), dtype="float32"),))
    caches = [
        FullAttention(**heads),
        SlidingWindow(**heads, window_tokens=100),
        spec.ChunkedAttention(**heads, chunk_tokens=300),
        spec.HybridCache(attention=SlidingWindow(**heads, window_tokens=300), recurrent=state),
        spec.HiddenStateMemory(width=100, memory_tokens=500),
        spec.CompressedAttention(entry_dim=512, window_tokens=100, rate_tokens=4),
        spec.RecurrentState(form="mamba2", states=(spec.StateTensor(name="ssm", shape=(8, 16), dtype="float32"),)),
        spec.NoCache(),
    ]
    model = dataclasses.replace(
        kvscope.load_model({"model_type": "llama", "torch_dtype": "float16"}),
        layers=tuple(
            spec.LayerSpec(index=index, cache=cache, num_q_heads=4, ffn=None) for index, cache in enumerate(caches)
        ),
    )
    found = predict(model, engine="logical", tokens=1000, sequences=3)
    assert [(knee.tokens, knee.why) for knee in found.knees] == [
        (100, "sliding window full"),
        (300, "attention chunk full and sliding window full"),
        (500, "memory of past hidden states full"),
    ]
    # Windows of 100: one layer and the compressing layer's; 300: chunk and window; 500: hidden states.
    slopes = [4 * 1024 + 200 + 256 + 1024, 3 * 1024 + 200 + 256, 1024 + 200 + 256, 1024 + 256]
    assert [found.slope_at(n) for n in (0, 99, 100, 299, 300, 499, 500, 10**6)] == [
        slope for slope in slopes for _ in range(2)
    ]
    assert found.bytes_per_token == slopes[-1]
    block_inputs = 2 * 4 * 512 * 2  # of the block being filled: values and gates of 4 tokens
    assert found.bytes_per_sequence == 2 * 8 * 16 * 4 + block_inputs
