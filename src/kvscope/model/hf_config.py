"""config.json → ModelSpec: finds the family of the model_type and reads it.

Values that a file leaves out come from the class defaults of transformers (class_defaults.py), and say so in
``sources``. A model type that no family reads is refused by name.
"""

import difflib
import hashlib
import json
import math
import stat
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from kvscope.dtypes import dtype_named
from kvscope.errors import MalformedFile, MissingField, ModelNotFound, UnknownName, UnsupportedArchitecture
from kvscope.model.config_reader import ConfigReader, short
from kvscope.model.context_plausibility import context_warnings
from kvscope.model.families import known_types, reader_of
from kvscope.model.families.architecture import Architecture
from kvscope.model.kept_formats import with_kept_formats
from kvscope.model.spec import ChunkedAttention, FullAttention, HybridCache, ModelSpec, SlidingWindow

_MOST_REPEATED = 5
# The largest published ones, with the names of 20,000 classes or of every expert, have under 2 MB; what is larger would
# take more memory and time to refuse than a header may.
MAX_CONFIG_BYTES = 3 * 1024**2


def load_config(path: str | Path, source: str | None = None) -> ModelSpec:
    """The model that a config.json describes. Raises ModelNotFound, MalformedFile, UnsupportedArchitecture."""
    path = Path(path)
    repeated: list[str] = []
    content = read_config(path, repeated)
    name = path.resolve().parent.name if path.stem == "config" else path.stem
    model = model_from_config(content, source=source or str(path), where=str(path), name=_printable(name))
    doubts = (
        f"{path.name} says {_printable(key[:80])} twice, differently; the last one counts, as in transformers."
        for key in dict.fromkeys(repeated)
    )
    return replace(model, warnings=(*model.warnings, *islice(doubts, _MOST_REPEATED)))


def read_config(path: Path, repeated: list[str] | None = None) -> Any:
    """The JSON of a config.json. ``repeated`` takes the keys that one object has twice with different values. Raises
    ModelNotFound, MalformedFile."""
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # opening a pipe would wait for its writer
            raise ModelNotFound(f"{path} is not a regular file.", hint="Name a config.json on disk.")
        with path.open("rb") as file:
            data = file.read(MAX_CONFIG_BYTES + 1)
        if len(data) > MAX_CONFIG_BYTES:
            problem = f"the file is larger than any config.json; at most {MAX_CONFIG_BYTES} bytes were expected"
            raise MalformedFile(path, "byte 0", problem)
        return json.loads(data, object_pairs_hook=partial(_object, [] if repeated is None else repeated))
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


