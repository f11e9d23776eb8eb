"""What decoders with windowed layers share: which layers slide, by the config's list, its class's pattern, or a key."""

from collections.abc import Sequence

from kvscope.model.config_reader import ConfigReader, every
from kvscope.model.families.architecture import typed_caches
from kvscope.model.families.dense_decoder import Decoder
from kvscope.model.spec import CacheKind

SLIDING, FULL, CHUNKED = "sliding_attention", "full_attention", "chunked_attention"


def read_window(config: ConfigReader, key: str = "sliding_window") -> int | None:
    """Tokens of the window, or None where the config has none."""
    return config.optional(key, field="window_tokens", smallest=1)


def listed_types(config: ConfigReader, num_layers: int, pattern: Sequence[str]) -> Sequence[str]:
    """The config's layer_types, else ``pattern``: what its class derives."""
    types = config.layer_types(num_layers)
    if types is not None:
        return types
    config.sources["layer_types"] = f"derived: the pattern of {config.defaults.class_name}, {config.defaults.library}"
    return pattern


def listed_caches(decoder: Decoder, pattern: Sequence[str], *, has_window: bool = True) -> list[CacheKind]:
    """Caches of a class whose layers go by layer_types. ``has_window`` False: the class drops its sliding_window."""
    config = decoder.config
    types = listed_types(config, decoder.num_layers, pattern)
    window = read_window(config) if has_window and SLIDING in types else None
    return typed_caches(config, types, decoder.heads.full, window)


def last_full(decoder: Decoder, period: int) -> Sequence[str]:
    """Every ``period``-th layer is full, those before it slide."""
    return every(period, decoder.num_layers, inside=SLIDING, last=FULL)


def first_full(decoder: Decoder, period: int) -> Sequence[str]:
    """The first layer of every ``period`` is full, those after it slide."""
    return [SLIDING if index % period else FULL for index in range(decoder.num_layers)]


def keyed_caches(decoder: Decoder, window: int | None) -> tuple[list[CacheKind], list[CacheKind | None]]:
    """(what is needed, what transformers keeps) in a class that slides in every layer when it has a window.

    Its attention does not look at layer_types, but transformers' cache does: it goes by that list where there is one,
    else by the window, else by attention_chunk_size.
    """
    config, full = decoder.config, decoder.heads.full
    needed = typed_caches(config, [FULL if window is None else SLIDING] * decoder.num_layers, full, window)
    chunk = config.optional("attention_chunk_size", smallest=1)
    otherwise = SLIDING if window else CHUNKED if chunk else FULL
    types = config.layer_types(decoder.num_layers) or (otherwise,) * decoder.num_layers
    kept = typed_caches(config, types, full, window, chunk)
    return needed, [None if has == needs else has for has, needs in zip(kept, needed, strict=True)]


def pattern_period(decoder: Decoder) -> Sequence[str]:
    """Exaone's sliding_window_pattern: a period whose last layer is full, or letters, L for local and G for global,
    repeated. Without a sliding_window every layer is full."""
    config = decoder.config
    if read_window(config) is None:
        return [FULL] * decoder.num_layers
    pattern = config.lookup("sliding_window_pattern")[0]
    if not isinstance(pattern, str):
        return last_full(decoder, config.number("sliding_window_pattern"))
    if not pattern or set(pattern) - {"L", "G"}:
        raise config.refuse(f"its sliding_window_pattern is {pattern!r}")
    return [SLIDING if pattern[index % len(pattern)] == "L" else FULL for index in range(decoder.num_layers)]
