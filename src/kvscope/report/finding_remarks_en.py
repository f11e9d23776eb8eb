"""What is said beside findings, in English: what else could explain them, how one would tell, and where a number comes
from that has no interval. And claims on what is paid when, and on what a conversation lost."""

from collections.abc import Mapping

_LOST = (
    "From turn {turn:count} on the history is computed again: at turn {last_turn:count} {cached_tokens:count} of the "
    "{held_tokens:count} tokens of the turn before were reused. The first token came after {first_s:s} at the first "
    "turn and after {last_s:s} at turn {last_turn:count}"
)

_LOST_AT = (
    "The history is computed again at these turns, and not at others: {turns:list}. At turn {last_turn:count} "
    "{cached_tokens:count} of the {held_tokens:count} tokens of the turn before were reused, and the first token came "
    "after {last_s:s} ({first_s:s} at the first turn)"
)
_REASONING = (
    "The template drops what the model thought: answers held {reasoning_tokens:count} tokens of reasoning, and the "
    "next prompt was too short to hold them, so that the engine's cache and the new prompt part there."
)
_WINDOW = (
    "The model has sliding windows: what has left them cannot be gone back to, unless the engine keeps checkpoints or "
    "the whole cache (swa_full)."
)
_RECURRENT = (
    "The model has recurrent layers: their state cannot be cut back to an earlier token, unless the engine keeps "
    "checkpoints."
)
_USED = (
    "one more token of context costs {measured_bytes:count} bytes instead of {predicted_bytes:count}, because "
    "{hidden_bytes:mib2} of the cache at one of the two lie in memory that the engine had used and freed before, and "
    "so added nothing. The engine's log states the predicted cache at both"
)

FINDING_REMARKS: Mapping[str, str] = {
    "finding.slope_in_used_memory": f"From {{from_tokens:count}} to {{to_tokens:count}} tokens {_USED}.",
    "finding.step_in_used_memory": f"From {{from_tokens:count}} to {{to_tokens:count}} tokens {_USED}.",
    "finding.kv_paid_at_load": "The KV cache is paid at load: {kv_bytes:mib2} of the {growth_bytes:mib} that the load "
    "added ({share:percent}), and a request of {prompt_tokens:count} tokens added nothing to it. What a conversation "
    "uses of it changes no memory.",
    "finding.kv_swapped_out": "Of the KV cache's {allocated_bytes:mib2} only {resident_bytes:mib2} are in memory after "
    "the load; {swapped_bytes:mib2} of the engine are swapped out.",
    "finding.weights_unchanged": "The weights did not change: {reported_mib} MiB by the engine's log in each of "
    "{trials:count} trials at {levels:count} levels.",
    "finding.window_saves_nothing": "The window saves nothing at this length: {layers:count} layers keep at most "
    "{window_tokens:count} tokens each, and the context holds {context_tokens:count}.",
    "finding.turns_reuse_reasoning_dropped": f"{_LOST}. {_REASONING}",
    "finding.turns_reuse_window": f"{_LOST}. {_WINDOW}",
    "finding.turns_reuse_recurrent": f"{_LOST}. {_RECURRENT}",
    "finding.turns_reuse_lost": f"{_LOST}. These rows do not tell why.",
    "finding.turns_reuse_at_reasoning_dropped": f"{_LOST_AT}. {_REASONING}",
    "finding.turns_reuse_at_window": f"{_LOST_AT}. {_WINDOW}",
    "finding.turns_reuse_at_recurrent": f"{_LOST_AT}. {_RECURRENT}",
    "finding.turns_reuse_at_lost": f"{_LOST_AT}. These rows do not tell why.",
    "text.kv_paid_at_load": "Paid at load: {kv_bytes:mib} of KV cache; requests added nothing to it",
    "text.weights_unchanged": "Weights: {reported_mib} MiB, the same in {trials:count} trials",
    "text.window_saves_nothing": "A window of {window_tokens:count} tokens saves nothing at {context_tokens:count}",
    "size.mean_bytes": "95 % interval {low:mib} to {high:mib}, {num} trials.",
    "size.mean_signed_bytes": "Added up with their signs: 95 % interval {low:signed_mib} to {high:signed_mib}, {num} "
    "trials.",
    "size_from.counted": "Counted over all rows, so that there is no interval.",
    "size_from.as_printed": "As the engine prints it, to its last digit: no interval.",
    "size_from.by_rule": "By the model's files and the engine's rules: no interval.",
    "size_from.one_reading": "Read once for each trial; an interval takes more repeats.",
    "also.answers_may_change": "Could also be: answers that are worse now; bytes and times do not show that.",
    "also.effects_cancel": "Could also be: two changes that set each other off.",
    "also.ended_by_itself": "Likely: the model ended its answer by itself.",
    "also.engine_rounds": "Could also be: the engine rounds such a value, or chooses its own.",
    "also.errors_cancel": "Could also be: two errors that set each other off.",
    "also.heap_grew": "Could also be, in part: the allocator's heap, which the first request makes larger.",
    "also.history_edited": "Could also be: a template, or an app, that changes or shortens earlier turns; kvscope "
    "reuse compares two requests.",
    "also.other_questions": "Could also be: these questions; others may be easier or harder.",
    "also.other_template": "Could also be: a chat template, or a tokenizer, other than the one kvscope read.",
    "also.other_texts": "Could also be: these texts; others may tell more or less.",
    "also.others_took_it": "Could also be: another program that took the memory, the port or the processor.",
    "also.rule_of_this_build": "Could also be: rules learned from this very build; another one may have others.",
    "also.runtime_not_calibrated": "Could also be: the engine's own run time, which no file predicts.",
    "also.short_conversation": "Could also be: a conversation too short for it to matter.",
    "also.small_steps": "Growth of less than 0.5 MiB a conversation is not told from an allocator's own steps.",
    "also.smaller_than_told": "Could also be: a difference smaller than these repeats can tell.",
    "also.weights_not_read": "Could also be: pages of the file that were not read yet; they count when they are.",
    "also.window_kept_whole": "Could also be: an engine that keeps the whole cache of windows too (swa_full).",
    "check_by.ask_for_answers": "To check: the same design with --quality needle.",
    "check_by.finish_reasons": "To check: column finish_reason of kvscope export.",
    "check_by.longer_context": "To check: kvscope measure context_limit with longer --levels.",
    "check_by.longer_prompts": "To check: the same design with more --input-tokens.",
    "check_by.more_questions": "To check: more questions of more documents, and the answers themselves in the record "
    "(table answers).",
    "check_by.more_texts": "To check: more texts, of other kinds.",
    "check_by.one_factor": "To check: vary one of the two alone.",
    "check_by.run_again": "To check: run the same command again; it repeats what failed.",
}
