"""What each engine's rule says, against hand-derived numbers and published reports.

What the rule of llama.cpp says of real runs is in test_reuse_engine.py.
"""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from kvscope.errors import UnknownName, UsageError
from kvscope.model.load import load_model
from kvscope.model.spec import FullAttention, LayerSpec, ModelSpec, RecurrentState
from kvscope.prompt.reuse.rules import ENGINES, Reusable, SentPrompt, reusable_tokens, reused_in_order
from kvscope.scenario import SettingValue

TINY_GEMMA3 = Path(__file__).parent.parent / "golden" / "gguf" / "tiny-gemma3.gguf"


def ask(
    common: int,
    held: int,
    prompt: int,
    engine: str = "llama.cpp",
    *,
    version: str | None = None,
    model: ModelSpec | None = None,
    first: int | None = None,
    user_starts: tuple[int, ...] | None = None,
    **settings: SettingValue,
) -> Reusable:
    return reusable_tokens(
        common,
        held_tokens=held,
        prompt_tokens=prompt,
        engine=engine,
        engine_version=version,
        model=model,
        settings=settings,
        first_prompt_tokens=first,
        user_starts=user_starts,
    )


@pytest.fixture(scope="module")
def gemma3() -> ModelSpec:
    """Windows of 512 tokens."""
    return load_model(str(TINY_GEMMA3))


@pytest.fixture(scope="module")
def full(gemma3: ModelSpec) -> ModelSpec:
    return with_cache(gemma3, FullAttention(num_kv_heads=1, key_dim=16, value_dim=16))


@pytest.fixture(scope="module")
def recurrent(gemma3: ModelSpec) -> ModelSpec:
    return with_cache(gemma3, RecurrentState(form="mamba"))


def with_cache(model: ModelSpec, cache: FullAttention | RecurrentState) -> ModelSpec:
    return replace(model, layers=(LayerSpec(index=0, cache=cache, num_q_heads=1, ffn=None),))


def test_history_is_not_computed_again_where_it_is_reused(full: ModelSpec) -> None:
    """Public report (every next message is slower): histories of 1,000 to 8,000 tokens and 100 new ones. Without reuse
    1,100 to 8,100 tokens are computed; with it, 100 each time."""
    for history in (1000, 2000, 4000, 8000):
        asked = history + 100
        without = ask(history, history, asked, model=full, cache_prompt=False)
        reused = ask(history, history, asked, model=full)
        assert without.tokens is not None
        assert asked - without.tokens == asked
        assert reused.tokens is not None
        assert asked - reused.tokens == 100
        assert reused.status == "exact"


def test_a_hosted_cache_in_steps_of_128() -> None:
    """Public report: of a prompt of 2,785 tokens 2,688 came from the cache (21 x 128), and a minute later 0, since a
    clock had changed its first bytes."""
    found = ask(2785, 2785, 2785, "openai-api")
    assert (found.tokens, found.granularity_tokens, found.minimum_prefix_tokens) == (2688, 128, 1024)
    assert found.status == "estimated"
    assert ask(0, 2785, 2785, "openai-api").tokens == 0
    assert ask(1023, 2000, 2000, "openai-api").tokens == 0
    assert ask(1024, 2000, 2000, "openai-api").tokens == 1024


def test_a_prefix_below_one_block_is_never_reused(recurrent: ModelSpec) -> None:
    """Public reports: 561 tokens in common, blocks of 1,920 and 2,096 tokens that vLLM made for a model with recurrent
    states, no hits in 1,131 tokens, and nothing that said why."""
    for block in (1920, 2096):
        found = ask(561, 1131, 1131, "vllm", model=recurrent, first=1131, block_size=block)
        assert (found.tokens, found.minimum_prefix_tokens, found.granularity_tokens) == (0, block, block)
        assert f"{block:,}" in found.because
        assert "by design" in found.because


