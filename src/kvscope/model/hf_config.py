"""config.json → ModelSpec, for the model types whose every number is known: llama, gemma3_text, gemma3.

Values that a file leaves out come from the class defaults of transformers 5.x (LlamaConfig, Gemma3TextConfig), and say
so in ``sources``. Any other model type, and any key that would change the cache unseen, is refused.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvscope.dtypes import dtype_named
from kvscope.errors import MalformedFile, MissingField, ModelNotFound, UnknownName, UnsupportedArchitecture
from kvscope.model.layer_kinds import gemma3_sliding_layers
from kvscope.model.spec import DenseFfn, FullAttention, LayerSpec, ModelSpec, SlidingWindow

MAX_CONFIG_BYTES = 64 * 1024**2
MAX_LAYERS = 10_000
MAX_WIDTH = 2**31 - 1

# Class defaults of transformers 5.x. None: derived (head_dim = hidden_size / heads; KV heads = heads).
LLAMA_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "head_dim": None,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
}
GEMMA3_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
    "attention_bias": False,
}
_DEFAULTS = {"llama": ("LlamaConfig", LLAMA_DEFAULTS), "gemma3_text": ("Gemma3TextConfig", GEMMA3_DEFAULTS)}
# Keys that make the cache (or the model) another one than the family's. Absent, null, 0, false and empty are fine.
_UNHANDLED_KEYS: Mapping[str, tuple[str, ...]] = {
    "llama": ("layer_types", "sliding_window", "attention_chunk_size", "num_kv_shared_layers", "kv_lora_rank",
              "cross_attention_layers", "num_local_experts", "num_experts", "num_nextn_predict_layers"),
    "gemma3_text": ("attention_chunk_size", "num_kv_shared_layers", "kv_lora_rank", "use_bidirectional_attention",
                    "num_local_experts", "num_experts"),
}  # fmt: skip


def load_config(path: str | Path, source: str | None = None) -> ModelSpec:
    """The model that a config.json describes. Raises ModelNotFound, MalformedFile, UnsupportedArchitecture."""
    path = Path(path)
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise MalformedFile(path, "byte 0", "the file is larger than any config.json")
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelNotFound(f"{path} cannot be read: {error.strerror}.", hint="Check the path.") from None
    except UnicodeDecodeError as error:
        raise MalformedFile(path, f"byte {error.start}", "the file is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise MalformedFile(path, f"line {error.lineno}", f"the file is not JSON: {error.msg}") from None
    except ValueError:  # not JSONDecodeError: Python refuses to read a number of thousands of digits
        raise MalformedFile(path, "a number", "it has more digits than any number of a model") from None
    except RecursionError:
        raise MalformedFile(path, "byte 0", "the JSON is nested too deeply") from None
    name = path.resolve().parent.name if path.stem == "config" else path.stem
    return model_from_config(content, source=source or str(path), where=str(path), name=_printable(name))


def model_from_config(content: Any, *, source: str, where: str, name: str) -> ModelSpec:
    """The model of a config's content. ``where`` names the file in messages and ``sources``."""
    if not isinstance(content, Mapping):
        raise MalformedFile(where, "top level", "a JSON object was expected")
    model_type = content.get("model_type")
    if not isinstance(model_type, str):
        raise MissingField("its model_type", [f"{where}: model_type"])
    config, prefix = content, ""
    if model_type == "gemma3":
        inner = content.get("text_config")
        config = {} if inner is None else inner
        prefix = "text_config."
        if not isinstance(config, Mapping):
            raise MalformedFile(where, "text_config", "a JSON object was expected")
        inner_type = config.get("model_type", "gemma3_text")
        if inner_type != "gemma3_text":
            raise UnsupportedArchitecture(
                f"{where}: a gemma3 config holds a text_config of type {inner_type!r}.", hint="gemma3_text is known."
            )
    text_type = "gemma3_text" if model_type == "gemma3" else model_type
    if text_type not in _DEFAULTS:
        raise UnsupportedArchitecture(
            f"kvscope does not know the layers of model_type {model_type!r} ({where}).",
            hint=f"Known: {', '.join((*_DEFAULTS, 'gemma3'))}.",
        )
    reader = _Reader(config, text_type, where, prefix)
    return reader.spec(content, model_type, source, name)


