"""What the words of a report mean: every metric, every kind of memory, every column, with the names they go by."""

from collections.abc import Mapping
from dataclasses import dataclass

from kvscope.language import LANGUAGES, shown, speaking
from kvscope.record.metrics import DEFINITIONS
from kvscope.report.definitions_en import DEFINED
from kvscope.report.words import has_words, say


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """``names``: slugs of the words it goes by, the first one leading."""

    slug: str
    names: tuple[str, ...]


def _metric(name: str, *more: str) -> Term:
    return Term(slug=name, names=(f"metric.{name}", *more))


def _column(slug: str, *more: str) -> Term:
    return Term(slug=slug, names=(f"col.{slug}", *more))


def _term(slug: str, *names: str) -> Term:
    return Term(slug=slug, names=names)


# Columns that stand for themselves.
_COLUMNS = (
    "program", "pid", "where", "layers", "which", "by_rule", "fact", "read_from", "answers", "what",
    "result", "why_and_next", "value", "cause", "count", "message", "first_line", "what_to_do", "agrees", "sum",
    "moment", "number", "at_s", "added", "naive", "if_kv", "predicted_kv", "before_mib", "after_mib", "kind",
    "each", "all", "formula", "repeats", "failed", "ttft_step", "tpot_step", "completion_step", "verdict", "step",
    "host_per_conversation", "start", "kept", "after_exit", "active", "again", "kept_by", "held", "given_back",
    "copies", "level", "levels", "known_by", "check", "seen", "row", "design", "outcome", "repeat", "prompt_asked",
    "prompt_server", "factor", "seed", "settings", "level_changed", "at_baseline", "difference", "share", "pairs",
    "seen_difference", "how_sure", "kept_copies", "rest_share", "off_by", "between", "basis",
)  # fmt: skip
# Columns of what was answered.
_ANSWERS = (
    "task", "right", "evidence", "sent", "read", "way", "chance", "twin", "twin_named", "twin_refused", "refused",
    "useful", "thirds", "left_out", "beaten", "kl", "flips", "perplexity", "gain", "present", "absent", "change",
    "item", "expected", "answer", "reading", "failures", "failure",
)  # fmt: skip

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
    _term("needed", "col.needed"),
    _term("allocated", "col.allocated", "col.predicted"),
    _term("engine-reported", "col.reported"),
    _term("resident", "col.resident", "col.resident_loaded", "col.resident_after", "col.at_load", "col.at_after"),
    _term("peak", "word.peak", "col.at_peak"),
    _term("unexplained", "row.unexplained", "col.unexplained", "col.unexplained_short", "part.unexplained"),
    _term("interval", "col.interval", "quality_col.interval"),
    _term("anonymous", "col.anon_mib", "series.anon"),
    _term("file-backed", "col.file_mib", "series.file"),
    _term("on devices", "series.device", "col.device_mib", "place.device"),
    _metric("memory_baseline_bytes"),
    _metric("memory_loaded_bytes", "col.memory_loaded_bytes"),
    _metric("memory_peak_bytes", "col.memory_peak_bytes"),
    _metric("memory_after_bytes", "col.memory_after_bytes"),
    _metric("memory_released_bytes", "col.memory_released_bytes"),
    _term("weights", "component.weights", "part.weights", "col.weights"),
    _term("kv_cache", "component.kv_cache", "part.kv_cache", "col.kv_added", "col.cache"),
    _term("recurrent_state", "component.recurrent_state"),
    _term("compute_buffer", "component.compute_buffer", "part.buffers", "col.buffers", "col.buffers_added", "col.work"),
    _term("output_buffer", "component.output_buffer"),
    _term("host_cache", "component.host_cache", "part.host_cache", "col.host_added"),
    _term("checkpoint", "component.checkpoint", "part.checkpoint", "col.checkpoints_added"),
    _term("runtime", "row.runtime", "component.runtime", "part.runtime", "col.runtime_added", "col.heaps", "col.own"),
    _term("libraries", "part.libraries", "col.libraries", "col.library", "term.library_code", "term.library_data"),
    _term("component", "col.component", "col.term"),
    _term("fixed_runtime", "term.runtime"),
    _term("vocabulary", "term.vocabulary"),
    _term("prompt_growth", "term.prompt_growth"),
    _term("work_buffer", "term.work_buffer"),
    _term("work_in_use", "term.work_in_use"),
    _term("working_buffers", "term.working_buffers"),
    _term("model_file", "term.model_file"),
    _term("heap", "term.heap"),
    _term("heap_kept", "term.heap_kept"),
    _term("arenas", "term.arenas", "term.python_arenas"),
    _term("stacks", "term.stacks"),
    _term("swapped", "term.swapped"),
    _term("grown", "row.grown", "row.measured", "col.measured", "col.measured_growth", "col.added_total"),
    _term("context_tokens", "factor.n_ctx", "col.context_tokens", "col.bar"),
    _term("prompt_tokens", "col.prompt_tokens", "factor.prompt_tokens", "turns.prompt"),
    _term("output_limit", "factor.output_tokens", "col.limit"),
    _term("output", "col.output", "col.produced", "axis.completion_x"),
    _term("cached", "col.cached", "turns.reused"),
    _term("released", "verdict.released"),
    _term("retained_bounded", "verdict.retained_bounded"),
    _term("growing", "verdict.growing"),
    *(
        Term(slug=f"answers-{slug}", names=tuple(f"{kind}_col.{slug}" for kind in ("quality", "retrieval")))
        for slug in _ANSWERS
    ),
    *(_column(slug) for slug in _COLUMNS),
)


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


def anchors_of(prefix: str) -> Mapping[str, str]:
    """Name in the current language → anchor of its definition."""
    found: dict[str, str] = {}
    for term in TERMS:
        for name in names_of(term):
            found.setdefault(name, anchor(term, prefix))
    return found


def anchor(term: Term, prefix: str) -> str:
    """Where a term is defined."""
    return f"{prefix}def-{term.slug.replace(' ', '-').replace('_', '-')}"
