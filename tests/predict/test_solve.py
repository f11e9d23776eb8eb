"""What fits: against bytes derived by hand, and against every context tried one by one."""

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

import kvscope
from kvscope.errors import UnsupportedArchitecture, UsageError
from kvscope.model.spec import ModelSpec
from kvscope.predict.question import Question
from kvscope.predict.solve import Search, fit, largest_that_fits
from kvscope.units import GIB, MIB

# Meta's published config of Llama 3.1 8B, as far as sizes go. 8,030,261,248 parameters; a token takes
# 32 layers × 2 × 8 heads × 128 × 2 B = 131,072 B.
LLAMA_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
WEIGHTS = 8_030_261_248 * 2


@pytest.fixture(scope="module")
def llama() -> ModelSpec:
    return kvscope.load_model(LLAMA_8B)


def smollm2_bytes(cells: int) -> int:
    """SmolLM2 with one slot and n_ubatch 512, cells ≥ 2,048: weights, output buffer, 23,040 B a cell, and the compute
    buffer by rule 16 of the measurements: 32 + u × (4 × (5 × 576 + 9) + 2 × cells) + 12 × 1536 × u."""
    compute = 32 + 512 * (4 * (5 * 576 + 9) + 2 * cells) + 12 * 1536 * 512
    return 96_576_768 + 49_152 * 4 + 23_040 * cells + compute


@pytest.mark.parametrize("engine", ["logical", "transformers"])
def test_a_context_by_hand(llama: ModelSpec, engine: str) -> None:
    found = fit(llama, budget_bytes=24 * GIB, engine=engine)
    by_hand = (24 * GIB - WEIGHTS) // 131_072
    assert found.largest_context_tokens == by_hand == 74_075
    assert found.context_total_bytes == WEIGHTS + by_hand * 131_072 <= 24 * GIB
    assert found.beyond_total_bytes == WEIGHTS + (by_hand + 1) * 131_072 > 24 * GIB
    assert found.limited_by == "budget"


def test_sequences_by_hand(llama: ModelSpec) -> None:
    found = fit(llama, budget_bytes=80 * GIB, engine="logical", tokens=10_000, sequences=8, reserve_bytes=GIB)
    room = 79 * GIB - WEIGHTS
    assert found.most_sequences == room // (10_000 * 131_072) == 52
    assert found.largest_context_tokens == room // (8 * 131_072) == 65_579


def test_the_trained_context_ends_it(llama: ModelSpec) -> None:
    found = fit(llama, budget_bytes=2000 * GIB, engine="logical")
    assert (found.largest_context_tokens, found.limited_by) == (131_072, "the trained context")
    assert found.beyond_total_bytes is None
    assert "limited by the trained context" in found.because


def test_llama_cpp_by_hand(smollm2: ModelSpec) -> None:
    found = fit(smollm2, budget_bytes=250 * MIB)
    assert smollm2_bytes(6144) <= 250 * MIB < smollm2_bytes(6400)
    assert found.largest_context_tokens == 6144
    assert (found.context_total_bytes, found.beyond_total_bytes) == (smollm2_bytes(6144), smollm2_bytes(6400))


def test_llama_cpp_slots_by_hand(smollm2: ModelSpec) -> None:
    """Five slots of 8,192: u = 515 (512 rounded up to whole slots), 8,192 cells in each of 5 streams."""

    def needed(slots: int, u: int) -> int:
        compute = 32 + u * (4 * (5 * 576 + 9) + 2 * 8192) + 12 * 1536 * u
        return 96_576_768 + 49_152 * 4 * slots + 23_040 * 8192 * slots + compute

    assert needed(5, 515) <= 1024 * MIB < needed(6, 516)
    assert fit(smollm2, budget_bytes=1024 * MIB).most_sequences == 5


def test_what_is_found_is_what_predict_says(gemma3: ModelSpec) -> None:
    found = fit(gemma3, budget_bytes=500 * MIB, sequences=3, settings={"ctk": "q8_0"})
    largest = found.largest_context_tokens
    assert largest is not None
    totals = [
        kvscope.predict(
            gemma3, engine="llama.cpp", tokens=n, sequences=3, settings={"n_ctx": 3 * n, "cache_type_k": "q8_0"}
        ).total_bytes
        for n in (largest, largest + 256)
    ]
    assert totals == [found.context_total_bytes, found.beyond_total_bytes]
    assert totals[0] <= 500 * MIB < totals[1]