def _object(repeated: list[str], pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        repeated += [key for key, value in pairs if content[key] != value]
    return content


def model_from_config(content: Any, *, source: str, where: str, name: str) -> ModelSpec:
    """The model of a config's content. ``where`` names the file in messages and ``sources``."""
    if not isinstance(content, Mapping):
        raise MalformedFile(where, "top level", "a JSON object was expected")
    try:
        content = _with_infinities(content, where)
    except RecursionError:
        raise MalformedFile(where, "top level", "the content is nested too deeply") from None
    config = _config(content, where)
    model_type = config.model_type
    read = reader_of(model_type)
    if read is None:
        raise _unknown_family(model_type, where)
    found = read(config)
    if config.prefix:
        found = replace(found, weights=None, warnings=(*found.warnings, _part_alone(config)))
    config.refuse_unread_layers()
    _check_heads(found, config)
    config.sources["architecture"] = f"{Path(where).name}: {config.prefix}model_type"
    stated_name = content.get("_name_or_path")
    quantisation = _quantisation(content, where)
    return ModelSpec(
        name=_printable(stated_name) if isinstance(stated_name, str) and stated_name else name,
        architecture=model_type,
        family=found.family,
        source_kind="config",
        source=source,
        file_path=None,
        num_parameters=_num_parameters(found, config),
        vocab_size=found.vocab_size,
        hidden_size=found.hidden_size,
        trained_context_tokens=found.trained_context_tokens,
        layers=found.layers,
        dtype=_dtype(content, where, config.sources),
        weights=with_kept_formats(content, config.defaults, found.weights or ()),
        is_tied=found.is_tied,
        quantisation=quantisation,
        warnings=(*found.warnings, *_doubts(content, config, found)),
        fingerprint=hashlib.sha256(_canonical(content, where)).hexdigest(),
        sources=_all_sources(found, config.sources),
    )


# Where a model of several parts keeps its text model's config.
_TEXT_PARTS = (("text_config",), ("llm_config",), ("language_config",), ("thinker_config", "text_config"))


def _config(content: Mapping[str, Any], where: str) -> ConfigReader:
    """The reader of the whole file; of its text model, where only that says what it is. Raises MissingField."""
    model_type = content.get("model_type")
    if isinstance(model_type, str):
        return ConfigReader(content, model_type, where=where)
    for path in _TEXT_PARTS:
        part: Any = content
        for key in path:
            part = part.get(key) if isinstance(part, Mapping) else None
        if isinstance(part, Mapping) and isinstance(part.get("model_type"), str):
            return ConfigReader(part, part["model_type"], where=where, prefix=".".join(path) + ".")
    places = ["model_type", *(".".join((*path, "model_type")) for path in _TEXT_PARTS)]
    raise MissingField("its model_type", [f"{where}: {place}" for place in places])


def _part_alone(config: ConfigReader) -> str:
    return (
        f"the file does not say which model it is (no model_type); {config.prefix.rstrip('.')} is read as "
        f"{config.model_type}, and the parameters of the other parts are not known"
    )


def _check_heads(found: Architecture, config: ConfigReader) -> None:
    """Every key head serves as many query heads: the library's attention fails otherwise, whatever the family."""
    for layer in found.layers:
        cache = layer.cache.attention if isinstance(layer.cache, HybridCache) else layer.cache
        if not isinstance(cache, FullAttention | SlidingWindow | ChunkedAttention) or not layer.num_q_heads:
            continue
        if layer.num_q_heads % cache.num_kv_heads:
            problem = (
                f"{layer.num_q_heads} query heads of layer {layer.index} cannot share {cache.num_kv_heads} key heads"
            )
            raise config.malformed("num_key_value_heads", f"{problem}; a divisor of {layer.num_q_heads} was expected")


def _quantisation(content: Mapping[str, Any], where: str) -> Mapping[str, Any] | None:
    """The quantization_config, or that of a part of the model: whose names of modules are relative to what, nobody
    checked, so it goes by a method of that place's name, which no format has."""
    own = content.get("quantization_config")
    if own is not None and not isinstance(own, Mapping):
        raise MalformedFile(where, "quantization_config", f"the value is {short(own)}; a JSON object was expected")
    if own is not None:
        return dict(own)
    if content.get("compression_config") is not None:  # the old name of compressed-tensors' own
        return {"quant_method": "compression_config"}
    for key, part in content.items():
        if isinstance(part, Mapping) and part.get("quantization_config") is not None:
            return {"quant_method": f"{key}.quantization_config"}
    return None


def _doubts(content: Mapping[str, Any], config: ConfigReader, found: Architecture) -> tuple[str, ...]:
    has_rope = "rope_parameters" in config.defaults.values or "text_config" in content
    return context_warnings(content, found.trained_context_tokens, has_rope=has_rope)


def _unknown_family(model_type: str, where: str) -> UnsupportedArchitecture:
    near = difflib.get_close_matches(model_type, list(known_types()), n=3)
    nearest = f" Nearest known: {', '.join(near)}." if near else ""
    return UnsupportedArchitecture(
        f"kvscope does not know the layers of model_type {model_type!r} ({where}).",
        hint=f"State the layers by hand with --layers, which says what each keeps.{nearest}",
    )


def _num_parameters(found: Architecture, config: ConfigReader) -> int | None:
    """Unique elements of all weights: tied ones once, all experts."""
    if found.weights is None:
        return None
    config.sources["num_parameters"] = "derived: sum over the modules of the transformers class"
    return sum(group.num_elements for group in found.weights)


# Fields that every layer has, and where a family's reader leaves their source.
_LAYER_FIELDS = ("num_q_heads", "num_kv_heads", "key_dim", "value_dim", "window_tokens", "ffn.width")
# Numbers of a layer's cache that never go without a source.
_CACHE_FIELDS = ("num_kv_heads", "key_dim", "value_dim", "window_tokens", "chunk_tokens", "latent_dim", "rope_dim")
# A field → what classes call it, which is where a family's reader may have left its source.
_CALLED: Mapping[str, tuple[str, ...]] = {
    "hidden_size": ("d_model", "n_embd", "n_embed", "dim", "decoder_hidden_size"),
    "num_layers": ("layer_types", "layers_block_type", "attn_layers"),
    "window_tokens": ("sliding_window", "attention_window", "window_size"),
    "chunk_tokens": ("attention_chunk_size", "window_tokens"),
    "value_dim": ("key_dim",),
}


def _all_sources(found: Architecture, sources: dict[str, str]) -> dict[str, str]:
    """Sources of the model's fields, and of each layer's."""
    kinds = sources.get("layer_types", f"the layers of every {found.family} model")
    common = {"cache": kinds, **{key: sources[key] for key in _LAYER_FIELDS if key in sources}, **found.layer_sources}
    if "key_dim" in common:
        common.setdefault("value_dim", common["key_dim"])
    everywhere = dict(sources)
    for key in ("hidden_size", "num_layers"):
        everywhere.setdefault(key, _source_of(key, found, everywhere))
    for layer in found.layers:
        place = f"layers[{layer.index}]"
        for key, where in common.items():
            everywhere.setdefault(f"{place}.{key}", where)
        for key in _CACHE_FIELDS:
            if getattr(layer.cache, key, None) is not None:
                everywhere.setdefault(f"{place}.{key}", _source_of(key, found, everywhere))
    return everywhere


def _source_of(field: str, found: Architecture, sources: Mapping[str, str]) -> str:
    """The source of a field that the family's reader left under another name, or under none."""
    named = (sources[name] for name in (field, *_CALLED.get(field, ())) if name in sources)
    return next(named, f"derived: the rules of the {found.family} family")


def _dtype(content: Mapping[str, Any], where: str, sources: dict[str, str]) -> str | None:
    nested = [(value, f"{key}.") for key, value in content.items() if isinstance(value, Mapping)]
    texts = [(value, prefix) for value, prefix in nested if prefix in ("text_config.", "llm_config.")]
    for place, prefix in ((content, ""), *texts):
        for key in ("dtype", "torch_dtype"):
            value = place.get(key)
            if isinstance(value, str) and value != "auto":
                try:
                    dtype = dtype_named(value)
                except UnknownName:
                    raise MalformedFile(where, prefix + key, f"{value!r} is no element format") from None
                sources["dtype"] = f"{Path(where).name}: {prefix}{key}"
                return dtype.name
    return None


# JSON has no infinity: transformers writes {"__float__": "Infinity"} for one.
_PLAIN = frozenset({int, float, bool, str, type(None)})
_FLOATS = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}


