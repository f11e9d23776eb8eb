"""What multimodal wrappers share: a text model inside, towers beside it, one output matrix outside.

transformers 5.24.0 makes a nested config by its own model_type where the wrapper leaves the class open, and as one
fixed class elsewhere, whatever the file says; where the nested config is missing it may have values of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvscope.model.class_defaults import class_defaults
from kvscope.model.config_reader import ConfigReader
from kvscope.model.families import reader_of
from kvscope.model.families.architecture import Architecture
from kvscope.model.families.multimodal_text import TEXT_READERS
from kvscope.model.families.vision import Groups
from kvscope.model.modules import head
from kvscope.model.spec import WeightGroup

LANGUAGE = "model.language_model"


def section(
    config: ConfigReader,
    key: str,
    model_type: str,
    *,
    fixed: bool = False,
    missing: Mapping[str, Any] | None = None,
) -> ConfigReader:
    """A nested config. ``fixed``: it is of this class whatever type it states; else the type is a default.
    ``missing``: its values where the file has none at all. What is read of it names no source of the text's."""
    values = config.config.get(key)
    if values is None:
        values = missing or {}
    if not isinstance(values, Mapping):
        raise config.malformed(key, "a JSON object was expected")
    stated = values.get("model_type")
    chosen = model_type if fixed or not isinstance(stated, str) or not stated else stated
    return ConfigReader(values, chosen, where=config.where, prefix=f"{config.prefix}{key}.")


def text_section(
    config: ConfigReader,
    model_type: str,
    *,
    fixed: bool = False,
    missing: Mapping[str, Any] | None = None,
    flat: bool = False,
    key: str = "text_config",
) -> ConfigReader:
    """The text model's config, under ``key``. ``flat``: an older file may have the text's fields outside instead."""
    if flat and config.config.get("text_config") is None:
        fields = ConfigReader({}, model_type, where=config.where).defaults
        known = {*fields.values, *fields.aliases, "rope_parameters", "rope_scaling", "rope_theta"}
        known -= set(config.defaults.values)  # the outer class keeps its own fields to itself
        values = {key: value for key, value in config.config.items() if key in known}
        return ConfigReader(values, model_type, where=config.where, prefix=config.prefix, sources=config.sources)
    if config.config.get(key) is None:
        for field in ("hidden_size", "num_hidden_layers", "num_attention_heads"):
            if config.given(field) and field not in config.defaults.values:
                raise config.refuse(f"it has {field}, but no {key}")
    found = section(config, key, model_type, fixed=fixed, missing=missing)
    stated = found.config.get("model_type")
    if fixed and stated not in (None, "", model_type, config.model_type) and class_defaults(str(stated)) is not None:
        raise config.refuse(f"its {key} is of type {stated!r}")
    return ConfigReader(found.config, found.model_type, where=found.where, prefix=found.prefix, sources=config.sources)


def read_tied(config: ConfigReader, text: ConfigReader, *, either: bool = False) -> bool:
    """Whether the output matrix is the embeddings: the outer flag says; with ``either`` the text's own does too."""
    return config.flag("tie_word_embeddings", default=False) or (
        either and text.flag("tie_word_embeddings", default=False)
    )


def read_text(text: ConfigReader, *, tied: bool) -> Architecture:
    """The text model, its tensors named as if it stood alone. Raises UnsupportedArchitecture."""
    read = TEXT_READERS.get(text.model_type) or reader_of(text.model_type)
    if read is None:
        raise text.refuse(f"its text model is of type {text.model_type!r}")
    alone = ConfigReader(
        {**text.config, "tie_word_embeddings": tied},
        text.model_type,
        where=text.where,
        prefix=text.prefix,
        sources=text.sources,
    )
    found = read(alone)
    text.sources["tie_word_embeddings"] = "whether the whole model's output matrix is tied"
    return replace(found, is_tied=tied)


def wrapped(
    text: Architecture, *parts: Sequence[WeightGroup] | None, base: str = LANGUAGE, head_rows: int | None = None
) -> Architecture:
    """``text`` as the module ``base`` of a model with an output matrix of its own and other parts. None for a part
    whose tensors are not known: then no parameters are counted."""
    inside = _inside(text, base)
    if inside is None or any(part is None for part in parts):
        return replace(text, weights=None)
    outside: Groups = [group for part in parts for group in part or ()]
    rows = text.vocab_size if head_rows is None else head_rows
    last = head("lm_head", text.hidden_size, rows, tied=bool(text.is_tied))
    return replace(text, weights=(*outside, *inside, *last))


def _inside(text: Architecture, base: str) -> Groups | None:
    """The text model's tensors but its output matrix, which the wrapper has its own of."""
    found: Groups = []
    for group in text.weights or ():
        if group.name.startswith("model."):
            found.append(replace(group, name=f"{base}.{group.name.removeprefix('model.')}"))
        elif not group.name.startswith("lm_head."):
            return None  # a family with other module names: not checked inside a wrapper
    return found or None


def feature_layers(config: ConfigReader, key: str = "vision_feature_layer") -> int:
    """How many layers of the tower the projector reads side by side."""
    chosen = config.lookup(key)[0]
    return len(chosen) if isinstance(chosen, list | tuple) else 1


def is_class_default(config: ConfigReader) -> bool:
    """Whether a nested config says nothing that its class does not assume anyway."""
    return all(
        config.config.get(key, default) == default
        for key, default in config.defaults.values.items()
        if default is not None
    )
