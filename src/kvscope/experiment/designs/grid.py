"""What do two factors do together? Every combination of their levels is a cell.

A grid is asked for by name (``kvscope measure grid --factor A=… --factor B=…``) or as another design with a second
factor and ``--grid``: both are this. Its cells are compared with the baseline cell; where both factors differ from it,
the difference is laid to neither of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kvscope.errors import BadDesign
from kvscope.experiment.design import Condition, DesignKind, Factor
from kvscope.experiment.designs import holds
from kvscope.experiment.designs.quality import KIND as QUALITY
from kvscope.model.spec import ModelSpec

NAME = "grid"
KIND = DesignKind(
    name=NAME,
    version=1,
    question="What do two factors do together?",
    factor="",
    says="For every combination of levels the difference from the baseline cell, labelled as a grid's: where both "
    "factors changed it is laid to neither alone. And whether the two together do what they do one by one, added "
    "up (their interaction).",
    holds=(holds.CONTEXT_LIMIT, holds.SAME_REQUEST, holds.FRESH_OR_RUNNING, holds.ALL_ELSE),
    confounders=(
        "A difference between two cells that differ in both factors cannot be laid to either alone.",
        "There are as many comparisons as cells: one in twenty intervals misses the truth.",
        "The context limit is that of the longest cell, for all of them.",
    ),
    default_levels=(),
    default_condition=Condition(settings={}, prompt_tokens=512, output_tokens=32),
)


def kind_of(first: DesignKind, factors: Sequence[Factor], *, second: DesignKind | None = None) -> DesignKind:
    """The grid of these factors, in the requests of the design ``first``, of one of them; what misleads in it misleads
    in the grid too. ``second``: the design of the other factor, where there is one; a model of which either cannot be
    asked is refused. Raises BadDesign unless there are two different factors."""
    if len(factors) != 2 or factors[0].name == factors[1].name:
        raise BadDesign(
            f"A grid has two different factors, and this has {', '.join(f.name for f in factors) or 'none'}.",
            hint="Give --factor twice: --factor n_ubatch=128,512 --factor prompt_tokens=256,1k.",
        )
    one, other = (factor.name for factor in factors)
    own = () if first.name == NAME else first.confounders
    requests = _without(first.default_condition, factors)
    is_whole = requests.settings == first.default_condition.settings
    return replace(
        KIND,
        question=f"What do {one} and {other} do together?",
        factor=one,
        confounders=(*KIND.confounders, *own),
        default_levels=factors[0].levels,
        default_condition=requests,
        holds=KIND.holds if first.name == NAME else first.holds,
        sets=first.sets if factors[0].sets else None,
        check_model=_both_models(first, second),
        # Where the other factor varies what the levels would be held against, its cells show what was taken.
        check_levels=first.check_levels if is_whole else None,
        holds_while=first.holds_while,
        default_repeats=_repeats(first, second),
    )


def _repeats(first: DesignKind, second: DesignKind | None) -> int:
    """One where a factor is the task of the design quality: a repeat asks the same questions again."""
    return QUALITY.default_repeats if QUALITY.name in (first.name, second and second.name) else KIND.default_repeats


def _both_models(first: DesignKind, second: DesignKind | None) -> Callable[[ModelSpec], None] | None:
    kinds = (first,) if second is None else (first, second)
    checks = tuple(dict.fromkeys(kind.check_model for kind in kinds if kind.check_model is not None))
    return _ModelChecks(checks) if checks else None


@dataclass(frozen=True, slots=True)
class _ModelChecks:
    """Equal where the checks are, so that two plans of one grid are."""

    checks: tuple[Callable[[ModelSpec], None], ...]

    def __call__(self, model: ModelSpec) -> None:
        for check in self.checks:
            check(model)


def _without(condition: Condition, factors: Sequence[Factor]) -> Condition:
    """A design's own requests, without what it holds of the settings that the factors vary."""
    varied = {name for factor in factors for name in factor.settings}
    kept = {name: value for name, value in condition.settings.items() if name not in varied}
    return replace(condition, settings=kept)
