"""From names and numbers, as a person gives them, to a design that runs."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kvscope.analysis.levels import METRICS
from kvscope.engine.registry import EngineChoice
from kvscope.errors import BadDesign, UnknownName
from kvscope.experiment.asked import Asked, differing
from kvscope.experiment.design import (
    REQUEST_FACTORS,
    Condition,
    Design,
    DesignKind,
    Factor,
    Level,
    Until,
    make_design,
)
from kvscope.experiment.designs import DESIGNS, design_kind, design_varying
from kvscope.experiment.designs import concurrency as concurrency_design
from kvscope.experiment.designs import grid as grid_design
from kvscope.experiment.held import Held as Held
from kvscope.experiment.held import check_moves, held_of, hold
from kvscope.experiment.holds_kept import true_holds
from kvscope.experiment.own_names import has_own_names, own_names, with_command
from kvscope.experiment.slots import check_load, sequences_at_once, with_slots
from kvscope.predict.allocation.llama_cpp_cache import CELL_MULTIPLE
from kvscope.predict.growth import round_up
from kvscope.scenario import SettingValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A study that can be run: what was asked, the design that it is, and the engine. ``source``: the study file and
    the line that it stands at; None where it was not read from one."""

    asked: Asked
    design: Design
    choice: EngineChoice
    source: tuple[str, int | None] | None = None


def plan(asked: Asked) -> Planned:
    """What was asked as a design. Nothing is started, and the model is not read. Raises as ``plan_design``, and what
    the engine's command cannot be read for."""
    choice = EngineChoice(
        name=asked.engine,
        command=asked.engine_command,
        port=asked.port,
        url=asked.url,
        served_model=asked.served_model,
        pid=asked.pid,
        api_key_env=asked.api_key_env,
    )
    design = plan_design(
        asked.design,
        engine=asked.engine,
        levels=asked.levels,
        repeats=asked.repeats,
        held=held_of(asked),
        seed=asked.seed,
        grid=asked.grid,
        is_attached=not choice.takes_settings,
        by_command=choice.command_settings(),
        until=_until(asked),
        factors=asked.factors,
    )
    return Planned(asked=asked, design=design, choice=choice)


def _until(asked: Asked) -> Until | None:
    """Raises BadDesign, UnknownName."""
    if asked.until is None:
        if {"until_metric", "most_repeats"} & differing(asked).keys():
            raise BadDesign("Until when to repeat is not said.", hint="Say it with --until 5%.")
        return None
    if asked.until_metric not in METRICS:
        raise UnknownName("metric to repeat for", asked.until_metric, METRICS)
    return Until(share=asked.until, metric=asked.until_metric, most_repeats=asked.most_repeats)


