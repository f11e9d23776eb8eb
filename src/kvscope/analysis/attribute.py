"""Which part of the memory belongs to what: an identity whose terms are observed, and a rest that is shown.

    memory now − memory before the model was loaded = named terms + unexplained

Each term was read from the operating system's list of mappings, or follows from a stated rule; each says which. Nothing
is added to make the sum come out: what no term covers is ``unexplained``, with its sign.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvscope.analysis.match import Buffer, Place, new_mappings, place_buffers, without
from kvscope.analysis.notes import Note, note
from kvscope.analysis.own_heap import OwnHeap, own_heap
from kvscope.analysis.prompt_copies import copies_after_clearing, stated_checkpoints, stated_copies
from kvscope.record.metrics import held_bytes, last_mark
from kvscope.record.rows import Json, MapRow, MarkRow, TrialResult
from kvscope.units import MIB

# More than this share of what the load added without a name is a doubt about the whole picture.
UNEXPLAINED_SHARE = 0.10

# Larger blocks than this always get a mapping of their own from glibc's malloc: the upper limit of its mmap threshold
# on 64-bit systems (mallopt(3), DEFAULT_MMAP_THRESHOLD_MAX). Smaller ones may lie in a heap or an arena.
HEAP_BLOCK_BYTES = 32 * MIB

# Components whose memory the engine writes in full when it loads, so that all of it is resident from then on.
# llama.cpp: the KV cache and recurrent states are zero-filled; weights outside a mapped file are copied or repacked.
FILLED_AT_LOAD: Mapping[str, frozenset[str]] = {
    "llama.cpp": frozenset({"kv_cache", "recurrent_state", "weights"}),
    "vllm": frozenset({"kv_cache"}),  # the pool, measured on a CPU with 0.32.0
}
# Kinds of mappings that are the engine's own run time: measured here, predicted nowhere.
RUNTIME_KINDS = {"heap": "heap", "arena": "arenas", "stack": "stacks"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One line of the identity. ``basis``: predicted (the size was predicted, the memory was seen), reported (the
    engine states the size, the memory was seen), rule (not seen, resident by the engine's rule), shared (at most so
    much: memory seen in a mapping that is larger than its known buffers, so that some of it may be something else),
    measured (seen, and predicted nowhere)."""

    slug: str
    backing: str
    num_bytes: int
    basis: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """What is in memory of a component. ``how``: seen, together (only the sum with others is seen; ``num_bytes`` is
    None and the note has the sum), at_most (only an upper bound is seen; ``num_bytes`` is None and the note has the
    bound), rule, unknown."""

    num_bytes: int | None
    how: str
    note: Note | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """The identity of one attempt at one moment. ``from_start`` is False where memory could not be read before the
    load: then the growth is all that the process holds. ``leftovers`` are new anonymous mappings, kept one by one, in
    which no buffer was found: part of what is unexplained, and where to look for it."""

    phase: str
    request_index: int | None
    from_start: bool
    maps_read: bool
    anon_growth_bytes: int
    file_growth_bytes: int
    terms: tuple[Term, ...]
    residents: Mapping[str, Resident]
    leftovers: tuple[MapRow, ...] = ()

    def term_bytes(self, slug: str) -> int:
        """Sum of the terms of that name; 0 where the identity has none."""
        return sum(t.num_bytes for t in self.terms if t.slug == slug)

    def _of_basis(self, *bases: str) -> int:
        return sum(t.num_bytes for t in self.terms if t.basis in bases)

    @property
    def measured_bytes(self) -> int:
        """Terms that were seen and that nothing predicts: the engine's run time."""
        return self._of_basis("measured")

    @property
    def seen_bytes(self) -> int:
        """Terms whose size was known before (predicted, or stated by the engine) and that were seen."""
        return self._of_basis("predicted", "reported")

    @property
    def rule_bytes(self) -> int:
        """Terms that were not seen: resident by the engine's rule."""
        return self._of_basis("rule")

    @property
    def shared_bytes(self) -> int:
        """Terms that are upper bounds: the resident rest of mappings that may hold other memory too."""
        return self._of_basis("shared")

    def is_upper_bound(self, *slugs: str) -> bool:
        """Whether a term of these names is only an upper bound."""
        return any(t.basis == "shared" and t.num_bytes for t in self.terms if t.slug in slugs)

    def _left(self, backing: str, growth: int) -> int:
        return growth - sum(t.num_bytes for t in self.terms if t.backing == backing)

    @property
    def growth_bytes(self) -> int:
        return self.anon_growth_bytes + self.file_growth_bytes

    @property
    def unexplained_anon_bytes(self) -> int:
        return self._left("anonymous", self.anon_growth_bytes)

    @property
    def unexplained_file_bytes(self) -> int:
        return self._left("file", self.file_growth_bytes)

    @property
    def unexplained_bytes(self) -> int:
        return self.unexplained_anon_bytes + self.unexplained_file_bytes

    @property
    def unexplained_share(self) -> float | None:
        """Share of the growth; the two kinds' rests count without sign, so that they cannot cancel."""
        if self.growth_bytes <= 0:
            return None
        return (abs(self.unexplained_anon_bytes) + abs(self.unexplained_file_bytes)) / self.growth_bytes


