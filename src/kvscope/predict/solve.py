"""The inverse: what fits into so many bytes. The longest context, the most sequences, the mildest settings.

Every answer is an answer of ``predict()`` that was asked for and compared with the budget: N fits, and one block more
does not. The search between is by interpolation, because bytes are straight lines between a few knees, and by halving
where they are not.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kvscope.errors import UsageError
from kvscope.model.context_plausibility import DOUBTFUL_CONTEXT
from kvscope.model.spec import ModelSpec
from kvscope.predict.growth import round_up
from kvscope.predict.held import DIVIDED_FIRST, divided_bytes, divided_notes, held_bytes, most_states, peak_bytes
from kvscope.predict.memory import MOST
from kvscope.predict.prediction import Prediction
from kvscope.predict.question import LLAMA_CPP_BLOCK, LLAMA_CPP_ENGINES, Question
from kvscope.predict.what_if import Candidate, Change, candidates, try_change
from kvscope.scenario import SettingValue
from kvscope.units import format_count

SCHEMA = "kvscope.fit/1"
# What an engine's counters hold (llama.cpp: a signed 32-bit number): where no smaller limit is known.
MOST_TOKENS = 2**31 - 256
# llama.cpp refuses more slots (n_seq_max).
LLAMA_CPP_MOST_SEQUENCES = 256
MOST_SEQUENCES = 2**20
# Changes of another question than whether these sequences fit.
_NOT_COMPARED = frozenset({"engine", "slots"})
# Settings that the search itself chooses.
_CHOSEN: Mapping[str, str] = {
    **dict.fromkeys(
        ("n_ctx", "num_ctx", "max_model_len", "context_length", "max_cache_len"), "the context is what is looked for"
    ),
    **dict.fromkeys(("n_parallel", "num_parallel"), "give sequences instead"),
    **dict.fromkeys(
        (
            "kv_cache_memory_bytes",
            "VLLM_CPU_KVCACHE_SPACE",
            "num_gpu_blocks_override",
            "gpu_memory_utilization",
            "max_total_tokens",
            "mem_fraction_static",
        ),
        "the pool gets what the budget leaves beside the weights",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One way to run ``tokens`` in each of ``sequences``. ``change``: the settings that differ from what was asked."""

    change: Mapping[str, SettingValue]
    total_bytes: int
    fits: bool
    cost: str
    harm: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What fits. ``largest_context_tokens``: per sequence, for ``sequences`` of them; 0: not even one block. None: it
    never ends (nothing grows, and no trained context is known). ``most_sequences``: of ``tokens`` each, likewise.
    ``context_total_bytes`` is what predict() says of the largest context, ``beyond_total_bytes`` of one block more
    (of a pool, what these sequences need); None where nothing fits, or nothing larger was to be tried. ``left_out``:
    what the bytes do not hold."""

    question: Question
    budget_bytes: int
    reserve_bytes: int
    tokens: int
    block_tokens: int
    engine_version: str
    largest_context_tokens: int | None
    context_total_bytes: int | None
    beyond_total_bytes: int | None
    most_sequences: int | None
    limited_by: str
    cheapest: tuple[Option, ...]
    left_out: tuple[str, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def because(self) -> str:
        """The largest context's reason in one sentence, with its numbers."""
        room = format_count(self.budget_bytes - self.reserve_bytes)
        reserve = f" (budget less {format_count(self.reserve_bytes)} B reserve)" if self.reserve_bytes else ""
        largest = self.largest_context_tokens
        if largest is None:
            return f"memory does not grow with the context, and fits into {room} B{reserve}"
        if largest == 0:
            beyond = format_count(self.beyond_total_bytes or 0)
            if self.block_tokens == 1:
                return f"not even 1 token would fit: {beyond} B of {room} B{reserve}"
            return f"not even {self.block_tokens} tokens would fit: {beyond} B of {room} B{reserve}"
        total = format_count(self.context_total_bytes or 0)
        text = f"{format_count(largest)} tokens in {self._each} take {total} B of {room} B{reserve}"
        if self.limited_by != "budget":
            return f"{text}; limited by {self.limited_by}, not by memory"
        beyond, more = format_count(self.beyond_total_bytes or 0), self.block_tokens
        one = f"{text}; 1 token more would take {beyond} B"
        return one if more == 1 else f"{text}; {more} tokens more would take {beyond} B"

    @property
    def _each(self) -> str:
        return "one sequence" if self.question.sequences == 1 else f"each of {self.question.sequences} sequences"

    def to_dict(self) -> dict[str, Any]:
        """The JSON of contract kvscope.fit/1."""
        return {
            "schema": SCHEMA,
            "budget_bytes": self.budget_bytes,
            "reserve_bytes": self.reserve_bytes,
            "model": self.question.model.name,
            "engine": self.question.engine,
            "engine_version": self.engine_version,
            "tokens": self.tokens,
            "sequences": self.question.sequences,
            "settings": dict(self.question.settings),
            "largest_context_tokens": self.largest_context_tokens,
            "block_tokens": self.block_tokens,
            "context_total_bytes": self.context_total_bytes,
            "beyond_total_bytes": self.beyond_total_bytes,
            "limited_by": self.limited_by,
            "most_sequences": self.most_sequences,
            "cheapest": [
                {"change": dict(o.change), "total_bytes": o.total_bytes, "fits": o.fits, "cost": o.cost}
                for o in self.cheapest
            ],
            "because": self.because,
            "left_out": list(self.left_out),
            "notes": list(self.notes),
        }


