"""How many requests of a load an engine works on at once, and the pool that they share.

llama.cpp divides its context limit between its slots; a request beyond them waits. So that a level of concurrency
changes nothing but the requests, all trials of a design get the same slots: as many as its highest level. Their pool is
then the same too, and no copies of old prompts grow beside it. To see what slots themselves cost, vary ``n_parallel``
(see docs/reference/designs.md).
"""

from collections.abc import Mapping
from dataclasses import replace

from kvscope.errors import BadDesign
from kvscope.experiment.design import ROUNDS_PER_STREAM, Condition, Design
from kvscope.predict.allocation.llama_cpp_cache import CELL_MULTIPLE
from kvscope.predict.allocation.llama_cpp_settings import AUTO_SLOTS
from kvscope.predict.growth import round_up
from kvscope.prompt.exact_length.sharing import check_room
from kvscope.scenario import SettingValue

# Engines that have no queue.
ONE_AT_A_TIME = ("transformers",)
# Of an open loop it is not known how many requests will be under way.
OPEN_LOOP_SLOTS = 4
# A prompt of so many tokens fills llama.cpp's usual microbatch (512): a slot of this design holds it, for the warm-up.
FILLING_TOKENS = 704
# What each engine calls its slots.
_SLOTS_SETTING: Mapping[str, str] = {"llama.cpp": "n_parallel", "fake": "n_parallel"}
_SLOT_NAMES = ("n_parallel", "num_parallel", "max_num_seqs", "max_running_requests")
# Factors by which the load itself is what a design asks about.
LOAD_FACTORS = ("concurrency", "rate_per_s")
# The fake engine has no rule of padding; its slots get some room beyond the longest request.
_FAKE_CELLS = 64


def sequences_at_once(condition: Condition, settings: Mapping[str, SettingValue], *, default_slots: int | None) -> int:
    """Sequences that are held at once at most: the requests under way, but no more than the engine has slots by these
    settings (``default_slots`` where they say nothing of it; None: as many as are asked for)."""
    most = _known_slots(next((settings[name] for name in _SLOT_NAMES if name in settings), default_slots))
    if not condition.is_load:
        return 1
    asked = condition.num_requests
    if condition.arrival == "closed":
        asked = min(asked, condition.concurrency)
    elif most is None:
        asked = 1
    return asked if most is None else min(asked, most)


def check_load(design: Design, engine: str) -> None:
    """Raises BadDesign where requests at once are asked of what has none: an engine that answers one at a time, or a
    conversation; where there are fewer requests than are to be under way at once; and where a shared beginning is
    asked of requests that are not sent as a load, or is as long as they are."""
    conditions = [design.condition(point) for point in design.points()]
    loads = [condition for condition in conditions if condition.is_load]
    if loads and engine in ONE_AT_A_TIME:
        raise BadDesign(
            f"{engine} answers one request at a time: it has no server that takes several at once.",
            hint="Ask this of llama.cpp, vLLM, or a running server (--url).",
        )
    if any(condition.is_conversation or condition.same_again for condition in loads):
        raise BadDesign(
            f"{design.kind.name} sends one request after another, each when the last is answered.",
            hint="Leave out --concurrency and --rate.",
        )
    if any(condition.shared_prefix_tokens for condition in conditions if not condition.is_load):
        raise BadDesign(
            "A shared beginning is one of several requests of a trial.",
            hint="Say how many are under way at once: --concurrency 1, or more.",
        )
    for condition in loads:
        check_room(condition.shared_prefix_tokens, condition.prompt_tokens)
        if condition.arrival == "closed" and condition.num_requests < condition.concurrency:
            raise BadDesign(
                f"{condition.concurrency} requests are to be under way at once, and there are "
                f"{condition.num_requests} in all.",
                hint=f"Use --requests {condition.concurrency} or more, or leave it out: there are then "
                f"{ROUNDS_PER_STREAM} for each that is under way.",
            )


def has_slots(engine: str) -> bool:
    """Whether kvscope starts the engine with slots of a number that it sets."""
    return engine in _SLOTS_SETTING


def with_slots(design: Design, engine: str) -> Design:
    """The design with the same slots in all its trials and no host cache of old prompts, on an engine that kvscope
    starts and that has them; what is set or varied stays so. A design without a load is unchanged, but for questions on
    documents, which have no such cache either. To be called before a context limit is chosen for them."""
    name = _SLOTS_SETTING.get(engine)
    if name is not None and design.held.retrieval is not None:
        # Copies of old prompts would grow with the number of questions, and with passages alone.
        settings = {"cache_ram_mib": 0, **design.held.settings}
        return replace(design, held=replace(design.held, settings=settings))
    conditions = [design.condition(point) for point in design.points()]
    loads = [condition for condition in conditions if condition.is_load]
    if name is None or not loads:
        return design
    varied = frozenset(each for factor in design.factors for each in factor.settings)
    closed = [condition.concurrency for condition in conditions if condition.arrival == "closed"]
    slots = max([*closed, *(OPEN_LOOP_SLOTS for condition in loads if condition.arrival != "closed")])
    # Copies of old prompts grow with the number of requests, not with those that are under way at once.
    ours: dict[str, SettingValue] = {name: slots, "cache_ram_mib": 0}
    if name not in varied:
        longest = max(condition.context_tokens for condition in conditions)
        own_cells = _cells(design, engine, longest)
        given = _known_slots(design.held.settings.get(name, slots))
        if own_cells is not None and given is not None:
            ours["n_ctx"] = given * own_cells
    held = design.held.settings
    settings = {**held, **{each: value for each, value in ours.items() if each not in held and each not in varied}}
    return replace(design, held=replace(design.held, settings=settings))


def _known_slots(value: SettingValue) -> int | None:
    if value == -1:  # llama.cpp's own choice
        return AUTO_SLOTS
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _cells(design: Design, engine: str, longest: int) -> int | None:
    """Cells that each slot gets; None where the longest request alone decides it."""
    is_asked_of_load = any(factor.name in LOAD_FACTORS for factor in design.factors)
    if engine == "fake":
        return round_up(max(longest + 1, FILLING_TOKENS if is_asked_of_load else 0), _FAKE_CELLS)
    return round_up(max(longest, FILLING_TOKENS), CELL_MULTIPLE) if is_asked_of_load else None