def attribute(
    result: TrialResult, prediction: Mapping[str, Json] | None, phase: str, *, model_file: str | None = None
) -> Attribution | None:
    """The identity at the last mark of ``phase`` (loaded, after_request, cache_cleared, unloaded); None if there is no
    such mark. ``model_file``: the name of the mapping that is known to be the model's, whatever it is called."""
    mark = last_mark(result, phase)
    if mark is None:
        return None
    start = last_mark(result, "launched")
    before = _maps_at(result, start)
    after = _maps_at(result, mark)
    buffers = _buffers(result, prediction, mark)
    new = new_mappings(before, after, "anonymous")
    places, missing = _places(result, prediction, buffers, new)
    heap = own_heap(result, start, mark, after)
    if after:
        if heap is None:
            terms, residents = _buffer_terms(places, missing)
            terms += _runtime_terms(before, after)
        else:
            terms, residents = _own_heap_terms(heap)
            terms += [term for term in _runtime_terms(before, after) if term.slug in ("stacks", "library_data")]
        model, file_terms = _file_terms(before, after, prediction, model_file)
        terms += file_terms
        if model is not None:
            residents["weights"] = _with_model_file(residents.get("weights"), model)
    else:
        terms, residents = _rule_terms(buffers)
    taken = [place.mapping for place in places]
    return Attribution(
        phase=phase,
        request_index=mark.request_index,
        from_start=start is not None,
        maps_read=bool(after),
        anon_growth_bytes=held_bytes(mark) - (held_bytes(start) if start else 0),
        file_growth_bytes=mark.file_bytes - (start.file_bytes if start else 0),
        terms=tuple(terms),
        residents=residents,
        leftovers=tuple(without(new, taken)),
    )


def _places(
    result: TrialResult, prediction: Mapping[str, Json] | None, buffers: Sequence[Buffer], new: Sequence[MapRow]
) -> tuple[tuple[Place, ...], tuple[Buffer, ...]]:
    """Where the buffers are, and those that are not seen. A buffer stays where it was made: its place is decided by the
    mappings after the load, when nothing else has been touched yet, and kept as long as a mapping of that size is
    there. What was not seen then is not looked for in memory that requests touched."""
    loaded = last_mark(result, "loaded")
    at_load = _maps_at(result, loaded)
    if loaded is None or not at_load or not new or not buffers:
        return place_buffers(buffers, new)
    made = _buffers(result, prediction, loaded)
    launched = _maps_at(result, last_mark(result, "launched"))
    first, unseen = place_buffers(made, new_mappings(launched, at_load, "anonymous"), is_untouched=True)
    free, kept = list(new), list[Place]()
    moved: list[Buffer] = []
    for place in first:
        filled = sum(buffer.num_bytes for buffer in place.filled)
        same = [m for m in free if m.size_bytes == place.mapping.size_bytes and m.anonymous_bytes >= filled]
        if same:
            # Of several such mappings the one that has changed least.
            now = min(same, key=lambda m: abs(m.anonymous_bytes - place.mapping.anonymous_bytes))
            kept.append(Place(mapping=now, buffers=place.buffers))
            free = without(free, [now])
        else:
            moved += place.buffers
    later = [buffer for buffer in buffers if buffer not in made]
    found, missing = place_buffers([*moved, *later], free)
    return (*kept, *found), (*unseen, *missing)


def _maps_at(result: TrialResult, mark: MarkRow | None) -> tuple[MapRow, ...]:
    if mark is None:
        return ()
    return tuple(m for m in result.maps if m.phase == mark.phase and m.request_index == mark.request_index)


