"""Servers' own counters out of their metrics, by the names of ``engine.statistics``.

Where the names are from: llama.cpp b11549's and vLLM 0.32.0's own answers to /metrics; SGLang's documentation
(docs/references/production_metrics.md) and its metrics collector (python/sglang/srt/observability, 2026). A counter
that a server does not state, or states as NaN, is absent.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from kvscope.engine.prometheus import Metrics, Sample
from kvscope.errors import EngineReplyError

_PREFIXES: Mapping[str, str] = {"llamacpp:": "llama.cpp", "vllm:": "vllm", "sglang:": "sglang"}


def engine_of(metrics: Metrics) -> str | None:
    """Which engine's metrics these are, by the names in them; None where they are no engine's that is known here."""
    for prefix, engine in _PREFIXES.items():
        if any(name.startswith(prefix) for name in metrics.names()):
            return engine
    return None


def statistics_of(metrics: Metrics, engine: str, *, model: str | None = None) -> dict[str, float]:
    """The counters of a server of ``engine`` (llama.cpp, vllm or sglang; for others there are none).

    Engines that one server runs side by side (data parallel) are added up; ranks that share one engine's work are
    counted once. ``model``: the served model whose counters are wanted. Raises EngineReplyError where the metrics are
    of several models and it does not say which.
    """
    read = _READERS.get(engine)
    return {} if read is None else read(_Replicas(metrics, model, f"{engine}: "))


@dataclass(frozen=True, slots=True)
class _Replicas:
    """The metrics, seen as one value for each engine that runs beside others in the server."""

    metrics: Metrics
    model: str | None
    where: str

    def by_replica(self, name: str, *, only: Mapping[str, str] | None = None) -> dict[str, float]:
        """The value of each replica ({"": value} where there is one). Labels that are neither a model nor a rank
        (where cached tokens came from, whether streamed) divide a counter; their parts are added."""
        wanted = [s for s in self.metrics.finite(name) if all(s.labels.get(k) == v for k, v in (only or {}).items())]
        parts: dict[tuple[str, tuple[str, ...]], float] = {}
        for sample in self._of_model(wanted):
            if sample.labels.get("priority"):  # SGLang: shares of the total, which has priority=""
                continue
            rank = tuple(sample.labels.get(label, "") for label in _SHARING_RANKS)
            key = (_replica(sample), rank)
            parts[key] = parts.get(key, 0.0) + sample.value
        found: dict[str, float] = {}
        for (replica, _), value in parts.items():
            found[replica] = max(value, found.get(replica, value))
        return found

    def _of_model(self, samples: Iterable[Sample]) -> list[Sample]:
        samples = list(samples)
        served = {sample.labels["model_name"] for sample in samples if "model_name" in sample.labels}
        if self.model is not None and self.model in served:
            return [sample for sample in samples if sample.labels.get("model_name") == self.model]
        if len(served) > 1:
            raise EngineReplyError(
                f"{self.where}the metrics are of several models: {', '.join(sorted(served)[:10])}.",
                hint="Say which one is meant (--served-model).",
            )
        return samples

    def total(self, name: str, *, only: Mapping[str, str] | None = None) -> float | None:
        """The sum over all replicas; None where it is not stated."""
        found = self.by_replica(name, only=only)
        return sum(found.values()) if found else None


# Ranks that share the work of one engine, and so state the same tokens, each for itself.
_SHARING_RANKS = ("tp_rank", "pp_rank", "moe_ep_rank")


def _replica(sample: Sample) -> str:
    """Which of several engines side by side: vLLM's label ``engine``, SGLang's ``dp_rank``."""
    return sample.labels.get("engine") or sample.labels.get("dp_rank") or ""


def _stated(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None}


def _share(shares: Mapping[str, float], pools: Mapping[str, float]) -> float | None:
    """The share in use of all pools together; None where there are several and their sizes are not known."""
    if len(shares) == 1:
        return next(iter(shares.values()))
    if not shares or any(not pools.get(replica) for replica in shares):
        return None
    return sum(share * pools[replica] for replica, share in shares.items()) / sum(pools[r] for r in shares)


def _llama_cpp(replicas: _Replicas) -> dict[str, float]:
    """``prompt_tokens_total`` leaves out what was reused. kv_cache_usage_ratio and kv_cache_tokens: builds of until
    mid-2025. Seconds are added up over requests, which may overlap."""
    total = replicas.total
    computed, cached = total("llamacpp:prompt_tokens_total"), total("llamacpp:prompt_tokens_cached_total")
    return _stated(
        {
            "requests_running": total("llamacpp:requests_processing"),
            "requests_waiting": total("llamacpp:requests_deferred"),
            "kv_cache_used_tokens": total("llamacpp:kv_cache_tokens"),
            "kv_cache_used_share": total("llamacpp:kv_cache_usage_ratio"),
            "prefix_queried_tokens": None if computed is None or cached is None else computed + cached,
            "prefix_hit_tokens": cached,
            "prompt_tokens": computed,
            "output_tokens": total("llamacpp:tokens_predicted_total"),
            "prefill_s": total("llamacpp:prompt_seconds_total"),
            "decode_s": total("llamacpp:tokens_predicted_seconds_total"),
        }
    )


def _vllm(replicas: _Replicas) -> dict[str, float]:
    """vLLM V1. gpu_cache_usage_perc: the older name of kv_cache_usage_perc. The prefix cache's older counters
    (gpu_prefix_cache_...) are not read: they once counted blocks."""
    total = replicas.total
    pools = _vllm_pools(replicas.metrics)
    shares = replicas.by_replica("vllm:kv_cache_usage_perc") or replicas.by_replica("vllm:gpu_cache_usage_perc")
    return _stated(
        {
            "requests_running": total("vllm:num_requests_running"),
            "requests_waiting": total("vllm:num_requests_waiting"),
            "kv_cache_pool_tokens": sum(pools.values()) if pools else None,
            "kv_cache_used_share": _share(shares, pools),
            "preemptions": total("vllm:num_preemptions_total"),
            "prefix_queried_tokens": total("vllm:prefix_cache_queries_total"),
            "prefix_hit_tokens": total("vllm:prefix_cache_hits_total"),
            "prompt_tokens": _vllm_computed(replicas),
            "output_tokens": total("vllm:generation_tokens_total"),
            "prefill_s": total("vllm:request_prefill_time_seconds_sum"),
            "decode_s": total("vllm:request_decode_time_seconds_sum"),
            "ttft_sum_s": total("vllm:time_to_first_token_seconds_sum"),
            "ttft_count": total("vllm:time_to_first_token_seconds_count"),
        }
    )


def _vllm_pools(metrics: Metrics) -> dict[str, float]:
    """Tokens that each engine's pool holds, from the labels of cache_config_info. ``kv_cache_size_tokens`` (0.32) knows
    of groups of layers that share the pool; where there is none, blocks × block size holds for one group. A value that
    is no number ("None", before the pool is made) is none."""
    pools: dict[str, float] = {}
    for sample in metrics.named("vllm:cache_config_info"):
        said = sample.labels
        if said.get("kv_cache_size_tokens", "").isdecimal():
            pools[_replica(sample)] = float(int(said["kv_cache_size_tokens"]))
        elif said.get("num_gpu_blocks", "").isdecimal() and said.get("block_size", "").isdecimal():
            pools[_replica(sample)] = float(int(said["num_gpu_blocks"]) * int(said["block_size"]))
    return pools


def _vllm_computed(replicas: _Replicas) -> float | None:
    """Prompt tokens without those found in a cache: ``prompt_tokens_total`` holds both."""
    computed = replicas.total("vllm:prompt_tokens_by_source_total", only={"source": "local_compute"})
    if computed is not None:
        return computed
    both, cached = replicas.total("vllm:prompt_tokens_total"), replicas.total("vllm:prompt_tokens_cached_total")
    if both is not None and cached is None and replicas.total("vllm:prefix_cache_hits_total") == 0:
        cached = 0.0
    return None if both is None or cached is None else both - cached


def _sglang(replicas: _Replicas) -> dict[str, float]:
    """``prompt_tokens_total`` counts whole prompts, as requests finish; cached_tokens_total is only there once
    something was found. cache_hit_rate and gen_throughput are of the last batch and not kept."""
    total = replicas.total
    prompts, cached = total("sglang:prompt_tokens_total"), total("sglang:cached_tokens_total")
    pools = replicas.by_replica("sglang:max_total_num_tokens")
    return _stated(
        {
            "requests_running": total("sglang:num_running_reqs"),
            "requests_waiting": total("sglang:num_queue_reqs"),
            "kv_cache_used_tokens": total("sglang:num_used_tokens"),
            "kv_cache_pool_tokens": sum(pools.values()) if pools else None,
            "kv_cache_used_share": _share(replicas.by_replica("sglang:token_usage"), pools),
            "preemptions": total("sglang:num_retracted_requests_total"),
            "prefix_queried_tokens": prompts,
            "prefix_hit_tokens": cached,
            "prompt_tokens": None if prompts is None or cached is None else prompts - cached,
            "output_tokens": total("sglang:generation_tokens_total"),
            "ttft_sum_s": total("sglang:time_to_first_token_seconds_sum"),
            "ttft_count": total("sglang:time_to_first_token_seconds_count"),
        }
    )


_READERS: Mapping[str, Callable[[_Replicas], dict[str, float]]] = {
    "llama.cpp": _llama_cpp,
    "vllm": _vllm,
    "sglang": _sglang,
}
