"""How SGLang divides memory between places of tokens, places of windows and slots of states; what fits into them.

States get their slots first (mamba_full_memory_ratio of what attention gets, or the number that a setting names); the
rest is places. What fits therefore depends on how much memory there is, not only on what a sequence takes.
"""

from collections.abc import Callable
from dataclasses import dataclass

from kvscope.errors import UsageError
from kvscope.predict.allocation.sglang_settings import SglangSettings
from kvscope.predict.growth import round_up


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Bytes of one rank's layers together. ``full``: one token of those that keep everything; ``windows``: one token
    of those with a window or chunk; ``state``: one sequence's states. ``window_tokens``: the largest window that has a
    pool of its own; None: there is no such pool."""

    full: int
    windows: int
    state: int
    window_tokens: int | None

    @property
    def cell(self) -> int:
        """One place of every layer."""
        return self.full + self.windows


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """``tokens``: places of attention; ``window_tokens``: places of windows in a pool of their own; ``state_slots``:
    None where nothing says how many."""

    tokens: int
    window_tokens: int
    state_slots: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """``least_bytes``: the smallest pools in which the sequences fit, with the slots that the memory at hand makes.
    ``state_slots``, ``state_bytes``: those slots."""

    least_bytes: int
    state_slots: int
    state_bytes: int


def plan_places(sizes: Sizes, settings: SglangSettings, available: int | None) -> Places | None:
    """None where neither memory nor max_total_tokens is given. Raises UsageError where SGLang would not start."""
    slots = _state_slots(sizes, settings, available) if sizes.state else 0
    rest = available
    if sizes.state:
        rest = None if available is None or slots is None else available - slots * sizes.state
    if rest is None and settings.max_total_tokens is None:
        return None
    found = None if sizes.state and slots == 0 else _divide(sizes, settings, slots, rest)
    if found is None:
        raise UsageError(
            "SGLang refuses this: Not enough memory for a single page or state of its pools.",
            hint="Give more available_bytes, fewer state slots (max_mamba_cache_size) or smaller pages.",
        )
    return found


def slots_limit(settings: SglangSettings) -> int | None:
    """Slots of states that a setting names; None where the memory decides."""
    if settings.max_mamba_cache_size is not None:
        return settings.max_mamba_cache_size
    return settings.max_running_requests if settings.disable_radix_cache else None


def holds(places: Places, sizes: Sizes, settings: SglangSettings, tokens: int, sequences: int) -> bool:
    """Whether the places are enough for ``tokens`` in each of ``sequences``, which share no page; a token that a window
    still sees has a place in both pools."""
    page = settings.page_size
    if sizes.window_tokens is not None:
        seen = round_up(min(tokens, sizes.window_tokens), page)
        if seen * sequences > places.window_tokens:
            return False
    return not sizes.cell or round_up(tokens, page) * sequences <= places.tokens


def needed_memory(sizes: Sizes, settings: SglangSettings, tokens: int, sequences: int, available: int) -> Need:
    """What the sequences take out of ``available`` bytes; they fit where it is no more than that. It never shrinks with
    tokens or sequences, and is asked of the same division that predicts the pools."""
    limit = slots_limit(settings)
    slots = 0
    if sizes.state:
        slots = max(_state_slots(sizes, settings, max(available, 0)) or 0, sequences)
    state_bytes = slots * sizes.state

    def is_enough(memory: int) -> bool:
        places = _divide(sizes, settings, slots, memory - state_bytes)
        return places is not None and holds(places, sizes, settings, tokens, sequences)

    guess = state_bytes + round_up(max(tokens, 1), settings.page_size) * sequences * sizes.cell
    least = _least(is_enough, guess)
    if sizes.state and limit is None:
        # Fewer slots than sequences: the memory has to grow until its part for states holds one for each.
        least = max(least, _least(lambda memory: (_state_slots(sizes, settings, memory) or 0) >= sequences, guess))
    return Need(least_bytes=least, state_slots=slots, state_bytes=state_bytes)


def _state_slots(sizes: Sizes, settings: SglangSettings, available: int | None) -> int | None:
    limit = slots_limit(settings)
    if limit is not None or available is None:
        return limit
    ratio = settings.mamba_full_memory_ratio
    return int(available * ratio / (1 + ratio)) // sizes.state


def _divide(sizes: Sizes, settings: SglangSettings, slots: int | None, rest: int | None) -> Places | None:
    """Places out of ``rest`` bytes beside the slots; None where not one page of each pool is left."""
    asked, page, cell = settings.max_total_tokens, settings.page_size, sizes.cell
    tokens = asked or 0 if rest is None or not cell else rest // cell
    tokens = tokens if asked is None else min(tokens, asked)
    tokens = tokens // page * page
    window = 0
    if sizes.window_tokens is not None and tokens > 0:
        tokens, window = _window_places(sizes, settings, tokens * cell)
    is_short = (rest is not None and rest < 0) or (cell and tokens <= 0)
    if is_short or (sizes.window_tokens is not None and window <= 0):
        return None
    return Places(tokens=tokens, window_tokens=window, state_slots=slots)


def _window_places(sizes: Sizes, settings: SglangSettings, total: int) -> tuple[int, int]:
    """Places of full layers and of windows that take ``total`` bytes together."""
    page, ratio = settings.page_size, settings.swa_full_tokens_ratio
    if not sizes.full:
        tokens = total // sizes.windows // page * page
        return tokens, tokens
    tokens = int(total / (sizes.full + ratio * sizes.windows))
    return tokens // page * page, int(tokens * ratio) // page * page


def _least(is_enough: Callable[[int], bool], guess: int) -> int:
    """The smallest number of bytes that is enough; more is enough too."""
    low, high = -1, max(guess, 1)
    while not is_enough(high):
        low, high = high, 2 * high
    if high == guess and not is_enough(guess - 1):
        return guess
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high
