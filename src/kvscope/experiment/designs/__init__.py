"""One question per file."""

from kvscope.errors import UnknownName
from kvscope.experiment.design import DesignKind
from kvscope.experiment.designs import context_limit, input_length, output_length, release, turns

DESIGNS: dict[str, DesignKind] = {
    module.KIND.name: module.KIND for module in (context_limit, input_length, output_length, release, turns)
}


def design_kind(name: str, engine: str | None = None, *, is_attached: bool = False) -> DesignKind:
    """The design called ``name``, as it can be asked of ``engine``; ``is_attached``: of a server that runs already and
    is not given other settings. Raises UnknownName, with the nearest."""
    try:
        kind = DESIGNS[name]
    except KeyError:
        raise UnknownName("design", name, DESIGNS) from None
    if kind is context_limit.KIND and engine is not None:
        context_limit.check_engine(engine)
    if kind is release.KIND and engine is not None:
        return release.kind_for(engine, is_attached=is_attached)
    return kind