@pytest.mark.parametrize("sequences", [1, 3])
@pytest.mark.parametrize("settings", [{}, {"swa_full": True}, {"kv_unified": True, "cache_type_v": "q8_0"}])
def test_against_every_context_one_by_one(gemma3: ModelSpec, sequences: int, settings: dict[str, Any]) -> None:
    """All 128 contexts of Gemma 3 in blocks of 256 up to its trained 32,768, for 40 budgets."""
    question = Question(model=gemma3, engine="llama.cpp", sequences=sequences, settings=settings)
    search = Search(question=question, room=0)
    totals = [search.bytes_at(256 * block, sequences) for block in range(1, 129)]
    span = totals[-1] - totals[0]
    for step in range(-1, 40):
        search.room = totals[0] + span * step // 38
        expected = 256 * sum(total <= search.room for total in totals)
        found, limited_by = search.largest_context(256)
        assert found == expected
        assert (limited_by == "budget") == (expected < 32_768)


def test_more_slots_that_need_less_are_found() -> None:
    """Scratch is for rows of whole slots: 7 slots round 512 rows up to 518, 8 slots need 512. In a model with so small
    a cache (two layers, one KV head) the eighth slot makes it cheaper."""
    config = {**LLAMA_8B, "num_key_value_heads": 1, "num_hidden_layers": 2, "head_dim": 128}
    model = kvscope.load_model(config)
    question = Question(model=model, engine="llama.cpp")
    search = Search(question=question, room=0)
    totals = [search.bytes_at(256, slots) for slots in range(1, 257)]
    drops = [index for index in range(255) if totals[index] > totals[index + 1]]
    assert 6 in drops
    for index in drops:
        search.room = totals[index + 1]
        assert search.most_sequences(256) == max(n + 1 for n in range(256) if totals[n] <= search.room)


def test_memory_that_fills_and_empties() -> None:
    """A block of 8 tokens that fills and empties: 100 B a token in it, 10 B for each finished one. With 715 B the first
    7 tokens fit (700), 8 need 10, 15 need 710, 23 need 720: a conversation can grow to 22."""
    from kvscope.predict.growth import GrowthLaw
    from kvscope.predict.held import peak_bytes
    from kvscope.predict.prediction import MemoryItem, Prediction
    from kvscope.scenario import EngineSettings, Scenario, Workload

    laws = [
        GrowthLaw(bytes_per_token=100, step_tokens=8, unfinished=True),
        GrowthLaw(bytes_per_token=10, step_tokens=8, per_step=True),
    ]

    def at(tokens: int) -> int:
        scenario = Scenario(workload=Workload(tokens=tokens), settings=EngineSettings(engine="logical"))
        items = tuple(MemoryItem(component="kv_cache", needed=law, allocated=law, because="") for law in laws)
        model = kvscope.load_model(LLAMA_8B)
        return peak_bytes(
            Prediction(model=model, scenario=scenario, effective={}, items=items, layers=(), buffers=(), status="exact")
        )

    assert [at(n) for n in (7, 8, 15, 16, 22, 23)] == [700, 700, 710, 710, 710, 720]
    assert largest_that_fits(at, 715, 100) == 22


@pytest.mark.parametrize(("sequences", "expected"), [(1, 577 * 128), (3, 192 * 128)])
def test_vllm_by_hand(llama: ModelSpec, sequences: int, expected: int) -> None:
    """A block of 128 tokens: 32 layers × 128 × 8 heads × (128 + 128) × 2 B = 16,777,216 B. What 24 GiB leave beside the
    weights is 578 blocks; one is vLLM's own, the others are the sequences'. predict() has vLLM's own verdict."""
    found = fit(llama, budget_bytes=24 * GIB, engine="vllm", sequences=sequences)
    assert (24 * GIB - WEIGHTS) // 16_777_216 == 578
    assert (found.largest_context_tokens, found.block_tokens) == (expected, 128)
    for tokens, fits in ((expected, True), (expected + 128, False)):
        asked = kvscope.predict(
            llama,
            engine="vllm",
            tokens=tokens,
            sequences=sequences,
            settings={"max_model_len": tokens},
            available_bytes=24 * GIB - WEIGHTS,
        )
        assert fits != any("do not all fit" in note for note in asked.notes)


MODELS = sorted(path.parent for path in (Path(__file__).parent.parent / "golden" / "models").glob("*/config.json"))
SGLANG_SETTINGS: list[dict[str, Any]] = [
    {}, {"page_size": 64}, {"mamba_full_memory_ratio": 0.2}, {"max_mamba_cache_size": 8}, {"page_size": 16},
    {"disable_hybrid_swa_memory": True}, {"swa_full_tokens_ratio": 0.1}, {"kv_cache_dtype": "fp8_e4m3"},
    {"disable_radix_cache": True, "max_running_requests": 5},
]  # fmt: skip


