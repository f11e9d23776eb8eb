"""The worker's part that knows transformers' caches: made, counted tensor by tensor, cut back to a common beginning.

Read by ``transformers_worker.py`` from the file beside it, in the child process; imports nothing of kvscope. Names are
those of transformers 5.24: caches hold one object per layer, whose tensors are its attributes.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

# What forward calls the thing that is handed from step to step, newest name first.
CACHE_NAMES = ("cache", "past_key_values", "cache_params", "mems", "past_buckets_states", "state")
# Counters and constants that layers carry beside what they cache: a few whole numbers.
_COUNTERS = frozenset(
    {"cumulative_length", "indexer_cumulative_length", "_sliding_window_tensor", "_seen_tokens", "seqlen_offset"}
)
_DEEPEST = 6


class SettingError(Exception):
    """A setting that does not exist or does not take this value."""


class MissingBackend(Exception):
    """``package`` has to be installed for this cache."""

    def __init__(self, package: str) -> None:
        super().__init__(package)
        self.package = package


def make_cache(transformers: Any, model: Any, settings: dict[str, Any]) -> Any:
    """An empty cache by ``settings``, as ``generate`` makes it; None where the model makes one of its own kind. Raises
    SettingError, MissingBackend."""
    config = model.config.get_text_config(decoder=True)
    match settings["cache_implementation"]:
        case "dynamic":
            takes = getattr(model, "_supports_default_dynamic_cache", None)
            return transformers.DynamicCache(config=config) if takes is not None and takes() else None
        case "dynamic_full":
            return transformers.DynamicCache()
        case "offloaded":
            return transformers.DynamicCache(config=config, offloading=True)
        case "static":
            return transformers.StaticCache(config=config, max_cache_len=settings["max_cache_len"])
        case "offloaded_static":
            return transformers.StaticCache(config=config, max_cache_len=settings["max_cache_len"], offloading=True)
        case "quantized":
            return _quantized(transformers, config, settings)
        case other:
            raise SettingError(f"cache_implementation does not take {other!r}.")


def _quantized(transformers: Any, config: Any, settings: dict[str, Any]) -> Any:
    backend = settings.get("backend", "quanto")
    given = {name: settings[name] for name in ("nbits", "q_group_size", "residual_length") if name in settings}
    try:
        return transformers.QuantizedCache(backend=backend, config=config, **given)
    except ImportError:
        raise MissingBackend({"quanto": "optimum-quanto"}.get(backend, backend)) from None
    except (ValueError, TypeError) as error:
        raise SettingError(f"transformers refuses this quantised cache: {error}") from error


def tensors_of(torch: Any, cache: Any) -> Iterator[tuple[str, Any]]:
    """(name, tensor) of everything that ``cache`` holds, however it holds it, counters left out."""
    return _walk(torch, cache, "", _DEEPEST)


def _walk(torch: Any, held: Any, name: str, depth: int) -> Iterator[tuple[str, Any]]:
    if isinstance(held, torch.Tensor):
        inner = getattr(held, "__tensor_flatten__", None)
        if inner is not None and type(held) is not torch.Tensor:  # a quantised tensor is made of plain ones
            for part in inner()[0]:
                yield from _walk(torch, getattr(held, part), f"{name}.{part.strip('_')}", depth - 1)
        else:
            yield name, held
        return
    if depth == 0 or held is None:
        return
    if isinstance(held, dict):
        entries = [(str(key), value) for key, value in held.items()]
    elif isinstance(held, list | tuple):
        entries = [(str(index), value) for index, value in enumerate(held)]
    elif type(held).__module__.split(".")[0] in ("transformers", "transformers_modules"):
        entries = list(vars(held).items()) if hasattr(held, "__dict__") else []
    else:
        return
    for key, value in entries:
        if key not in _COUNTERS:
            yield from _walk(torch, value, f"{name}.{key}" if name else key, depth - 1)


def states_in_modules(torch: Any, model: Any) -> Iterator[tuple[str, Any]]:
    """Tensors that modules of the model keep between steps as plain attributes (RecurrentGemma's states)."""
    for path, module in model.named_modules():
        for key, value in vars(module).items():
            if isinstance(value, torch.Tensor) and key.endswith(("_state", "_states")):
                yield f"module:{path}.{key}", value


def counted(tensors: Iterator[tuple[str, Any]]) -> dict[str, int]:
    """``shape_bytes``: elements × element size, a storage that several share counted once; ``storage_bytes``: what the
    storages behind them keep alive; ``tensors``: how many."""
    storages: dict[tuple[str, int], int] = {}
    shape_bytes = number = 0
    for _, tensor in tensors:
        storage = tensor.untyped_storage()
        place = (str(tensor.device), storage.data_ptr())
        number += 1
        if place not in storages:
            shape_bytes += tensor.numel() * tensor.element_size()
        storages[place] = storage.nbytes()
    return {"shape_bytes": shape_bytes, "storage_bytes": sum(storages.values()), "tensors": number}


def can_go_on(cache: Any) -> bool:
    """Whether several tokens at once can follow what it holds: not where a layer keeps a state that has no place for
    each token (some classes begin such a state anew then, without a word)."""
    layers: Any = getattr(cache, "layers", None) or ()
    return bool(layers) and not any(hasattr(layer, "recurrent_states") for layer in layers)


def cut_back(cache: Any, held_tokens: int, wanted_tokens: int) -> bool:
    """Take tokens away from the end of ``cache`` until ``wanted_tokens`` are left, for others to follow. False where
    that cannot be done; what the cache holds is undefined then."""
    if not getattr(cache, "is_croppable", False) or not can_go_on(cache):
        return False
    if wanted_tokens == held_tokens:
        return True
    with contextlib.suppress(RuntimeError, ValueError, AttributeError):
        cache.crop(wanted_tokens - held_tokens)
        return True
    return False
