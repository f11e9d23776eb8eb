"""Levels of a design as a reader writes them."""

from collections.abc import Mapping

from kvscope.report.words import say
from kvscope.units import format_count


def level_text(level: object) -> str:
    """A level, or a held setting, as a reader writes it; that of a grid as its settings in a row."""
    if isinstance(level, Mapping):
        return ", ".join(setting_text(name, value) for name, value in level.items()) or say("none")
    if isinstance(level, bool) or level is None:
        return say(f"value.{level}")
    return format_count(level) if isinstance(level, int) else str(level)


def setting_text(name: object, value: object) -> str:
    """A factor with its value: ``n_ubatch = 512``."""
    return say("claim.setting", name=name, value=level_text(value))
