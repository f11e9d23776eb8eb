"""Which part of the memory belongs to what: an identity whose terms are observed, and a rest that is shown.

    memory now − memory before the model was loaded = named terms + unexplained

Each term was read from the operating system's list of mappings, or follows from a stated rule; each says which. Nothing
is added to make the sum come out: what no term covers is ``unexplained``, with its sign.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from kvscope.analysis.attribution import Attribution as Attribution
from kvscope.analysis.attribution import Resident as Resident
from kvscope.analysis.attribution import Term as Term
from kvscope.analysis.buffer_terms import HEAP_BLOCK_BYTES as HEAP_BLOCK_BYTES
from kvscope.analysis.buffer_terms import buffer_terms, joined_terms, not_grown, with_model_file
from kvscope.analysis.calibrated_terms import CALIBRATED as CALIBRATED
from kvscope.analysis.calibrated_terms import bounded, own_terms, work_buffer
from kvscope.analysis.calibration import OwnMemory, kept_growth
from kvscope.analysis.match import Buffer, Place, new_mappings, place_buffers, without
from kvscope.analysis.notes import note
from kvscope.analysis.own_heap import OwnHeap, own_heap
from kvscope.analysis.prompt_copies import copies_after_clearing, stated_checkpoints, stated_copies
from kvscope.record.metrics import held_bytes, last_mark
from kvscope.record.rows import Json, MapRow, MarkRow, TrialResult
from kvscope.units import MIB

# Components whose memory the engine writes in full when it loads, so that all of it is resident from then on.
# llama.cpp: the KV cache and recurrent states are zero-filled; weights outside a mapped file are copied or repacked.
FILLED_AT_LOAD: Mapping[str, frozenset[str]] = {
    "llama.cpp": frozenset({"kv_cache", "recurrent_state", "weights"}),
    "vllm": frozenset({"kv_cache"}),  # the pool, measured on a CPU with 0.32.0
}
# Kinds of mappings that are the engine's own run time: measured here, predicted nowhere.
RUNTIME_KINDS = {"heap": "heap", "arena": "arenas", "stack": "stacks"}
# Of the run time what a mapping of its own kind always tells, calibrated or not.
_ALWAYS_BY_PLACE = frozenset({"stacks", "library_data"})
# Terms of these bases are held, and may be swapped out.
_NOT_SEEN = ("rule", "reported", "calibrated", "counted")
# Files that a program maps to run: libraries, with their version or without.
_LIBRARY = re.compile(r"\.so(\.[0-9.]+)?( \(deleted\))?$")
# Memory shared between processes, which the kernel lists like files and counts apart from them (RssShmem).
_SHARED_MEMORY = ("/dev/zero", "/memfd:", "/dev/shm/", "/SYSV")


def attribute(
    result: TrialResult,
    prediction: Mapping[str, Json] | None,
    phase: str,
    *,
    model_file: str | None = None,
    is_by_place: bool = False,
) -> Attribution | None:
    """The identity at the last mark of ``phase`` (loaded, after_request, cache_cleared, unloaded); None if there is no
    such mark. ``model_file``: the name of the mapping that is known to be the model's, whatever it is called.

    Where the attempt was recorded with a calibration, the engine's own memory after the load and after requests is
    what that says; heap and arenas are places then, and what they hold beyond it is unexplained. Without one they are
    terms by their kind of mapping, seen and not explained any further; so they are with ``is_by_place`` always, for a
    series of moments of which some have no calibration."""
    own, mark = None if is_by_place else own_terms(result, phase), last_mark(result, phase)
    found = _with_buffers(result, prediction, phase, model_file, is_by_cause=own is not None)
    if found is None or mark is None or not found.maps_read:
        return found
    if own is None:
        whole = replace(found, terms=(*found.terms, *_terms_by_place(result, phase)))
    else:
        whole = replace(found, terms=(*bounded(found.terms, result, mark), *own))
    return replace(whole, terms=(*whole.terms, *_swapped(whole, result)))


def _swapped(found: Attribution, result: TrialResult) -> list[Term]:
    """What is swapped out: held by the process, and in no mapping's resident pages, so in no term that was seen. Terms
    that were not seen (by rule, calibration or a count) may be swapped out themselves; where there are such, only what
    they and the others leave is said to be."""
    start, mark = last_mark(result, "launched"), last_mark(result, found.phase)
    size = (mark.swap_bytes if mark else 0) - (start.swap_bytes if start else 0)
    if size > 0 and any(term.num_bytes for term in found.terms if term.basis in _NOT_SEEN):
        size = min(size, max(0, found.unexplained_anon_bytes))
    return [Term(slug="swapped", backing="anonymous", num_bytes=size, basis="measured")] if size else []


def own_memory_bytes(result: TrialResult, prediction: Mapping[str, Json] | None, phase: str) -> OwnMemory | None:
    """What an engine holds beside its buffers at a moment of an attempt, of which a calibration is made; None where it
    was not read."""
    found = _with_buffers(result, prediction, phase, None, is_by_cause=True)
    start, mark = last_mark(result, "launched"), last_mark(result, phase)
    if found is None or mark is None or start is None or not found.maps_read:
        return None
    kept = kept_growth(result, start, mark)
    return OwnMemory(
        own=found.unexplained_anon_bytes - (kept or 0),
        kept=kept,
        python=found.term_bytes("python_arenas"),
        stacks=found.term_bytes("stacks"),
        library_data=found.term_bytes("library_data"),
        library_code=found.term_bytes("library_code"),
    )


def _with_buffers(
    result: TrialResult,
    prediction: Mapping[str, Json] | None,
    phase: str,
    model_file: str | None,
    *,
    is_by_cause: bool,
) -> Attribution | None:
    """The identity without the engine's own memory. ``is_by_cause``: heap and arenas are no terms, so what is stated to
    be in memory and was not seen by itself is one."""
    mark = last_mark(result, phase)
    if mark is None:
        return None
    start = last_mark(result, "launched")
    before, after = maps_at(result, start), maps_at(result, mark)
    buffers = _buffers(result, prediction, mark)
    new = new_mappings(before, after, "anonymous")
    places, missing = _places(result, prediction, buffers, new)
    heap = own_heap(result, start, mark, after)
    if after:
        if heap is None:
            at_load = _untouched(result, prediction, mark) if is_by_cause else None
            terms, residents = buffer_terms(places, missing, at_load=at_load)
            if is_by_cause and mark.phase != "loaded":
                free = without(new, [place.mapping for place in places])
                loaded = maps_at(result, last_mark(result, "loaded"))
                terms += joined_terms([*missing, *not_grown(places, at_load or {})], loaded, free)
        else:
            terms, residents = _own_heap_terms(heap)
        terms += _runtime_terms(before, after, _ALWAYS_BY_PLACE)
        model, file_terms = _file_terms(before, after, prediction, model_file)
        terms += file_terms
        if model is not None:
            residents["weights"] = with_model_file(residents.get("weights"), model)
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
        shared_growth_bytes=mark.shmem_bytes - (start.shmem_bytes if start else 0),
        terms=tuple(terms),
        residents=residents,
        leftovers=tuple(without(new, taken)),
    )


def _terms_by_place(result: TrialResult, phase: str) -> list[Term]:
    """The engine's own memory by the kind of its mappings, or by its own allocator's count."""
    start, mark = last_mark(result, "launched"), last_mark(result, phase)
    assert mark is not None  # the caller has the identity of that moment
    before, after = maps_at(result, start), maps_at(result, mark)
    heap = own_heap(result, start, mark, after)
    if heap is None:
        return _runtime_terms(before, after, set(RUNTIME_KINDS.values()) - _ALWAYS_BY_PLACE)
    sizes = {"heap": heap.in_use, "heap_kept": heap.kept}
    return [Term(slug=slug, backing="anonymous", num_bytes=size, basis="measured") for slug, size in sizes.items()]


def _untouched(result: TrialResult, prediction: Mapping[str, Json] | None, mark: MarkRow) -> Mapping[int, int] | None:
    """Size of a mapping that buffers share with other memory → what was resident of it after the load beside the
    filled ones, when nothing had been computed yet. None at that moment itself."""
    loaded = last_mark(result, "loaded")
    if mark.phase == "loaded":
        return {}
    if loaded is None:
        return None
    new = new_mappings(maps_at(result, last_mark(result, "launched")), maps_at(result, loaded), "anonymous")
    return {
        mapping.size_bytes: mapping.anonymous_bytes - sum(b.num_bytes for b in place.filled)
        for place in place_buffers(_buffers(result, prediction, loaded), new, is_untouched=True)[0]
        for mapping in (place.mapping,)
    }


def _places(
    result: TrialResult, prediction: Mapping[str, Json] | None, buffers: Sequence[Buffer], new: Sequence[MapRow]
) -> tuple[tuple[Place, ...], tuple[Buffer, ...]]:
    """Where the buffers are, and those that are not seen. A buffer stays where it was made: its place is decided by the
    mappings after the load, when nothing else has been touched yet, and kept as long as a mapping of that size is
    there. What was not seen then is not looked for in memory that requests touched."""
    loaded = last_mark(result, "loaded")
    at_load = maps_at(result, loaded)
    if loaded is None or not at_load or not new or not buffers:
        return place_buffers(buffers, new)
    made = _buffers(result, prediction, loaded)
    launched = maps_at(result, last_mark(result, "launched"))
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


def maps_at(result: TrialResult, mark: MarkRow | None) -> tuple[MapRow, ...]:
    """The mappings that were read at a mark; none where it is None."""
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
    buffers += work_buffer(result, predicted, mark.request_index)
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


def _runtime_terms(before: Sequence[MapRow], after: Sequence[MapRow], slugs: Collection[str]) -> list[Term]:
    """Growth of the engine's own heap, arenas, stacks and of its libraries' writable data: those of ``slugs``."""
    kinds = {kind: slug for kind, slug in {**RUNTIME_KINDS, "file": "library_data"}.items() if slug in slugs}
    grown = dict.fromkeys(kinds, 0)
    for sign, maps in ((-1, before), (1, after)):
        for mapping in maps:
            if mapping.kind in grown:
                grown[mapping.kind] += sign * mapping.anonymous_bytes
    return [
        Term(slug=slug, backing="anonymous", num_bytes=grown[kind], basis="measured") for kind, slug in kinds.items()
    ]


def _own_heap_terms(heap: OwnHeap) -> tuple[list[Term], dict[str, Resident]]:
    """By the engine's own counts: weights and cache are stated by it, and are in the heap that it sums up."""
    stated = {slug: size for slug, size in (("weights", heap.weights), ("kv_cache", heap.cache)) if size}
    terms = [Term(slug=slug, backing="anonymous", num_bytes=size, basis="reported") for slug, size in stated.items()]
    terms.append(Term(slug="python_arenas", backing="anonymous", num_bytes=heap.python, basis="measured"))
    return terms, {slug: Resident(num_bytes=size, how="seen") for slug, size in stated.items()}


