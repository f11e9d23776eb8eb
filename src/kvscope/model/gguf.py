"""GGUF header → ModelSpec. Which key says what, and which keys would change the cache in ways not handled here."""

from pathlib import Path

from kvscope.errors import MalformedFile, MissingField, UnsupportedArchitecture
from kvscope.model.gguf_header import GgufHeader, MetaValue, SkippedArray, read_header
from kvscope.model.layer_kinds import Family, gguf_family, sliding_layers
from kvscope.model.spec import CacheKind, DenseFfn, FullAttention, LayerSpec, ModelSpec, NoCache, SlidingWindow

__all__ = ["load_gguf", "read_header"]

MAX_LAYERS = 10_000
MAX_WIDTH = 2**31 - 1

# Keys that give some layers another cache (latent, recurrent, shared, chunked, per-kind widths) or another graph. A
# file of a known family that has one is a variant nobody has checked.
_UNHANDLED_KEYS = (
    "attention.kv_lora_rank",
    "attention.key_length_mla",
    "attention.value_length_mla",
    "attention.key_length_swa",
    "attention.value_length_swa",
    "attention.shared_kv_layers",
    "attention.chunk_size",
    "attention.recurrent_layers",
    "full_attention_interval",
    "nextn_predict_layers",
    "expert_count",
    "ssm.conv_kernel",
    "ssm.state_size",
    "shortconv.l_cache",
    "wkv.head_size",
)


def load_gguf(path: str | Path, source: str | None = None) -> ModelSpec:
    """The model that a GGUF file holds. Raises ModelNotFound, MalformedFile, MissingField, UnsupportedArchitecture."""
    return _Reader(read_header(path)).spec(source or str(path))


