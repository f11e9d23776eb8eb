"""What is said of advice, in English: what to change first, what it saves and costs, its risk, and what is not advised.

A change is shown as it is given to the engine ({flags}). "Predicted only" stands wherever nothing was measured.
"""

from collections.abc import Mapping

_INTERVAL = "(95 % interval {low:mib} to {high:mib})"
_SECONDS = "(95 % interval {low:s} to {high:s})"

_LEADS = {
    "title.advice": "What should change first?",
    "advice.lead_one": "One change would help here.",
    "advice.lead": "{count} changes would help here. What helps most stands first.",
    "advice.none": "Nothing stands out that should be changed: nothing that was measured here helps, and no "
    "prediction "
    "promises anything worth its price.",
    "advice.none_free": "Nothing needs to be changed for memory, and nothing that was measured here shortens the wait.",
    "advice.growing": "Memory goes on growing, and no setting is known here that ends it. Restart the engine before "
    "what is free ends, and look for what it keeps: kvscope measure release --requests 12.",
    "advice.none_failed": "No setting is known that would mend what failed here. What to do is said where the failures "
    "are.",
    "advice.none_mends": "No single change that kvscope knows makes this fit.",
    "advice.lead_wait": "Memory is no trouble here. What costs is the wait: the first token of a prompt of "
    "{tokens:count} tokens came after {time_s:s}. What would shorten it was not compared.",
    "advice.nothing_compared": "No design of this record compared settings, so nothing can be said of what would "
    "shorten the wait. To look: {command}",
    "advice.look_too": "And: {command}",
    "summary.priced_free": "If memory were short: what single changes would save, and what they may cost (predicted "
    "only)",
    "summary.priced": "All single changes that should save memory, and what they may cost (predicted only)",
    "caption.priced": "What each change alone should save at {context_tokens:count} tokens of context, by the "
    "engine's allocation rules. Predicted only: nothing of it was measured for this table.",
    "caption.priced_alone": "What each change alone should save, by the engine's allocation rules. Predicted only: "
    "nothing of it was measured for this table.",
    "col.priced_change": "single change",
    "col.priced_saves": "saves, MiB (predicted)",
    "col.priced_costs": "may cost",
    "price.at_most": "at most {held} of {reserved}",
    "price.few_bits": "So few bits are known to cost answers on many models.",
    "pressure.partly": "Only {run} of {planned} planned trials were run, so this is about those alone.",
    "pressure.free": "Memory is no trouble for what was run here: the engine grew by {used_bytes:bytes} up to its "
    "peak, of the {free_bytes:bytes} that were free before it started, and all {trained_tokens:count} tokens that the "
    "model was trained for would fit. So nothing is advised that would pay for memory with time or answers.",
    "pressure.copies_outgrow": "Memory is no trouble for what was run here: the engine grew by {used_bytes:bytes} up "
    "to its peak, of the {free_bytes:bytes} that were free before it started. But copies of earlier prompts may still "
    "take {to_go_bytes:bytes}, and {left_bytes:bytes} are left. So only what ends their growth is advised for memory.",
    "pressure.limits_length": "All that ran fitted. Memory ends at {tokens:count} tokens (predicted), before the "
    "{trained_tokens:count} that the model was trained for: what saves memory makes longer contexts possible.",
    "pressure.ran_out": "Memory is short here: {failed} of {total} trials ran out of it, or were not run because "
    "they "
    "would not fit.",
    "pressure.swapping": "Memory is short here: the machine swapped during {count} of {total} trials.",
    "pressure.nearly_full": "Memory is short here: the engine grew by {used_bytes:bytes} up to its peak, of the "
    "{free_bytes:bytes} that "
    "were free before it started.",
    "pressure.growing": "Memory goes on growing here: {step_bytes:mib} with each conversation, and no limit is known "
    "that ends it. All that ran fitted; of what was free before the start {left_bytes:bytes} were left at the peak, "
    "and at this rate they end after {conversations:count} more conversations.",
    "pressure.growing_alone": "Memory goes on growing here: {step_bytes:mib} with each conversation, and no limit is "
    "known that ends it. How much was left free is not known.",
    "pressure.unknown": "Whether memory is short here is not known: the record does not say how much was free, or "
    "what "
    "binds the length.",
}