def test_vllm_reuses_whole_blocks_and_never_the_last_token(full: ModelSpec) -> None:
    for common, prompt, expected in ((100, 200, 96), (96, 96, 80), (97, 97, 96), (15, 200, 0), (16, 17, 16)):
        # floor(min(common, prompt - 1) / 16) x 16
        assert ask(common, 300, prompt, "vllm", model=full).tokens == expected
    assert ask(300, 300, 400, "vllm", block_size=128).tokens == 256
    assert ask(300, 300, 400, "vllm", enable_prefix_caching=False).tokens == 0
    assert ask(300, 300, 400, "vllm", version="0.6.3").tokens is None
    assert ask(300, 300, 400, "vllm", version="0.6.3", enable_prefix_caching=True).tokens == 288


def test_vllm_keeps_a_recurrent_state_at_the_last_whole_block(recurrent: ModelSpec) -> None:
    """A first prompt of 2,000 tokens in blocks of 832: the state is kept at floor(1,999 / 832) x 832 = 1,664."""
    assert ask(1900, 2000, 2100, "vllm", model=recurrent, first=2000, block_size=832).tokens == 1664
    assert ask(1600, 2000, 2100, "vllm", model=recurrent, first=2000, block_size=832).tokens == 0
    assert ask(1900, 2000, 2100, "vllm", model=recurrent, first=2000).tokens is None, "the block size is not stated"
    assert ask(1900, 2000, 2100, "vllm", model=recurrent, block_size=832).tokens is None
    too_long = ask(1600, 9000, 9100, "vllm", model=recurrent, first=9000, block_size=832)
    assert too_long.status == "unknown", "chunks of the prompt may have ended at a whole block"


def test_sglang_reuses_pages_and_never_the_last_token(full: ModelSpec, gemma3: ModelSpec) -> None:
    assert ask(100, 200, 100, "sglang", model=full).tokens == 99
    assert ask(100, 200, 150, "sglang", model=full, page_size=64).tokens == 64
    assert ask(100, 200, 150, "sglang", disable_radix_cache=True).tokens == 0
    assert ask(100, 200, 150, "sglang", model=gemma3).status == "unknown"


def test_transformers_begins_each_call_with_nothing() -> None:
    assert ask(100, 200, 150, "transformers").tokens == 0


def test_hosted_caches_that_a_request_must_ask_for() -> None:
    assert ask(1000, 2000, 2000, "anthropic-api").tokens == 0
    assert ask(1500, 2000, 2000, "anthropic-api").status == "unknown"
    assert ask(1200, 1200, 2000, "deepseek-api", first=1000).tokens == 1200
    assert ask(1100, 1200, 2000, "deepseek-api", first=1000).tokens == 1000
    assert ask(900, 1200, 2000, "deepseek-api", first=1000).tokens is None


def test_ollama_is_llama_cpp_without_marks_of_messages(gemma3: ModelSpec) -> None:
    """A batch of 1,024 is computed at once, so the first checkpoint is 1,024 tokens before the end; messages are not
    known to the server, so none is made where the user's begins."""
    found = ask(300, 1500, 400, "ollama", model=gemma3, first=1500, user_starts=(100, 250), num_batch=1024)
    assert (found.tokens, found.status) == (0, "estimated")
    same = ask(300, 1500, 400, model=gemma3, first=1500, user_starts=(100, 250), n_batch=1024, n_ubatch=1024)
    assert same.tokens == 249
    assert ask(300, 1500, 400, "ollama", version="0.9.1").status == "unknown"


def test_llama_cpp_computes_the_last_token_of_a_prompt_that_is_held_whole(full: ModelSpec) -> None:
    assert ask(100, 120, 100, model=full).tokens == 99
    assert ask(100, 100, 101, model=full).tokens == 100
    assert ask(1, 1, 1, model=full).tokens == 0
    assert ask(0, 120, 100, model=full).tokens == 0


