"""A model in a few numbers: its layers grouped by what they keep, its tensors by type, what one token costs."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from kvscope.dtypes import Dtype, dtype_named
from kvscope.model.spec import CacheKind, LayerSpec, ModelSpec, MoeFfn
from kvscope.predict.kv_cache import kind_name, needed_parts

DEFAULT_CACHE_DTYPE = "float16"


def summarise_model(model: ModelSpec) -> dict[str, Any]:
    """What ``kvscope show --json`` prints. Bytes per token are for a cache in the model's own format, else float16.

    ``unknown`` names what the files do not say; such a field is None, never 0.
    """
    dtype = dtype_named(model.dtype or DEFAULT_CACHE_DTYPE)
    groups = _groups(model, dtype)
    return {
        "schema": "kvscope.model/1",
        "name": model.name,
        "architecture": model.architecture,
        "family": model.family or None,
        "source": model.source,
        "file_path": model.file_path,
        "fingerprint": model.fingerprint,
        "parameters": model.num_parameters,
        "num_layers": len(model.layers),
        "hidden_size": model.hidden_size,
        "vocab_size": model.vocab_size,
        "trained_context_tokens": model.trained_context_tokens,
        "dtype": model.dtype,
        "is_tied": model.is_tied,
        "weights_bytes": sum(tensor.num_bytes for tensor in model.tensors) if model.tensors else None,
        "cache_dtype": dtype.name,
        "bytes_per_token": sum(group["bytes_per_token"] * len(group["layers"]) for group in groups),
        "bytes_per_token_beyond_windows": sum(
            group["bytes_per_token"] * len(group["layers"]) for group in groups if group["cap_tokens"] is None
        ),
        "state_bytes_per_sequence": sum(group["state_bytes"] * len(group["layers"]) for group in groups),
        "groups": groups,
        "tensors_by_type": _tensors_by_type(model),
        "warnings": list(model.warnings),
        "unknown": _unknown(model),
        "sources": dict(model.sources),
    }


def _groups(model: ModelSpec, dtype: Dtype) -> list[dict[str, Any]]:
    """Layers that keep the same, in the order in which the first of each kind stands."""
    groups: dict[tuple[Any, int], list[LayerSpec]] = {}
    for layer in model.layers:
        groups.setdefault((layer.cache, layer.num_q_heads), []).append(layer)
    return [_group(cache, num_q_heads, layers, dtype) for (cache, num_q_heads), layers in groups.items()]


def _group(cache: CacheKind, num_q_heads: int, layers: list[LayerSpec], dtype: Dtype) -> dict[str, Any]:
    parts = needed_parts(cache, dtype, dtype)
    growing = [part.law for part in parts if part.law.bytes_per_token]
    caps = {law.cap_tokens for law in growing}
    details = _details(cache)
    experts = {layer.ffn.num_experts for layer in layers if isinstance(layer.ffn, MoeFfn)}
    return {
        "kind": kind_name(cache),
        "layers": [layer.index for layer in layers],
        "num_q_heads": num_q_heads or None,
        "num_kv_heads": details.get("num_kv_heads"),
        "key_dim": details.get("key_dim"),
        "value_dim": details.get("value_dim"),
        "window_tokens": details.get("window_tokens"),
        "num_experts": experts.pop() if len(experts) == 1 else None,
        "details": details,
        "cap_tokens": caps.pop() if len(caps) == 1 else None,
        "bytes_per_token": sum(_slope(law) for law in growing),
        "state_bytes": sum(part.law.bytes_at(0) for part in parts),
    }


def _slope(law: Any) -> int:
    """Bytes that one token adds before any cap; of a cache in blocks, its share of a block."""
    if law.per_step:
        return int(law.bytes_per_token // law.step_tokens)
    return int(law.bytes_per_token)


def _details(value: object, prefix: str = "") -> dict[str, Any]:
    """The numbers of a cache kind by name; those of a cache inside it by "main.name"."""
    found: dict[str, Any] = {}
    assert is_dataclass(value)
    for entry in fields(value):
        inner = getattr(value, entry.name)
        if is_dataclass(inner):
            found.update(_details(inner, f"{prefix}{entry.name}."))
        elif isinstance(inner, tuple):
            for part in inner:
                found[f"{prefix}{part.name}"] = list(part.shape)
        elif inner is not None:
            found[prefix + entry.name] = inner
    for name in ("num_kv_heads", "key_dim", "value_dim", "window_tokens"):
        for outer in ("main", "attention"):
            if not prefix and f"{outer}.{name}" in found:
                found.setdefault(name, found[f"{outer}.{name}"])
    return found


def _tensors_by_type(model: ModelSpec) -> list[dict[str, Any]]:
    by_type: dict[str, list[int]] = {}
    for tensor in model.tensors:
        by_type.setdefault(tensor.dtype, []).append(tensor.num_bytes)
    rows = [{"dtype": name, "count": len(sizes), "bytes": sum(sizes)} for name, sizes in by_type.items()]
    return sorted(rows, key=lambda row: (-int(str(row["bytes"])), str(row["dtype"])))


_FIELDS: Mapping[str, str] = {
    "num_parameters": "the number of parameters",
    "trained_context_tokens": "the trained context",
    "dtype": "one format of the weights",
}


def _unknown(model: ModelSpec) -> list[str]:
    """What the model's files do not say, or what kvscope does not know of this family."""
    found = [text for name, text in _FIELDS.items() if getattr(model, name) is None]
    if model.dtype is None and model.tensors:
        found.remove(_FIELDS["dtype"])  # it is known per tensor
    if not model.tensors:
        found.append("the bytes of the weights as stored (no weight file was read)")
    return found
