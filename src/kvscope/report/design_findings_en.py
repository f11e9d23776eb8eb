"""What designs say of their rows, in English: sentences by slug, what else could be, how to check, and how a size is
written. {condition}: the changed level as a person writes it; {base}: the level it is compared with."""

from collections.abc import Mapping

from kvscope.report.load_findings_en import LOAD_FINDINGS
from kvscope.report.prefix_findings_en import PREFIX_FINDINGS
from kvscope.report.quality_findings_en import QUALITY_FINDINGS
from kvscope.report.retrieval_findings_en import RETRIEVAL_FINDINGS

_DIFFERENCE_S = "{metric} with {condition}: {difference_s:signed_s} against {base} ({share:signed_percent} of its "
_TELLS_NOTHING = (
    "{metric} with {condition}: these repeats tell nothing, the noise is larger than the value itself. A quiet machine "
    "helps more than repeats."
)
_NOT_YET = (
    "{metric} with {condition}: {pairs:count} pairs are too few to tell a difference from {base} from noise, block by "
    "block. About {needed:count} repeats would tell one "
)
_MEMORY = "{metric} with {condition}: {difference_bytes:signed_mib2} against {base}"
_SAME_MEMORY = "{metric} with {condition}: the same as with {base} in each of {pairs:count} pairs, to a page of 4 KiB"
_NO_MEMORY = (
    "{metric} with {condition}: no difference from {base} is seen. One of more than {ruled_out_bytes:mib2} is ruled out"
)
_UNTOLD_MEMORY = (
    "{metric} with {condition}: these repeats cannot tell a difference from {base} from noise; only one of more than "
    "{ruled_out_bytes:mib2} is ruled out. About {needed:count} repeats would tell one of {target_bytes:mib2}, if it is "
    "there."
)
_BUFFERS = "by prediction its buffer differs by {predicted_bytes:signed_mib2}"
_BESIDE = (
    "By prediction its buffer differs by {predicted_bytes:signed_mib2}, which the interval excludes: measured less "
    "predicted is {beyond_bytes:signed_mib2} (95 % interval {beyond_low_bytes:signed_mib2} to "
    "{beyond_high_bytes:signed_mib2})."
)
_DIFFERENCE_RATE = (
    "{metric} with {condition}: {difference_per_s:signed_rate} tokens/s against {base} ({share:signed_percent} of its "
)
_BUFFER = (
    "{component} with {condition}: {difference_bytes:signed_mib2} against {base} ({predicted_bytes:mib2} instead of "
    "{baseline_predicted_bytes:mib2})"
)
_LOG = "{reported_mib} and {baseline_reported_mib} MiB"
_COPY = "{copy_bytes:mib2} for {tokens:count} tokens by the engine's log"

_COPIES = (
    f"With {{condition}} each further conversation leaves a copy of its tokens: {_COPY}, of which {{kv_bytes:mib2}} "
    "are keys and values by prediction and {beside_bytes:bytes} a token stand beside them. Measured: "
    "{growth_bytes:signed_mib2} for each. After {conversations} conversations"
)

_LINEAR = "TTFT from {from_tokens:count} to {to_tokens:count} prompt tokens:"
_START = "{intercept_low_s:s} to {intercept_high_s:s}, 95 %"

