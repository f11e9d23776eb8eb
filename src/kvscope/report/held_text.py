"""What a design holds fixed, in words: from the names that its conditions have."""

from collections.abc import Mapping, Sequence

from kvscope.record.held import held_of
from kvscope.record.rows import DesignRow
from kvscope.report.claims import level_text
from kvscope.report.words import has_words, name_of, say


def held_text(held: Mapping[str, object]) -> str:
    """``output limit (tokens) = 32; language = en; …``, the engine's settings last; that it is nothing, where it is."""
    parts = [f"{_name(name)} = {level_text(value)}" for name, value in held.items() if not isinstance(value, Mapping)]
    groups = {name: value for name, value in held.items() if isinstance(value, Mapping) and value}
    parts += [f"{_name(name)}: {level_text(value)}" for name, value in groups.items()]
    return "; ".join(parts) or say("none")


def design_title(design: DesignRow, designs: Sequence[DesignRow]) -> str:
    """Its name; of several of that name, with what it holds that they do not hold alike: ``kv_dtype, n_ctx = 256``."""
    namesakes = [each for each in designs if each.name == design.name]
    facts = [_facts(each) for each in namesakes]
    own = _facts(design)
    apart = {name: value for name, value in own.items() if any(each.get(name) != value for each in facts)}
    return f"{design.name}, {held_text(apart)}" if apart else design.name


def _facts(design: DesignRow) -> dict[str, object]:
    held = held_of(design)
    settings = held.pop("settings", None)
    levels = ", ".join(map(level_text, design.levels))
    return {**held, **(settings if isinstance(settings, Mapping) else {}), "levels": levels, "seed": design.seed}


def _name(name: str) -> str:
    return name_of("held", name) if has_words(f"held.{name}") else name_of("factor", name)
