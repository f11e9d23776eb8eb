"""Token counts in the words of each server. The numbers are worked out beside each case."""

import pytest

from kvscope.engine.usage import Usage, read_ollama_counts, read_usage
from kvscope.errors import EngineReplyError


@pytest.mark.parametrize(
    ("answer", "prompt", "cached", "output"),
    [
        # OpenAI's Chat Completions: prompt_tokens includes what was cached.
        (
            {
                "usage": {
                    "prompt_tokens": 2006,
                    "completion_tokens": 300,
                    "prompt_tokens_details": {"cached_tokens": 1920},
                }
            },
            2006,
            1920,
            300,
        ),
        # vLLM without its option for cached tokens: null is unknown.
        ({"usage": {"prompt_tokens": 17, "completion_tokens": 3, "prompt_tokens_details": None}}, 17, None, 3),
        ({"usage": {"prompt_tokens": 17, "prompt_tokens_details": {"cached_tokens": None}}}, 17, None, None),
        ({"usage": {"prompt_tokens": 17, "prompt_tokens_details": {"cached_tokens": 0}}}, 17, 0, None),
        # OpenAI's Responses.
        (
            {"usage": {"input_tokens": 328, "output_tokens": 52, "input_tokens_details": {"cached_tokens": 128}}},
            328,
            128,
            52,
        ),
        # DeepSeek: hit + miss = prompt.
        (
            {
                "usage": {
                    "prompt_tokens": 1100,
                    "prompt_cache_hit_tokens": 1024,
                    "prompt_cache_miss_tokens": 76,
                    "completion_tokens": 9,
                }
            },
            1100,
            1024,
            9,
        ),
        ({"usage": {"prompt_cache_hit_tokens": 1024, "prompt_cache_miss_tokens": 76}}, 1100, 1024, None),
        ({"usage": {"prompt_cache_hit_tokens": 1024}}, None, 1024, None),
        # Anthropic: 21 + 188,086 + 3,000 = 191,107.
        (
            {
                "usage": {
                    "input_tokens": 21,
                    "cache_read_input_tokens": 188_086,
                    "cache_creation_input_tokens": 3_000,
                    "output_tokens": 393,
                }
            },
            191_107,
            188_086,
            393,
        ),
        ({"usage": {"input_tokens": 21, "cache_read_input_tokens": 500, "output_tokens": 1}}, None, 500, 1),
        (
            {
                "usage": {
                    "input_tokens": 21,
                    "cache_read_input_tokens": None,
                    "cache_creation_input_tokens": None,
                    "output_tokens": 1,
                }
            },
            21,
            None,
            1,
        ),
        # llama.cpp's timings: newly read + reused. 120 + 3,880 = 4,000.
        ({"timings": {"prompt_n": 120, "cache_n": 3880, "predicted_n": 8}}, 4000, 3880, 8),
        # An older one, which says only what it read anew: the whole is not known, and not 120.
        ({"timings": {"prompt_n": 120, "predicted_n": 8}}, None, None, 8),
        # Both: the usage is the whole prompt, and the timings know what was cached.
        (
            {
                "usage": {"prompt_tokens": 4000, "completion_tokens": 8},
                "timings": {"prompt_n": 120, "cache_n": 3880, "predicted_n": 8},
            },
            4000,
            3880,
            8,
        ),
        # Ollama's own interface.
        ({"prompt_eval_count": 770, "eval_count": 383, "done": True}, 770, None, 383),
        # All of the prompt was cached and the count left out: unknown, not 0.
        ({"eval_count": 383, "done": True}, None, None, 383),
        ({"choices": []}, None, None, None),
        ({"usage": None, "timings": None}, None, None, None),
    ],
)
def test_counts_in_the_words_of_each_server(
    answer: dict[str, object], prompt: int | None, cached: int | None, output: int | None
) -> None:
    usage = read_usage(answer)
    assert (usage.prompt_tokens, usage.cached_tokens, usage.output_tokens) == (prompt, cached, output)
    assert (usage.stated_by is None) == (prompt is None)


