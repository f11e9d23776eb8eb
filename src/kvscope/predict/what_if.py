"""What if: the same question with one thing changed, with the bytes it saves and what it is known to cost.

Only changes that the engine's rules allow have bytes; one that the engine refuses is listed with the engine's reason.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from kvscope.errors import KvscopeError, UnknownName
from kvscope.model.spec import HybridCache, IndexedAttention, ModelSpec, SlidingWindow
from kvscope.predict.memory import READY_ENGINES
from kvscope.predict.prediction import Component, Prediction
from kvscope.predict.question import ARGUMENTS, Question
from kvscope.scenario import SettingValue

# What a change costs at worst: nothing known; time, or what can be reused; the answers themselves.
Harm = Literal[0, 1, 2]
# The engine's own arithmetic, as docs/accuracy.md has it checked.
_RULE = "the engine's allocation rules"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A change worth trying. ``axis``: changes of the same axis exclude each other."""

    axis: str
    change: Mapping[str, SettingValue]
    cost: str
    source: str
    harm: Harm = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a candidate comes to: ``answer``, or the reason why the engine would not run so (``refused``).
    ``saved_bytes``: fewer bytes than the baseline, over the components that are known in both (negative: more).
    ``unknown``: components that only the baseline knows, so that the two totals cannot be compared."""

    candidate: Candidate
    answer: Prediction | None
    saved_bytes: int | None
    unknown: tuple[Component, ...] = ()
    refused: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "change": dict(self.candidate.change),
            "total_bytes": None if self.answer is None else self.answer.total_bytes,
            "cache_bytes": None if self.answer is None else self.answer.cache_bytes,
            "saved_bytes": self.saved_bytes,
            "unknown": list(self.unknown),
            "cost": self.candidate.cost,
            "source": self.candidate.source,
            "refused": self.refused,
        }


def what_if(question: Question, baseline: Prediction | None = None) -> tuple[Change, ...]:
    """Every single change for this question, most bytes saved first, refused ones last. A change that is no change
    here is left out."""
    baseline = baseline or question.ask()
    found = [change for candidate in candidates(question) if (change := try_change(question, candidate, baseline))]
    return tuple(sorted(found, key=lambda change: (change.refused is not None, -(change.saved_bytes or 0))))


def try_change(question: Question, candidate: Candidate, baseline: Prediction) -> Change | None:
    """The change's bytes; None where this release does not know such a setting."""
    if question.tokens is None and "engine" in candidate.change:
        question = replace(question, tokens=baseline.scenario.workload.tokens)
    try:
        changed = question.changed(candidate.change).ask()
    except UnknownName:
        return None
    except KvscopeError as error:
        return Change(candidate=candidate, answer=None, saved_bytes=None, refused=error.message)
    return Change(
        candidate=candidate,
        answer=changed,
        saved_bytes=_saved(baseline, changed),
        unknown=tuple(sorted(changed.missing - baseline.missing)),
    )


def _saved(baseline: Prediction, changed: Prediction) -> int:
    """Compared where both are known: a component that only one of them knows would look like a saving."""
    known = {item.component for item in (*baseline.items, *changed.items)} - baseline.missing - changed.missing
    return sum(_bytes(baseline, component) - _bytes(changed, component) for component in known)


def _bytes(prediction: Prediction, component: Component) -> int:
    found = prediction.component_bytes(component)
    assert found is not None  # missing components were taken out
    return found


def candidates(question: Question) -> Iterator[Candidate]:
    """Single changes that differ from what is asked now."""
    engine = question.engine
    if engine == "llama.cpp":
        found = _llama_cpp(question.model, question.settings, question.sequences)
    elif engine == "ollama":
        found = _ollama(question.settings)
    elif engine == "vllm":
        found = _vllm(question.settings)
    else:
        found = _formats(question)
    for candidate in (*found, *_engines(question)):
        if not _is_asked_already(question, candidate.change):
            yield candidate