def plan_design(
    name: str,
    *,
    engine: str,
    levels: Sequence[Level] | None = None,
    repeats: int | None = None,
    held: Held | None = None,
    seed: int = 0,
    grid: bool = False,
    is_attached: bool = False,
    by_command: Mapping[str, SettingValue] | None = None,
    until: Until | None = None,
    factors: Mapping[str, tuple[Level, ...]] | None = None,
) -> Design:
    """A design by name with what was asked for; ``is_attached``: of a server that runs already; ``by_command``:
    settings that the engine's command makes itself, held too; ``factors``: those of the design grid. Raises
    UnknownName, UsageError where the two contradict each other, or BadDesign where it varies two things unasked; for a
    text of one's own what read_own_text raises."""
    varied = _varied(name, engine, levels, factors or {}, is_attached)
    varied, held = _at_rates(varied, held or Held())
    held = _with_own_names(varied, held, engine, by_command or {}, is_attached)
    condition, others = hold(varied.names, varied.kind.default_condition, held)
    _check_at_most_two([*varied.names, *(factor.name for factor in others)])
    if grid and others:
        varied = _as_grid(varied, others[0], engine)
        condition, _ = hold(varied.names[:1], varied.kind.default_condition, held)
    design = make_design(
        varied.kind,
        levels=varied.levels,
        second=varied.second or (others[0] if others else None),
        held=condition,
        repeats=repeats,
        seed=seed,
        grid=grid or varied.second is not None,
        until=until,
    )
    _check_prefix(design)
    check_moves(design.factors, held.quality)
    check_load(design, engine)
    design = design if is_attached else _with_slots_and_limit(design, engine)
    return replace(design, kind=replace(design.kind, holds=true_holds(design, engine, is_attached=is_attached)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Varied:
    """The question, its levels (None: its own), and a grid's second factor."""

    kind: DesignKind
    levels: Sequence[Level] | None
    second: Factor | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return (self.kind.factor,) if self.second is None else (self.kind.factor, self.second.name)


def _varied(
    name: str, engine: str, levels: Sequence[Level] | None, factors: Mapping[str, tuple[Level, ...]], is_attached: bool
) -> _Varied:
    """What is varied. Raises UnknownName, BadDesign."""
    kind = design_kind(name, engine, is_attached=is_attached)
    if name != grid_design.NAME:
        if factors:
            raise BadDesign(
                f"{name} varies {kind.factor}; factors are the design grid's.",
                hint=f"Give the values of {kind.factor} with --levels, or ask for the grid: kvscope measure grid.",
            )
        return _Varied(kind=kind, levels=levels)
    if levels is not None:
        raise BadDesign(
            "A grid has two factors, so that --levels says too little.", hint="Use --factor NAME=A,B twice."
        )
    chosen = [_grid_factor(each, values, engine) for each, values in factors.items()]
    found = [design_varying(each, engine) for each in factors]
    ours = [each for each in found if each is not None] or [kind]
    both = grid_design.kind_of(ours[0], chosen, second=ours[-1])
    return _Varied(kind=both, levels=chosen[0].levels, second=chosen[1])


def _at_rates(varied: _Varied, held: Held) -> tuple[_Varied, Held]:
    """The concurrency design at rates as an open loop, whose factor is the rate; anything else as it is. Raises
    BadDesign for levels of both."""
    if varied.kind.name != concurrency_design.KIND.name or not held.rate_per_s:
        return varied, held
    if varied.levels is not None:
        raise BadDesign(
            "At a fixed rate, how many requests are under way at once is not set: it follows from the rate.",
            hint="Give --rate or --levels.",
        )
    open_loop = replace(varied, kind=concurrency_design.open_loop(), levels=held.rate_per_s)
    return open_loop, replace(held, rate_per_s=())


def _as_grid(varied: _Varied, other: Factor, engine: str) -> _Varied:
    """A design with a second factor: the same grid that is asked for by name."""
    levels = tuple(varied.levels or varied.kind.default_levels)
    second = _grid_factor(other.name, other.levels, engine)
    sets = {level: varied.kind.sets(level) for level in levels} if varied.kind.sets else {}
    own = Factor(name=varied.kind.factor, levels=levels, sets=sets)
    kind = grid_design.kind_of(varied.kind, (own, second), second=design_varying(other.name, engine))
    return _Varied(kind=kind, levels=levels, second=second)


def _grid_factor(name: str, values: tuple[Level, ...], engine: str) -> Factor:
    """A factor by the name of a design, of what one varies, or of an engine's setting."""
    kind = design_varying(name, engine)
    if kind is not None:
        return Factor(name=kind.factor, levels=values, sets={x: kind.sets(x) for x in values} if kind.sets else {})
    if name in REQUEST_FACTORS or not has_own_names(engine):
        return Factor(name=name, levels=values)
    ((own, levels),) = own_names(engine, {name: values}).items()
    return Factor(name=own, levels=tuple(level for level in levels if level is not None))


def _with_own_names(
    varied: _Varied, held: Held, engine: str, by_command: Mapping[str, SettingValue], is_attached: bool
) -> Held:
    """What is held, its settings by the engine's own names and with those of its command. Raises as ``plan_design``."""
    if is_attached:
        _check_nothing_is_set(varied, held, engine)
    elif has_own_names(engine):
        own = own_names(engine, {name: (value,) for name, value in by_command.items()})
        asked = own_names(engine, held.settings or {})
        return replace(held, settings=with_command(varied.names, asked, own))
    return held


def _check_at_most_two(names: Sequence[str]) -> None:
    if len(names) > 2:
        raise BadDesign(
            f"This would vary {len(names)} things at once: {', '.join(names)}.", hint="Give one value for each."
        )


def _with_slots_and_limit(design: Design, engine: str) -> Design:
    design = with_slots(design, engine)
    return with_context_limit(design) if engine == "llama.cpp" else design


def _check_prefix(design: Design) -> None:
    """Raises BadDesign where what was sent before is varied and something else is asked that there is no room for."""
    conditions = [design.condition(point) for point in design.points()]
    if all(condition.prefix is None for condition in conditions):
        return
    contradictions = {
        "--concurrency or --rate": any(condition.is_load for condition in conditions),
        "--requests": any(condition.num_requests != 1 for condition in conditions),
        "--shared-prefix": any(condition.shared_prefix_tokens for condition in conditions),
        "--no-reuse-prefix": not all(condition.reuse_prefix for condition in conditions),
    }
    for option, is_asked in contradictions.items():
        if is_asked:
            raise BadDesign(
                f"What was sent before a prompt is what varies here, and {option} contradicts that.",
                hint="Leave it out: one request is sent, then the one that is measured.",
            )


def _check_nothing_is_set(varied: _Varied, held: Held, engine: str) -> None:
    """Raises BadDesign for what would need another setting than a running server was started with."""
    for factor in varied.names:
        if factor not in REQUEST_FACTORS:
            raise BadDesign(
                f"{varied.kind.name} varies {factor}, and a server that runs already keeps the one it was started "
                "with.",
                hint=f"With a running server these work: {_works_attached(engine)}. Or let kvscope start the engine "
                "(without --url).",
            )
    if held.settings:
        raise BadDesign(
            f"A server that runs already keeps the settings it was started with; these cannot be set: "
            f"{', '.join(sorted(held.settings))}.",
            hint="Start the server with them yourself, or let kvscope start the engine (without --url).",
        )


def _works_attached(engine: str) -> str:
    """The designs that a running server can be asked."""
    names = []
    for name in sorted(DESIGNS):
        with contextlib.suppress(BadDesign):
            if design_kind(name, engine, is_attached=True).factor in REQUEST_FACTORS:
                names.append(name)
    return ", ".join(names)


def with_context_limit(design: Design) -> Design:
    """The design with one context limit for all its trials, the smallest that holds the longest of them; unchanged
    where a limit is set or is itself varied. Left to itself the engine would reserve the model's trained context."""
    if "n_ctx" in design.held.settings or any(factor.name == "n_ctx" for factor in design.factors):
        return design
    if design.held.retrieval is not None:  # each way its own: see retrieval_counts
        return design
    conditions = [design.condition(point) for point in design.points()]
    n_ctx = context_limit([each.context_tokens for each in conditions], conditions)
    return replace(design, held=replace(design.held, settings={**design.held.settings, "n_ctx": n_ctx}))


def context_limit(tokens: Sequence[int], conditions: Sequence[Condition]) -> int:
    """The smallest context that holds ``tokens`` in each sequence of the conditions."""
    return round_up(max(tokens), CELL_MULTIPLE) * max(map(_streams, conditions))


def _streams(condition: Condition) -> int:
    """How many times the longest request the context limit has to hold: once for each slot, or where slots share it
    for each that is under way."""
    slots = condition.settings.get("n_parallel")
    if not isinstance(slots, int) or slots < 1 or condition.settings.get("kv_unified"):
        return sequences_at_once(condition, condition.settings, default_slots=1)
    return slots