def test_generated_tokens_are_no_total() -> None:
    usage = read_ollama_counts({"prompt_eval_count": 770, "eval_count": 383})
    assert usage.output_tokens == 383  # and not 383 - 770 = -387
    assert usage.total_tokens == 1153
    assert usage.may_leave_out_cached


def test_what_was_computed_anew() -> None:
    assert read_usage({"timings": {"prompt_n": 120, "cache_n": 3880}}).processed_tokens == 120
    assert Usage(prompt_tokens=10).processed_tokens is None
    assert Usage(cached_tokens=10, output_tokens=1).total_tokens is None


def test_which_number_it_is_is_said() -> None:
    assert read_usage({"usage": {"prompt_tokens": 1}}).stated_by == "usage.prompt_tokens"
    assert read_usage({"timings": {"prompt_n": 1, "cache_n": 0}}).stated_by == "timings: prompt_n + cache_n"
    assert read_usage({"prompt_eval_count": 1}).stated_by == "prompt_eval_count"


def test_thinking_is_part_of_the_output_or_beside_it() -> None:
    openai = {"prompt_tokens": 40, "completion_tokens": 8, "total_tokens": 48}
    details = {"completion_tokens_details": {"reasoning_tokens": 4}}
    usage = read_usage({"usage": {**openai, **details}})
    assert (usage.output_tokens, usage.reasoning_tokens) == (8, 4)
    # 40 + 4 + 4 = 48: the 4 of the completion are the answer alone.
    beside = read_usage({"usage": {**openai, "completion_tokens": 4, **details}})
    assert (beside.output_tokens, beside.reasoning_tokens) == (8, 4)
    assert read_usage({"usage": openai}).reasoning_tokens is None


def test_a_whole_number_may_be_written_with_a_point() -> None:
    assert read_usage({"usage": {"prompt_tokens": 11.0, "completion_tokens": 4.0}}).total_tokens == 15


@pytest.mark.parametrize("value", [-1, 1.5, "12", True, [1], {}, 2**63])
@pytest.mark.parametrize("name", ["prompt_tokens", "completion_tokens", "prompt_cache_hit_tokens"])
def test_what_is_no_count_is_no_count(name: str, value: object) -> None:
    with pytest.raises(EngineReplyError, match=name):
        read_usage({"usage": {name: value}})


def test_a_usage_that_is_no_object() -> None:
    with pytest.raises(EngineReplyError, match="usage"):
        read_usage({"usage": 12})
    with pytest.raises(EngineReplyError, match="prompt_tokens_details"):
        read_usage({"usage": {"prompt_tokens": 1, "prompt_tokens_details": 3}})


@pytest.mark.parametrize(
    "answer",
    [
        {"usage": {"prompt_tokens": 400, "prompt_tokens_details": {"cached_tokens": 450}}},
        {"usage": {"input_tokens": 400, "input_tokens_details": {"cached_tokens": 450}}},
        {"usage": {"prompt_tokens": 400, "prompt_cache_hit_tokens": 450}},
        # One number of the usage, the other of the timings.
        {"usage": {"prompt_tokens": 400}, "timings": {"prompt_n": 10, "cache_n": 450}},
    ],
)
def test_of_more_reused_than_there_was_it_is_not_known_what_was_computed(answer: dict[str, object]) -> None:
    usage = read_usage(answer)
    assert (usage.prompt_tokens, usage.cached_tokens, usage.processed_tokens) == (400, 450, None)


def test_all_of_a_prompt_may_be_reused() -> None:
    answer = {"usage": {"prompt_tokens": 400, "prompt_tokens_details": {"cached_tokens": 400}}}
    assert read_usage(answer).processed_tokens == 0


def test_a_count_that_no_record_can_hold_is_kept_as_text() -> None:
    most = 2**63 - 1
    assert read_usage({"usage": {"prompt_tokens": most}}).prompt_tokens == most
    with pytest.raises(EngineReplyError, match="9223372036854775808"):
        read_usage({"usage": {"prompt_tokens": most + 1}})
    for sums in (
        {"usage": {"prompt_cache_hit_tokens": most, "prompt_cache_miss_tokens": 1}},
        {"timings": {"prompt_n": most, "cache_n": 1}},
    ):
        with pytest.raises(EngineReplyError, match="9223372036854775808"):
            read_usage(sums)