_LEVELS: dict[str, str] = {
    "finding.buffer_confirmed": f"{_BUFFER}. The prediction, the engine's log ({_LOG}) and what is in memory agree.",
    "finding.buffer_reported": f"{_BUFFER}. The prediction and the engine's log ({_LOG}) agree; what of it is in "
    "memory cannot be told from other buffers.",
    "finding.buffer_predicted_only": f"{_BUFFER} by prediction; the engine does not say.",
    "finding.buffer_reported_only": "{component} with {condition}: the engine's log says {reported_mib} MiB, and "
    "{baseline_reported_mib} MiB with {base}; nothing was predicted.",
    "finding.buffer_contradicted": f"{_BUFFER} by prediction. The engine's log says otherwise: {_LOG}.",
    "finding.buffer_not_in_memory": f"{_BUFFER} by prediction and by the engine's log ({_LOG}). In memory the "
    "difference is {seen_difference_bytes:signed_mib2}.",
    "finding.memory_more": f"{_MEMORY}.",
    "finding.memory_less": f"{_MEMORY}.",
    "finding.memory_equal": f"{_SAME_MEMORY}.",
    "finding.memory_no_difference_seen": f"{_NO_MEMORY}.",
    "finding.memory_cannot_tell": f"{_UNTOLD_MEMORY}",
    "finding.memory_unknown": f"{_MEMORY}, in {{pairs}} pair: too few to tell a difference from noise.",
    "finding.memory_more_predicted": f"{_MEMORY}; {_BUFFERS}, which the interval holds.",
    "finding.memory_less_predicted": f"{_MEMORY}; {_BUFFERS}, which the interval holds.",
    "finding.memory_equal_predicted": f"{_SAME_MEMORY}; {_BUFFERS}.",
    "finding.memory_no_difference_seen_predicted": f"{_NO_MEMORY}; {_BUFFERS}.",
    "finding.memory_cannot_tell_predicted": f"{_UNTOLD_MEMORY} By prediction its buffer differs by "
    "{predicted_bytes:signed_mib2}.",
    "finding.memory_unknown_predicted": f"{_MEMORY}, in {{pairs}} pair: too few to tell a difference from noise. By "
    "prediction its buffer differs by {predicted_bytes:signed_mib2}.",
    "finding.memory_more_beside": f"{_MEMORY}. {_BESIDE}",
    "finding.memory_less_beside": f"{_MEMORY}. {_BESIDE}",
    "finding.memory_equal_beside": f"{_SAME_MEMORY}. {_BESIDE}",
    "finding.memory_no_difference_seen_beside": f"{_NO_MEMORY}. {_BESIDE}",
    "finding.rate_more": f"{_DIFFERENCE_RATE}{{baseline_per_s:rate}}).",
    "finding.rate_less": f"{_DIFFERENCE_RATE}{{baseline_per_s:rate}}).",
    "finding.rate_equal": "{metric} with {condition}: the same as with {base} in each of {pairs:count} pairs.",
    "finding.rate_no_difference_seen": "{metric} with {condition}: no difference from {base} is seen. One of more than "
    "{ruled_out_share:percent} ({ruled_out_per_s:rate} tokens/s) is ruled out.",
    "finding.rate_cannot_tell": "{metric} with {condition}: these repeats cannot tell a difference from {base} from "
    "noise; only one of more than {ruled_out_share:percent} ({ruled_out_per_s:rate} tokens/s) is ruled out. About "
    "{needed:count} repeats would tell one of {target_per_s:rate} tokens/s, if it is there.",
    "finding.rate_cannot_tell_at_all": _TELLS_NOTHING,
    "finding.rate_cannot_tell_yet": f"{_NOT_YET}of {{target_per_s:rate}} tokens/s, if it is there.",
    "finding.rate_unknown": f"{_DIFFERENCE_RATE}{{baseline_per_s:rate}}), in {{pairs}} pair: too few to tell a "
    "difference from noise.",
    "finding.time_more": f"{_DIFFERENCE_S}{{baseline_s:s}}).",
    "finding.time_less": f"{_DIFFERENCE_S}{{baseline_s:s}}).",
    "finding.time_no_difference_seen": "{metric} with {condition}: no difference from {base} is seen. One of more than "
    "{ruled_out_share:percent} ({ruled_out_s:s}) is ruled out.",
    "finding.time_equal": "{metric} with {condition}: the same as with {base} in each of {pairs:count} pairs.",
    "finding.time_cannot_tell": "{metric} with {condition}: these repeats cannot tell a difference from {base} from "
    "noise; only one of more than {ruled_out_share:percent} ({ruled_out_s:s}) is ruled out. About {needed:count} "
    "repeats would tell one of {target_s:s}, if it is there.",
    "finding.time_cannot_tell_at_all": _TELLS_NOTHING,
    "finding.time_cannot_tell_yet": f"{_NOT_YET}of {{target_s:s}}, if it is there.",
    "finding.time_unknown": f"{_DIFFERENCE_S}{{baseline_s:s}}), in {{pairs}} pair: too few to tell a difference from "
    "noise.",
    "finding.answers_not_judged": "Whether the answers are still right is not judged here: these are bytes and times.",
    "finding.level_not_taken": "With {condition} the engine used {used} instead: that is what was measured there.",
    "finding.microbatch_not_filled": "With {condition} no microbatch was ever full: the prompts had "
    "{prompt_tokens:count} tokens. Its buffer is reserved all the same, and only in part in memory.",
    "finding.offload_nothing_moved": "With {condition} nothing was moved: the engine's own log has {places:list}, all "
    "of it in host memory, as with {base}. In {unconfirmed} of {measured} trials it did not confirm the setting. Any "
    "difference in time between the two is noise.",
    "finding.offload_moved": "With {condition} the engine's own log has {places:list}; with {base}: "
    "{baseline_places:list}.",
    "finding.offload_not_stated": "With {condition} the engine does not say where its buffers are; what memory on the "
    "host and on devices says follows.",
}
_DESIGNS: dict[str, str] = {
    "finding.reuse_differs": "The last turn reused {cached_tokens:count} of its {prompt_tokens:count} tokens with "
    "{condition}, and {baseline_cached_tokens:count} with {base}.",
    "finding.reuse_equal": "The last turn reused {cached_tokens:count} of its {prompt_tokens:count} tokens with "
    "{condition}, and as many with {base}: keeping only the windows lost nothing of this conversation.",
    "finding.reuse_unclear": "The last turn reused {cached_tokens:count} of its {prompt_tokens:count} tokens with "
    "{condition}, and {baseline_cached_tokens:count} with {base}, from one repeat to the next not always the same: no "
    "difference is seen.",
    "finding.window_checkpoints": "With {condition} the engine held {count:count} context checkpoints after the last "
    "turn, {held_bytes:mib2} by its log: copies of the windows beside the cache, from which a later turn can start.",
    "finding.host_cache_as_predicted": f"{_COPIES} {{copies}} copies hold {{held_bytes:mib2}}.",
    "finding.host_cache_as_predicted_with_warmup": f"{_COPIES} {{copies}} copies, the warm-up's among them, hold "
    "{held_bytes:mib2}.",
    "finding.host_cache_bounded": "With {condition} the copies stop at their limit: {copies} hold {held_bytes:mib2} of "
    f"at most {{limit_bytes:mib2}}, and older ones were dropped. One copy: {_COPY}, {{kv_bytes:mib2}} of it keys and "
    "values by prediction. The last conversations added {growth_bytes:signed_mib2} each.",
    "finding.host_cache_with_checkpoints": "With {condition} each further conversation leaves a copy with its context "
    f"checkpoints: {_COPY}, of which {{kv_bytes:mib2}} are keys and values by prediction if none were dropped. "
    "Measured: {growth_bytes:signed_mib2} for each.",
    "finding.host_cache_none_kept": "With {condition} no copies are kept: a further conversation added "
    "{growth_bytes:signed_mib2}.",
    "finding.host_cache_nothing_listed": "With {condition} the engine lists no copies of prompts; a further "
    "conversation added {growth_bytes:signed_mib2}.",
    "finding.host_cache_listed_only": f"With {{condition}} each further conversation leaves a copy: {_COPY}; nothing "
    "was predicted. Measured: {growth_bytes:signed_mib2} for each.",
    "finding.host_cache_differs": f"With {{condition}} a copy is not what its tokens' keys and values take: {_COPY}, "
    "against {kv_bytes:mib2} by prediction. The engine writes no more than 16 bytes a token beside them.",
    "finding.host_cache_over_limit": "With {condition} {copies} copies hold {held_bytes:mib2}, more than the "
    "{limit_bytes:mib2} that they may take.",
    "finding.input_length_linear": f"{_LINEAR} {{intercept_s:s}} to begin with ({_START}), and {{linear_s:s}} for each "
    "1,000 tokens.",
    "finding.input_length_linear_start_unclear": f"{_LINEAR} {{linear_s:s}} for each 1,000 tokens. What there is to "
    f"begin with cannot be told from nothing ({{intercept_s:s}}, {_START}).",
    "finding.input_length_linear_from_below": f"{_LINEAR} {{linear_s:s}} for each 1,000 tokens. By this law it would "
    f"begin below zero ({{intercept_s:s}}, {_START}), so it is another law for prompts shorter than these.",
    "finding.input_length_linear_unclear": "TTFT from {from_tokens:count} to {to_tokens:count} prompt tokens: what "
    "each token costs by itself, apart from its square, cannot be told from noise here ({linear_s:s} for each 1,000 "
    "tokens).",
    "finding.input_length_quadratic": "Besides, TTFT grows with the square of the length: {quadratic_s:s} for "
    "(1,000 tokens)². At {longest_tokens:count} tokens that is {part_s:s} ({part_low_s:s} to {part_high_s:s}, 95 %) "
    "of {total_s:s}. By this law a prompt of {further_tokens:count} tokens waits {further_s:s} ({further_low_s:s} to "
    "{further_high_s:s}, 95 %).",
    "finding.input_length_quadratic_not_seen": "That TTFT grows with the square of the length is not seen: at "
    "{longest_tokens:count} tokens such a part is at most {most_s:s} of {total_s:s}.",
    "finding.input_length_quadratic_cannot_tell": "Whether TTFT grows with the square of the length cannot be told "
    "from noise here: at {longest_tokens:count} tokens such a part is {part_low_s:signed_s} to {part_high_s:signed_s} "
    "(95 %) beside {total_s:s} in all.",
    "finding.input_length_bends_down": "TTFT grows by less for each further token the longer the prompt is: at "
    "{longest_tokens:count} tokens it is {part_s:signed_s} ({part_low_s:signed_s} to {part_high_s:signed_s}, 95 %) "
    "from a straight line.",
    "finding.input_length_quadratic_unknown": "Whether TTFT grows faster than its tokens cannot be told: an interval "
    "needs two repeats of three lengths, and there are {blocks:count}.",
    "finding.turns_last": "With {condition} the last turn waited {ttft_s:s} for its first token (the mean of its "
    "repeats); of its {prompt_span:span} prompt tokens {computed_span:span} were computed anew.",
    "finding.turns_last_unstated": "With {condition} the last turn, of {prompt_span:span} prompt tokens, waited "
    "{ttft_s:s} for its first token (the mean of its repeats); the server does not state what of it was reused.",
    "finding.output_length_per_token": "Each further output token takes {per_token_s:s} (answers of "
    "{from_tokens:count} to {to_tokens:count} tokens, as produced).",
    "finding.output_length_per_token_unclear": "What each further output token takes cannot be told from noise "
    "({per_token_s:s}; answers of {from_tokens:count} to {to_tokens:count} tokens, as produced).",
    "finding.output_length_short": "Not every answer reached its limit ({limits:list}): the shortest had "
    "{fewest:count} tokens. Times are held against what was produced.",
    "finding.grid_label": "A grid of {factors}, {cells:count} cells, each compared with the baseline cell "
    "({baseline}). Where both factors changed, a difference is laid to neither alone.",
    "finding.interaction_time_seen": "{metric} with {condition}: the two changes together make {beyond_s:signed_s} "
    "beside what each makes alone, added up. They act on one another.",
    "finding.interaction_time_not_seen": "{metric} with {condition}: that the two changes act on one another is not "
    "seen; more than {ruled_out_s:s} of it is ruled out.",
    "finding.interaction_time_unknown": "{metric} with {condition}: whether the two changes act on one another cannot "
    "be told from {pairs:count} repeat.",
    "finding.interaction_time_cannot_tell": "{metric} with {condition}: these repeats cannot tell whether the two "
    "changes act on one another; only more than {ruled_out_s:s} of it is ruled out.",
    "finding.interaction_memory_cannot_tell": "{metric} with {condition}: these repeats cannot tell whether the two "
    "changes act on one another; only more than {ruled_out_bytes:mib2} of it is ruled out.",
    "finding.interaction_memory_seen": "{metric} with {condition}: the two changes together make "
    "{beyond_bytes:signed_mib2} beside what each makes alone, added up. They act on one another.",
    "finding.interaction_memory_not_seen": "{metric} with {condition}: that the two changes act on one another is not "
    "seen; more than {ruled_out_bytes:mib2} of it is ruled out.",
    "finding.interaction_memory_unknown": "{metric} with {condition}: whether the two changes act on one another "
    "cannot be told from {pairs:count} repeat.",
}
_REMARKS: dict[str, str] = {
    "claim.evidence": "The trials behind each of these: kvscope report --json, under evidence.",
    "claim.baseline_cell": "the baseline cell",
    "claim.setting": "{name} = {value}",
    "moment.memory_loaded_bytes": "All memory after the load",
    "moment.memory_after_bytes": "All memory after the requests",
    "moment.memory_peak_bytes": "The most memory seen",
    "moment.memory_loaded_bytes_device": "Memory on devices after the load",
    "moment.memory_after_bytes_device": "Memory on devices after the requests",
    "size.difference_s": "95 % interval {low:signed_s} to {high:signed_s}, {num} pairs.",
    "size.difference_per_s": "95 % interval {low:signed_rate} to {high:signed_rate} tokens/s, {num} pairs.",
    "size.difference_bytes": "95 % interval {low:signed_mib2} to {high:signed_mib2}, {num} pairs.",
    "size.seen_bytes": "As seen in memory: {value:signed_mib2}, 95 % interval {low:signed_mib2} to {high:signed_mib2}, "
    "{num} pairs.",
    "size.difference_tokens": "Difference {value:count} tokens, 95 % interval {low:count} to {high:count}, {num} "
    "pairs.",
    "size.growth_bytes": "From one conversation to the next {low:signed_mib2} to {high:signed_mib2} (95 %), from "
    "{num}.",
    "size.wait_s": "95 % interval {low:s} to {high:s}, {num} repeats.",
    "size.thousand_s": "95 % interval {low:s} to {high:s} for each 1,000 tokens, {num} repeats.",
    "size.thousand_squared_s": "95 % interval {low:s} to {high:s} for (1,000 tokens)², {num} repeats.",
    "size.output_token_s": "95 % interval {low:s} to {high:s} for each token, by the longest less the shortest of "
    "{num} repeats: another than by the line through all trials.",
    "also.other_buffers_follow_level": "What makes the rest: other memory that changed with it, and parts of buffers "
    "that were never touched; the record has each mapping.",
    "also.prediction_excluded": "The interval leaves out the prediction, which is less than 1 % away.",
    "also.build_without_device": "Could also be: an accelerator that this build of the engine does not support; "
    "kvscope doctor lists what is there.",
    "also.one_of_several": "This interval alone leaves out zero; the wider one that holds for all levels together does "
    "not.",
    "also.answers_differ": "Could also be: answers that differ between the two, which make another history.",
    "also.checkpoints_in_copies": "Some copies hold context checkpoints too: they are larger than their tokens' cache.",
    "also.caches_of_processor": "Could also be: keys and values that no longer fit the processor's caches.",
    "also.both_factors_changed": "Both factors changed in this cell: the difference belongs to neither alone.",
    "check_by.engine_lines": "To check: the engine's own lines are in the record (table reported_buffers).",
    "check_by.until_narrow": "To check: the same design with --until 5%.",
    "check_by.measure_further": "To check: add that length to --levels.",
    "check_by.cached_column": "To check: column cached_tokens of kvscope export, and the engine's own timings.",
}

DESIGN_FINDINGS: Mapping[str, str] = {
    **_LEVELS,
    **_DESIGNS,
    **_REMARKS,
    **PREFIX_FINDINGS,
    **LOAD_FINDINGS,
    **RETRIEVAL_FINDINGS,
    **QUALITY_FINDINGS,
}
