"""One question per file. Each has its ``KIND``; one that engines are asked in different ways, or not all, has a
``kind_for`` beside it."""

from collections.abc import Callable, Mapping
from types import ModuleType

from kvscope.errors import UnknownName
from kvscope.experiment.design import DesignKind
from kvscope.experiment.designs import (
    concurrency,
    context_limit,
    flash_attention,
    grid,
    host_cache,
    input_length,
    kv_dtype,
    microbatch,
    offload,
    output_length,
    prefix_reuse,
    quality,
    release,
    retrieval,
    turns,
    window,
)

_MODULES: tuple[ModuleType, ...] = (
    concurrency,
    context_limit,
    flash_attention,
    grid,
    host_cache,
    input_length,
    kv_dtype,
    microbatch,
    offload,
    output_length,
    prefix_reuse,
    quality,
    release,
    retrieval,
    turns,
    window,
)
DESIGNS: dict[str, DesignKind] = {module.KIND.name: module.KIND for module in _MODULES}
# The design's form for an engine: ``kind_for(engine, is_attached=…)``. Raises BadDesign where it has none.
_FORMS: Mapping[str, Callable[..., DesignKind]] = {
    module.KIND.name: module.kind_for for module in _MODULES if hasattr(module, "kind_for")
}


def design_kind(name: str, engine: str | None = None, *, is_attached: bool = False) -> DesignKind:
    """The design called ``name``, as it can be asked of ``engine``; ``is_attached``: of a server that runs already and
    is not given other settings (what such a design cannot vary is for the caller to refuse). Raises UnknownName, with
    the nearest, and BadDesign where that engine has no answer to it."""
    try:
        kind = DESIGNS[name]
    except KeyError:
        raise UnknownName("design", name, DESIGNS) from None
    form = _FORMS.get(name)
    return kind if engine is None or form is None else form(engine, is_attached=is_attached)


def design_varying(factor: str, engine: str) -> DesignKind | None:
    """The design whose own factor is called so on ``engine``, or whose name it is; None where there is none."""
    for name, kind in DESIGNS.items():
        if factor in (name, kind.factor) and name not in (grid.NAME, release.KIND.name):
            return design_kind(name, engine)
    return None
