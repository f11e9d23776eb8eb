"""Servers' counters by our names, from what the servers really answer.

``data/llama_cpp_b11549.metrics`` and ``data/vllm_0.32.0.metrics`` are the answers of those servers (the second without
its lines on Python, on HTTP and on creation times), taken after the requests that the tests name. SGLang's
lines are put together from its documentation (docs/references/production_metrics.md) and its metrics collector: no
SGLang was run.
"""

from pathlib import Path

import pytest

from kvscope.engine.prometheus import parse_metrics
from kvscope.engine.server_metrics import engine_of, statistics_of
from kvscope.engine.statistics import STATISTICS
from kvscope.errors import EngineReplyError

DATA = Path(__file__).parent / "data"


def test_llama_cpp_after_one_request_of_32_prompt_and_4_output_tokens() -> None:
    metrics = parse_metrics((DATA / "llama_cpp_b11549.metrics").read_text())
    assert metrics.skipped_lines == 0
    assert engine_of(metrics) == "llama.cpp"
    assert statistics_of(metrics, "llama.cpp") == {
        "requests_running": 0,
        "requests_waiting": 0,
        "prefix_queried_tokens": 32,  # what was computed and what was found
        "prefix_hit_tokens": 0,
        "prompt_tokens": 32,
        "output_tokens": 4,
        "prefill_s": 0.530853,
        "decode_s": 0.107263,
    }


def test_llama_cpp_of_before_the_kv_gauges_were_taken_out() -> None:
    # Names: tools/server/README.md of builds until mid-2025.
    text = "llamacpp:kv_cache_usage_ratio 0.5\nllamacpp:kv_cache_tokens 1234\nllamacpp:prompt_tokens_total 10\n"
    found = statistics_of(parse_metrics(text), "llama.cpp")
    assert found == {"kv_cache_used_share": 0.5, "kv_cache_used_tokens": 1234, "prompt_tokens": 10}


def vllm_lines(**engines: str) -> str:
    """One engine's lines each, as data parallel vLLM states them."""
    return "\n".join(text.replace("ENGINE", name.removeprefix("e")) for name, text in engines.items())


def test_vllm_sums_engines_and_weighs_their_shares() -> None:
    one = (
        'vllm:num_requests_running{engine="ENGINE",model_name="m"} 3\n'
        'vllm:kv_cache_usage_perc{engine="ENGINE",model_name="m"} 0.5\n'
        'vllm:cache_config_info{block_size="16",engine="ENGINE",num_gpu_blocks="100"} 1\n'
    )
    other = one.replace("} 3", "} 4").replace("0.5", "0.1").replace('"100"', '"300"')
    found = statistics_of(parse_metrics(vllm_lines(e0=one, e1=other)), "vllm")
    # Pools of 1,600 and 4,800 tokens: (0.5 × 1,600 + 0.1 × 4,800) / 6,400 = 0.2.
    assert found == {"requests_running": 7, "kv_cache_pool_tokens": 6400, "kv_cache_used_share": pytest.approx(0.2)}


def test_shares_of_pools_whose_sizes_are_not_known_are_not_added_up() -> None:
    text = 'vllm:kv_cache_usage_perc{engine="0"} 0.5\nvllm:kv_cache_usage_perc{engine="1"} 0.1\n'
    assert statistics_of(parse_metrics(text), "vllm") == {}


def test_vllm_before_its_pool_is_made_and_with_older_names() -> None:
    text = (
        'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="None",kv_cache_size_tokens="None"} 1\n'
        'vllm:gpu_cache_usage_perc{engine="0",model_name="m"} 0.25\n'
        'vllm:prompt_tokens_total{engine="0",model_name="m"} 100\n'
    )
    # Whether any of the 100 were found in a cache, it does not say.
    assert statistics_of(parse_metrics(text), "vllm") == {"kv_cache_used_share": 0.25}
    text += 'vllm:prefix_cache_hits_total{engine="0",model_name="m"} 0\n'
    assert statistics_of(parse_metrics(text), "vllm")["prompt_tokens"] == 100


def test_the_size_that_vllm_states_goes_before_blocks_times_tokens() -> None:
    # Gemma 3's groups share the pool (vLLM 0.32.0's planner: 7 groups): 9,362 blocks are not 9,362 × 128 tokens.
    text = 'vllm:cache_config_info{block_size="128",engine="0",num_gpu_blocks="9362",kv_cache_size_tokens="171000"} 1\n'
    assert statistics_of(parse_metrics(text), "vllm") == {"kv_cache_pool_tokens": 171_000}


def test_metrics_of_several_models_are_refused_unless_one_is_named() -> None:
    text = 'vllm:num_requests_running{model_name="a"} 1\nvllm:num_requests_running{model_name="b"} 2\n'
    metrics = parse_metrics(text)
    with pytest.raises(EngineReplyError, match="a, b"):
        statistics_of(metrics, "vllm")
    assert statistics_of(metrics, "vllm", model="b") == {"requests_running": 2}