def _file_terms(
    before: Sequence[MapRow], after: Sequence[MapRow], prediction: Mapping[str, Json] | None, model_file: str | None
) -> tuple[int | None, list[Term]]:
    """Resident bytes of the model's file (None if it is not mapped), and the file-backed terms."""
    mapped_weights = _mapped_weights_bytes(prediction)
    model = _model_file(before, after, mapped_weights, model_file)
    size = sum(m.resident_bytes - m.anonymous_bytes for m in model)
    known = {m.name for m in before}
    code = _file_resident(m for m in after if m not in model and _is_library(m, known)) - _file_resident(before)
    terms = [Term(slug="library_code", backing="file", num_bytes=code, basis="measured")]
    if not model:
        return None, terms
    is_predicted = ((prediction or {}).get("totals") or {}).get("weights_bytes") is not None
    basis = "predicted" if is_predicted else "measured"
    return size, [Term(slug="model_file", backing="file", num_bytes=size, basis=basis), *terms]


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


def _is_library(mapping: MapRow, known: Collection[str]) -> bool:
    """Whether a file is mapped to be run: by its name, or it was there before the load. Small ones are listed
    together, without a name."""
    return mapping.count > 1 or mapping.name in known or _LIBRARY.search(mapping.name) is not None


def _file_resident(maps: Iterable[MapRow]) -> int:
    files = (m for m in maps if m.kind == "file" and not m.name.startswith(_SHARED_MEMORY))
    return sum(m.resident_bytes - m.anonymous_bytes for m in files)


def unexplained_bytes(result: TrialResult, prediction: Mapping[str, Json] | None) -> int | None:
    """What stays unexplained of the memory that grew between the start and the end of the load, signed, in bytes;
    None where memory was not read at load, its mappings were not, or nothing was predicted."""
    found = None if prediction is None else attribute(result, prediction, "loaded")
    return found.unexplained_bytes if found is not None and found.maps_read else None
