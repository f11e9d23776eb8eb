"""What the words of a report mean: every metric, every kind of memory, every column, with the names they go by."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kvscope.language import LANGUAGES, shown, speaking
from kvscope.record.metrics import DEFINITIONS
from kvscope.report.definitions_en import DEFINED
from kvscope.report.words import has_words, say


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """``names``: slugs of the words it goes by, the first one leading. ``always``: defined on every page, not only
    where a table uses it."""

    slug: str
    names: tuple[str, ...]
    always: bool = False


def _metric(name: str, *more: str) -> Term:
    return Term(slug=name, names=(f"metric.{name}", *more), always=name in ("ttft_s", "itl_s", "tpot_s"))


def _column(slug: str, *more: str) -> Term:
    return Term(slug=slug, names=(f"col.{slug}", *more))


def _always(slug: str, *names: str) -> Term:
    return Term(slug=slug, names=names, always=True)


TERMS: tuple[Term, ...] = (
    _metric("ttft_s", "col.ttft_s", "axis.ttft_y", "turns.ttft"),
    _metric("first_answer_s"),
    _metric("itl_s"),
    _metric("tpot_s", "col.tpot_s", "axis.tpot_y"),
    _metric("completion_s", "col.completion_s", "axis.completion_y"),
    _metric("prefill_tokens_per_s"),
    _metric("decode_tokens_per_s"),
    _metric("load_wall_s"),
    _metric("output_tokens_per_s_all"),
    _metric("ttft_p50_s"),
    _metric("ttft_p99_s"),
    _metric("ttft_max_s"),
    _metric("queue_wait_s"),
    _always("needed", "col.needed"),
    _always("allocated", "col.allocated", "col.predicted"),
    _always("engine-reported", "col.reported"),
    _always("resident", "col.resident", "col.resident_loaded", "col.resident_after"),
    _always("peak", "word.peak"),
    _always("unexplained", "row.unexplained", "col.unexplained", "col.unexplained_short", "part.unexplained"),
    _always("interval", "col.interval"),
    _always("anonymous", "col.anon_mib", "series.anon"),
    _always("file-backed", "col.file_mib", "series.file"),
    Term(slug="on devices", names=("series.device", "col.device_mib", "place.device")),
    _metric("memory_baseline_bytes"),
    _metric("memory_loaded_bytes", "col.memory_loaded_bytes"),
    _metric("memory_peak_bytes", "col.memory_peak_bytes"),
    _metric("memory_after_bytes", "col.memory_after_bytes"),
    _metric("memory_released_bytes", "col.memory_released_bytes"),
    _always("weights", "component.weights", "part.weights"),
    _always("kv_cache", "component.kv_cache", "part.kv_cache", "col.kv_added"),
    Term(slug="recurrent_state", names=("component.recurrent_state",)),
    _always("compute_buffer", "component.compute_buffer", "part.buffers", "col.buffers", "col.buffers_added"),
    Term(slug="output_buffer", names=("component.output_buffer",)),
    Term(slug="host_cache", names=("component.host_cache", "part.host_cache", "col.host_added")),
    Term(slug="checkpoint", names=("component.checkpoint", "part.checkpoint", "col.checkpoints_added")),
    _always("runtime", "row.runtime", "component.runtime", "part.runtime", "col.runtime_added", "col.heaps"),
    Term(slug="libraries", names=("part.libraries", "col.libraries", "term.library_code", "term.library_data")),
    Term(slug="heap", names=("term.heap",)),
    Term(slug="heap_kept", names=("term.heap_kept",)),
    Term(slug="arenas", names=("term.arenas", "term.python_arenas")),
    Term(slug="stacks", names=("term.stacks",)),
    Term(slug="grown", names=("row.grown", "row.measured", "col.measured_growth", "col.added_total")),
    Term(slug="context_tokens", names=("factor.n_ctx", "col.context_tokens", "col.bar")),
    Term(slug="prompt_tokens", names=("col.prompt_tokens", "factor.prompt_tokens", "turns.prompt")),
    Term(slug="output_limit", names=("factor.output_tokens", "col.limit")),
    Term(slug="output", names=("col.output", "col.produced", "axis.completion_x")),
    Term(slug="cached", names=("col.cached", "turns.reused")),
    Term(slug="released", names=("verdict.released",)),
    Term(slug="retained_bounded", names=("verdict.retained_bounded",)),
    Term(slug="growing", names=("verdict.growing",)),
    *(
        _column(slug)
        for slug in (
            "agrees", "sum", "moment", "number", "at_s", "added", "naive", "if_kv", "predicted_kv", "before_mib",
            "after_mib", "kind", "each", "all", "formula", "repeats", "failed", "ttft_step", "tpot_step",
            "completion_step", "verdict", "step", "host_per_conversation", "start", "kept", "after_exit", "active",
            "again", "kept_by", "held", "given_back", "copies", "level", "levels", "known_by", "check", "seen", "row",
            "design", "outcome", "repeat", "prompt_asked", "prompt_server", "factor", "seed", "settings",
            "level_changed", "at_baseline", "difference", "share", "pairs", "seen_difference", "how_sure",
        )
    ),
)  # fmt: skip


def meaning(term: Term) -> str:
    """What a term means, in the current language."""
    slug = f"def.{term.slug}"
    return say(slug) if slug in DEFINED else shown(DEFINITIONS[term.slug])


def names_of(term: Term) -> tuple[str, ...]:
    """The names a term goes by in the current language, each once."""
    return tuple(dict.fromkeys(say(name) for name in term.names if has_words(name)))


def names_by_language(term: Term) -> dict[str, tuple[str, ...]]:
    """Its names in every language: language → names."""
    found = {}
    for language in LANGUAGES:
        with speaking(language):
            found[language] = names_of(term)
    return found


def terms_used(words: Iterable[str]) -> tuple[Term, ...]:
    """Terms that are defined on every page, and those that go by one of ``words`` in the current language."""
    used = set(words)
    return tuple(term for term in TERMS if term.always or used.intersection(names_of(term)))


def anchors_of(terms: Iterable[Term], prefix: str) -> Mapping[str, str]:
    """Name in the current language → anchor of its definition."""
    return {name: anchor(term, prefix) for term in terms for name in names_of(term)}


def anchor(term: Term, prefix: str) -> str:
    """Where a term is defined."""
    return f"{prefix}def-{term.slug.replace(' ', '-').replace('_', '-')}"