def test_llama_cpp_with_several_slots_leaves_a_slot_that_holds_too_little(full: ModelSpec) -> None:
    """slot_prompt_similarity is 0.1: of 1,000 tokens, more than 100 must be common."""
    assert ask(100, 500, 1000, model=full, n_parallel=4).tokens == 0
    assert ask(101, 500, 1000, model=full, n_parallel=4).tokens == 101
    assert ask(100, 500, 1000, model=full, n_parallel=4).minimum_prefix_tokens == 101
    assert ask(100, 500, 1000, model=full, n_parallel=1).tokens == 100
    assert ask(100, 500, 1000, model=full, n_parallel=-1).tokens == 0, "the server's own choice is four slots"


def test_a_window_goes_back_to_a_checkpoint_only(gemma3: ModelSpec) -> None:
    """A first prompt of 1,500 tokens with microbatches of 512: checkpoints before the last 4 + 512 tokens and before
    the last 4, at 984 and 1,496. Of the window's cache of 1,024 cells, positions below 479 have been given to later
    tokens when 3 more were fed back (512 - 40 - 472 for the second batch, then one cell for each of 4 + 3 tokens)."""

    def tokens(common: int) -> int | None:
        return ask(common, 1503, common + 100, model=gemma3, first=1500, user_starts=(), n_ctx=4096).tokens

    assert tokens(1503) == 1503, "nothing is taken back"
    assert tokens(1000) == 1000, "1000 - 512 = 488, which is still there"
    assert tokens(992) == 992, "992 - 512 = 480, the first position needed below it is 479"
    assert tokens(991) == 983, "not there: to the checkpoint at 984, from which one token is computed again"
    assert tokens(900) == 0, "both checkpoints lie behind it"


def test_a_checkpoint_is_made_where_a_users_message_starts(gemma3: ModelSpec) -> None:
    """In the first 512 tokens the server always asks for a checkpoint, even where nothing was forgotten."""

    def tokens(user_starts: tuple[int, ...]) -> int | None:
        return ask(300, 400, 350, model=gemma3, first=399, user_starts=user_starts, n_ctx=4096).tokens

    assert tokens(()) == 0
    assert tokens((200,)) == 199
    assert tokens((200, 250)) == 249


def test_a_recurrent_state_goes_back_to_a_checkpoint_only(recurrent: ModelSpec) -> None:
    """Checkpoints of a prompt of 1,000 tokens: 1,000 - 516 = 484 and 996."""
    for common, expected in ((1003, 1003), (999, 996), (990, 484), (483, 0)):
        assert ask(common, 1003, common + 50, model=recurrent, first=1000, user_starts=()).tokens == expected


def test_what_is_not_known_is_said(full: ModelSpec, gemma3: ModelSpec) -> None:
    assert ask(300, 400, 350, model=gemma3).status == "unknown", "where the first prompt ended is not stated"
    assert ask(300, 400, 350, model=gemma3, first=399).status == "estimated", "nor where users' messages start"
    assert ask(300, 400, 350, model=full, n_cache_reuse=64).tokens is None
    assert ask(300, 400, 350, model=full, ctx_shift=True).tokens is None
    assert ask(300, 400, 350).status == "estimated", "no model"
    assert ask(300, 400, 350, model=full, version="b9999").status == "estimated"
    assert ask(300, 400, 350, model=full, version="2026.10.11549").status == "exact"
    assert ask(300, 400, 350, model=replace(full, source_kind="config")).status == "estimated"


def test_bad_questions_are_refused(full: ModelSpec) -> None:
    with pytest.raises(UnknownName):
        ask(1, 1, 1, engine="nothing")
    for common, held, prompt in ((5, 4, 9), (5, 9, 4), (-1, 4, 4), (0, 4, 0)):
        with pytest.raises(UsageError):
            ask(common, held, prompt, model=full)
    for settings in ({"n_parallel": 0}, {"n_ubatch": "many"}, {"kv_unified": 1}, {"slot_prompt_similarity": "x"}):
        with pytest.raises(UsageError):
            ask(1, 2, 2, model=full, **settings)
    with pytest.raises(UsageError):
        ask(1, 2, 2, "vllm", block_size=0)