_LEFT_OUT = {
    "left_out.trials": "{left} of {planned} planned trials were not run: the time was over, or it was ended.",
    "left_out.memory": "So what a token of context costs is not measured.",
    "left_out.wait": "So the headline says nothing of how the wait grows with the prompt.",
    "left_out.next": "The same command goes on where it stopped.",
    "left_out.designs": "Planned, and not begun: {names:list}. They are left out here; the same command goes on where "
    "it stopped.",
    "left_out.repeats": "{run} of {planned}",
    "left_out.repeats_span": "{fewest} to {most} of {planned}",
}

_CHANGES = {
    "advice.cache_type": "Keep the KV cache in fewer bits: {flags}",
    "advice.cache_offloaded": "Keep the KV cache in host memory: {flags}",
    "advice.context": "Reserve the context that is used: {flags}. The longest request here held {need_tokens:count} "
    "tokens, and {limit_tokens:count} are reserved.",
    "advice.context_longer": "Make the context longer: {flags}. A prompt and its answer need {need_tokens:count} "
    "tokens here, and one conversation may hold {limit_tokens:count}. Or send shorter prompts.",
    "advice.prompt_shorter": "Send shorter prompts, or ask for shorter answers: together they need "
    "{need_tokens:count} tokens here, and the model was trained for {trained_tokens:count}. A longer context limit "
    "would not help.",
    "advice.context_trained": "Lower the context limit to what the model was trained for: {flags}. "
    "{limit_tokens:count} tokens are asked for, and the model was trained for {trained_tokens:count}: no "
    "conversation can use more.",
    "advice.microbatch_smaller": "Compute fewer prompt tokens at once: {flags}",
    "advice.microbatch_larger": "Compute more prompt tokens at once: {flags}",
    "advice.window_only": "Keep only the windows of sliding layers: {flags}",
    "advice.window_whole": "Keep the cache of sliding layers whole: {flags}",
    "advice.flash_on": "Use flash attention: {flags}",
    "advice.flash_off": "Leave flash attention off: {flags}",
    "advice.host_cache": "Keep fewer copies of earlier prompts: {flags}",
    "advice.host_cache_limit": "Give the copies of earlier prompts a lower limit: {flags}. They may grow to "
    "{limit_bytes:bytes}, and {left_bytes:bytes} are left on this machine.",
    "advice.slots": "Use one slot, since requests here came one at a time: {flags}",
    "advice.unified": "Change how slots share the cache: {flags}",
    "advice.repack_off": "Do without rearranged copies of weights: {flags}",
    "advice.repack_on": "Rearrange weights for this processor: {flags}",
    "advice.load_mode": "Load the weights in another way: {flags}",
    "advice.weights_dtype": "Load the weights in another format: {flags}",
    "advice.setting": "Set {flags}",
    "advice.stable_prefix": "Keep the beginning of your prompts the same, and put what changes (a clock, an id, "
    "retrieved text) at the end.",
    "advice.history": "Let later turns reuse their history. From turn {turn} on it is computed again: of the "
    "{held_tokens:count} tokens that had been sent before turn {last_turn}, {cached_tokens:count} were reused. Look "
    "for "
    "what changes or drops earlier turns.",
    "advice.history_reasoning": "Leave earlier turns as they were: the chat template drops what the model thought in "
    "them, so from turn {turn} on the history is computed again. Let the template keep it, or turn thinking off "
    "where "
    "the model allows it.",
    "advice.history_window": "Let later turns reuse their history: {flags}. From turn {turn} on it is computed "
    "again: "
    "what has left a sliding window cannot be reused.",
}

_SAVES = {
    "advice.memory_measured": "Measured: {value:mib} less at the peak " + _INTERVAL + ", {num} pairs.",
    "advice.memory_slope": "By the price of a token as measured here: {value:mib} less " + _INTERVAL + ".",
    "advice.memory_once": "Seen in one trial: {value:mib}. One trial gives no interval.",
    "advice.memory_predicted": "Predicted only: {value:mib} less are reserved. No design of this record measured it.",
    "advice.memory_at_most": "Predicted only: {reserved_bytes:mib} less are reserved, of which at most {value:mib} "
    "were in memory here. No design of this record measured it.",
    "advice.memory_estimated": "Predicted only, as an estimate: {value:mib} less. No design of this record measured "
    "it.",
    "advice.memory_too_few": "Predicted only: {value:mib} less. It was run here, but one repeat gives no interval.",
    "advice.memory_bounded": "Predicted only: at most {value:bytes} less, once the copies would have taken all that is "
    "left or allowed.",
    "advice.memory_more_predicted": "It costs memory: {value:mib} more are reserved. Predicted only.",
    "advice.also_predicted": "Predicted were {value:mib}.",
    "advice.time_measured": "Measured: {metric} is {value:s} shorter " + _SECONDS + ", {num} pairs.",
    "advice.time_predicted": "Predicted only, from the times of this record: the first token should come {value:s} "
    "sooner.",
}