class _Reader:
    """Reads fields, falls back to class defaults, and remembers where each value came from."""

    def __init__(self, config: Mapping[str, Any], text_type: str, where: str, prefix: str) -> None:
        self.config = config
        self.text_type = text_type
        self.where = where
        self.prefix = prefix
        self.class_name, self.defaults = _DEFAULTS[text_type]
        self.sources: dict[str, str] = {}
        self._refuse_variants()

    def _refuse_variants(self) -> None:
        for key in _UNHANDLED_KEYS[self.text_type]:
            value = self.config.get(key)
            if value:
                raise UnsupportedArchitecture(
                    f"{self.where} has {self.prefix}{key} = {_short(value)}, which changes the cache of a "
                    f"{self.text_type} model in a way kvscope does not know.",
                    hint="If the key has no meaning for this model, remove it from a copy of config.json.",
                )

    def spec(self, content: Mapping[str, Any], model_type: str, source: str, name: str) -> ModelSpec:
        num_layers = self.number("num_hidden_layers", "num_layers", limit=MAX_LAYERS)
        hidden_size = self.number("hidden_size", "hidden_size")
        self.sources["architecture"] = f"{Path(self.where).name}: model_type"
        vocab_size = self.number("vocab_size", "vocab_size")
        trained_context = self.number("max_position_embeddings", "trained_context_tokens")
        layers = self._layers(num_layers, hidden_size)
        stated_name = content.get("_name_or_path")
        return ModelSpec(
            name=_printable(stated_name) if isinstance(stated_name, str) and stated_name else name,
            architecture=model_type,
            family="gemma3" if self.text_type == "gemma3_text" else self.text_type,
            source_kind="config",
            source=source,
            file_path=None,
            num_parameters=self._num_parameters(layers, hidden_size, vocab_size, model_type),
            vocab_size=vocab_size,
            hidden_size=hidden_size,
            trained_context_tokens=trained_context,
            layers=layers,
            dtype=self._dtype(content),
            fingerprint=hashlib.sha256(_canonical(content, self.where)).hexdigest(),
            sources=self.sources,
        )

    def number(self, key: str, field: str, *, limit: int = MAX_WIDTH) -> int:
        value = self.config.get(key)
        where = f"{Path(self.where).name}: {self.prefix}{key}"
        if value is None:
            value = self.defaults[key]
            where = f"class default of transformers 5.x {self.class_name}"
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limit:
            raise MalformedFile(
                self.where, f"{self.prefix}{key}", f"the value is {_short(value)}; a whole number from 1 was expected"
            )
        self.sources[field] = where
        return value

    def flag(self, key: str) -> bool:
        value = self.config.get(key)
        value = self.defaults[key] if value is None else value
        if not isinstance(value, bool):
            raise MalformedFile(
                self.where, f"{self.prefix}{key}", f"the value is {_short(value)}; true or false was expected"
            )
        return value

    def _layers(self, num_layers: int, hidden_size: int) -> tuple[LayerSpec, ...]:
        q_heads = self.number("num_attention_heads", "num_q_heads")
        kv_heads, kv_source = self._derived("num_key_value_heads", q_heads, "num_attention_heads")
        if self.config.get("head_dim") is None and self.defaults["head_dim"] is None and hidden_size % q_heads:
            raise MalformedFile(
                self.where, f"{self.prefix}hidden_size", f"{q_heads} heads do not divide hidden_size {hidden_size}"
            )
        head_dim, head_source = self._derived("head_dim", hidden_size // q_heads, "hidden_size / num_attention_heads")
        width = self.number("intermediate_size", "ffn.width")
        is_sliding, kind_source = (False,) * num_layers, "every layer of llama is full attention"
        window = 0
        if self.text_type == "gemma3_text":
            is_sliding, kind_source = gemma3_sliding_layers(self.config, num_layers, self.where)
            if kind_source in ("layer_types", "sliding_window_pattern"):
                kind_source = f"{Path(self.where).name}: {self.prefix}{kind_source}"
            window = self.number("sliding_window", "window_tokens")
        layers = []
        for index in range(num_layers):
            heads = {"num_kv_heads": kv_heads, "key_dim": head_dim, "value_dim": head_dim}
            cache = SlidingWindow(**heads, window_tokens=window) if is_sliding[index] else FullAttention(**heads)
            layers.append(LayerSpec(index=index, cache=cache, num_q_heads=q_heads, ffn=DenseFfn(width=width)))
            for field, where in (
                ("num_q_heads", self.sources["num_q_heads"]),
                ("num_kv_heads", kv_source),
                ("key_dim", head_source),
                ("value_dim", head_source),
                ("cache", kind_source),
                ("ffn.width", self.sources["ffn.width"]),
            ):
                self.sources[f"layers[{index}].{field}"] = where
            if is_sliding[index]:
                self.sources[f"layers[{index}].window_tokens"] = self.sources["window_tokens"]
        return tuple(layers)

    def _derived(self, key: str, value: int, formula: str) -> tuple[int, str]:
        """A field whose class default may be None, meaning a formula of other fields."""
        if self.config.get(key) is None and self.defaults[key] is None:
            return value, f"derived: {formula} (class default of transformers 5.x {self.class_name})"
        return self.number(key, key), self.sources[key]

    def _num_parameters(
        self, layers: tuple[LayerSpec, ...], hidden_size: int, vocab_size: int, model_type: str
    ) -> int | None:
        """Unique weights of the text model with its language head, counted as transformers' modules define them.

        None for gemma3, whose vision part is not counted here.
        """
        if model_type == "gemma3":
            return None
        is_tied = self.flag("tie_word_embeddings")
        has_attention_bias = self.flag("attention_bias")
        has_mlp_bias = self.text_type == "llama" and self.flag("mlp_bias")
        total = vocab_size * hidden_size * (1 if is_tied else 2) + hidden_size
        for layer in layers:
            total += self._layer_parameters(layer, hidden_size, has_attention_bias, has_mlp_bias)
        self.sources["num_parameters"] = "derived: sum over the modules of the transformers class"
        return total

    def _layer_parameters(self, layer: LayerSpec, hidden_size: int, attention_bias: bool, mlp_bias: bool) -> int:
        cache = layer.cache
        assert isinstance(cache, FullAttention | SlidingWindow)
        assert layer.ffn is not None
        head_dim = cache.key_dim
        q_width, kv_width = layer.num_q_heads * head_dim, cache.num_kv_heads * head_dim
        total = 2 * hidden_size * (q_width + kv_width) + 3 * hidden_size * layer.ffn.width
        if self.text_type == "gemma3_text":
            total += 4 * hidden_size + 2 * head_dim  # four norms around the blocks, one each for queries and keys
        else:
            total += 2 * hidden_size
        if attention_bias:
            total += q_width + 2 * kv_width + hidden_size
        if mlp_bias:
            total += 2 * layer.ffn.width + hidden_size
        return total

    def _dtype(self, content: Mapping[str, Any]) -> str | None:
        for place, prefix in ((content, ""), (self.config, self.prefix)):
            for key in ("dtype", "torch_dtype"):
                value = place.get(key)
                if isinstance(value, str) and value != "auto":
                    try:
                        dtype = dtype_named(value)
                    except UnknownName:
                        raise MalformedFile(self.where, prefix + key, f"{value!r} is no element format") from None
                    self.sources["dtype"] = f"{Path(self.where).name}: {prefix}{key}"
                    return dtype.name
        return None


def _canonical(content: Mapping[str, Any], where: str) -> bytes:
    try:
        return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise MalformedFile(where, "top level", f"the content is not plain JSON: {error}") from None


def _printable(text: str) -> str:
    """Text that can be printed and recorded: a folder's name need not be UTF-8, and JSON may hold half a character."""
    return text.encode(errors="replace").decode()


def _short(value: Any) -> str:
    try:
        text = json.dumps(value, default=str)
    except ValueError:  # Python refuses to write a number of thousands of digits
        text = "a number of thousands of digits"
    return text if len(text) <= 60 else f"{text[:57]}..."