# Values of the documentation's example, its label model_name; pool and retractions by the collector's names.
SGLANG = """
# TYPE sglang:prompt_tokens_total counter
sglang:prompt_tokens_total{model_name="meta-llama/Llama-3.1-8B-Instruct"} 8.128902e+06
sglang:generation_tokens_total{model_name="meta-llama/Llama-3.1-8B-Instruct"} 7.557572e+06
sglang:token_usage{model_name="meta-llama/Llama-3.1-8B-Instruct"} 0.28
sglang:cache_hit_rate{model_name="meta-llama/Llama-3.1-8B-Instruct"} 0.007507552643049313
sglang:time_to_first_token_seconds_sum{model_name="meta-llama/Llama-3.1-8B-Instruct"} 2.3518979474117756e+06
sglang:time_to_first_token_seconds_bucket{le="+Inf",model_name="meta-llama/Llama-3.1-8B-Instruct"} 11008.0
sglang:time_to_first_token_seconds_count{model_name="meta-llama/Llama-3.1-8B-Instruct"} 11008.0
sglang:num_running_reqs{model_name="meta-llama/Llama-3.1-8B-Instruct"} 162.0
sglang:num_used_tokens{model_name="meta-llama/Llama-3.1-8B-Instruct"} 123859.0
sglang:gen_throughput{model_name="meta-llama/Llama-3.1-8B-Instruct"} 86.50814177726902
sglang:num_queue_reqs{model_name="meta-llama/Llama-3.1-8B-Instruct"} 2826.0
"""


def test_sglang_as_its_documentation_shows_it() -> None:
    metrics = parse_metrics(SGLANG)
    assert engine_of(metrics) == "sglang"
    assert statistics_of(metrics, "sglang") == {
        "requests_running": 162,
        "requests_waiting": 2826,
        "kv_cache_used_tokens": 123_859,
        "kv_cache_used_share": 0.28,
        "prefix_queried_tokens": 8_128_902,
        "output_tokens": 7_557_572,
        "ttft_sum_s": 2351897.9474117756,
        "ttft_count": 11008,
    }


def test_sglang_ranks_share_one_pool_and_data_parallel_ones_do_not() -> None:
    labels = 'dp_rank="{dp}",model_name="m",tp_rank="{tp}"'
    lines = [
        f"sglang:max_total_num_tokens{{{labels.format(dp=dp, tp=tp)}}} 262144" for dp in range(2) for tp in range(4)
    ]
    assert statistics_of(parse_metrics("\n".join(lines)), "sglang") == {"kv_cache_pool_tokens": 2 * 262_144}


def test_sglang_parts_of_a_counter_are_added_and_shares_of_a_total_are_not() -> None:
    text = (
        'sglang:cached_tokens_total{cache_source="device",model_name="m"} 30\n'
        'sglang:cached_tokens_total{cache_source="host",model_name="m"} 12\n'
        'sglang:prompt_tokens_total{is_streaming="true",model_name="m"} 60\n'
        'sglang:prompt_tokens_total{is_streaming="false",model_name="m"} 40\n'
        'sglang:num_running_reqs{model_name="m",priority=""} 3\n'
        'sglang:num_running_reqs{model_name="m",priority="10"} 2\n'
        'sglang:num_running_reqs{model_name="m",priority="20"} 1\n'
    )
    assert statistics_of(parse_metrics(text), "sglang") == {
        "prefix_hit_tokens": 42,
        "prefix_queried_tokens": 100,
        "prompt_tokens": 58,
        "requests_running": 3,
    }


def test_a_server_whose_counters_are_not_known_has_none() -> None:
    metrics = parse_metrics("tgi_queue_size 3\n")
    assert engine_of(metrics) is None
    assert statistics_of(metrics, "openai") == {}
    assert statistics_of(parse_metrics("vllm:num_requests_running NaN"), "vllm") == {}


def test_vllm_after_three_requests_of_111_prompt_and_4_output_tokens() -> None:
    metrics = parse_metrics((DATA / "vllm_0.32.0.metrics").read_text())
    assert metrics.skipped_lines == 0
    assert engine_of(metrics) == "vllm"
    found = statistics_of(metrics, "vllm")
    assert {name: found[name] for name in found if not name.endswith("_s")} == {
        "requests_running": 0,
        "requests_waiting": 0,
        # 1 GiB; 2 layers × 1 KV head × (32 + 32) × 2 B = 256 B a token.
        "kv_cache_pool_tokens": 2**30 / 256,
        "kv_cache_used_share": 0,
        "preemptions": 0,
        "prefix_queried_tokens": 333,
        "prefix_hit_tokens": 0,
        "prompt_tokens": 333,
        "output_tokens": 12,
        "ttft_count": 3,
    }
    assert {name for name in found if name.endswith("_s")} == {"prefill_s", "decode_s", "ttft_sum_s"}
    assert set(found) <= set(STATISTICS)