_COSTS = {
    "advice_cost.time_more": "It costs time: {metric} is {value:s} longer " + _SECONDS + ".",
    "advice_cost.time_less": "It also saves time: {metric} is {value_less:s} shorter (95 % interval {low_less:s} to "
    "{high_less:s}).",
    "advice_cost.time_equal": "The same {metric} in every pair.",
    "advice_cost.time_no_difference_seen": "No difference seen in {metric} (95 % interval of the difference "
    "{low:signed_s} to {high:signed_s}).",
    "advice_cost.time_cannot_tell": "Too noisy to tell a difference in {metric} (95 % interval {low:signed_s} to "
    "{high:signed_s}).",
    "advice_cost.time_unknown": "One repeat tells nothing of {metric}.",
    "advice_cost.time_nothing": "What it does to times was not measured here.",
    "advice.limited": "In {count} of these {total} trials kvscope itself had too little of the processor: their times "
    "may be too long.",
    "advice_cost.memory_more": "It costs memory: {value:mib} more at the peak " + _INTERVAL + ".",
    "advice_cost.memory_less": "It also saves memory: {value_less:mib} less at the peak.",
    "advice_cost.memory_equal": "The same memory at the peak in every pair.",
    "advice_cost.memory_no_difference_seen": "No difference seen in memory at the peak (95 % interval of the "
    "difference {low:signed_mib} to {high:signed_mib}).",
    "advice_cost.memory_cannot_tell": "Too noisy to tell a difference in memory (95 % interval {low:signed_mib} to "
    "{high:signed_mib}).",
    "advice_cost.memory_unknown": "One repeat tells nothing of memory.",
    "advice_quality.not_measured": "Answers: quality not measured here.",
    "advice_quality.not_touched": "Answers: it is not meant to change them. Quality not measured here.",
    "advice_quality.no_loss": "Answers: measured here, and no loss was seen.",
    "advice_quality.moved": "Answers: the model moved by more than noise (KL {value:nats} nats per token). Whether "
    "answers get worse by it was not seen here.",
    "advice_quality.gain": "Answers: measured here, and more of them were right.",
    "advice_quality.loss": "Answers: some were lost.",
    "advice_quality.cannot_tell": "Answers: asked here, and they do not tell whether any are lost.",
}

_RISKS = {
    "risk.cache_type": "Fewer bits can cost answers, first in long documents, exact copying and arithmetic.",
    "risk.cache_offloaded": "Every layer's cache travels to the device when it is needed, which takes time.",
    "risk.context": "A request that is longer than this is refused or cut.",
    "risk.context_longer": "The cache is reserved when the engine loads, so the memory is taken whether or not it is "
    "used.",
    "risk.prompt_shorter": "What is left out of a prompt cannot be answered from.",
    "risk.context_trained": "Nothing is lost: what is longer is refused or cut with either limit.",
    "risk.microbatch_smaller": "Long prompts are read in smaller pieces, so the first token may come later.",
    "risk.microbatch_larger": "The compute buffer grows with it, and a machine that is nearly full may run out of "
    "memory.",
    "risk.window_only": "What has left a window cannot be reused, so an earlier point of a conversation is computed "
    "anew.",
    "risk.window_whole": "The cache of these layers then grows with the context like any other.",
    "risk.flash_on": "On some devices another kernel is used, so times should be measured.",
    "risk.flash_off": "Scratch memory grows with the context, and quantised values cannot be used without it.",
    "risk.host_cache": "A conversation that comes back after others is computed anew.",
    "risk.host_cache_limit": "Fewer conversations can come back without being computed anew.",
    "risk.slots": "Requests that come together wait for each other.",
    "risk.unified": "Slots that share one cache may run out together; slots of their own each have less.",
    "risk.repack_off": "Matrix products on a processor get slower, the reading of prompts most of all.",
    "risk.repack_on": "Some weights are then in memory twice.",
    "risk.load_mode": "Memory moves between the process and pages of the file, which the system may drop and read "
    "again.",
    "risk.weights_dtype": "Another format of the weights can change answers.",
    "risk.setting": "kvscope knows nothing else of this setting: what was measured here is all that stands for it.",
    "risk.stable_prefix": "It only helps as long as the engine still holds the beginning: others' requests may push "
    "it out.",
    "risk.history": "If something else breaks the reuse, the wait stays as it is; the cached_tokens of each turn "
    "show it.",
    "risk.history_reasoning": "Thoughts that stay in the history take room in the context; without thinking, "
    "answers may "
    "get worse.",
    "risk.history_window": "The cache of these layers then grows with the context like any other, which costs memory.",
    "advice.check": "To check: {command}",
    "advice.check_again": "To repeat it with more repeats: {command}",
    "advice.check_reuse": "To check: kvscope measure turns, or kvscope measure prefix_reuse, and compare "
    "cached_tokens.",
}

