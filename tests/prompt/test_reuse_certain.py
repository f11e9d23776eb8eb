"""What is called exact is what cannot be otherwise: requests' own keys, refused requests, answers that are assumed.

Numbers of the real engine were measured with llama.cpp b11549 where a test says so.
"""

from dataclasses import replace

import pytest
from test_reuse_log import A1, A2, B1, comparison
from test_reuse_rules import TINY_GEMMA3, with_cache

from kvscope.errors import UsageError
from kvscope.model.load import load_model
from kvscope.model.spec import FullAttention, ModelSpec
from kvscope.prompt.conversation_file import LoadedRequest
from kvscope.prompt.reuse.log import compare_log
from kvscope.prompt.reuse.rules import Reusable, SentPrompt, reused_in_order
from kvscope.scenario import SettingValue


@pytest.fixture(scope="module")
def gemma3() -> ModelSpec:
    """Windows of 512 tokens."""
    return load_model(str(TINY_GEMMA3))


@pytest.fixture(scope="module")
def full(gemma3: ModelSpec) -> ModelSpec:
    return with_cache(gemma3, FullAttention(num_kv_heads=1, key_dim=16, value_dim=16))


def in_order(model: ModelSpec, *prompts: SentPrompt, **settings: SettingValue) -> list[tuple[int | None, str]]:
    found = reused_in_order(prompts, engine="llama.cpp", engine_version=None, model=model, settings=settings)
    return [(each.tokens, each.status) for each in found]


def sent(*ids: int, answer: tuple[int, ...] = (-1,), **more: object) -> SentPrompt:
    return SentPrompt(ids=ids, answer_ids=answer, **more)  # type: ignore[arg-type]


def of_body(request: LoadedRequest, **body: object) -> LoadedRequest:
    return replace(request, body=body)


def test_a_request_that_forbids_reuse_reuses_nothing_and_is_held_afterwards(full: ModelSpec) -> None:
    """Measured with b11549: cached_tokens 0, and all but the last token when the same is asked again."""
    same = range(41)
    found = in_order(full, sent(*same), sent(*same, reuse=False), sent(*same), n_ctx=1024)
    assert found == [(0, "exact"), (0, "exact"), (40, "exact")]
    # The request's word counts more than the server's.
    found = in_order(full, sent(*same), sent(*same, reuse=True), sent(*same), n_ctx=1024, cache_prompt=False)
    assert [tokens for tokens, _ in found] == [0, 40, 0]


def test_cache_prompt_of_a_request_is_followed() -> None:
    never = of_body(A2, cache_prompt=False)
    assert comparison().of(A1, never).reusable.tokens == 0
    turns = compare_log([A1, never], comparison(), by_conversation=True).to_dict()["turns"]
    assert [turn["reusable_tokens"] for turn in turns] == [0, 0]
    # Another engine does not know the key.
    assert replace(comparison(), engine="sglang").of(A1, never).reusable.tokens == 25


def test_the_slot_that_is_asked_for_is_used(full: ModelSpec) -> None:
    """Measured with b11549, two slots, cache_ram_mib 0: the same prompt in slot 0, then in slot 1: cached_tokens 0."""
    same = range(97)
    settings: dict[str, SettingValue] = {"n_ctx": 1024, "n_parallel": 2, "cache_ram_mib": 0}
    found = in_order(full, sent(*same, slot=0), sent(*same, slot=1), sent(*same, slot=1), **settings)
    assert found == [(0, "exact"), (0, "exact"), (96, "exact")]
    first, second = of_body(A1, id_slot=0), of_body(A1, id_slot=1)
    assert comparison(n_parallel=2, cache_ram_mib=0).of(first, second).reusable.tokens == 0


def test_a_slot_that_is_asked_for_gets_its_copy_back(full: ModelSpec) -> None:
    """Measured with b11549, two slots: A (97 tokens) and B (687) by turns in slot 0, A in slot 1, B anywhere."""
    one, other = range(97), [0, 1, 2, *range(1000, 1684)]
    asked = [sent(*one, slot=0), sent(*other, slot=0), sent(*one, slot=0), sent(*one, slot=1), sent(*other)]
    found = in_order(full, *asked, sent(*one, slot=3), n_ctx=4096, n_parallel=2)
    assert [tokens for tokens, _ in found] == [0, 3, 96, 0, 686, 96]
    assert found[2][1] == "estimated"


