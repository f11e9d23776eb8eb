"""What one of several ranks holds, by hand-derived numbers."""

import pytest

from kvscope.dtypes import dtype_named
from kvscope.errors import UsageError
from kvscope.model.load import load_model
from kvscope.model.spec import IndexedAttention, LatentAttention, RecurrentState, StateTensor
from kvscope.predict.memory import predict
from kvscope.predict.parallel import heads_per_rank, rank_cache, rank_weights, split_layers

BFLOAT16 = dtype_named("bfloat16")
# 4 layers of 8 heads (4 KV) of 16, width 128, FFN 256, vocabulary 1,000: small enough to add up by hand.
TINY = {
    "model_type": "llama", "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1000, "max_position_embeddings": 4096,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip


@pytest.mark.parametrize(
    ("layers", "stages", "sizes"),
    [
        (32, 4, [8, 8, 8, 8]),
        # vLLM, get_pp_indices: what is left over goes to the stages before the last, from the back, so that the first
        # and last, which hold the embeddings, stay short.
        (92, 8, [11, 11, 11, 12, 12, 12, 12, 11]),
        (61, 4, [15, 15, 16, 15]),
        (7, 4, [2, 2, 2, 1]),
        (5, 5, [1, 1, 1, 1, 1]),
    ],
)
def test_layers_of_each_stage(layers: int, stages: int, sizes: list[int]) -> None:
    split = split_layers(layers, stages)
    assert [len(stage) for stage in split] == sizes
    assert [layer for stage in split for layer in stage] == list(range(layers))


def test_more_stages_than_layers_is_refused() -> None:
    with pytest.raises(UsageError, match="4 layers"):
        split_layers(4, 5)


@pytest.mark.parametrize(("heads", "ranks", "kept"), [(8, 1, 8), (8, 2, 4), (8, 8, 1), (8, 16, 1), (1, 8, 1)])
def test_heads_divide_and_then_are_copied(heads: int, ranks: int, kept: int) -> None:
    assert heads_per_rank(heads, ranks) == kept


@pytest.mark.parametrize(("heads", "ranks"), [(3, 2), (8, 3), (6, 4)])
def test_heads_that_do_not_divide_are_refused(heads: int, ranks: int) -> None:
    with pytest.raises(UsageError, match=f"{heads} KV heads"):
        heads_per_rank(heads, ranks)


def test_a_latent_and_an_index_are_copied_to_every_rank() -> None:
    latent = LatentAttention(latent_dim=512, rope_dim=64)
    indexed = IndexedAttention(main=latent, index_dim=128)
    assert rank_cache(latent, 8) == latent
    assert rank_cache(indexed, 8) == indexed


def test_mamba2_groups_that_do_not_divide_are_copied() -> None:
    # Granite 4 H small: inner 8,192 = 128 heads × 64, one group, state 128: 8,192 + 2 × 128 channels. With 8 ranks each
    # needs the one group: 8,192 / 8 + 2 × 128 = 1,280 channels and 16 heads a rank.
    state = RecurrentState(
        form="mamba2", conv_channels=8448, conv_kernel=4, states=(StateTensor(name="s", shape=(128, 64, 128)),)
    )
    rank = rank_cache(state, 8)
    assert isinstance(rank, RecurrentState)
    assert rank.conv_channels == 1280
    assert rank.states[0].shape == (16, 64, 128)
    # Eight groups divide: (8,192 + 2 × 8 × 128) / 8.
    grouped = RecurrentState(form="mamba2", conv_channels=10240, conv_kernel=4, states=state.states)
    rank = rank_cache(grouped, 8)
    assert isinstance(rank, RecurrentState)
    assert rank.conv_channels == 1280


def test_weights_of_one_rank_by_hand() -> None:
    model = load_model(TINY)
    # A layer: q and o 128 × 128, k and v 64 × 128 each, three FFN matrices 256 × 128, two norms of 128.
    matrices, kv, norms = 2 * 128 * 128 + 3 * 256 * 128, 2 * 64 * 128, 2 * 128
    vocabulary = 1024 * 128  # 1,000 rows padded to a multiple of 64, for the embeddings and for the output matrix
    assert model.num_parameters == 4 * (matrices + kv + norms) + 2 * 1000 * 128 + 128
    whole = rank_weights(model, BFLOAT16, 1, 1)
    assert whole is not None
    assert whole[0].num_bytes == 2 * (4 * (matrices + kv + norms) + 2 * vocabulary + 128)
    half = rank_weights(model, BFLOAT16, 2, 1)
    assert half is not None
    assert half[0].num_bytes == 2 * (4 * ((matrices + kv) // 2 + norms) + vocabulary + 128)
    # Eight ranks share four KV heads: each keeps one of the four.
    eighth = rank_weights(model, BFLOAT16, 8, 1)
    assert eighth is not None
    assert eighth[0].num_bytes == 2 * (4 * (matrices // 8 + kv // 4 + norms) + vocabulary // 4 + 128)


def test_stages_share_the_weights_out() -> None:
    model = load_model(TINY)
    layer = 2 * 128 * 128 + 3 * 256 * 128 + 2 * 64 * 128 + 2 * 128
    stages = rank_weights(model, BFLOAT16, 1, 2)
    assert stages is not None
    assert [stage.num_bytes for stage in stages] == [
        2 * (2 * layer + 1024 * 128),
        2 * (2 * layer + 1024 * 128 + 128),
    ]
    tied = rank_weights(load_model({**TINY, "tie_word_embeddings": True}), BFLOAT16, 1, 2)
    assert tied is not None
    assert [stage.num_bytes for stage in tied] == [stage.num_bytes for stage in stages]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_p67_tensor_parallel_does_not_divide_an_mla_cache(engine: str) -> None:
    # deepseek-ai/DeepSeek-V3#283: 61 layers × 576 × 2 B × 163,840 tokens = 11,513,364,480 B on each of 8 ranks.
    model = load_model({"model_type": "deepseek_v3", "torch_dtype": "bfloat16"})
    length, name = ("max_model_len", "tensor_parallel_size") if engine == "vllm" else ("context_length", "tp_size")
    for ranks in (1, 8):
        predicted = predict(model, engine=engine, tokens=163840, settings={length: 163840, name: ranks})
        needed = sum(item.needed.bytes_at(163840) for item in predicted.items if item.component == "kv_cache")
        assert needed == 11_513_364_480
    assert predicted.status == "estimated"


def test_p23_a_stage_needs_only_its_layers_cache() -> None:
    # vllm-project/vllm#32105: 92 layers × 8 heads × 256 × 2 B × 202,752 tokens = 76,403,441,664 B; 12 of them
    # 9,965,666,304 B. vLLM once compared the whole with what one rank has.
    model = load_model(
        {
            "model_type": "llama", "num_hidden_layers": 92, "num_attention_heads": 96, "num_key_value_heads": 8,
            "head_dim": 128, "hidden_size": 12288, "intermediate_size": 100, "vocab_size": 64,
            "max_position_embeddings": 202752, "torch_dtype": "bfloat16",
        }
    )  # fmt: skip
    available = int(28.57 * 2**30)
    settings = {"device": "cuda", "max_model_len": 202752, "pipeline_parallel_size": 8}
    predicted = predict(model, engine="vllm", settings=settings, available_bytes=available)
    assert predicted.effective["sequence_bytes"] == 9_965_666_304
    assert predicted.effective["fits"] is True
    whole = predict(
        model, engine="vllm", settings={"device": "cuda", "max_model_len": 202752}, available_bytes=available
    )
    assert whole.effective["sequence_bytes"] == 76_403_441_664
    assert whole.effective["fits"] is False
    # The report's 81,392 is 28.57 GiB over all 92 layers, less the one block that vLLM now holds back.
    per_block = 92 * 8 * 256 * 2 * 16
    assert whole.effective["estimated_max_model_len"] == (available - per_block) // per_block * 16 == 81_376


def test_states_whose_heads_the_file_does_not_say_are_not_split() -> None:
    """A GGUF says a state's inner channels, heads times width; two ranks may not share a head."""
    state = RecurrentState(
        form="mamba2", conv_channels=80, conv_kernel=4, states=(StateTensor(name="ssm_state", shape=(64, 8)),)
    )
    assert rank_cache(state, 1) == state
    with pytest.raises(UsageError, match="how many heads"):
        rank_cache(state, 2)
