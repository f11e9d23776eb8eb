"""Layers stated by hand: for a model whose family kvscope does not know, or whose files say too little.

    32 x full kv_heads=8 head_dim=128
    hidden_size=2560; 5 x [5 x sliding kv_heads=4 head_dim=256 window=1024; full kv_heads=4 head_dim=256]

Parts are separated by ";". ``N x`` repeats a layer, or a list of layers in brackets. ``NAME=VALUE`` alone states a fact
of the model where its files do not. The grammar is in docs/reference/layers.md.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kvscope.errors import UnknownName, UsageError
from kvscope.model.spec import (
    CacheKind,
    ChunkedAttention,
    CrossAttention,
    FullAttention,
    HybridCache,
    IndexedAttention,
    LatentAttention,
    LayerSpec,
    ModelSpec,
    NoCache,
    RecurrentState,
    SharedCache,
    SlidingWindow,
    StateTensor,
)

MAX_LAYERS = 10_000
MAX_NUMBER = 2**31 - 1
MAX_SPEC = 100_000
SOURCE = "stated by hand: --layers"
HINT = "Example: --layers '32 x full kv_heads=8 head_dim=128'. All kinds: docs/reference/layers.md."
_FACTS = ("hidden_size", "vocab_size", "trained_context")
_TOKEN = re.compile(r"\s*(?:(\d+)\s*[x×*]|([\[\];])|([A-Za-z_]+)\s*=\s*([^\s;\[\]]+)|([A-Za-z_]+))")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """What a specification says: the layers, and facts of the model (hidden_size, vocab_size, trained_context)."""

    caches: tuple[tuple[CacheKind, int], ...]
    facts: Mapping[str, int]


def parse_layers(spec: str) -> Stated:
    """Raises UsageError, with the place, for anything that is not of the grammar."""
    if len(spec) > MAX_SPEC:
        raise UsageError("The layers stated take more text than any model needs.", hint=HINT)
    facts: dict[str, int] = {}
    tokens = list(_tokens(spec))
    layers, position = _parse_list(tokens, 0, facts, depth=0)
    if position < len(tokens):
        raise UsageError("The layers stated have a ']' without a '['.", hint=HINT)
    if not layers:
        raise UsageError("No layer is stated.", hint=HINT)
    return Stated(caches=tuple(layers), facts=facts)


def with_layers(model: ModelSpec, stated: Stated) -> ModelSpec:
    """The model with these layers in place of its own. Its weights from a config are not kept: they belonged to it."""
    layers = tuple(
        LayerSpec(index=index, cache=cache, num_q_heads=heads, ffn=None)
        for index, (cache, heads) in enumerate(stated.caches)
    )
    for layer in layers:
        if isinstance(layer.cache, SharedCache):
            _check_shared(layer.index, layer.cache.layer_index, layers)
    sources = {name: where for name, where in model.sources.items() if not name.startswith("layers[")}
    sources.update({f"layers[{layer.index}].cache": SOURCE for layer in layers}, num_layers=SOURCE)
    sources.update(
        dict.fromkeys(("trained_context_tokens" if k == "trained_context" else k for k in stated.facts), SOURCE)
    )
    return replace(
        model,
        layers=layers,
        source_kind="stated",
        hidden_size=stated.facts.get("hidden_size", model.hidden_size),
        vocab_size=stated.facts.get("vocab_size", model.vocab_size),
        trained_context_tokens=stated.facts.get("trained_context", model.trained_context_tokens),
        weights=(),
        num_parameters=model.num_parameters if model.tensors else None,
        sources=sources,
    )


def _check_shared(index: int, source: int, layers: tuple[LayerSpec, ...]) -> None:
    """A cache is read by layers behind the one that fills it."""
    what = f"Layer {index} shares the cache of layer {source}"
    if not 0 <= source < len(layers):
        raise UsageError(f"{what}: there is none.")
    if source >= index or isinstance(layers[source].cache, SharedCache | NoCache):
        why = "which does not come before it" if source >= index else "which has no cache of its own"
        raise UsageError(f"{what}, {why}.", hint="Name the layer that fills the cache.")


def _tokens(spec: str) -> "list[tuple[str, Any]]":
    found: list[tuple[str, Any]] = []
    position = 0
    spec = spec.rstrip()
    while position < len(spec):
        hit = _TOKEN.match(spec, position)
        if hit is None:
            raise UsageError(
                f"--layers: {spec[position : position + 30]!r} at character {position} is not understood.", hint=HINT
            )
        count, mark, name, value, word = hit.groups()
        if count is not None:
            found.append(("count", _whole(count, "a number of layers", MAX_LAYERS)))
        elif mark is not None:
            found.append((mark, mark))
        elif name is not None:
            found.append(("field", (name, value)))
        else:
            found.append(("kind", word))
        position = hit.end()
    return found


def _parse_list(
    tokens: "list[tuple[str, Any]]", position: int, facts: dict[str, int], depth: int
) -> "tuple[list[tuple[CacheKind, int]], int]":
    if depth > 8:
        raise UsageError("--layers: lists in lists, more than 8 deep.", hint=HINT)
    layers: list[tuple[CacheKind, int]] = []
    while position < len(tokens) and tokens[position][0] != "]":
        what, value = tokens[position]
        if what == ";":
            position += 1
            continue
        if what == "field":
            name, text = value
            _state_fact(name, text, facts)
            position += 1
            continue
        times = 1
        if what == "count":
            times = value
            position += 1
            what, value = tokens[position] if position < len(tokens) else ("end", "")
        if what == "[":
            inner, position = _parse_list(tokens, position + 1, facts, depth + 1)
            if position >= len(tokens):
                raise UsageError("--layers: a '[' is not closed.", hint=HINT)
            position += 1
        elif what == "kind":
            inner, position = _parse_layer(tokens, position)
        else:
            raise UsageError(f"--layers: a kind of layer was expected, not {value!r}.", hint=HINT)
        if len(layers) + times * len(inner) > MAX_LAYERS:
            raise UsageError(f"--layers: more than {MAX_LAYERS} layers.", hint=HINT)
        layers += inner * times
    return layers, position


def _parse_layer(tokens: "list[tuple[str, Any]]", position: int) -> "tuple[list[tuple[CacheKind, int]], int]":
    kind = tokens[position][1].lower()
    fields: dict[str, str] = {}
    position += 1
    while position < len(tokens) and tokens[position][0] == "field":
        name, value = tokens[position][1]
        if name in fields:
            raise UsageError(f"--layers: {name} is given twice for one layer.", hint=HINT)
        fields[name] = value
        position += 1
    if kind not in _KINDS:
        raise UnknownName("kind of layer", kind, _KINDS)
    reader = _Fields(kind, fields)
    heads = reader.number("q_heads", default=0)
    cache = _KINDS[kind](reader)
    reader.check_all_used()
    return [(cache, heads)], position


def _state_fact(name: str, value: str, facts: dict[str, int]) -> None:
    if name not in _FACTS:
        raise UnknownName("fact of a model", name, _FACTS)
    facts[name] = _whole(value, name, MAX_NUMBER)


def _whole(text: str, what: str, largest: int) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 10 or not 1 <= int(text) <= largest:
        raise UsageError(f"--layers: {what} is {text!r}; a whole number from 1 to {largest} was expected.", hint=HINT)
    return int(text)


class _Fields:
    """The NAME=VALUE of one layer; every one must be of use."""

    def __init__(self, kind: str, values: Mapping[str, str]) -> None:
        self.kind = kind
        self.values = values
        self.used: set[str] = set()

    def number(self, name: str, *, default: int | None = None) -> int:
        self.used.add(name)
        if name not in self.values:
            if default is None:
                raise UsageError(f"--layers: a {self.kind} layer needs {name}=N.", hint=HINT)
            return default
        if name == "layer" and self.values[name] == "0":
            return 0
        return _whole(self.values[name], name, MAX_NUMBER)

    def has(self, name: str) -> bool:
        return name in self.values

    def shape(self, name: str) -> tuple[int, ...]:
        """``128x64`` → (128, 64)."""
        self.used.add(name)
        if name not in self.values:
            return ()
        return tuple(_whole(part, name, MAX_NUMBER) for part in re.split("[x×]", self.values[name]))

    def word(self, name: str) -> str | None:
        self.used.add(name)
        return self.values.get(name)

    def check_all_used(self) -> None:
        unused = sorted(set(self.values) - self.used)
        if unused:
            raise UnknownName(f"field of a {self.kind} layer", unused[0], self.used)

    def heads(self) -> dict[str, int]:
        both = self.number("head_dim", default=0)
        return {
            "num_kv_heads": self.number("kv_heads"),
            "key_dim": self.number("key_dim", default=both or None),
            "value_dim": self.number("value_dim", default=both or None),
        }


def _full(fields: _Fields) -> CacheKind:
    return FullAttention(**fields.heads())


def _sliding(fields: _Fields) -> CacheKind:
    return SlidingWindow(**fields.heads(), window_tokens=fields.number("window"))


def _chunked(fields: _Fields) -> CacheKind:
    return ChunkedAttention(**fields.heads(), chunk_tokens=fields.number("chunk"))


def _latent(fields: _Fields) -> CacheKind:
    latent = LatentAttention(latent_dim=fields.number("latent_dim"), rope_dim=fields.number("rope_dim"))
    if not fields.has("index_dim"):
        return latent
    row = fields.number("index_row_bytes", default=0)
    return IndexedAttention(main=latent, index_dim=fields.number("index_dim"), index_row_bytes=row or None)


def _recurrent(fields: _Fields) -> RecurrentState:
    shape = fields.shape("state")
    dtype = fields.word("state_dtype")
    if dtype is not None:
        from kvscope.dtypes import dtype_named

        dtype = dtype_named(dtype).name
    channels = fields.number("conv_channels", default=0)
    state = RecurrentState(
        form="linear",
        conv_channels=channels,
        conv_kernel=fields.number("conv_kernel") if channels else 0,
        states=(StateTensor(name="state", shape=shape, dtype=dtype),) if shape else (),
    )
    if not channels and not shape:
        raise UsageError("--layers: a recurrent layer needs state=AxB, or conv_channels=N conv_kernel=N.", hint=HINT)
    return state


def _hybrid(fields: _Fields) -> CacheKind:
    attention = FullAttention(**fields.heads())
    return HybridCache(attention=attention, recurrent=_recurrent(fields))


def _cross(fields: _Fields) -> CacheKind:
    return CrossAttention(**fields.heads(), source_tokens=fields.number("tokens"))


def _shared(fields: _Fields) -> CacheKind:
    return SharedCache(layer_index=fields.number("layer"))


def _none(fields: _Fields) -> CacheKind:
    return NoCache()


_KINDS: Mapping[str, Callable[[_Fields], CacheKind]] = {
    "full": _full,
    "sliding": _sliding,
    "chunked": _chunked,
    "latent": _latent,
    "recurrent": _recurrent,
    "hybrid": _hybrid,
    "cross": _cross,
    "shared": _shared,
    "none": _none,
}
