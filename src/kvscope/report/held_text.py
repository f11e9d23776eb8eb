"""What a design holds fixed, in words: from the names that its conditions have."""

from collections.abc import Mapping

from kvscope.report.claims import level_text
from kvscope.report.words import has_words, name_of, say


def held_text(held: Mapping[str, object]) -> str:
    """``output limit (tokens) = 32; language = en; …``, the engine's settings last; that it is nothing, where it is."""
    parts = [f"{_name(name)} = {level_text(value)}" for name, value in held.items() if not isinstance(value, Mapping)]
    groups = {name: value for name, value in held.items() if isinstance(value, Mapping) and value}
    parts += [f"{_name(name)}: {level_text(value)}" for name, value in groups.items()]
    return "; ".join(parts) or say("none")


def _name(name: str) -> str:
    return name_of("held", name) if has_words(f"held.{name}") else name_of("factor", name)