def sglang_says(model: ModelSpec, room: int, tokens: int, sequences: int, settings: dict[str, Any]) -> bool:
    """predict()'s own verdict where SGLang gets all that ``room`` leaves beside the weights."""
    try:
        asked = kvscope.predict(
            model, engine="sglang", tokens=tokens, sequences=sequences, settings=settings, available_bytes=max(room, 0)
        )
    except UsageError as error:
        if "Not enough memory" not in str(error):
            raise
        return False
    return not any("do not fit" in note or "do not all fit" in note for note in asked.notes)


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.name)
def test_sglang_fits_what_predict_says_fits(path: Path) -> None:
    """Every published config, budgets at random: N fits and one page more does not; M sequences do and M + 1 do not."""
    model = kvscope.load_model(str(path / "config.json"))
    draw = random.Random(path.name)
    try:
        one = kvscope.predict(model, engine="sglang", tokens=1)
    except UnsupportedArchitecture:
        with pytest.raises(UnsupportedArchitecture):
            fit(model, budget_bytes=GIB, engine="sglang", reserve_bytes=1, tokens=100)
        return
    weights = one.component_bytes("weights") or 0
    most = model.trained_context_tokens or 2**20
    needed = one.needed_at(most)
    for settings in SGLANG_SETTINGS:
        sequences, reserve = draw.choice((1, 1, 2, 5)), draw.choice((1, GIB))
        budget = weights + reserve + int((needed * sequences + 10**8) * draw.uniform(0.01, 2.5)) + draw.randrange(10**6)
        found = fit(
            model, budget_bytes=budget, engine="sglang", sequences=sequences, settings=settings, reserve_bytes=reserve,
            tokens=draw.choice((100, 5000)),
        )  # fmt: skip
        room = budget - reserve - weights
        largest, page = found.largest_context_tokens, settings.get("page_size", 1)
        if largest:
            assert sglang_says(model, room, largest, sequences, settings), (settings, budget)
            assert (found.context_total_bytes or 0) <= budget - reserve
        if largest is not None and found.limited_by == "budget":
            assert not sglang_says(model, room, largest + page, sequences, settings), (settings, budget)
            assert (found.beyond_total_bytes or 0) > budget - reserve
        if found.most_sequences:
            assert sglang_says(model, room, found.tokens, found.most_sequences, settings), (settings, budget)
        if found.most_sequences is not None:
            assert not sglang_says(model, room, found.tokens, found.most_sequences + 1, settings), (settings, budget)


def test_sglang_gives_states_their_part_first() -> None:
    """Qwen3-Next: 36 states of 49,152 + 2,097,152 B, 12 layers of 2,048 B a token. What the budget leaves beside the
    weights goes to whole states by 0.9 / 1.9; the rest is places."""
    model = kvscope.load_model(str(next(path for path in MODELS if path.name == "qwen3-next-80b-a3b") / "config.json"))
    budget = 160_942_972_409
    found = fit(model, budget_bytes=budget, engine="sglang")
    memory = budget - (kvscope.predict(model, engine="sglang", tokens=1).component_bytes("weights") or 0)
    state = 36 * (49_152 + 2_097_152)
    slots = int(memory * 0.9 / 1.9) // state
    places = (memory - slots * state) // 24_576
    assert (slots, places) == (9, 36_571)
    assert found.largest_context_tokens == places
    assert found.context_total_bytes == budget - memory + slots * state + places * 24_576
    assert found.beyond_total_bytes == found.context_total_bytes + 24_576
    assert any("9 slots" in note and "mamba_full_memory_ratio" in note for note in found.notes)
    # Ten sequences have no tenth state: 10 states are 0.9 / 1.9 of this much.
    assert found.most_sequences == 0  # of the trained 262,144 tokens
    ten = fit(model, budget_bytes=budget, engine="sglang", sequences=10)
    assert ten.largest_context_tokens == 0
    assert ten.beyond_total_bytes == budget - memory + math.ceil(10 * state * 1.9 / 0.9)
    assert fit(model, budget_bytes=budget, engine="sglang", tokens=100).most_sequences == 9


def test_sglang_keeps_windows_and_full_layers_once() -> None:
    """Gemma 3 12B on SGLang: every layer keeps every token, 48 layers × 8 heads × 512 × 2 B = 393,216 B."""
    model = kvscope.load_model(str(next(path for path in MODELS if path.name == "gemma-3-12b-it") / "config.json"))
    weights = kvscope.predict(model, engine="sglang", tokens=1).component_bytes("weights") or 0
    found = fit(model, budget_bytes=40 * 10**9, engine="sglang")
    assert found.largest_context_tokens == (40 * 10**9 - weights) // 393_216