def fit(
    model: ModelSpec,
    *,
    budget_bytes: int,
    engine: str | None = None,
    engine_version: str | None = None,
    tokens: int | None = None,
    sequences: int = 1,
    settings: Mapping[str, SettingValue] | None = None,
    dtype: str | None = None,
    reserve_bytes: int = 0,
) -> Fit:
    """The largest context, the most sequences and the mildest settings that fit into ``budget_bytes``.

    ``engine`` None: llama.cpp for a GGUF file, else "logical", which every engine takes or more.
    ``tokens``: of the sequences to be counted, and of the settings to be compared (default: the trained context).
    ``reserve_bytes``: of the budget, kept for what is not predicted. Raises as ``predict``; UsageError where the
    weights are not known and no reserve is given for them, and for settings that the search chooses itself.
    """
    _check(budget_bytes, reserve_bytes, sequences)
    question = Question(
        model=model,
        engine=engine or ("llama.cpp" if model.source_kind == "gguf" else "logical"),
        engine_version=engine_version,
        sequences=sequences,
        settings=settings or {},
        dtype=dtype,
    )
    for name, why in _CHOSEN.items():
        if name in question.settings:
            raise UsageError(f"fit chooses {name} itself: {why}.", hint=f"Leave {name} out.")
    counted = tokens if tokens is not None else model.trained_context_tokens
    if counted is None:
        raise UsageError("The model's files do not state a trained context.", hint="Say how many tokens to count.")
    states = most_states(question)
    if states is not None and states < sequences:
        raise UsageError(
            f"{sequences} sequences do not all fit: the settings leave {states} states.",
            hint="Give more max_mamba_cache_size, or max_running_requests where prefixes are not cached.",
        )
    search = Search(question=question, room=budget_bytes - reserve_bytes)
    search.check_weights(reserve_bytes)
    return search.solve(budget_bytes, reserve_bytes, counted)


