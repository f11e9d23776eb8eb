"""A model in a few numbers: its layers grouped by what they keep, its tensors by type, what one token costs."""

from typing import Any

from kvscope.dtypes import dtype_named
from kvscope.model.spec import FullAttention, LayerSpec, ModelSpec, SlidingWindow
from kvscope.predict.kv_cache import kind_name, needed_by_layer

DEFAULT_CACHE_DTYPE = "float16"


def summarise_model(model: ModelSpec) -> dict[str, Any]:
    """What ``kvscope show --json`` prints. Bytes per token are for a cache in the model's own format, else float16."""
    dtype = dtype_named(model.dtype or DEFAULT_CACHE_DTYPE)
    laws = [needed_by_layer(layer.cache, dtype, dtype) for layer in model.layers]
    return {
        "schema": "kvscope.model/1",
        "name": model.name,
        "architecture": model.architecture,
        "source": model.source,
        "file_path": model.file_path,
        "fingerprint": model.fingerprint,
        "parameters": model.num_parameters,
        "num_layers": len(model.layers),
        "hidden_size": model.hidden_size,
        "vocab_size": model.vocab_size,
        "trained_context_tokens": model.trained_context_tokens,
        "weights_bytes": sum(tensor.num_bytes for tensor in model.tensors) if model.tensors else None,
        "cache_dtype": dtype.name,
        "bytes_per_token": sum(law.bytes_per_token for law in laws),
        "bytes_per_token_beyond_windows": sum(law.bytes_per_token for law in laws if law.cap_tokens is None),
        "groups": _groups(model),
        "tensors_by_type": _tensors_by_type(model),
        "sources": dict(model.sources),
    }


def _groups(model: ModelSpec) -> list[dict[str, Any]]:
    dtype = dtype_named(model.dtype or DEFAULT_CACHE_DTYPE)
    groups: dict[tuple[Any, int], list[LayerSpec]] = {}
    for layer in model.layers:
        groups.setdefault((layer.cache, layer.num_q_heads), []).append(layer)
    found = []
    for (cache, num_q_heads), layers in groups.items():
        has_heads = isinstance(cache, FullAttention | SlidingWindow)
        found.append(
            {
                "kind": kind_name(cache),
                "layers": [layer.index for layer in layers],
                "num_q_heads": num_q_heads,
                "num_kv_heads": cache.num_kv_heads if has_heads else None,
                "key_dim": cache.key_dim if has_heads else None,
                "value_dim": cache.value_dim if has_heads else None,
                "window_tokens": cache.window_tokens if isinstance(cache, SlidingWindow) else None,
                "bytes_per_token": needed_by_layer(cache, dtype, dtype).bytes_per_token,
            }
        )
    return found


def _tensors_by_type(model: ModelSpec) -> list[dict[str, Any]]:
    by_type: dict[str, list[int]] = {}
    for tensor in model.tensors:
        by_type.setdefault(tensor.dtype, []).append(tensor.num_bytes)
    rows = [{"dtype": name, "count": len(sizes), "bytes": sum(sizes)} for name, sizes in by_type.items()]
    return sorted(rows, key=lambda row: (-int(str(row["bytes"])), str(row["dtype"])))