def test_a_number_of_tokens_may_be_written_as_people_do(gemma3: ModelSpec) -> None:
    found = [ask(900, 1400, 1000, model=gemma3, first=1400, user_starts=(), n_ctx=value) for value in ("4k", 4096)]
    assert found[0] == found[1]


@pytest.mark.parametrize("engine", ENGINES)
def test_never_more_than_is_common_and_never_a_whole_prompt(
    engine: str, full: ModelSpec, gemma3: ModelSpec, recurrent: ModelSpec
) -> None:
    rng = random.Random(7)
    for _ in range(60):
        first = rng.randint(1, 700)
        held = first + rng.randint(0, 20)
        prompt = rng.randint(1, 900)
        common = rng.randint(0, min(held, prompt))
        model = rng.choice([full, gemma3, recurrent])
        found = ask(common, held, prompt, engine, model=model, first=first, user_starts=(), n_ctx=2048)
        assert found.tokens is None or 0 <= found.tokens <= common
        assert found.because
        assert found.source
        if found.tokens is not None and not engine.endswith("-api"):
            assert found.tokens < prompt


def test_a_pair_and_the_same_two_in_order_agree(gemma3: ModelSpec) -> None:
    rng = random.Random(11)
    settings: dict[str, SettingValue] = {"n_ctx": 2048, "n_parallel": 2}
    for _ in range(40):
        first = tuple(range(rng.randint(1, 900)))
        common = rng.randint(0, len(first))
        second = first[:common] + tuple(range(5000, 5000 + rng.randint(1, 300)))
        sent = [SentPrompt(ids=ids, answer_ids=(9999,)) for ids in (first, second)]
        in_order = reused_in_order(sent, engine="llama.cpp", engine_version=None, model=gemma3, settings=settings)
        pair = reusable_tokens(
            common,
            held_tokens=len(first),
            prompt_tokens=len(second),
            engine="llama.cpp",
            engine_version=None,
            model=gemma3,
            settings=settings,
            first_prompt_tokens=len(first),
            user_starts=(),
        )
        assert in_order[0].tokens == 0
        assert in_order[1].tokens == pair.tokens


def test_other_engines_find_the_best_of_what_came_before(full: ModelSpec) -> None:
    sent = [SentPrompt(ids=tuple(ids), answer_ids=(1,)) for ids in (range(100), range(500, 600), [*range(64), 7, 8])]
    found = reused_in_order(sent, engine="vllm", engine_version=None, model=full, settings={})
    assert [each.tokens for each in found] == [0, 0, 64]


def test_a_copy_out_of_the_cache_of_prompts_is_an_estimate(full: ModelSpec) -> None:
    """Two long conversations on one slot: the second pushes out the first, which is copied and comes back. How full
    that cache is is not followed, so nothing that came out of it is called exact."""
    first, second = tuple(range(400)), tuple(range(1000, 1400))
    sent = [SentPrompt(ids=ids, answer_ids=(9999,)) for ids in (first, second, (*first, 7))]
    settings: dict[str, SettingValue] = {"n_ctx": 1024}
    found = reused_in_order(sent, engine="llama.cpp", engine_version=None, model=full, settings=settings)
    assert [(each.tokens, each.status) for each in found] == [(0, "exact"), (0, "exact"), (400, "estimated")]
    assert "cache_ram_mib" in found[-1].because
    without = reused_in_order(
        sent, engine="llama.cpp", engine_version=None, model=full, settings={**settings, "cache_ram_mib": 0}
    )
    assert [(each.tokens, each.status) for each in without] == [(0, "exact")] * 3
