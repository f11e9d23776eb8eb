"""Very many scenarios of one model at once: tokens × sequences × cache formats, each as exact as predict().

predict() is asked once for each way that memory grows, and its laws are evaluated everywhere else. Where bytes follow
the sequences in a straight line (no engine, transformers, engines with a pool), two counts of them give all others, and
the largest one is asked for as a check.

An engine with a pool is set up for each length, and what that decides (tokens of a batch, blocks of a window) never
shrinks with the length: between two lengths of the same laws all have these laws; what lies between different ones is
halved. Where an engine rounds, reserves and shares (llama.cpp), a piece between two lengths is taken as a straight line
only where its first, middle and last inner points are on it; otherwise it is halved.
"""

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from kvscope.errors import UsageError
from kvscope.predict.growth import GrowthLaw, round_up, sum_of_laws
from kvscope.predict.prediction import CACHE_COMPONENTS, Prediction
from kvscope.predict.question import LLAMA_CPP_BLOCK, LLAMA_CPP_ENGINES, Question
from kvscope.scenario import SettingValue

# The engines whose bytes are laws of the tokens, times the sequences; these are the same at every length ...
_BY_LAW = frozenset({"logical", "transformers"})
# ... or for some lengths.
_BY_LAWS = frozenset({"sglang", "vllm"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Bytes of every scenario, in the order of ``cache_dtypes`` (slowest), ``sequences``, ``tokens`` (fastest)."""

    tokens: tuple[int, ...]
    sequences: tuple[int, ...]
    cache_dtypes: tuple[str | None, ...]
    total_bytes: "array[int]"
    cache_bytes: "array[int]"

    def __len__(self) -> int:
        return len(self.total_bytes)

    def rows(self) -> Iterator[tuple[str | None, int, int, int, int]]:
        """(cache dtype, sequences, tokens, total bytes, cache bytes) of each scenario."""
        scenarios = product(self.cache_dtypes, self.sequences, self.tokens)
        for (dtype, sequences, tokens), total, cache in zip(scenarios, self.total_bytes, self.cache_bytes, strict=True):
            yield dtype, sequences, tokens, total, cache

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": "kvscope.sweep/1",
            "tokens": list(self.tokens),
            "sequences": list(self.sequences),
            "cache_dtypes": list(self.cache_dtypes),
            "total_bytes": self.total_bytes.tolist(),
            "cache_bytes": self.cache_bytes.tolist(),
        }


def sweep(
    question: Question,
    *,
    tokens: Sequence[int],
    sequences: Sequence[int] = (1,),
    cache_dtypes: Sequence[str | None] = (None,),
) -> Sweep:
    """Every combination. ``cache_dtypes``: of keys and values on llama.cpp (room is made for exactly these tokens);
    elsewhere the format the model is loaded in; None: as ``question`` has it. Equal to ``predict`` with ``==``.

    Raises as ``predict``, and UsageError for an empty axis. transformers' other kinds of cache are asked for every
    scenario, and vLLM's decode_context_parallel_size for every block, which is slow.
    """
    for name, values in (("tokens", tokens), ("sequences", sequences), ("cache_dtypes", cache_dtypes)):
        if not values:
            raise UsageError(f"A sweep needs at least one value of {name}.")
    totals, caches = array("q"), array("q")
    for dtype in cache_dtypes:
        chosen = _with_dtype(question, dtype)
        chosen.holding(min(tokens), min(sequences)).ask()  # refuses what is too small
        filler = _by_asking
        if chosen.engine in _BY_LAWS or (chosen.engine in _BY_LAW and not chosen.settings):
            filler = _by_law
        elif chosen.engine in LLAMA_CPP_ENGINES:
            filler = _by_search
        for total, cache in filler(chosen, tokens, sequences):
            totals.extend(total)
            caches.extend(cache)
    return Sweep(
        tokens=tuple(tokens),
        sequences=tuple(sequences),
        cache_dtypes=tuple(cache_dtypes),
        total_bytes=totals,
        cache_bytes=caches,
    )


def _with_dtype(question: Question, dtype: str | None) -> Question:
    if dtype is None:
        return question
    changes: dict[str, dict[str, SettingValue]] = {
        "llama.cpp": {"cache_type_k": dtype, "cache_type_v": dtype},
        "ollama": {"kv_cache_type": dtype},
    }
    return question.changed(changes.get(question.engine, {"dtype": dtype}))


_Columns = Iterator[tuple[list[int], list[int]]]


_Laws = tuple[GrowthLaw, ...]


def _by_law(question: Question, tokens: Sequence[int], sequences: Sequence[int]) -> _Columns:
    """Totals and cache bytes for each count of sequences."""
    lengths = sorted(set(tokens))

    def laws_at(length: int) -> tuple[_Laws, ...]:
        """Of all items and of the cache's, for one sequence; then for two."""
        return tuple(laws for count in (1, 2) for laws in _laws(question.holding(length, count).ask()))

    pieces = _pieces(lengths, laws_at) if question.engine in _BY_LAWS else [(lengths, laws_at(lengths[-1]))]
    found: dict[int, tuple[int, ...]] = {}
    for inside, laws in pieces:
        held: dict[GrowthLaw, list[int]] = {}
        columns = [_values(each, inside, held) for each in laws]
        found.update(zip(inside, zip(*columns, strict=True), strict=True))
    in_order = [found[length] for length in tokens]
    bases = [(total, cache, two - total, two_cache - cache) for total, cache, two, two_cache in in_order]
    for count in sequences:
        more = count - 1
        yield [total + more * by for total, _, by, _ in bases], [cache + more * by for _, cache, _, by in bases]
    most = max(sequences)
    for length in (lengths[0], lengths[-1]):
        one, _, two, _ = found[length]
        checked = question.holding(length, most).ask()
        expected = one + (most - 1) * (two - one)
        assert checked.total_bytes == expected, "bytes do not follow the sequences in a straight line"


def _laws(prediction: Prediction) -> tuple[_Laws, _Laws]:
    """Few laws with the sums of all items, and of the cache's."""
    return (
        sum_of_laws(item.allocated for item in prediction.items),
        sum_of_laws(item.allocated for item in prediction.items if item.component in CACHE_COMPONENTS),
    )


def _pieces(
    lengths: Sequence[int], laws_at: Callable[[int], tuple[_Laws, ...]]
) -> Iterator[tuple[Sequence[int], tuple[_Laws, ...]]]:
    """Runs of ``lengths`` (ascending) with the laws of each: a run ends where its first and last laws differ."""
    asked: dict[int, tuple[_Laws, ...]] = {}
    runs = [(0, len(lengths) - 1)]
    while runs:
        first, last = runs.pop()
        for index in (first, last):
            if index not in asked:
                asked[index] = laws_at(lengths[index])
        if asked[first] == asked[last]:
            yield lengths[first : last + 1], asked[first]
        else:
            middle = (first + last) // 2
            runs += [(first, middle), (middle + 1, last)]


def _values(laws: _Laws, lengths: Sequence[int], held: dict[GrowthLaw, list[int]]) -> list[int]:
    """Bytes at each length. ``held``: tokens that take memory, for each way to grow that was asked already."""
    totals = [0] * len(lengths)
    for law in laws:
        if law.from_tokens:
            totals = [total + law.bytes_at(length) for total, length in zip(totals, lengths, strict=True)]
            continue
        fixed, each, pair = law.fixed_bytes, law.bytes_per_token, law.bytes_per_token_pair
        if not (each or pair):
            totals = [total + fixed for total in totals]
            continue
        shape = replace(law, fixed_bytes=0, bytes_per_token=0, bytes_per_token_pair=0)
        if shape not in held:
            held[shape] = [law.held_tokens(length) for length in lengths]
        counts = held[shape]
        totals = [total + fixed + (each + pair * count) * count for total, count in zip(totals, counts, strict=True)]
    return totals


def _by_asking(question: Question, tokens: Sequence[int], sequences: Sequence[int]) -> _Columns:
    """Any other question: every scenario asked for."""
    for count in sequences:
        found = [question.holding(length, count).ask() for length in tokens]
        yield [each.total_bytes for each in found], [_known(each.cache_bytes) for each in found]


def _known(num_bytes: int | None) -> int:
    if num_bytes is None:
        raise UsageError("A sweep needs a cache whose bytes are known.")
    return num_bytes


def _by_search(question: Question, tokens: Sequence[int], sequences: Sequence[int]) -> _Columns:
    for count in sequences:
        blocks = sorted({round_up(max(length, 1), LLAMA_CPP_BLOCK) for length in tokens})
        found: dict[int, tuple[int, int]] = {}

        def ask(block: int, count: int = count, found: dict[int, tuple[int, int]] = found) -> tuple[int, int]:
            if block not in found:
                prediction = question.holding(block, count).ask()
                found[block] = (prediction.total_bytes, _known(prediction.cache_bytes))
            return found[block]

        _fill(blocks, ask, found)
        rounded = [round_up(max(length, 1), LLAMA_CPP_BLOCK) for length in tokens]
        yield [found[block][0] for block in rounded], [found[block][1] for block in rounded]


def _fill(blocks: Sequence[int], ask: Callable[[int], tuple[int, int]], found: dict[int, tuple[int, int]]) -> None:
    """Bytes at every one of ``blocks``: halving, until a piece's inner points lie on the line of its ends."""
    pieces = [(0, len(blocks) - 1)]
    while pieces:
        first, last = pieces.pop()
        start, end = ask(blocks[first]), ask(blocks[last])
        if last - first < 2:
            continue
        line = _Line(blocks[first], start, blocks[last], end)
        probes = {first + 1, (first + last) // 2, last - 1}
        if all(line.at(blocks[index]) == ask(blocks[index]) for index in sorted(probes)):
            for index in range(first + 1, last):
                found.setdefault(blocks[index], line.at(blocks[index]) or ask(blocks[index]))
        else:
            middle = (first + last) // 2
            pieces += [(first, middle), (middle, last)]


@dataclass(frozen=True, slots=True)
class _Line:
    """Whole bytes on the straight line between two answers; None where the line has no whole number."""

    start: int
    at_start: tuple[int, int]
    end: int
    at_end: tuple[int, int]

    def at(self, block: int) -> tuple[int, int] | None:
        values = []
        for low, high in zip(self.at_start, self.at_end, strict=True):
            step, rest = divmod((high - low) * (block - self.start), self.end - self.start)
            if rest:
                return None
            values.append(low + step)
        return values[0], values[1]
