"""Which of the sentences about what a design holds fixed are true of it as it was planned: of its settings as they were
set, of the requests that it sends, and of what a second factor varies."""

from collections.abc import Callable, Mapping

from kvscope.experiment.design import Condition, Design
from kvscope.experiment.designs import holds
from kvscope.experiment.designs.quality import SAME_DOCUMENTS
from kvscope.experiment.slots import has_slots

_NUMBERS = {6: "Six"}
_OF_PROMPTS = ("prompt_tokens",)
_OF_ANSWERS = ("output_tokens",)
# A sentence → the factors whose levels make it untrue.
_UNTRUE_WHILE_VARIED: Mapping[str, tuple[str, ...]] = {
    holds.SAME_PROMPT: _OF_PROMPTS,
    holds.SAME_OUTPUT: _OF_ANSWERS,
    holds.CONTEXT_LIMIT: ("n_ctx",),
    "The length of the measured prompt, in tokens.": _OF_PROMPTS,
    SAME_DOCUMENTS: _OF_PROMPTS,
    "One short prompt and one short answer of the same number of tokens: what they add comes after the load.": (
        *_OF_PROMPTS,
        *_OF_ANSWERS,
    ),
    "User messages of the same number of tokens, and the same output limit in every turn.": (
        *_OF_PROMPTS,
        *_OF_ANSWERS,
    ),
    "One conversation of three turns, whose last turn is measured; the engine may reuse the turns before it.": (
        "turns",
    ),
}


def true_holds(design: Design, engine: str, *, is_attached: bool) -> tuple[str, ...]:
    """What the design holds fixed, in words, as it is. ``is_attached``: of a server that runs already."""
    found: list[str] = []
    for text in design.kind.holds:
        found += [each for each in _kept(design, text) if each not in found]
    if not _is_load(design):
        return tuple(found)
    at = found.index(holds.ALL_ELSE) if holds.ALL_ELSE in found else len(found)
    slots = [] if is_attached or not has_slots(engine) else _slots(design)
    return (*found[:at], *slots, holds.LOAD_WARM_UP, *found[at:])


def _kept(design: Design, text: str) -> list[str]:
    """What is left of a sentence: itself, another one, or nothing."""
    varied = {factor.name for factor in design.factors} | {x for factor in design.factors for x in factor.settings}
    needed = design.kind.holds_while.get(text, {})
    settings = design.held.settings
    if any(name in varied or settings.get(name) != value for name, value in needed.items()):
        return []
    if varied & set(_UNTRUE_WHILE_VARIED.get(text, ())):
        return []
    if text in _REWORDED:
        return _REWORDED[text](design, design.held)
    return [_with_number(text, design.held)]


def _is_load(design: Design) -> bool:
    return any(design.condition(point).is_load for point in design.points())


def _varies(design: Design, name: str) -> bool:
    return any(factor.name == name or name in factor.settings for factor in design.factors)


def _same_request(design: Design, held: Condition) -> list[str]:
    shared = held.shared_prefix_tokens
    own = f"the first {shared:,} tokens are the same in all of a trial" if shared else "each with a text of its own"
    if _varies(design, "prompt_tokens"):
        found = [f"Prompts, {own}."]
    else:
        found = [f"Prompts of exactly the same number of tokens, {own}."]
    return found if _varies(design, "output_tokens") else [*found, holds.SAME_OUTPUT]


def _process(design: Design, _: Condition, *, text: str) -> list[str]:
    return [holds.LOAD_PROCESS] if _is_load(design) else [text]


def _no_reuse(_: Design, held: Condition) -> list[str]:
    return ["The engine may reuse what it kept of earlier prompts."] if held.reuse_prefix else [holds.NO_REUSE]


def _only_of_loads(_: Design, __: Condition) -> list[str]:
    return []  # said anew, with the numbers that there are


_REWORDED: Mapping[str, Callable[[Design, Condition], list[str]]] = {
    holds.SAME_REQUEST: _same_request,
    holds.FRESH_PROCESS: lambda design, held: _process(design, held, text=holds.FRESH_PROCESS),
    holds.FRESH_OR_RUNNING: lambda design, held: _process(design, held, text=holds.FRESH_OR_RUNNING),
    holds.NO_REUSE: _no_reuse,
    holds.SLOTS: _only_of_loads,
    holds.NO_HOST_CACHE: _only_of_loads,
    holds.LOAD_WARM_UP: _only_of_loads,
}


def _with_number(text: str, held: Condition) -> str:
    """Of several conversations, how many there are."""
    number = held.num_requests
    return text.replace("Six conversations", f"{_NUMBERS.get(number, number)} conversations")


def _slots(design: Design) -> list[str]:
    settings = design.held.settings
    pool, copies = settings.get("n_ctx"), settings.get("cache_ram_mib")
    found = []
    if not _varies(design, "n_parallel"):
        found.append(f"The slots: n_parallel {settings.get('n_parallel')} at every level.")
    if pool is not None and not _varies(design, "n_ctx"):
        found.append(f"The pool of all slots together: n_ctx {pool}{_division(design)}.")
    if copies == 0:
        found.append("The host cache of old prompts is off (cache_ram_mib 0).")
    elif not _varies(design, "cache_ram_mib"):
        found.append(f"The host cache of old prompts (cache_ram_mib {copies}): it grows with the number of requests.")
    return found


def _division(design: Design) -> str:
    if _varies(design, "kv_unified"):
        return ""
    is_shared = design.held.settings.get("kv_unified") or design.held.settings.get("n_parallel") == -1
    return ", which they share" if is_shared else ", of which each has an equal part"
