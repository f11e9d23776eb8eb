"""How many requests of a load an engine works on at once, and the pool that they share.

llama.cpp divides its context limit between its slots; a request beyond them waits. So that a level of concurrency
changes nothing but the requests, all trials of a design get the same slots: as many as its highest level. Their pool is
then the same too. To see what slots themselves cost, vary ``n_parallel`` (see docs/reference/designs.md).
"""

from collections.abc import Mapping
from dataclasses import replace

from kvscope.errors import BadDesign
from kvscope.experiment.design import Condition, Design
from kvscope.predict.allocation.llama_cpp_cache import CELL_MULTIPLE
from kvscope.predict.allocation.llama_cpp_settings import AUTO_SLOTS
from kvscope.predict.growth import round_up
from kvscope.scenario import SettingValue

# Engines that have no queue.
ONE_AT_A_TIME = ("transformers",)
# Of an open loop it is not known how many requests will be under way.
OPEN_LOOP_SLOTS = 4
# Requests of a load where their number is not given: so many for each stream, and at least so many.
ROUNDS_PER_STREAM = 4
LEAST_REQUESTS = 8
# A prompt of so many tokens fills llama.cpp's usual microbatch (512): a slot of this design holds it, for the warm-up.
FILLING_TOKENS = 704
# What each engine calls its slots.
_SLOTS_SETTING: Mapping[str, str] = {"llama.cpp": "n_parallel", "fake": "n_parallel"}
_SLOT_NAMES = ("n_parallel", "num_parallel", "max_num_seqs", "max_running_requests")
# The fake engine has no rule of padding; its slots get some room beyond the longest request.
_FAKE_CELLS = 64


def num_requests(condition: Condition) -> int:
    """How many requests a trial measures. Of a load for which none were asked: four for each stream, at least eight."""
    if not condition.is_load or condition.requests > 1:
        return condition.requests
    return max(LEAST_REQUESTS, ROUNDS_PER_STREAM * condition.concurrency)


def sequences_at_once(condition: Condition, settings: Mapping[str, SettingValue], *, default_slots: int | None) -> int:
    """Sequences that are held at once at most: the requests under way, but no more than the engine has slots by these
    settings (``default_slots`` where they say nothing of it; None: as many as are asked for)."""
    slots = next((settings[name] for name in _SLOT_NAMES if name in settings), default_slots)
    if slots == -1:  # llama.cpp's own choice
        slots = AUTO_SLOTS
    most = slots if isinstance(slots, int) and not isinstance(slots, bool) and slots > 0 else None
    if not condition.is_load:
        return 1
    asked = num_requests(condition)
    if condition.arrival == "closed":
        asked = min(asked, condition.concurrency)
    elif most is None:
        asked = 1
    return asked if most is None else min(asked, most)


def check_load(design: Design, engine: str) -> None:
    """Raises BadDesign where requests at once are asked of what has none: an engine that answers one at a time, or a
    conversation; and where a shared beginning is asked of requests that are not sent as a load."""
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


def with_slots(design: Design, engine: str) -> Design:
    """The design with the same slots in all its trials, on an engine that kvscope starts and that has them; unchanged
    where they are set or varied, or no trial is a load. To be called before a context limit is chosen for them."""
    name = _SLOTS_SETTING.get(engine)
    conditions = [design.condition(point) for point in design.points()]
    loads = [condition for condition in conditions if condition.is_load]
    varied = {factor.name for factor in design.factors} | {
        each for factor in design.factors for settings in factor.sets.values() for each in settings
    }
    if name is None or not loads or name in design.held.settings or name in varied:
        return design
    closed = [condition.concurrency for condition in conditions if condition.arrival == "closed"]
    slots = max([*closed, *(OPEN_LOOP_SLOTS for condition in loads if condition.arrival != "closed")])
    settings: dict[str, SettingValue] = {**design.held.settings, name: slots}
    longest = max(condition.longest_tokens for condition in conditions)
    own = {"n_ctx": slots * round_up(longest + 1, _FAKE_CELLS)} if engine == "fake" else {}
    if design.kind.name == "concurrency":
        if engine == "fake":
            own["n_ctx"] = slots * round_up(max(longest + 1, FILLING_TOKENS), _FAKE_CELLS)
        if engine == "llama.cpp" and not settings.get("kv_unified"):
            own["n_ctx"] = slots * round_up(max(longest, FILLING_TOKENS), CELL_MULTIPLE)
        own["cache_ram_mib"] = 0  # copies of old prompts grow with the number of requests, not with those at once
    settings |= {name: value for name, value in own.items() if name not in settings and name not in varied}
    return replace(design, held=replace(design.held, settings=settings))
