"""Reads the fields of one (possibly nested) config.json object: checked, with class defaults, and with the source of
every value. A missing or null number is never read as 0."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvscope.errors import MalformedFile, MissingField, UnsupportedArchitecture
from kvscope.model.class_defaults import ClassDefaults, class_defaults

MAX_LAYERS = 1_000  # no published model has more than 200
MAX_HEADS = 65_536
MAX_WIDTH = 2**31 - 1
_NO_CLASS = ClassDefaults(class_name="", library="", values={})


class ConfigReader:
    """One JSON object of a config, read as transformers' class for ``model_type`` would.

    ``where`` names the file in messages; ``prefix`` the place inside it ("text_config."). A field is looked up by its
    own name, by the class's aliases for it, and by ``names`` given; then in the class's defaults.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        model_type: str,
        *,
        where: str,
        prefix: str = "",
        sources: dict[str, str] | None = None,
    ) -> None:
        self.config = config
        self.model_type = model_type
        self.where = where
        self.prefix = prefix
        self.sources: dict[str, str] = {} if sources is None else sources
        self.defaults = class_defaults(model_type) or _NO_CLASS

    # -- plain lookups -------------------------------------------------------------------------------------------

    def lookup(self, key: str, *names: str) -> tuple[Any, str]:
        """(value, source) of a field: from the file, else the class default; (None, …) where neither says."""
        aliases = [alias for alias, target in self.defaults.aliases.items() if target == key]
        if aliases and key in self.config:
            self._check_aliases(key, aliases)
        if key in self.config and self.defaults.aliases.get(key) in self.config:
            self._check_aliases(self.defaults.aliases[key], [key])
        for name in (key, *aliases, *names):
            value = self.config.get(name)
            if value is not None:
                return value, f"{Path(self.where).name}: {self.prefix}{name}"
        if key in self.config:  # a null in the file overrides the class default, as it does in the library
            return None, f"{Path(self.where).name}: {self.prefix}{key} is null"
        if self.defaults.values.get(key) is not None:
            return self.defaults.values[key], self.defaults.source
        return None, self.defaults.source if key in self.defaults.values else "stated nowhere"

    def _check_aliases(self, key: str, aliases: Sequence[str]) -> None:
        """Refuse a file that says two different things under two names of one field."""
        for alias in aliases:
            if alias in self.config and self.config[alias] != self.config[key]:
                raise self.malformed(key, f"it differs from {alias}, another name of the same field")

    def given(self, key: str) -> bool:
        """Whether the file itself has the key, with any value but null."""
        return self.config.get(key) is not None

    def number(self, key: str, *names: str, field: str = "", smallest: int = 1, limit: int = MAX_WIDTH) -> int:
        """A whole number that must be known. Raises MissingField, MalformedFile."""
        value, source = self.lookup(key, *names)
        if value is None:
            raise MissingField(f"{self.prefix}{key}", [f"{self.where}: {self.prefix}{n}" for n in (key, *names)])
        self._check_whole(key, value, smallest, limit)
        self.sources[field or key] = source
        assert isinstance(value, int)
        return value

    def optional(self, key: str, *names: str, field: str = "", smallest: int = 0) -> int | None:
        """A whole number, or None where neither the file nor the class says one."""
        value, _ = self.lookup(key, *names)
        return None if value is None else self.number(key, *names, field=field, smallest=smallest)

    def number_or(self, key: str, derived: int, formula: str, *names: str, field: str = "") -> int:
        """A whole number whose absence means a formula of other fields, such as hidden_size / num_attention_heads."""
        found = self.optional(key, *names, field=field, smallest=1)
        if found is not None:
            return found
        self.sources[field or key] = f"derived: {formula}"
        return derived

    def flag(self, key: str, *names: str, default: bool | None = None) -> bool:
        """A truth value. ``default``: where neither the file nor the class says; None: MissingField then."""
        value, source = self.lookup(key, *names)
        if value is None:
            if default is None:
                raise MissingField(f"{self.prefix}{key}", [f"{self.where}: {self.prefix}{key}"])
            return default
        if not isinstance(value, bool):
            raise self.malformed(key, f"the value is {short(value)}; true or false was expected")
        self.sources[key] = source
        return value

    def word(self, key: str, *names: str) -> str | None:
        """Text, or None."""
        value, source = self.lookup(key, *names)
        if value is None:
            return None
        if not isinstance(value, str):
            raise self.malformed(key, f"the value is {short(value)}; text was expected")
        self.sources[key] = source
        return value

    def words(self, key: str, *names: str) -> tuple[str, ...] | None:
        """A list of texts (layer_types), or None."""
        value, source = self.lookup(key, *names)
        if value is None:
            return None
        if not isinstance(value, list | tuple) or not all(isinstance(entry, str) for entry in value):
            raise self.malformed(key, f"the value is {short(value)}; a list of texts was expected")
        self.sources[key] = source
        return tuple(value)

    def numbers(self, key: str, *names: str, smallest: int = 0) -> tuple[int, ...] | None:
        """A list of whole numbers, or None."""
        value, source = self.lookup(key, *names)
        if value is None:
            return None
        if not isinstance(value, list | tuple):
            raise self.malformed(key, f"the value is {short(value)}; a list of whole numbers was expected")
        for entry in value:
            self._check_whole(key, entry, smallest, MAX_WIDTH)
        self.sources[key] = source
        return tuple(value)

    def per_layer(self, key: str, num_layers: int, *names: str, smallest: int = 0) -> tuple[int, ...]:
        """One number for all layers, or a list with one per layer."""
        value, _ = self.lookup(key, *names)
        if isinstance(value, list | tuple):
            found = self.numbers(key, *names, smallest=smallest) or ()
            if len(found) != num_layers:
                raise self.malformed(key, f"a list of {len(found)} numbers; {num_layers} were expected, one per layer")
            return found
        return (self.number(key, *names, smallest=smallest),) * num_layers

    def nested(self, key: str, model_type: str | None = None) -> "ConfigReader":
        """A nested config. ``model_type``: its class where it does not name one itself (default: as the library)."""
        value = self.config.get(key)
        value = {} if value is None else value
        if not isinstance(value, Mapping):
            raise self.malformed(key, "a JSON object was expected")
        stated = value.get("model_type")
        chosen = stated if isinstance(stated, str) and stated else model_type or self.defaults.nested.get(key, "")
        return ConfigReader(value, chosen, where=self.where, prefix=f"{self.prefix}{key}.", sources=self.sources)

    # -- common fields -------------------------------------------------------------------------------------------

    def num_layers(self, key: str = "num_hidden_layers", *names: str) -> int:
        return self.number(key, *names, field="num_layers", limit=MAX_LAYERS)

    def layer_types(self, num_layers: int) -> tuple[str, ...] | None:
        """The config's own layer_types, one per layer, or None."""
        types = self.words("layer_types")
        if types is not None and len(types) != num_layers:
            raise self.malformed("layer_types", f"{len(types)} entries for {num_layers} layers")
        return types

    def per_layer_config(self, num_layers: int) -> dict[int, Mapping[str, Any]]:
        """Layer → the fields it has otherwise than the model (transformers 5's per_layer_config). A family that reads
        them must refuse the fields it does not know; a file that has them and is not asked for them is refused."""
        self.sources["per_layer_config"] = f"{Path(self.where).name}: {self.prefix}per_layer_config"
        value = self.config.get("per_layer_config") or {}
        if not isinstance(value, Mapping):
            raise self.malformed("per_layer_config", "a JSON object was expected")
        found = {}
        for key, fields in value.items():
            if not str(key).isdecimal() or int(key) >= num_layers or not isinstance(fields, Mapping):
                raise self.malformed("per_layer_config", f"an object for each of {num_layers} layers was expected")
            found[int(key)] = fields
        return found

    def refuse_unread_layers(self) -> None:
        """Refuse a file whose per_layer_config nobody has read."""
        places = [self.config, *(value for value in self.config.values() if isinstance(value, Mapping))]
        if "per_layer_config" not in self.sources and any(place.get("per_layer_config") for place in places):
            raise self.refuse("it has a per_layer_config")

    def refuse(self, what: str, hint: str | None = None) -> UnsupportedArchitecture:
        """The error for a variant of this family that nobody has checked."""
        return UnsupportedArchitecture(
            f"{self.where}: {what} ({self.model_type}); kvscope does not know the memory of that variant.",
            hint=hint or "State the layers by hand with --layers (see docs/reference/layers.md).",
        )

    def refuse_keys(self, *keys: str) -> None:
        """Refuse a file in which one of these keys has a value that would change the model unseen."""
        for key in keys:
            if self.config.get(key):
                raise self.refuse(f"it has {self.prefix}{key} = {short(self.config[key])}")

    def malformed(self, key: str, problem: str) -> MalformedFile:
        return MalformedFile(self.where, f"{self.prefix}{key}", problem)

    def _check_whole(self, key: str, value: Any, smallest: int, limit: int) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not smallest <= value <= limit:
            raise self.malformed(
                key, f"the value is {short(value)}; a whole number from {smallest} to {limit} was expected"
            )


def short(value: Any) -> str:
    """A value as JSON, cut to fit into a message."""
    try:
        text = json.dumps(value, default=str)
    except ValueError:  # Python refuses to write a number of thousands of digits
        text = "a number of thousands of digits"
    return text if len(text) <= 60 else f"{text[:57]}..."


def every(period: int, num_layers: int, *, inside: str, last: str) -> Sequence[str]:
    """Layer types of a repeating pattern: ``last`` at the end of every ``period`` layers, ``inside`` elsewhere."""
    return [last if (index + 1) % period == 0 else inside for index in range(num_layers)]