def _with_infinities(content: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    if not _names_a_float(content):
        return content
    return {key: _infinity(value, where, str(key)) for key, value in content.items()}


def _names_a_float(value: Any) -> bool:
    """Asked first: a copy of a large config would take as much memory again."""
    if isinstance(value, Mapping):
        return "__float__" in value or any(map(_names_a_float, value.values()))
    if isinstance(value, list):
        return not _PLAIN.issuperset(map(type, value)) and any(map(_names_a_float, value))
    return False


def _infinity(value: Any, where: str, place: str) -> Any:
    if isinstance(value, Mapping):
        if set(value) == {"__float__"}:
            named = value["__float__"]
            if not isinstance(named, str) or named not in _FLOATS:
                raise MalformedFile(where, f"{place}.__float__", f"one of {', '.join(_FLOATS)} was expected")
            return _FLOATS[named]
        return {key: _infinity(entry, where, f"{place}.{key}") for key, entry in value.items()}
    if isinstance(value, list):
        return [_infinity(entry, where, f"{place}.{index}") for index, entry in enumerate(value)]
    return value


def _canonical(content: Mapping[str, Any], where: str) -> bytes:
    try:
        return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise MalformedFile(where, "top level", f"the content is not plain JSON: {error}") from None


def _printable(text: str) -> str:
    """Text that can be printed and recorded: a folder's name need not be UTF-8, and JSON may hold half a character."""
    return text.encode(errors="replace").decode()
