"""What a design keeps equal, for a reader: of all that its trials were asked with, what does not vary."""

from collections.abc import Collection, Mapping

from kvscope.record.rows import DesignRow, Json


def held_fixed(held: Mapping[str, Json], varied: Collection[str]) -> dict[str, Json]:
    """``held`` less what is ``varied`` and what is not set, in the settings too. A conversation whose number of turns
    varies is one at every level."""
    varied = {*varied, *(("is_conversation",) if "turns" in varied else ())}
    fixed = {name: value for name, value in held.items() if name not in varied and value is not None}
    settings = fixed.get("settings")
    if isinstance(settings, Mapping):
        fixed["settings"] = held_fixed(settings, varied)
    return fixed


def held_of(design: DesignRow) -> dict[str, Json]:
    """The same of a recorded design; of a grid, neither of its two factors is held."""
    cells = [level for level in design.levels if isinstance(level, Mapping)] if design.is_grid else []
    return held_fixed(design.held, {design.factor, *(name for cell in cells for name in cell)})
