"""One question per file."""

from kvscope.errors import UnknownName
from kvscope.experiment.design import DesignKind
from kvscope.experiment.designs import context_limit, input_length, output_length, release, turns

DESIGNS: dict[str, DesignKind] = {
    module.KIND.name: module.KIND for module in (context_limit, input_length, output_length, release, turns)
}


def design_kind(name: str) -> DesignKind:
    """The design called ``name``. Raises UnknownName, with the nearest."""
    try:
        return DESIGNS[name]
    except KeyError:
        raise UnknownName("design", name, DESIGNS) from None