class _Reader:
    """Reads fields out of a header and remembers where each came from."""

    def __init__(self, header: GgufHeader) -> None:
        self.header = header
        self.metadata = header.metadata
        self.sources: dict[str, str] = {}
        self.architecture = self._architecture()

    def spec(self, source: str) -> ModelSpec:
        family = gguf_family(self.architecture)
        self._refuse_variants(family)
        num_layers = self._number("block_count", "num_layers", limit=MAX_LAYERS)
        hidden_size = self._number("embedding_length", "hidden_size")
        layers = self._layers(family, num_layers, hidden_size)
        self._check_against_tensors(layers)
        name = self.metadata.get("general.name")
        self.sources["name"] = "GGUF key general.name" if isinstance(name, str) else "file name"
        return ModelSpec(
            name=name if isinstance(name, str) and name else Path(self.header.path).stem,
            architecture=self.architecture,
            family=family.name,
            source_kind="gguf",
            source=source,
            file_path=self.header.path,
            num_parameters=self._num_parameters(),
            vocab_size=self._vocab_size(),
            hidden_size=hidden_size,
            trained_context_tokens=self._number("context_length", "trained_context_tokens"),
            layers=layers,
            tensors=self.header.tensors,
            fingerprint=self.header.sha256,
            sources=self.sources,
        )

    def _architecture(self) -> str:
        value = self.metadata.get("general.architecture")
        if not isinstance(value, str) or not value:
            raise MissingField("its architecture", [f"GGUF key general.architecture of {self.header.path}"])
        self.sources["architecture"] = "GGUF key general.architecture"
        return value

    def _refuse_variants(self, family: Family) -> None:
        keys = [*_UNHANDLED_KEYS]
        if family.full_every is None:
            keys.append("attention.sliding_window")
        if family.name != "gemma3":
            keys.append("attention.sliding_window_pattern")
        for key in keys:
            value = self.metadata.get(f"{self.architecture}.{key}")
            if value is not None and value != 0:
                raise UnsupportedArchitecture(
                    f"{self.header.path} is a {self.architecture} model with {self.architecture}.{key} = {value}, "
                    "a variant whose memory kvscope does not know.",
                    hint="Plain dense models of this architecture are known.",
                )

    def _value(self, key: str, field: str) -> MetaValue:
        full_key = f"{self.architecture}.{key}"
        if full_key not in self.metadata:
            raise MissingField(field, [f"GGUF key {full_key} of {self.header.path}"])
        return self.metadata[full_key]

    def _check_against_tensors(self, layers: tuple[LayerSpec, ...]) -> None:
        """The file says the same thing twice, in its keys and in its tensors' shapes: where the two differ, neither can
        be trusted. A file that lists no layers' tensors has nothing to be held against."""
        rows = {t.name: t.shape[1] for t in self.header.tensors if len(t.shape) == 2}
        listed = {t.layer_index for t in self.header.tensors if t.layer_index is not None}
        if listed and max(listed) + 1 != len(layers):
            raise self._malformed("block_count", f"it says {len(layers)} layers, the tensors are of {max(listed) + 1}")
        for layer in layers:
            if not isinstance(layer.cache, FullAttention | SlidingWindow):
                continue
            heads = layer.cache.num_kv_heads
            for name, width in (("attn_k", heads * layer.cache.key_dim), ("attn_v", heads * layer.cache.value_dim)):
                found = rows.get(f"blk.{layer.index}.{name}.weight", width)
                if found != width:
                    raise self._malformed(
                        "attention.head_count_kv",
                        f"by the keys {name} of layer {layer.index} has {width} rows, its tensor has {found}",
                    )

    def _number(self, key: str, field: str, *, limit: int = MAX_WIDTH) -> int:
        value = self._whole(self._value(key, field), key, limit)
        if value == 0:
            raise self._malformed(key, "the value is 0")
        self.sources[field] = f"GGUF key {self.architecture}.{key}"
        return value

    def _whole(self, value: object, key: str, limit: int = MAX_WIDTH) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= limit:
            raise self._malformed(key, f"the value is {value!r}; a whole number up to {limit} was expected")
        return value

    def _malformed(self, key: str, problem: str) -> MalformedFile:
        return MalformedFile(self.header.path, f"key {self.architecture}.{key}", problem)

    def _per_layer(self, key: str, field: str, num_layers: int) -> tuple[int, ...]:
        """One number for all layers, or an array with one per layer."""
        value = self._value(key, field)
        if isinstance(value, SkippedArray):
            raise self._malformed(key, f"an array of {value.length} values; {num_layers} were expected")
        if isinstance(value, tuple):
            if len(value) != num_layers:
                raise self._malformed(key, f"an array of {len(value)} values; {num_layers} were expected")
            return tuple(self._whole(entry, key) for entry in value)
        return (self._whole(value, key),) * num_layers

    def _layers(self, family: Family, num_layers: int, hidden_size: int) -> tuple[LayerSpec, ...]:
        q_heads = self._per_layer("attention.head_count", "num_q_heads", num_layers)
        kv_heads, kv_source = q_heads, f"derived: equal to {self.architecture}.attention.head_count (key absent)"
        if f"{self.architecture}.attention.head_count_kv" in self.metadata:
            kv_heads = self._per_layer("attention.head_count_kv", "num_kv_heads", num_layers)
            kv_source = f"GGUF key {self.architecture}.attention.head_count_kv"
        widths = self._per_layer("feed_forward_length", "ffn.width", num_layers)
        key_dim, key_source = self._head_dim("key_length", hidden_size, q_heads[0])
        value_dim, value_source = self._head_dim("value_length", hidden_size, q_heads[0])
        window, is_sliding, kind_source = self._windows(family, num_layers)
        layers = []
        for index in range(num_layers):
            cache = _cache(kv_heads[index], key_dim, value_dim, window if is_sliding[index] else None)
            layers.append(
                LayerSpec(index=index, cache=cache, num_q_heads=q_heads[index], ffn=DenseFfn(width=widths[index]))
            )
            for field, where in (
                ("num_q_heads", f"GGUF key {self.architecture}.attention.head_count"),
                ("num_kv_heads", kv_source),
                ("key_dim", key_source),
                ("value_dim", value_source),
                ("cache", kind_source),
                ("ffn.width", f"GGUF key {self.architecture}.feed_forward_length"),
            ):
                self.sources[f"layers[{index}].{field}"] = where
            if is_sliding[index]:
                where = f"GGUF key {self.architecture}.attention.sliding_window"
                self.sources[f"layers[{index}].window_tokens"] = where
        return tuple(layers)

    def _head_dim(self, key: str, hidden_size: int, num_heads: int) -> tuple[int, str]:
        full_key = f"attention.{key}"
        if f"{self.architecture}.{full_key}" in self.metadata:
            width = self._whole(self._value(full_key, key), full_key)
            if width == 0:
                raise self._malformed(full_key, "the value is 0")
            return width, f"GGUF key {self.architecture}.{full_key}"
        if num_heads == 0 or hidden_size % num_heads:
            raise self._malformed("attention.head_count", f"{num_heads} heads do not divide {hidden_size}")
        return hidden_size // num_heads, f"derived: embedding_length {hidden_size} / head_count {num_heads}"

    def _windows(self, family: Family, num_layers: int) -> tuple[int | None, tuple[bool, ...], str]:
        key = "attention.sliding_window"
        if family.full_every is None:
            return None, (False,) * num_layers, f"every layer of {self.architecture} is full attention"
        if f"{self.architecture}.{key}" not in self.metadata:
            # Without the key llama.cpp makes one full cache (checked for gemma3 and phi3).
            return None, (False,) * num_layers, f"no {self.architecture}.{key}: every layer is full attention"
        window = self._whole(self._value(key, "window_tokens"), key)
        if window == 0:
            return None, (False,) * num_layers, f"{self.architecture}.{key} = 0: every layer is full attention"
        if f"{self.architecture}.{key}_pattern" in self.metadata:
            return (
                window,
                self._stated_pattern(f"{key}_pattern", num_layers),
                f"GGUF key {self.architecture}.{key}_pattern",
            )
        rule = f"every layer of {self.architecture} slides"
        if family.full_every > 1:
            rule = f"every {family.full_every}th layer of {self.architecture} is full, the others slide"
        return window, sliding_layers(family.full_every, num_layers), rule

    def _stated_pattern(self, key: str, num_layers: int) -> tuple[bool, ...]:
        """A period (every n-th layer is full) or one truth value per layer (true: slides)."""
        value = self._value(key, "its sliding layers")
        if isinstance(value, tuple):
            if len(value) != num_layers or not all(isinstance(entry, bool) for entry in value):
                raise self._malformed(key, f"{num_layers} truth values were expected, one per layer")
            return tuple(bool(entry) for entry in value)
        period = self._whole(value, key)
        if period < 2:
            raise self._malformed(key, f"the period is {period}; 2 or more was expected")
        return sliding_layers(period, num_layers)

    def _num_parameters(self) -> int | None:
        self.sources["num_parameters"] = "elements of all tensors in the GGUF tensor table"
        total = 0
        for tensor in self.header.tensors:
            elements = 1
            for size in tensor.shape:
                elements *= size
            total += elements
        return total or None

    def _vocab_size(self) -> int:
        tokens = self.metadata.get("tokenizer.ggml.tokens")
        if isinstance(tokens, SkippedArray | tuple):
            self.sources["vocab_size"] = "length of the GGUF array tokenizer.ggml.tokens"
            return tokens.length if isinstance(tokens, SkippedArray) else len(tokens)
        if f"{self.architecture}.vocab_size" in self.metadata:
            return self._number("vocab_size", "vocab_size")
        places = ["tokenizer.ggml.tokens", f"{self.architecture}.vocab_size"]
        raise MissingField("its vocabulary size", [f"GGUF key {place} of {self.header.path}" for place in places])


def _cache(num_kv_heads: int, key_dim: int, value_dim: int, window: int | None) -> CacheKind:
    if num_kv_heads == 0:
        return NoCache()
    if window is None:
        return FullAttention(num_kv_heads=num_kv_heads, key_dim=key_dim, value_dim=value_dim)
    return SlidingWindow(num_kv_heads=num_kv_heads, key_dim=key_dim, value_dim=value_dim, window_tokens=window)