def test_sglang_has_no_more_sequences_than_states() -> None:
    model = kvscope.load_model(str(next(path for path in MODELS if path.name == "qwen3-next-80b-a3b") / "config.json"))
    with pytest.raises(UsageError, match="3 states"):
        fit(model, budget_bytes=200 * GIB, engine="sglang", sequences=4, settings={"max_mamba_cache_size": 3})
    found = fit(model, budget_bytes=200 * GIB, engine="sglang", tokens=10, settings={"max_mamba_cache_size": 3})
    assert found.most_sequences == 3


def test_vllm_never_counts_unknown_weights_as_saved() -> None:
    """gpt-oss with two ranks: how its quantised weights split is not known, so it is no cheaper setting."""
    config = {**LLAMA_8B, "quantization_config": {"quant_method": "mxfp4"}}
    model = kvscope.load_model(config)
    found = fit(model, budget_bytes=24 * GIB, engine="vllm", reserve_bytes=1)
    for option in found.cheapest:
        assert "tensor_parallel_size" not in option.change


def test_ollama_is_asked_by_its_own_names(smollm2: ModelSpec) -> None:
    ollama = fit(smollm2, budget_bytes=300 * MIB, engine="ollama", sequences=2, tokens=2048)
    server = fit(smollm2, budget_bytes=300 * MIB, engine="llama.cpp", sequences=2, tokens=2048)
    assert ollama.largest_context_tokens == server.largest_context_tokens
    assert ollama.most_sequences == server.most_sequences
    assert {"kv_cache_type": "q8_0"} in [option.change for option in ollama.cheapest]


def test_nothing_fits(smollm2: ModelSpec) -> None:
    found = fit(smollm2, budget_bytes=10 * MIB)
    assert (found.largest_context_tokens, found.most_sequences, found.context_total_bytes) == (0, 0, None)
    assert "not even 256 tokens" in found.because
    assert not any(option.fits for option in found.cheapest)


def test_contract_fields_and_options(smollm2: ModelSpec) -> None:
    found = fit(smollm2, budget_bytes=250 * MIB).to_dict()
    assert found == json.loads(json.dumps(found))
    promised = ["schema", "budget_bytes", "largest_context_tokens", "most_sequences", "cheapest", "because"]
    assert [key for key in found if key in promised] == promised
    assert found["schema"] == "kvscope.fit/1"
    fits = [option["fits"] for option in found["cheapest"]]
    assert fits == sorted(fits, reverse=True)
    assert found["cheapest"][0]["change"] == {"cache_type_k": "q8_0", "cache_type_v": "q8_0"}
    for option in found["cheapest"]:
        asked = kvscope.predict(smollm2, engine="llama.cpp", tokens=8192, settings={"n_ctx": 8192, **option["change"]})
        assert option["total_bytes"] == asked.total_bytes
        assert option["fits"] == (asked.total_bytes <= 250 * MIB)
    assert any("runtime" in text for text in found["left_out"])


def test_unknown_weights_are_not_nothing() -> None:
    model = kvscope.load_model(LLAMA_8B)
    with pytest.raises(UsageError, match="are not known"):
        fit(model, budget_bytes=24 * GIB, engine="llama.cpp")
    assert fit(model, budget_bytes=24 * GIB, engine="llama.cpp", reserve_bytes=16 * GIB).largest_context_tokens


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"budget_bytes": 0}, "budget_bytes"),
        ({"budget_bytes": True}, "budget_bytes"),
        ({"budget_bytes": MIB, "reserve_bytes": -1}, "reserve_bytes"),
        ({"budget_bytes": MIB, "sequences": 0}, "sequences"),
        ({"budget_bytes": MIB, "settings": {"ctx_size": 4096}}, "fit chooses n_ctx"),
        ({"budget_bytes": MIB, "settings": {"np": 2}}, "fit chooses n_parallel"),
        ({"budget_bytes": MIB, "engine": "nothing"}, "nothing"),
    ],
)
def test_questions_that_cannot_be_asked(smollm2: ModelSpec, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        fit(smollm2, **arguments)


@pytest.mark.parametrize("room", range(-3, 320, 7))
def test_the_search_alone(room: int) -> None:
    """Stairs, a straight line, and a curve: against trying every count."""
    for bytes_of in (lambda n: n // 7 * 20, lambda n: 3 * n, lambda n: n * n // 10, lambda n: 5):
        expected = max((n for n in range(1, 101) if bytes_of(n) <= room), default=0)
        assert largest_that_fits(bytes_of, room, 100) == expected
