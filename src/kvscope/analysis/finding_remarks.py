"""What else could explain a finding, how one would tell, and where a number without an interval comes from: of every
finding that does not say so itself, by its slug. The longest beginning of a slug that the tables have counts."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from kvscope.analysis.finding import Finding

_Value = TypeVar("_Value")

# How a number is known that no repeat can give an interval to: counted over all rows, as the engine prints it, stated
# by rules or limits, or read once.
COUNTED, AS_PRINTED, BY_RULE, ONE_READING = "counted", "as_printed", "by_rule", "one_reading"

_ALSO: Mapping[str, tuple[str, ...]] = {
    "answers_not_judged": ("answers_may_change",),
    "buffer_": ("other_settings",),
    "buffer_not_in_memory": ("swapped_out", "engine_fills_lazily"),
    "checkpoints": ("allocator_keeps",),
    "copy_gain_": ("other_texts",),
    "failed": ("others_took_it",),
    "fidelity_": ("other_texts",),
    "first_microbatch": ("heap_grew",),
    "grid_label": ("both_factors_changed",),
    "host_cache_": ("allocator_keeps",),
    "host_cache_differs": ("other_engine_build", "other_settings"),
    "input_length_": ("busy_machine",),
    "interaction_": ("smaller_than_told",),
    "interaction_time_seen": ("busy_machine",),
    "interaction_memory_seen": ("other_buffers_follow_level",),
    "kv_paid_at_load": ("engine_fills_lazily",),
    "level_not_taken": ("engine_rounds",),
    "load_": ("client_on_same_machine",),
    "load_memory_": ("allocator_keeps",),
    "memory_": ("effects_cancel",),
    "memory_less": ("other_buffers_follow_level",),
    "memory_more": ("other_buffers_follow_level",),
    "microbatch_not_filled": ("server_cut_prompt",),
    "offload_": ("build_without_device",),
    "output_": ("busy_machine",),
    "output_length_short": ("ended_by_itself",),
    "prefix_": ("others_requests",),
    "quality_": ("other_questions",),
    "rate_": ("smaller_than_told",),
    "rate_less": ("busy_machine",),
    "rate_more": ("busy_machine",),
    "release_": ("small_steps",),
    "release_cannot_tell": ("allocator_keeps",),
    "release_growing": ("allocator_keeps",),
    "reported_agrees": ("rule_of_this_build",),
    "retrieval_": ("other_questions",),
    "retrieval_not_measured": ("others_took_it",),
    "reuse_": ("answers_differ",),
    "reuse_equal": ("short_conversation",),
    "slope_": ("errors_cancel",),
    "slope_measured": ("other_buffers_follow_context",),
    "step_": ("errors_cancel",),
    "step_measured": ("other_buffers_follow_context",),
    "stopped_early": ("ended_by_itself",),
    "time_": ("smaller_than_told",),
    "time_less": ("busy_machine",),
    "time_more": ("busy_machine",),
    "tokens_mismatch": ("server_cut_prompt", "other_template"),
    "tpot_": ("busy_machine",),
    "ttft_": ("busy_machine",),
    "turns_last": ("busy_machine", "answers_differ"),
    "turns_reuse": ("others_requests",),
    "unexplained_": ("runtime_not_calibrated",),
    "weights_unchanged": ("weights_not_read",),
    "window_checkpoints": ("allocator_keeps",),
    "window_saves_nothing": ("window_kept_whole",),
}

_CHECKS: Mapping[str, str] = {
    "answers_not_judged": "ask_for_answers",
    "buffer_": "engine_lines",
    "checkpoints": "engine_lines",
    "copy_gain_": "more_texts",
    "failed": "run_again",
    "fidelity_": "more_texts",
    "first_microbatch": "vary_context_not_input",
    "grid_label": "one_factor",
    "host_cache_": "engine_lines",
    "input_length_": "until_narrow",
    "interaction_": "until_narrow",
    "kv_paid_at_load": "vary_context_not_input",
    "level_not_taken": "engine_lines",
    "load_": "requests_of_load",
    "memory_": "look_at_smaps",
    "microbatch_not_filled": "longer_prompts",
    "offload_": "engine_lines",
    "output_": "more_repeats",
    "output_length_short": "finish_reasons",
    "prefix_": "cached_column",
    "quality_": "more_questions",
    "rate_": "until_narrow",
    "release_": "more_conversations",
    "reported_": "compare_log",
    "retrieval_": "more_questions",
    "retrieval_not_measured": "run_again",
    "reuse_": "cached_column",
    "slope_": "more_context_levels",
    "step_": "more_context_levels",
    "stopped_early": "finish_reasons",
    "time_": "until_narrow",
    "tokens_mismatch": "compare_log",
    "tpot_": "more_repeats",
    "ttft_": "more_repeats",
    "turns_": "cached_column",
    "unexplained_": "look_at_smaps",
    "weights_unchanged": "engine_lines",
    "window_": "engine_lines",
    "window_saves_nothing": "longer_context",
}

_SOURCES: Mapping[str, str] = {
    "": COUNTED,
    "buffer_": AS_PRINTED,
    "checkpoints": AS_PRINTED,
    "first_microbatch": ONE_READING,
    "host_cache_": AS_PRINTED,
    "kv_not_resident": ONE_READING,
    "kv_paid_at_load": ONE_READING,
    "load_memory_": ONE_READING,
    "memory_": ONE_READING,
    "offload_": AS_PRINTED,
    "release_": ONE_READING,
    "reported_": AS_PRINTED,
    "unexplained_": ONE_READING,
    "weights_unchanged": AS_PRINTED,
    "window_checkpoints": AS_PRINTED,
    "window_saves_nothing": BY_RULE,
}


def with_remarks(finding: Finding, evidence: Sequence[str] = ()) -> Finding:
    """The finding with what it does not say itself. ``evidence``: the rows of a finding that names none, which are all
    that it could rest on."""
    slug = finding.slug
    return replace(
        finding,
        evidence=finding.evidence or tuple(evidence),
        also_possible=finding.also_possible or _of(_ALSO, slug) or (),
        how_to_check=finding.how_to_check or _of(_CHECKS, slug),
        size_from=finding.size_from or (_of(_SOURCES, slug) if _has_no_interval(finding) else None),
    )


def _has_no_interval(finding: Finding) -> bool:
    return finding.size is None or finding.size.value is None


def _of(table: Mapping[str, _Value], slug: str) -> _Value | None:
    found = [start for start in table if slug.startswith(start)]
    return table[max(found, key=len)] if found else None