def _check(budget_bytes: int, reserve_bytes: int, sequences: int) -> None:
    for name, value, smallest, largest in (
        ("budget_bytes", budget_bytes, 1, MOST),
        ("reserve_bytes", reserve_bytes, 0, budget_bytes - 1),
        ("sequences", sequences, 1, MOST_SEQUENCES),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or not smallest <= value <= largest:
            raise UsageError(f"{name} is {value!r}; a whole number from {smallest} up to {largest} was expected.")


@dataclass(slots=True, kw_only=True)
class Search:
    """Answers of ``predict`` to one question at other tokens and sequences, each asked once, against ``room``."""

    question: Question
    room: int
    asked: dict[tuple[int, int], Prediction] = field(default_factory=dict)

    def prediction(self, tokens: int, sequences: int) -> Prediction:
        key = (tokens, sequences)
        if key not in self.asked:
            self.asked[key] = self.question.holding(tokens, sequences).ask()
        return self.asked[key]

    def bytes_at(self, tokens: int, sequences: int) -> int:
        return self.held(self.question, self.prediction(tokens, sequences))

    def peak_at(self, tokens: int, sequences: int) -> int:
        return self.peak(self.question, self.prediction(tokens, sequences))

    def held(self, question: Question, prediction: Prediction) -> int:
        """Bytes of the answer to ``question``, whatever tokens and sequences that names."""
        if question.engine == DIVIDED_FIRST:
            return divided_bytes(question, prediction, self.room)
        return held_bytes(prediction)

    def peak(self, question: Question, prediction: Prediction) -> int:
        return self.held(question, prediction) if question.engine == DIVIDED_FIRST else peak_bytes(prediction)

    def block_tokens(self) -> int:
        if self.question.engine in LLAMA_CPP_ENGINES:
            return LLAMA_CPP_BLOCK
        pool = self.prediction(1, self.question.sequences).pool
        return 1 if pool is None else pool.block_tokens

    def check_weights(self, reserve_bytes: int) -> None:
        prediction = self.prediction(1, self.question.sequences)
        if "weights" in prediction.missing and not reserve_bytes:
            why = next((entry.why for entry in prediction.unknown if entry.what == "weights"), "the source has none")
            raise UsageError(
                f"The weights of {self.question.model.name} are not known: {why}.",
                hint="Give the file that holds them, or reserve bytes for them: --reserve 15GiB.",
            )

    def solve(self, budget_bytes: int, reserve_bytes: int, tokens: int) -> Fit:
        sequences = self.question.sequences
        block = self.block_tokens()
        largest, limited_by = self.largest_context(block)
        context_total = self.bytes_at(largest, sequences) if largest else None
        beyond = None
        if largest is not None and limited_by == "budget":
            beyond = self.bytes_at(largest + block, sequences)
        first = self.prediction(tokens, sequences)
        notes = _notes(first)
        if self.question.engine == DIVIDED_FIRST:
            notes = tuple(dict.fromkeys((*divided_notes(self.question, first, self.room), *notes)))
        return Fit(
            question=replace(self.question, tokens=tokens),
            budget_bytes=budget_bytes,
            reserve_bytes=reserve_bytes,
            tokens=tokens,
            block_tokens=block,
            engine_version=first.scenario.settings.engine_version or "",
            largest_context_tokens=largest,
            context_total_bytes=context_total,
            beyond_total_bytes=beyond,
            most_sequences=self.most_sequences(tokens),
            limited_by=limited_by,
            cheapest=tuple(self._options(tokens)),
            left_out=_left_out(first),
            notes=notes,
        )

    def largest_context(self, block: int) -> tuple[int | None, str]:
        """Tokens, and what ends them: budget, or the context the model was trained for."""
        sequences = self.question.sequences
        trained = self.question.model.trained_context_tokens
        counted = MOST_TOKENS // sequences
        most = counted if trained is None else min(trained, counted)
        blocks = -(-most // block)

        def bytes_of(count: int) -> int:
            return self.peak_at(min(count * block, most), sequences)

        found = largest_that_fits(bytes_of, self.room, blocks)
        if found < blocks:
            return found * block, "budget"
        if trained is None and bytes_of(1) == bytes_of(blocks):
            return None, "nothing"
        return most, "the trained context" if most == trained else "the largest number an engine counts to"

    def most_sequences(self, tokens: int) -> int | None:
        """Of ``tokens`` each; None where their number does not matter."""
        most = MOST_SEQUENCES
        if self.question.engine in LLAMA_CPP_ENGINES:
            most = min(LLAMA_CPP_MOST_SEQUENCES, (MOST_TOKENS // round_up(max(tokens, 1), LLAMA_CPP_BLOCK)))
        most = min(most, most_states(self.question) or most)
        found = largest_that_fits(lambda count: self.peak_at(tokens, count), self.room, most)
        # The compute buffer's rounding to whole slots may make one more slot cheaper; nothing else may.
        for more in range(found + 1, most + 1):
            prediction = self.prediction(tokens, more)
            scratch = prediction.component_bytes("compute_buffer") or 0
            needed = self.peak(self.question, prediction)
            if needed <= self.room:
                found = more
            elif needed - scratch > self.room or not scratch:
                break
        return None if found == most == MOST_SEQUENCES else found

    def _options(self, tokens: int) -> Iterator[Option]:
        """What was asked, single changes that save, and several together: those that fit first, mildest first."""
        held = self.question.holding(tokens, self.question.sequences)
        baseline = self.prediction(tokens, self.question.sequences)
        baseline_bytes = self.held(held, baseline)
        saving = []
        for candidate in candidates(held):
            if candidate.axis in _NOT_COMPARED:
                continue
            change = try_change(held, candidate, baseline)
            answer = None if change is None else change.answer
            # Where less is known, less is counted: that is no saving.
            if change is None or answer is None or not answer.missing <= baseline.missing:
                continue
            if self.held(held.changed(candidate.change), answer) < baseline_bytes:
                saving.append(change)
        fits = self.peak(held, baseline) <= self.room
        options = [Option(change={}, total_bytes=baseline_bytes, fits=fits, cost="", harm=0)]
        together = (try_change(held, candidate, baseline) for candidate in _together(saving))
        options += [self._option(held, c.candidate, c.answer) for c in (*saving, *together) if c and c.answer]
        yield from sorted(options, key=lambda o: (not o.fits, o.harm if o.fits else 0, len(o.change), o.total_bytes))

    def _option(self, held: Question, candidate: Candidate, answer: Prediction) -> Option:
        changed = held.changed(candidate.change)
        return Option(
            change=candidate.change,
            total_bytes=self.held(changed, answer),
            fits=self.peak(changed, answer) <= self.room,
            cost=candidate.cost,
            harm=candidate.harm,
        )


def _together(saving: list[Change]) -> Iterator[Candidate]:
    """All changes up to a harm at once, of each axis the one that saves most."""
    seen: list[Mapping[str, SettingValue]] = []
    for harm in (1, 2):
        best: dict[str, Change] = {}
        for change in saving:
            known = best.get(change.candidate.axis)
            is_better = known is None or (change.saved_bytes or 0) > (known.saved_bytes or 0)
            if change.candidate.harm <= harm and is_better:
                best[change.candidate.axis] = change
        several = [change.candidate for change in best.values()]
        merged = {name: value for candidate in several for name, value in candidate.change.items()}
        if len(several) > 1 and merged not in seen:
            seen.append(merged)
            yield Candidate(
                axis="several",
                change=merged,
                cost="; ".join(dict.fromkeys(candidate.cost for candidate in several)),
                source="; ".join(dict.fromkeys(candidate.source for candidate in several)),
                harm=max(candidate.harm for candidate in several),
            )


def largest_that_fits(bytes_of: Callable[[int], int], room: int, most: int) -> int:
    """The largest count from 0 to ``most`` with bytes within ``room``, for bytes that never shrink with the count; the
    next one was tried, and does not fit. 0 where 1 does not."""
    if bytes_of(most) <= room:
        return most
    if bytes_of(1) > room:
        return 0
    low, high = 1, most
    is_halving = False
    while high - low > 1:
        if is_halving:
            middle = (low + high) // 2
        else:
            at_low, at_high = bytes_of(low), bytes_of(high)
            middle = low + (room - at_low) * (high - low) // (at_high - at_low)
        is_halving = not is_halving
        middle = min(max(middle, low + 1), high - 1)
        if bytes_of(middle) > room:
            high = middle
            continue
        low = middle
        # On a straight line the interpolated count is the answer, and its neighbour proves it.
        if low + 1 < high and bytes_of(low + 1) > room:
            high = low + 1
    return low


def _left_out(prediction: Prediction) -> tuple[str, ...]:
    names = sorted(component.replace("_", " ") for component in prediction.missing)
    listed = [f"{name}: not known, and in none of these bytes" for name in names]
    return (*listed, *(f"{entry.what.replace('_', ' ')}: {entry.why}" for entry in prediction.unknown))


def _notes(prediction: Prediction) -> tuple[str, ...]:
    """The trained context bounds the search, so a doubtful one is always named."""
    doubts = [warning for warning in prediction.model.warnings if warning.startswith(DOUBTFUL_CONTEXT)]
    notes: list[str] = []
    if prediction.scenario.settings.engine == DIVIDED_FIRST:
        notes = list(prediction.notes)
    elif prediction.pool is not None:
        notes = ["Of the pool, the blocks are counted that these sequences may take at most.", *prediction.notes]
    return tuple(dict.fromkeys((*notes, *doubts)))
