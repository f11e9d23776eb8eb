"""Changes that nobody measured here: what the engine's allocation rules say that each would save, named as predicted.

The list is kept with each prediction when a trial is recorded (``changes``), because the record does not hold the
model. In a record from before that, the bytes of a quantised cache still follow from the stored buffers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kvscope.analysis.advice_axes import axis_of
from kvscope.analysis.advice_command import change_command
from kvscope.analysis.advice_flags import LLAMA_CPP, LLAMA_DEFAULTS, flags_of
from kvscope.analysis.advice_kind import NOT_MEASURED, Advice, Quality
from kvscope.analysis.advice_pressure import Pressure, most_saved_in_vain
from kvscope.analysis.attribute import attribute
from kvscope.analysis.levels import at_level
from kvscope.dtypes import row_bytes
from kvscope.record.rows import Json

if TYPE_CHECKING:
    from kvscope.analysis.attempts import Attempt
    from kvscope.analysis.study import Study

# What may be advised unmeasured: each is a setting of the same engine whose worst is known. What takes from the answers
# (fewer bits than eight), only moves memory (mmap), or needs other machines is not among it.
_ADVISED = ("cache_type", "window_only", "slots", "unified", "microbatch_smaller", "flash_on", "repack_off")
_ADVISED_MORE = ("cache_offloaded",)
_WORTH_SHARE = 0.01
# Changes that save nothing but of the compute buffer, and the terms that say what is in memory of it.
_OF_COMPUTE = ("flash", "microbatch")
_COMPUTE_TERMS = ("compute_buffer", "working_buffers", "work_in_use")
# Factors that leave the settings as they are, but for the context limit.
_LENGTHS = ("n_ctx", "prompt_tokens", "output_tokens", "turns", "prefix")
# Of changes of one axis the mildest is taken that saves at least this share of what the strongest does.
_ENOUGH = 0.5
# Cache types in the contract's words → llama.cpp's.
_LLAMA_TYPES = {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}


def predicted_advice(
    study: Study, pressure: Pressure, taken: Collection[str], measured: Sequence[Mapping[str, Json]]
) -> list[Advice]:
    """``taken``: axes that measured advice speaks of; ``measured``: changes that a design measured. Only what costs
    nothing where memory is no trouble; nothing where nothing ran, for another reason than memory; and of what did not
    fit only what makes it fit."""
    attempt = _attempt(study)
    if attempt is None or attempt.prediction is None or not (study.is_measured or pressure.is_short):
        return []
    most = most_saved_in_vain(study) if pressure.slug == "ran_out" else 0
    total = (attempt.prediction.get("totals") or {}).get("total_bytes") or 0
    by_axis: dict[str, list[Advice]] = {}
    # Of what did not fit by its prediction the prediction decides, whatever smaller trials touched.
    held = None if pressure.slug == "ran_out" else _compute_held(study, attempt)
    for change, reserved, is_estimate in _changes(attempt):
        found = _at_most_held(_advice(study, attempt, change, reserved, is_estimate), held)
        saved = found.size
        is_told = found.slug in (*_ADVISED, *_ADVISED_MORE) and found.harm < (1 if pressure.is_free else 2)
        if not is_told or found.axis in taken or change in measured or saved <= max(0, most, _WORTH_SHARE * total):
            continue
        if found.slug == "slots" and not _is_alone(study, change):
            continue
        by_axis.setdefault(found.axis, []).append(found)
    return [_mildest(changes) for changes in by_axis.values()]


def priced_changes(study: Study) -> tuple[Advice, ...]:
    """Every single change that the rules say would save memory, the largest saving first: a price list, not advice."""
    attempt = _attempt(study)
    if attempt is None or attempt.prediction is None:
        return ()
    held = _compute_held(study, attempt)
    found = [_at_most_held(_advice(study, attempt, *change), held) for change in _changes(attempt) if change[1] > 0]
    told = [each for each in found if each.slug != "slots" or _is_alone(study, each.change)]
    return tuple(sorted(told, key=lambda each: -each.size))


def _attempt(study: Study) -> Attempt | None:
    """The one whose memory the page shows; of a design that compares settings the baseline's, because that is how the
    engine runs now. Without one the last that has a prediction with changes."""
    main = None if study.main is None else study.main.attempt
    if main is not None and main.prediction is not None:
        if main.design.factor in _LENGTHS:
            return main
        at_baseline = at_level(_attempts_beside(study, main), main.design.baseline_level)
        return next((a for a in at_baseline if a.is_measured and a.prediction is not None), main)
    with_changes = [a for a in study.attempts if (a.prediction or {}).get("changes")]
    return with_changes[-1] if with_changes else None


def _compute_held(study: Study, attempt: Attempt) -> int | None:
    """The most that is seen in memory, as an upper bound, of the buffers that are reserved whole and touched as they
    are used: of the attempt itself and of the longest prompt of its design. None where no mapping of theirs was seen.
    """
    beside = [a for a in _attempts_beside(study, attempt) if a.is_measured]
    longest = max(beside, key=lambda a: a.prompt_tokens or 0, default=attempt)
    seen = [_touched(each) for each in {attempt.key: attempt, longest.key: longest}.values()]
    return max((size for size in seen if size is not None), default=None)


def _touched(attempt: Attempt) -> int | None:
    found = attribute(attempt.result, attempt.prediction, "after_request")
    terms = () if found is None else tuple(t for t in found.terms if t.slug in _COMPUTE_TERMS)
    # Nothing at all is no buffer that was computed in: it lies where nobody looked.
    return sum(t.num_bytes for t in terms) or None


def _at_most_held(change: Advice, held: int | None) -> Advice:
    """A change of the compute buffer alone cannot take more out of memory than is seen there; what it reserves less is
    told beside it."""
    if held is None or change.axis not in _OF_COMPUTE or change.size <= held:
        return change
    return replace(change, predicted=float(held), values={**change.values, "reserved_bytes": change.size})


def _attempts_beside(study: Study, main: Attempt) -> Sequence[Attempt]:
    """All attempts of the design of one."""
    return next(d.attempts for d in study.designs if d.design.design_id == main.design.design_id)


def _changes(attempt: Attempt) -> Iterator[tuple[dict[str, Json], int, bool]]:
    """Each change with the bytes that it should save, and whether that is an estimate."""
    prediction = attempt.prediction or {}
    kept = prediction.get("changes")
    if kept is None:
        yield from _of_older(prediction)
        return
    for each in kept:
        if each.get("saved_bytes") is not None:
            yield dict(each["change"]), int(each["saved_bytes"]), bool(each.get("is_estimate"))


def _of_older(prediction: Mapping[str, Json]) -> Iterator[tuple[dict[str, Json], int, bool]]:
    """q8_0 on llama.cpp: the same rows of the same cells, each of 34 bytes for 32 elements in place of 64. An estimate:
    the compute buffer follows the type too, and is left out."""
    effective = prediction.get("effective") or {}
    if (prediction.get("scenario") or {}).get("engine") != LLAMA_CPP or effective.get("flash_attn") == "off":
        return
    if {effective.get("cache_type_k"), effective.get("cache_type_v")} != {"float16"}:
        return
    caches = [b for b in prediction.get("buffers") or () if b.get("name") == "kv_cache"]
    widths = {t["shape"][-1] for layer in prediction.get("layers") or () for t in layer.get("tensors") or ()}
    if not caches or any(width % 32 for width in widths):
        return
    now = sum(int(cache["bytes"]) for cache in caches)
    saved = now - now * row_bytes("q8_0", 32) // row_bytes("f16", 32)
    yield {"cache_type_k": "q8_0", "cache_type_v": "q8_0"}, saved, True


def _advice(study: Study, attempt: Attempt, change: dict[str, Json], saved: int, is_estimate: bool) -> Advice:
    before = {name: _now(attempt, name) for name in change}
    axis = axis_of(change, before)
    touches = axis.name == "cache_type" and axis.slug != "cache_offloaded"
    return Advice(
        slug=axis.slug,
        axis=axis.name,
        helps="memory",
        harm=axis.harm,
        metric="memory_bytes",
        change=change,
        flags=flags_of(study.engine, change),
        predicted=float(saved),
        is_estimate=is_estimate,
        quality=NOT_MEASURED if touches else Quality(slug="not_touched"),
        evidence=(),
        check=() if None in before.values() else change_command(attempt, axis.name, change, before),
        values={"context_tokens": attempt.context_tokens},
    )


def _now(attempt: Attempt, name: str) -> Json:
    """What a setting is now: as asked, else by what the prediction took, else the engine's default."""
    if name in attempt.trial.settings:
        return attempt.trial.settings[name]
    effective = (attempt.prediction or {}).get("effective") or {}
    known = effective.get(name, effective.get("microbatch_tokens") if name in ("n_ubatch", "num_batch") else None)
    if known is None and attempt.design.engine == LLAMA_CPP:
        known = LLAMA_DEFAULTS.get(name)
    return _LLAMA_TYPES.get(str(known), known)


def _is_alone(study: Study, change: Mapping[str, Json]) -> bool:
    """Whether fewer slots do: one is asked for, and no trial sent requests together."""
    together = any(r.stream for a in study.attempts for r in a.result.requests)
    return not together and all(value == 1 for value in change.values())


def _mildest(changes: Sequence[Advice]) -> Advice:
    """The least harmful; of those the first listed that saves enough of what the strongest saves."""
    harmless = [each for each in changes if each.harm == min(c.harm for c in changes)]
    most = max(each.size for each in harmless)
    enough = [each for each in harmless if each.size >= _ENOUGH * most]
    if changes[0].axis == "cache_type":
        return max(harmless, key=lambda each: each.size)
    return enough[0]