def _buffers(result: TrialResult, prediction: Mapping[str, Json] | None, mark: MarkRow) -> list[Buffer]:
    """Anonymous buffers that may be in memory: as predicted, and the copies of prompts as the engine states them."""
    if mark.phase == "unloaded":
        return []
    predicted = prediction or {}
    filled = FILLED_AT_LOAD.get(str(predicted.get("scenario", {}).get("engine")), frozenset())
    buffers = [
        Buffer(
            component=str(b["name"]),
            name=str(b.get("kind") or b["name"]),
            num_bytes=int(b["bytes"]),
            is_filled=b["name"] in filled,
        )
        for b in predicted.get("buffers") or ()
        if b.get("bytes") and b.get("backing") != "file" and _is_in_ordinary_memory(b)
    ]
    if mark.phase == "cache_cleared":
        return [*buffers, *copies_after_clearing(result)]
    if mark.phase != "after_request":
        return buffers
    return [*buffers, *stated_copies(result, mark.request_index), *stated_checkpoints(result, mark.request_index)]


def _is_in_ordinary_memory(buffer: Mapping[str, Json]) -> bool:
    return buffer.get("device") in (None, "cpu")


def _mapped_weights_bytes(prediction: Mapping[str, Json] | None) -> int | None:
    sizes = [int(b["bytes"]) for b in (prediction or {}).get("buffers") or () if b.get("backing") == "file"]
    return sum(sizes) if sizes else None


def _rule_terms(buffers: Sequence[Buffer]) -> tuple[list[Term], dict[str, Resident]]:
    """Without a list of mappings: only what is resident by rule."""
    terms = []
    residents = {b.component: Resident(num_bytes=None, how="unknown", note=note("maps_not_read")) for b in buffers}
    for component in dict.fromkeys(b.component for b in buffers if b.is_filled):
        size = sum(b.num_bytes for b in buffers if b.component == component)
        terms.append(Term(slug=component, backing="anonymous", num_bytes=size, basis="rule"))
        residents[component] = Resident(num_bytes=size, how="rule", note=note("by_rule_not_seen"))
    return terms, residents


def _runtime_terms(before: Sequence[MapRow], after: Sequence[MapRow]) -> list[Term]:
    """Growth of the engine's own heap, arenas, stacks and of its libraries' writable data."""
    kinds = {**RUNTIME_KINDS, "file": "library_data"}
    return [
        Term(
            slug=slug,
            backing="anonymous",
            num_bytes=_sum(after, kind, "anonymous_bytes") - _sum(before, kind, "anonymous_bytes"),
            basis="measured",
        )
        for kind, slug in kinds.items()
    ]


def _own_heap_terms(heap: OwnHeap) -> tuple[list[Term], dict[str, Resident]]:
    """By the engine's own counts: weights and cache are stated by it, and are in the heap that it sums up."""
    stated = {slug: size for slug, size in (("weights", heap.weights), ("kv_cache", heap.cache)) if size}
    measured = {"heap": heap.in_use, "heap_kept": heap.kept, "python_arenas": heap.python}
    terms = [Term(slug=slug, backing="anonymous", num_bytes=size, basis="reported") for slug, size in stated.items()]
    terms += [Term(slug=slug, backing="anonymous", num_bytes=size, basis="measured") for slug, size in measured.items()]
    return terms, {slug: Resident(num_bytes=size, how="seen") for slug, size in stated.items()}


def _file_terms(
    before: Sequence[MapRow], after: Sequence[MapRow], prediction: Mapping[str, Json] | None, model_file: str | None
) -> tuple[int | None, list[Term]]:
    """Resident bytes of the model's file (None if it is not mapped), and the file-backed terms."""
    mapped_weights = _mapped_weights_bytes(prediction)
    model = _model_file(before, after, mapped_weights, model_file)
    size = sum(m.resident_bytes - m.anonymous_bytes for m in model)
    code = _file_resident(after) - size - _file_resident(before)
    terms = [Term(slug="library_code", backing="file", num_bytes=code, basis="measured")]
    if not model:
        return None, terms
    is_predicted = ((prediction or {}).get("totals") or {}).get("weights_bytes") is not None
    basis = "predicted" if is_predicted else "measured"
    return size, [Term(slug="model_file", backing="file", num_bytes=size, basis=basis), *terms]


