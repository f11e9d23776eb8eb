"""Reports of others, with their numbers: what kvscope makes of what they saw."""

import pytest

from kvscope import predict
from kvscope.analysis.explain import Match, explain
from kvscope.engine.failure_words import classify_message
from kvscope.model.load import load_model
from kvscope.model.spec import ModelSpec

LAYERS_36 = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151_936,
    "max_position_embeddings": 262_144,
    "tie_word_embeddings": True,
}


def only(text: str, model: ModelSpec | None = None) -> Match:
    (match,) = explain(text, model).matches
    return match


@pytest.mark.parametrize(
    ("failed_bytes", "tokens"),
    [(137_438_953_504, 1_048_576), (17_179_869_216, 131_072)],
)
def test_p57_a_failed_size_is_layers_times_context(failed_bytes: int, tokens: int) -> None:
    """ggml-org/llama.cpp#8101: 32 layers × 8 heads × (128 + 128) × 2 B = 131,072 B per token, and 32 B beside them."""
    line = f"ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size {failed_bytes}"
    match = only(line)
    assert match.kind == "kv_alloc_oom"
    assert match.numbers == {"bytes_per_token": 131_072, "tokens": tokens, "extra_bytes": 32}
    assert classify_message(line)[0] == "out_of_memory"


def test_p58_the_default_context_was_the_trained_one() -> None:
    """janhq/jan#8236: 36 layers × 8 × (128 + 128) × 2 B = 147,456 B per token × 262,144 tokens."""
    model = load_model(LAYERS_36)
    assert model.trained_context_tokens == 262_144
    match = only("failed to allocate CPU buffer of size 38654705664", model)
    assert match.kind == "kv_alloc_oom"
    assert match.is_certain
    assert match.numbers["bytes_per_token"] * match.numbers["tokens"] == 147_456 * 262_144 == 38_654_705_664


def test_p59_keys_and_values_of_a_context_that_nobody_asked_for() -> None:
    """eullm/eullm#302: 34 layers × 4 × 256 × 2 B × 131,072 tokens = 9,126,805,504 B for keys, and as much for
    values."""
    where = "llama_kv_cache: size = 17408.00 MiB (131072 cells, 34 layers, 1/1 seqs)"
    numbers = only(f"{where}, K (f16): 8704.00 MiB, V (f16): 8704.00 MiB").numbers
    assert numbers["k_bytes"] == numbers["v_bytes"] == 34 * 4 * 256 * 2 * 131_072 == 9_126_805_504


def test_m05_the_same_count_for_every_large_prompt() -> None:
    """ollama/ollama#6672: 1,026 = 2,048 / 2 + 2."""
    match = only('"prompt_eval_count": 1026')
    assert match.kind == "truncated_input"
    assert match.numbers == {"prompt_tokens": 1026, "context_tokens": 2048}
    assert not match.is_certain


def test_m08_a_second_slot_halves_the_context() -> None:
    """janhq/jan#8534: 8,192 / 2."""
    for unified, each in ((False, 4096), (True, 8192)):
        settings = {"n_ctx": 8192, "n_parallel": 2, "kv_unified": unified}
        predicted = predict(load_model(LAYERS_36), engine="llama.cpp", settings=settings).to_dict()
        assert predicted["effective"]["context_per_sequence_tokens"] == each


@pytest.mark.parametrize(
    "line",
    [
        "llama_init_from_model: V cache quantization requires flash_attn",
        "llama_init_from_model: quantized V cache requires flash_attn to be enabled",
    ],
)
def test_m11_quantised_values_without_flash_attention_are_a_bad_setting(line: str) -> None:
    assert only(line).kind == "invalid_settings"
    assert classify_message(line)[0] == "invalid_settings"


def test_m12_an_illegal_access_is_a_fault() -> None:
    """ollama/ollama#10555: it has the word memory in it, and is no lack of it."""
    line = "CUDA error: an illegal memory access was encountered"
    assert only(line).kind == "engine_fault"
    assert classify_message(line)[0] == "engine_fault"


def test_m14_a_full_pool_is_waited_for_and_fails_nothing() -> None:
    """vllm-project/vllm#1891: two requests of 6,000 tokens and a pool of 10,000: one waits or is computed again."""
    line = "Sequence group 1 is preempted by PreemptionMode.RECOMPUTE mode because there is not enough KV cache space."
    match = only(line)
    assert match.kind == "pool_full"
    assert "not broken" in match.advice
    assert classify_message(line) == (None, None)


def test_m17_scores_of_every_prompt_position() -> None:
    """vllm-project/vllm#5907: 8,192 tokens × 152,064 scores × 4 B = 4,982,833,152 B, which torch prints as 4.64 GiB."""
    assert f"{4_982_833_152 / 1024**3:.2f}" == "4.64"
    model = load_model({**LAYERS_36, "vocab_size": 152_064, "tie_word_embeddings": False})
    line = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.64 GiB. GPU 0 has a total capacity of 79 GiB"
    )
    match = only(line, model)
    assert match.kind == "runtime_activation_oom"
    assert match.numbers["tokens"] * match.numbers["bytes_per_token"] == 8_192 * 152_064 * 4 == 4_982_833_152
    assert "prompt_logprobs" in match.advice
    assert classify_message(line)[0] == "out_of_memory"
