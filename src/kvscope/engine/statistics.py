"""Names under which engines' own counters are kept, whatever each engine calls them. A name ends in its unit.

An adapter's ``statistics()`` gives those that its engine states now; one that it does not state is absent, never 0.
"""

from collections.abc import Mapping
from types import MappingProxyType

STATISTICS: Mapping[str, str] = MappingProxyType(
    {
        "requests_running": "requests being computed now",
        "requests_waiting": "requests waiting for their turn",
        "kv_cache_used_tokens": "tokens held in the KV cache now",
        "kv_cache_pool_tokens": "tokens that the reserved KV cache can hold",
        "kv_cache_used_share": "share of the reserved KV cache in use, 0 to 1",
        "kv_cache_pool_bytes": "bytes reserved for the KV cache",
        "cache_tensor_bytes": "bytes of the cache's own tensors, as the engine counts them",
        "cache_storage_bytes": "bytes that the memory behind these tensors keeps alive: more where one is a view of a "
        "larger tensor",
        "heap_in_use_bytes": "the C library's allocator: bytes handed out from its arenas",
        "heap_free_bytes": "the C library's allocator: bytes given back to it and kept in its arenas",
        "heap_mmapped_bytes": "the C library's allocator: bytes in larger blocks, each a mapping of its own",
        "heap_peak_bytes": "the C library's allocator: in use, larger blocks included, when it held most during the "
        "last request",
        "heap_peak_free_bytes": "the C library's allocator: bytes given back to it and kept at that moment",
        "python_arena_bytes": "Python's allocator: bytes in its arenas, which the C library's does not count",
        "engine_bytes": "bytes that the engine says its model takes, on all devices together",
        "engine_device_bytes": "of these, bytes on accelerators",
        "allocated_bytes": "torch's allocator: bytes in live tensors",
        "allocated_peak_bytes": "torch's allocator: the most of them since its counter was reset",
        "reserved_bytes": "torch's allocator: bytes taken from the device, unused ones included",
        "reserved_peak_bytes": "torch's allocator: the most of them since its counter was reset",
        "preemptions": "requests put back for want of cache, since the engine started",
        "prefix_queried_tokens": "prompt tokens looked up in the prefix cache, since the engine started",
        "prefix_hit_tokens": "of these, tokens found there",
        "prompt_tokens": "prompt tokens computed, since the engine started",
        "output_tokens": "output tokens generated, since the engine started",
        "prefill_s": "seconds spent on prompts, since the engine started",
        "decode_s": "seconds spent on generating, since the engine started",
        "ttft_sum_s": "sum of the times to first token that the engine measured, since it started",
        "ttft_count": "requests in that sum",
    }
)