def _buffer_terms(places: Sequence[Place], missing: Sequence[Buffer]) -> tuple[list[Term], dict[str, Resident]]:
    """Terms and residents of the buffers; those of one component are added up.

    A filled buffer that was not found is resident by the engine's rule. It is a term only if it is too large for the
    heap: a smaller one may lie there, and the heap's growth is a term already.
    """
    seen: dict[str, int] = {}
    basis: dict[str, str] = {}
    touched: dict[tuple[str, str], int] = {}
    residents: dict[str, Resident] = {}
    for place in places:
        for buffer in place.filled:
            size = min(buffer.num_bytes, place.mapping.anonymous_bytes)
            seen[buffer.component] = seen.get(buffer.component, 0) + size
            basis[buffer.component] = buffer.source
        names = tuple(sorted({b.component for b in place.partly_touched}))
        if names:
            slug = names[0] if len(names) == 1 else "working_buffers"
            key = slug, "predicted" if place.is_exact else "shared"
            touched[key] = touched.get(key, 0) + place.touched_bytes
            for name in names:
                residents[name] = _touched_resident(name, names, place)
    _add_missing(missing, seen, basis, residents)
    for component, size in seen.items():
        lost = sum(b.num_bytes for b in missing if b.component == component)
        partly = note("partly_found", size_bytes=lost) if lost else None
        residents.setdefault(component, Resident(num_bytes=size, how="seen", note=partly))
    terms = [Term(slug=s, backing="anonymous", num_bytes=n, basis=basis[s]) for s, n in seen.items()]
    terms += [Term(slug=s, backing="anonymous", num_bytes=n, basis=how) for (s, how), n in touched.items()]
    return terms, residents


def _add_missing(
    missing: Sequence[Buffer], seen: dict[str, int], basis: dict[str, str], residents: dict[str, Resident]
) -> None:
    """What is known of the buffers that were not found, put beside what was ``seen`` of their components."""
    for component in dict.fromkeys(b.component for b in missing):
        size = sum(b.num_bytes for b in missing if b.component == component)
        filled = [b for b in missing if b.component == component and b.is_filled and b.source == "predicted"]
        if filled:
            large = sum(b.num_bytes for b in filled if b.num_bytes > HEAP_BLOCK_BYTES)
            small = sum(b.num_bytes for b in filled) - large
            whole = seen.get(component, 0) + large + small
            why = note("by_rule_in_heap", size_bytes=small) if small else note("by_rule_not_seen")
            residents[component] = Resident(num_bytes=whole, how="rule", note=why)
            if large:
                seen[component] = seen.get(component, 0) + large
                basis[component] = "rule"
        elif component not in seen:
            residents.setdefault(
                component, Resident(num_bytes=None, how="unknown", note=note("no_own_mapping", size_bytes=size))
            )


def _touched_resident(name: str, names: tuple[str, ...], place: Place) -> Resident:
    size = place.touched_bytes
    others = tuple(n for n in names if n != name)
    if not place.is_exact:
        slug = "at_most_together" if others else "at_most"
        return Resident(num_bytes=None, how="at_most", note=note(slug, others=others, size_bytes=size))
    if not others:
        return Resident(num_bytes=size, how="seen", note=note("touched_part"))
    return Resident(num_bytes=None, how="together", note=note("seen_together", others=others, size_bytes=size))


def _with_model_file(copied: Resident | None, file_bytes: int) -> Resident:
    """Weights may be in memory twice over: in the mapped file, and copied or repacked into a buffer."""
    if copied is None:
        return Resident(num_bytes=file_bytes, how="seen")
    if copied.num_bytes is None:
        return Resident(num_bytes=None, how="together", note=note("weights_file_only", size_bytes=file_bytes))
    return Resident(num_bytes=file_bytes + copied.num_bytes, how=copied.how, note=copied.note)


def _model_file(
    before: Sequence[MapRow], after: Sequence[MapRow], mapped_weights: int | None, name: str | None
) -> list[MapRow]:
    """Mappings of the model's own file: new since the start, and of that name or named like one, or as large as its
    weights."""
    known = {m.name for m in before if m.kind == "file"}
    new = [m for m in after if m.kind == "file" and m.count == 1 and m.name not in known]
    named = [m for m in new if m.name == name or m.name.endswith((".gguf", ".safetensors"))]
    if named or mapped_weights is None:
        return named
    return [m for m in new if 0 <= m.size_bytes - mapped_weights <= MIB]


def _sum(maps: Sequence[MapRow], kind: str, field: str) -> int:
    return sum(getattr(m, field) for m in maps if m.kind == kind)


def _file_resident(maps: Sequence[MapRow]) -> int:
    return sum(m.resident_bytes - m.anonymous_bytes for m in maps if m.kind == "file")


def unexplained_bytes(result: TrialResult, prediction: Mapping[str, Json] | None) -> int | None:
    """What stays unexplained of the memory that grew between the start and the end of the load, signed, in bytes;
    None where memory was not read at load, its mappings were not, or nothing was predicted."""
    found = None if prediction is None else attribute(result, prediction, "loaded")
    return found.unexplained_bytes if found is not None and found.maps_read else None