def _is_asked_already(question: Question, change: Mapping[str, SettingValue]) -> bool:
    return all(
        (getattr(question, name) if name in ARGUMENTS else question.settings.get(name)) == value
        for name, value in change.items()
    )


def _llama_cpp(model: ModelSpec, settings: Mapping[str, SettingValue], sequences: int) -> Iterator[Candidate]:
    yield from _cache_types(settings)
    if any(_has_window(layer.cache) for layer in model.layers):
        is_full = settings.get("swa_full", False)
        yield Candidate(
            axis="window",
            change={"swa_full": not is_full},
            cost="a prefix of the conversation can no longer be reused once the window has moved past it"
            if is_full
            else "slower, but older points of the conversation can be branched from and reused",
            source="the maintainer in llama.cpp issue 13683",
        )
    slots = settings.get("n_parallel", sequences)
    for count in (1, 4):
        if count >= sequences and isinstance(slots, int) and slots != count:
            yield Candidate(
                axis="slots",
                change={"n_parallel": count},
                cost="one conversation at a time: others wait"
                if count == 1
                else "the context is divided among four slots, each rounded up to 256 cells, unless kv_unified is on",
                source=_RULE,
            )
    if isinstance(slots, int) and slots > 1:
        yield Candidate(
            axis="unified",
            change={"kv_unified": not settings.get("kv_unified", False)},
            cost="slots share one cache: one may use what the others leave, and together they may run out"
            if not settings.get("kv_unified", False)
            else "each slot has its own part of the context, rounded up to 256 cells",
            source=_RULE,
        )
    yield from _llama_cpp_speed(settings)


def _cache_types(settings: Mapping[str, SettingValue]) -> Iterator[Candidate]:
    eight = (
        "little on most models (Llama 3 8B: mean KL divergence 0.00098 against 0.00019 for f16); some lose more",
        "llama.cpp pull request 7412",
    )
    four = (
        "answers change, first in long documents, exact copying and arithmetic; keys suffer several times more than "
        "values: measure before relying on it",
        "llama.cpp pull requests 7412 and 21038",
    )
    values = ("less than quantised keys cost: values are several times less sensitive", "llama.cpp pull request 7412")
    choices: tuple[tuple[str, str, tuple[str, str], Harm], ...] = (
        ("q8_0", "q8_0", eight, 1),
        ("q8_0", "f16", eight, 1),
        ("f16", "q4_0", values, 2),
        ("q4_0", "q4_0", four, 2),
        ("f16", "f16", ("nothing: it is llama.cpp's default", _RULE), 0),
    )
    for keys_type, values_type, (cost, source), harm in choices:
        asked = (settings.get("cache_type_k", "f16"), settings.get("cache_type_v", "f16"))
        if asked != (keys_type, values_type):
            change: dict[str, SettingValue] = {"cache_type_k": keys_type, "cache_type_v": values_type}
            yield Candidate(axis="cache type", change=change, cost=cost, source=source, harm=harm)


def _llama_cpp_speed(settings: Mapping[str, SettingValue]) -> Iterator[Candidate]:
    """Changes that cost time only."""
    microbatch = settings.get("n_ubatch", 512)
    for smaller in (256, 64):
        if isinstance(microbatch, int) and smaller < microbatch:
            yield Candidate(
                axis="microbatch",
                change={"n_ubatch": smaller},
                cost="the prompt is read in smaller pieces, which is slower; windows need fewer cells beside them",
                source=_RULE,
            )
    is_off = settings.get("flash_attn") == "off"
    yield Candidate(
        axis="flash attention",
        change={"flash_attn": "on" if is_off else "off"},
        cost="nothing known"
        if is_off
        else "scratch that grows with the context and the heads, and values as wide as the widest layer's",
        source=_RULE,
        harm=0 if is_off else 1,
    )
    is_mapped = settings.get("load_mode", "auto") in ("auto", "mmap", "mmap+mlock")
    yield Candidate(
        axis="load mode",
        change={"load_mode": "none" if is_mapped else "mmap"},
        cost="slower to load, and the weights are the process's own memory, which the system cannot drop"
        if is_mapped
        else "the weights are pages of the file, which the system may drop and read again; rearranged ones stay twice",
        source=_RULE,
    )
    yield Candidate(
        axis="repacking",
        change={"no_extra_bufts": not settings.get("no_extra_bufts", False)},
        cost="faster matrix products on a CPU, for a second copy of some matrices"
        if settings.get("no_extra_bufts", False)
        else "slower matrix products on a CPU: no matrices rearranged for it",
        source=_RULE,
    )