def test_what_is_refused_counts_as_use_of_its_slot(full: ModelSpec) -> None:
    """Measured with b11549, two slots, cache_ram_mib 0: A, B, one that does not fit, one of little, A: the refused one
    makes A's slot the newest, so that the little one takes B's, and A finds 96 of its tokens."""
    first, second = range(97), [500, *range(600, 700)]
    prompts = [
        sent(*first),
        sent(*second),
        sent(*range(2000, 5000), fits=False),
        sent(*range(8000, 8030)),
        sent(*first),
    ]
    found = in_order(full, *prompts, n_ctx=2048, n_parallel=2, cache_ram_mib=0)
    assert found[-1] == (96, "exact")


@pytest.mark.parametrize(
    ("second", "status"),
    [
        ((1, 2, 3, 4, 5, 9), "estimated"),  # into the answer
        ((1, 2, 3, 9), "estimated"),  # to its beginning: the answer may have been 9
        ((1, 2, 9), "exact"),  # not as far as the answer
        ((1, 2, 3), "exact"),
        ((1, 2), "exact"),
    ],
)
def test_an_answer_that_is_assumed_is_exact_only_where_it_cannot_matter(
    full: ModelSpec, second: tuple[int, ...], status: str
) -> None:
    asked = sent(1, 2, 3, answer=(4, 5, -1), is_answer_sure=False)
    assert in_order(full, asked, sent(*second), n_ctx=1024)[-1][1] == status
    known = replace(asked, is_answer_sure=True)
    assert in_order(full, known, sent(*second), n_ctx=1024)[-1][1] == "exact"


def test_a_window_forgets_by_the_length_of_an_answer(gemma3: ModelSpec) -> None:
    asked = sent(*range(700), answer=(4, -1), is_answer_sure=False)
    assert in_order(gemma3, asked, sent(*range(650), 9), n_ctx=2048)[-1][1] == "estimated"
    # Within the first window the server goes back to a checkpoint of the prompt in any case.
    assert in_order(gemma3, asked, sent(*range(300), 9), n_ctx=2048)[-1][1] == "exact"


def test_a_doubt_goes_on_to_all_that_follow(full: ModelSpec) -> None:
    found = in_order(full, sent(1, 2, 3), sent(1, 2, 3, 4, doubt="response_format"), sent(1, 2), n_ctx=1024)
    assert [status for _, status in found] == ["exact", "estimated", "estimated"]


def test_keys_that_are_not_followed_are_a_note() -> None:
    found = comparison().of(replace(A1, not_followed=("response_format",)), A2).to_dict()
    assert found["status"] == "estimated"
    assert any("response_format" in note for note in found["notes"])
    found = comparison().of(A1, of_body(A2, n_cache_reuse=64)).to_dict()
    assert any("n_cache_reuse" in note for note in found["notes"])


def test_a_log_says_where_an_answer_is_assumed() -> None:
    turns = compare_log([A1, A2], comparison(), by_conversation=True).to_dict()["turns"]
    assert any("not stated" in note for note in turns[1]["notes"])
    limited = replace(A1, max_output_tokens=1)  # nothing of an answer of one token is held
    turns = compare_log([limited, B1], comparison(), by_conversation=True).to_dict()["turns"]
    assert turns[1]["notes"] == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("n_ctx_checkpoints", -1), ("checkpoint_min_step", -1), ("n_ubatch", 0), ("n_ubatch", -1)),
        *(("n_batch", 0), ("n_batch", -1), ("n_ctx", -5), ("n_parallel", 0), ("n_parallel", 1000)),
        *(("cache_ram_mib", -2), ("slot_prompt_similarity", -1.0)),
    ],
)
def test_a_setting_out_of_its_range_is_an_error(gemma3: ModelSpec, full: ModelSpec, name: str, value: float) -> None:
    for model in (gemma3, full):
        with pytest.raises(UsageError, match=name):
            in_order(model, sent(1, 2), sent(1, 2), **{name: value})


@pytest.mark.parametrize(
    ("version", "status"),
    [("b11549", "exact"), ("2026.10.11549", "exact"), ("115490", "estimated"), ("211549", "estimated")],
)
def test_the_measured_build_is_told_from_longer_numbers(full: ModelSpec, version: str, status: str) -> None:
    found: list[Reusable] = reused_in_order(
        [sent(1, 2), sent(1, 2)], engine="llama.cpp", engine_version=version, model=full, settings={}
    )
    assert found[-1].status == status