_WITHHELD = {
    "withheld.lead": "Measured here, and not advised:",
    "withheld.saved_nothing": "{flags}: memory at the peak was measured, and nothing was saved ({size}).",
    "withheld.saved_nothing_predicted": "{flags}: {predicted:mib} were predicted to be saved, and nothing was saved "
    "({size}).",
    "withheld.too_small": "{flags}: what it saves is too little to matter ({size}).",
    "withheld.lost_answers": "{flags}: it saves, but answers were lost.",
    "withheld.moved": "{flags}: it saves, but caches of so few bits are known to cost answers, and nothing here "
    "shows "
    "that this one does not.",
    "withheld.memory_free": "{flags}: it saves memory ({size}), but memory is no trouble for what was run here, and "
    "it "
    "is not shown that it costs nothing.",
    "withheld.slower": "{flags}: it shortens one wait and lengthens another.",
    "withheld.mixed": "{flags}: it helps in one condition and costs in another.",
    "withheld.not_sure": "{flags}: it seemed faster ({size}), but among so many comparisons one such is expected by "
    "chance. More repeats would tell.",
    "withheld.size_memory": "difference {value:signed_mib}",
    "withheld.size_memory_interval": "difference {value:signed_mib}, 95 % interval {low:signed_mib} to "
    "{high:signed_mib}",
    "withheld.size_time": "{metric} {value:signed_s}, 95 % interval {low:signed_s} to {high:signed_s}",
}

_SHORT = {
    "advice_short.memory_measured": "{flags} saves {size:mib} (measured).",
    "advice_short.memory_predicted": "{flags} should save {size:mib} (predicted only).",
    "advice_short.memory_at_most": "{flags} should save at most {size:mib} (predicted only; {reserved_bytes:mib} less "
    "are reserved).",
    "advice_short.waiting_measured": "{flags} shortens {metric} by {size:s} (measured).",
    "advice_short.waiting_predicted": "{flags} should bring the first token {size:s} sooner (predicted only).",
    "advice_short.stable_prefix": "A beginning of the prompt that stays the same brings the first token {size:s} "
    "sooner "
    "(measured).",
    "advice_short.history": "A history that is reused should bring the first token {size:s} sooner (predicted only).",
    "advice_short.host_cache_limit": "{flags} keeps copies of prompts from taking up to {size:bytes} more (predicted "
    "only).",
    "advice_short.context_longer": "{flags} makes room for the {need_tokens:count} tokens of a prompt and its answer "
    "({limit_tokens:count} are allowed now), or send shorter prompts.",
    "advice_short.prompt_shorter": "Shorter prompts: a prompt and its answer need {need_tokens:count} tokens, and the "
    "model was trained for {trained_tokens:count}.",
    "advice_short.context_trained": "{flags} is all that the model was trained for; {limit_tokens:count} are asked "
    "for. It should save {size:mib} (predicted only).",
    "advice_short.look": "What costs here is the wait, and nothing was compared that may shorten it. To look: "
    "{command}",
    "advice_short.growing": "Restart the engine in time, or find what it keeps: memory grows by {step_bytes:mib} with "
    "each conversation, and no limit is known that ends it. The {left_bytes:bytes} left of what was free end after "
    "{conversations:count} more.",
    "advice_short.growing_alone": "Restart the engine in time, or find what it keeps: memory grows by "
    "{step_bytes:mib} with each conversation, and no limit is known that ends it.",
    "advice_short.line": "What to change first: {line}",
    "advice_short.none": "Nothing stands out that should be changed.",
    "advice_short.none_free": "Nothing needs to be changed: memory is no trouble for what was run here.",
    "advice_short.none_free_partly": "Memory is no trouble for the {run} of {planned} planned trials that were run.",
}

ADVICE: Mapping[str, str] = {**_LEADS, **_LEFT_OUT, **_CHANGES, **_SAVES, **_COSTS, **_RISKS, **_WITHHELD, **_SHORT}