def _ollama(settings: Mapping[str, SettingValue]) -> Iterator[Candidate]:
    """Ollama's names for what llama.cpp does."""
    by_type = {
        candidate.change["cache_type_k"]: candidate
        for candidate in _cache_types({})
        if candidate.change["cache_type_k"] == candidate.change["cache_type_v"]
    }
    for kind in ("q8_0", "q4_0"):
        yield replace(by_type[kind], change={"kv_cache_type": kind})
    for name, candidate in (("num_batch", 64), ("use_mmap", False)):
        if settings.get(name) != candidate:
            cost = (
                "the prompt is read in smaller pieces, which is slower"
                if name == "num_batch"
                else "slower to load, and the weights are the process's own memory, which the system cannot drop"
            )
            yield Candidate(axis=name, change={name: candidate}, cost=cost, source=_RULE)


def _vllm(settings: Mapping[str, SettingValue]) -> Iterator[Candidate]:
    yield Candidate(
        axis="cache type",
        change={"kv_cache_dtype": "fp8"},
        cost="accuracy may fall, most of all without calibrated scales",
        source="vLLM documentation, Quantized KV Cache",
        harm=2,
    )
    ranks = settings.get("tensor_parallel_size", 1)
    if isinstance(ranks, int):
        yield Candidate(
            axis="tensor parallel",
            change={"tensor_parallel_size": ranks * 2},
            cost="twice the devices, which exchange results in every layer; bytes are of each device",
            source="vLLM documentation, Parallelism and Scaling",
        )
    yield Candidate(
        axis="hybrid manager",
        change={"disable_hybrid_kv_cache_manager": True},
        cost="layers with a window are kept as if they had none",
        source=_RULE,
    )


def _formats(question: Question) -> Iterator[Candidate]:
    """transformers and no engine: the format of weights and cache; transformers' other kinds of cache."""
    if question.engine == "transformers":
        yield Candidate(
            axis="cache type",
            change={"cache_implementation": "quantized"},
            cost="answers change, and packing takes time; the last tokens stay as they are",
            source="transformers documentation, Cache strategies",
            harm=2,
        )
        yield Candidate(
            axis="cache type",
            change={"cache_implementation": "offloaded"},
            cost="slower: every layer's cache but one waits in host memory",
            source="transformers documentation, Cache strategies",
        )
    if question.model.source_kind == "gguf" or question.model.tensors:
        return
    for dtype, cost in (
        ("bfloat16", "three decimal digits: what most published models were trained in"),
        ("float32", "none in quality: twice the bytes of 16 bits"),
    ):
        if (question.dtype or question.model.dtype) != dtype:
            change: dict[str, SettingValue] = {"dtype": dtype}
            yield Candidate(axis="dtype", change=change, cost=cost, source="IEEE 754 widths", harm=0)


def _engines(question: Question) -> Iterator[Candidate]:
    """The same question to the other engines. A GGUF file is read by llama.cpp and what is built on it only."""
    if question.model.source_kind == "gguf":
        return
    for engine in READY_ENGINES:
        if engine not in ("logical", question.engine):
            yield Candidate(
                axis="engine",
                change={"engine": engine},
                cost=f"another program, with {engine}'s own speed and features, at its default settings",
                source=f"the allocation rules of {engine}",
            )


def _has_window(cache: object) -> bool:
    if isinstance(cache, IndexedAttention):
        return _has_window(cache.main)
    if isinstance(cache, HybridCache):
        return _has_window(cache.attention)
    return isinstance(cache, SlidingWindow)
