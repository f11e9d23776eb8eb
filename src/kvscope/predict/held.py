"""Bytes that sequences hold on an engine, as a search for what fits compares them with its room.

Most engines reserve what is asked, and that is it. An engine with a pool takes all memory it is given: counted is what
these sequences need of it. SGLang divides the pool first, so there the room itself decides.
"""

import math

from kvscope.predict.growth import sum_of_laws
from kvscope.predict.prediction import CACHE_COMPONENTS, Prediction
from kvscope.predict.question import Question
from kvscope.units import format_count

DIVIDED_FIRST = "sglang"


def held_bytes(prediction: Prediction) -> int:
    """Bytes of everything known. Of a pool of blocks, those that these sequences may take, each as long as the context
    limit, and one that vLLM keeps for itself."""
    pool = prediction.pool
    if pool is None:
        return prediction.total_bytes
    blocks = sum(group.blocks_per_sequence for group in pool.groups) * prediction.scenario.workload.num_sequences
    return _beside_cache(prediction) + (blocks + 1) * pool.bytes_per_block


def peak_bytes(prediction: Prediction) -> int:
    """The most bytes held at any length up to the one asked. More than at that length only where a block of tokens
    fills and empties again: then the lengths of one whole period are looked at, since every earlier one held less."""
    laws = [item.allocated for item in prediction.items]
    periods = [law.step_tokens for law in laws if law.unfinished]
    if not periods or prediction.pool is not None:
        return held_bytes(prediction)
    tokens = prediction.scenario.workload.tokens
    together = sum_of_laws(laws)
    lengths = range(max(0, tokens - math.lcm(*periods)), tokens + 1)
    return max(sum(law.bytes_at(length) for law in together) for length in lengths)


def divided_bytes(question: Question, prediction: Prediction, room: int) -> int:
    """SGLang: the weights, and the smallest pools in which the asked sequences fit, with as many slots of states as
    ``room`` makes. No more than ``room`` where ``predict`` says they fit into what it leaves beside the weights."""
    from kvscope.predict.allocation.sglang import needed_pools

    workload = prediction.scenario.workload
    beside = _beside_cache(prediction)
    need = needed_pools(
        question.model,
        question.settings,
        question.dtype,
        tokens=workload.tokens,
        sequences=workload.num_sequences,
        available_bytes=room - beside,
    )
    return beside + need.least_bytes


def divided_notes(question: Question, prediction: Prediction, room: int) -> tuple[str, ...]:
    """What SGLang's division leaves to the tokens, in sentences."""
    from kvscope.predict.allocation.sglang import needed_pools

    need = needed_pools(
        question.model,
        question.settings,
        question.dtype,
        tokens=1,
        sequences=1,
        available_bytes=room - _beside_cache(prediction),
    )
    notes = ["Of the pools, the places are counted that these sequences take."]
    if need.state_bytes:
        slots = "1 slot" if need.state_slots == 1 else f"{need.state_slots} slots"
        notes.append(
            f"SGLang reserves {slots} of recurrent state, {format_count(need.state_bytes)} B, before any request "
            "(mamba_full_memory_ratio, max_mamba_cache_size): places of tokens get the rest."
        )
    return tuple(notes)


def most_states(question: Question) -> int | None:
    """Sequences for which a setting leaves states; None where none does."""
    if question.engine != DIVIDED_FIRST:
        return None
    from kvscope.predict.allocation.sglang import most_states as most

    return most(question.model, question.settings, question.dtype)


def _beside_cache(prediction: Prediction) -> int:
    return prediction.total_bytes - sum(prediction.component_bytes(component) or 0 for component in CACHE_COMPONENTS)
