"""Findings in English: as a claim with its remarks for the page, and in short for the terminal."""

from collections.abc import Mapping

from kvscope.report.design_findings_en import DESIGN_FINDINGS
from kvscope.report.finding_remarks_en import FINDING_REMARKS

_FINDINGS: dict[str, str] = {
    "finding.reported_differs": "At a context limit of {context_tokens:count} tokens the engine's log says "
    "{reported_mib} MiB for {component} ({reported_kinds:list}); the prediction is {predicted_bytes:mib2} "
    "({predicted_kinds:list}).",
    "finding.reported_agrees": "{agreeing} of {total} buffers that the engine's log states equal the prediction, to "
    "the last digit it prints.",
    "finding.slope_agrees": "One token of context costs {predicted_bytes:count} bytes by prediction and "
    "{measured_bytes:count} by measurement ({share:percent2} apart).",
    "finding.slope_differs": "One token of context should cost {predicted_bytes:count} bytes and costs "
    "{measured_bytes:count}: {share:percent2} apart, and the interval excludes the prediction.",
    "finding.slope_measured": "One token of context costs {measured_bytes:count} bytes by measurement; nothing was "
    "predicted.",
    "finding.kv_not_resident": "Of the KV cache's {allocated_bytes:mib2} only {resident_bytes:mib2} are in memory "
    "after the load, although the engine writes all of it.",
    "finding.unexplained_small": "Of the {growth_bytes:mib} {of_what}, {unexplained_anon_bytes:signed_mib} of the "
    "process's own memory and {unexplained_file_bytes:signed_mib} of the file-backed stay unexplained "
    "({share:percent}, signs not set off against each other){at_context}.",
    "finding.unexplained_large": "Of the {growth_bytes:mib} {of_what}, {unexplained_anon_bytes:signed_mib} of the "
    "process's own memory and {unexplained_file_bytes:signed_mib} of the file-backed stay unexplained "
    "({share:percent}: more than {limit_share:percent}){at_context}.",
    "finding.unexplained_no_rules": "Of the {growth_bytes:mib} {of_what}, {unexplained_anon_bytes:signed_mib} of the "
    "process's own memory and {unexplained_file_bytes:signed_mib} of the file-backed have no name "
    "({share:percent}){at_context}: kvscope knows no rules of this engine, so the sizes of its buffers were not "
    "predicted.",
    "finding.first_microbatch_once": "Requests add memory, but not for the KV cache. A prompt of {tokens:count} "
    "tokens added {added_bytes:mib}: up to {working_bytes:mib} of it is of the {touched_max_bytes:mib} "
    "of compute and output buffers, reserved at load and touched for the first time by the first "
    "{microbatch_tokens:count} tokens. Memory added divided by tokens sent, {naive_bytes:count} bytes here, is not the "
    "price of a token.",
    "finding.checkpoints": "While it read a prompt of {tokens:count} tokens the engine copied what its sliding windows "
    "held: {checkpoint_bytes:mib} of context checkpoints, by its log and as seen.",
    "finding.tokens_mismatch": "{wrong} of {total} prompts were counted differently by the server.",
    "finding.failed": "{count} of {total} trials failed: {outcome}.",
    "finding.first_microbatch": "Requests add memory, but not for the KV cache. A prompt of {tokens:count} tokens "
    "added {added_bytes:mib}: up to {working_bytes:mib} of it is of the {touched_max_bytes:mib} of "
    "compute and output buffers, reserved at load and touched for the first time by the first "
    "{microbatch_tokens:count} tokens. Divided by the tokens it reads {shortest_naive_bytes:count} bytes a token at "
    "{shortest_tokens:count} tokens and {naive_bytes:count} at {tokens:count}, while the KV cache costs "
    "{bytes_per_token:count}: memory added divided by tokens sent is not the price of a token.",
    "finding.ttft_grows": "The first token comes after {from_s:s} with {from_tokens:count} prompt tokens and after "
    "{to_s:s} with {to_tokens:count}. Each further 1,000 tokens cost {first_step_s:s} at first and {last_step_s:s} "
    "at the end.",
    "finding.ttft_grows_once": "The first token comes after {from_s:s} with {from_tokens:count} prompt tokens and "
    "after {to_s:s} with {to_tokens:count}: {first_step_s:s} for each 1,000 tokens between.",
    "finding.ttft_unclear": "The first token comes after {from_s:s} with {from_tokens:count} prompt tokens and after "
    "{to_s:s} with {to_tokens:count}; these repeats cannot tell the difference from noise.",
    "finding.ttft_flat": "The first token comes after {from_s:s}, whether with {from_tokens:count} prompt tokens or "
    "with {to_tokens:count}: it does not change over this range.",
    "finding.ttft_falls": "The time to the first token falls as the prompt grows here: {from_s:s} with "
    "{from_tokens:count} tokens, {to_s:s} with {to_tokens:count}.",
    "finding.tpot_grows": "Every later token takes {from_s:s} after {from_tokens:count} prompt tokens and {to_s:s} "
    "after {to_tokens:count}: each step looks back at more tokens.",
    "finding.tpot_unclear": "Every later token takes {from_s:s} after {from_tokens:count} prompt tokens and {to_s:s} "
    "after {to_tokens:count}; these repeats cannot tell the difference from noise.",
    "finding.output_time": "An answer of {from_tokens:count} tokens took {from_s:s}, one of {to_tokens:count} took "
    "{to_s:s}: {size:s} for each output token.",
    "finding.output_time_unclear": "An answer of {from_tokens:count} tokens took {from_s:s}, one of "
    "{to_tokens:count} took {to_s:s}; these repeats cannot tell the difference from noise.",
    "finding.tpot_falls": "Every later token takes {from_s:s} after {from_tokens:count} prompt tokens and only "
    "{to_s:s} after {to_tokens:count}.",
    "finding.stopped_early": "Some answers ended before their limit ({limits:list}): the shortest had {fewest} "
    "tokens. The limit set is not the length generated.",
    "finding.release_released": "Released, with {factor} = {level}: after the engine's own release "
    "{kept_bytes:signed_mib} of {added_bytes:mib} stay.",
    "finding.release_released_at_exit": "Released at exit, with {factor} = {level}: the engine showed no release of "
    "its own; when its process had ended, {exited_bytes:mib} were left. {conversations} conversations moved memory "
    "by {grown_bytes:signed_mib}.",
    "finding.release_host_cache": "Retained and bounded, with {factor} = {level}: each conversation leaves "
    "{step_bytes:mib} more, and copies of earlier prompts account for it. By the engine's log they hold "
    "{held_bytes:mib} of at most {limit_bytes:bytes}: {to_go_bytes:mib} to go.",
    "finding.release_host_cache_dearer": "Retained and bounded, with {factor} = {level}: each conversation leaves "
    "{step_bytes:mib} more, the same text again {again_bytes:mib}: copies of earlier prompts, each "
    "{dearer_share:percent} dearer than the engine's log counts it. By the log they hold {held_bytes:mib} of at most "
    "{limit_bytes:bytes}: {to_go_bytes:mib} to go.",
    "finding.release_host_cache_full_running": "Retained and bounded, with {factor} = {level}: copies of earlier "
    "prompts hold {held_bytes:mib} of at most {limit_bytes:bytes} and no longer add to memory "
    "({grown_bytes:signed_mib} over {conversations} conversations). A release was not seen: the engine runs on "
    "with its model.",
    "finding.release_host_cache_over": "Retained and bounded, with {factor} = {level}: copies of earlier prompts hold "
    "{held_bytes:mib}, more than the {limit_bytes:bytes} that they may take, and added nothing in the last "
    "conversations. One copy is kept however large it is: memory follows the longest conversation.",
    "finding.release_plateau": "Retained and bounded, with {factor} = {level}: memory rose by {grown_bytes:mib} over "
    "{conversations} conversations, and the last of them added nothing. What keeps it is not known, and a release was "
    "not seen.",
    "finding.release_growing_again": "Growing, with {factor} = {level}: {again_bytes:mib} more each time that the same "
    "text was sent again, with no limit that explains it. Copies of prompts would not grow by that.",
    "finding.release_host_cache_full": "Retained and bounded, with {factor} = {level}: copies of earlier prompts hold "
    "{held_bytes:mib} of at most {limit_bytes:bytes} and no longer add to memory ({grown_bytes:signed_mib} over "
    "{conversations} conversations). After the engine's own release {kept_bytes:mib} of {added_bytes:mib} stay: "
    "{kept_by}.",
    "finding.release_prompt_copies": "Retained and bounded, with {factor} = {level}: {per_token_bytes:bytes} a token "
    "against {per_token_predicted_bytes:bytes} of cache: copies of prompts. They have grown by {held_bytes:mib} and "
    "may take {limit_bytes:bytes}: {to_go_bytes:mib} to go.",
    "finding.release_checkpoints": "Retained and bounded, with {factor} = {level}: each conversation leaves "
    "{step_bytes:mib} more, and context checkpoints account for it. They hold {held_bytes:mib} of at most "
    "{limit_bytes:bytes}.",
    "finding.release_keep_alive": "Retained and bounded, with {factor} = {level}: the server keeps its model ("
    "what it holds: {held_bytes:mib}) for {until_s:s} after the last answer (keep_alive). No leak until then.",
    "finding.release_keep_alive_until": "Retained and bounded, with {factor} = {level}: the server keeps its model "
    "(what it holds: {held_bytes:mib}) until {until} (keep_alive, anew from each request on). No leak until then.",
    "finding.release_keep_alive_for_ever": "Retained and bounded, with {factor} = {level}: the server was told to keep "
    "its model (what it holds: {held_bytes:mib}) until it is asked to give it up (keep_alive below 0).",
    "finding.release_retained_bounded": "Retained and bounded, with {factor} = {level}: over {conversations} "
    "conversations memory moved by {grown_bytes:signed_mib}; after the engine's own release {kept_bytes:mib} of "
    "{added_bytes:mib} stay: {kept_by}. This alone is not a leak.",
    "finding.release_growing": "Growing, with {factor} = {level}: {grown_bytes:mib} more over {conversations} "
    "conversations ({step_bytes:mib} from one to the next), with no limit that explains it.",
    "finding.release_growing_per_token": "Growing, with {factor} = {level}: {grown_bytes:mib} more over "
    "{conversations} conversations ({step_bytes:mib} from one to the next), with no limit that explains it. That is "
    "{per_token_bytes:bytes} a token against {per_token_predicted_bytes:bytes} of cache: something else than copies of "
    "prompts.",
    "finding.release_growing_no_limit": "Growing, with {factor} = {level}: copies of earlier prompts, "
    "{step_bytes:mib} more with each conversation. They hold {held_bytes:mib}, and the engine was told no limit "
    "(cache_ram_mib = -1).",
    "finding.release_growing_over_limit": "Growing, with {factor} = {level}: copies of earlier prompts hold "
    "{held_bytes:mib}, more than the {limit_bytes:bytes} that they may take: the limit is not kept. Memory follows the "
    "longest conversation.",
    "finding.release_growing_copies": "Growing, with {factor} = {level}: {per_token_bytes:bytes} a token against "
    "{per_token_predicted_bytes:bytes} of cache: copies of prompts, and no limit for them is known "
    "({step_bytes:mib} from one conversation to the next).",
    "finding.release_growing_texts": "Growing, with {factor} = {level}: {step_bytes:mib} from one conversation to the "
    "next with different texts, and nothing with the same text again: copies of prompts, up to a limit not known here "
    "(llama.cpp's is 8,192 MiB unless cache_ram_mib is set). With --model they can be told by their size.",
    "finding.release_cannot_tell": "Memory after the answers, with {factor} = {level}: cannot tell: {reason}",
    "size.bytes_per_token": "95 % interval {low:count} to {high:count} bytes, {num} trials.",
    "size.per_thousand": "Over this range {low:s} to {high:s} more for each 1,000 tokens (95 %), by the line through "
    "all {num} trials at once.",
    "size.per_token": "95 % interval {low:s} to {high:s} for each token, by the line through all {num} trials at once.",
    "size.per_conversation": "From one conversation to the next: {low:signed_mib} to {high:signed_mib} (95 %), {num} "
    "readings.",
    "size.none": "No interval can be given.",
    "note.nothing_measured": "Nothing was measured.",
    "note.one_repeat": "One repeat only, so no interval can be given.",
    "note.one_document": "Questions on a single document say nothing of other documents: no interval can be given.",
    "note.few_documents": "Fewer than three documents, or one that lost nothing: no interval can be given.",
    "note.is_reference": "The others are held against this one.",
    "note.any_ratio": "Too few and too different values: the ratio could be anything.",
    "note.not_above_zero": "Not all values are above zero, so no ratio can be given.",
    "note.few_repeats": "Only {count} repeats: the interval itself is uncertain.",
    "note.one_level": "One level only, so there is no slope.",
    "note.one_conversation": "One conversation only, so there is no slope.",
    "note.release_requests_active": "requests were running or waiting ({count}), so that memory was not at rest. "
    "Measure when nobody else uses the engine.",
    "note.release_no_probe": "memory of the engine could not be read. kvscope doctor says why; a local server can be "
    "named with --pid.",
    "note.release_no_request": "no request was answered, so there is nothing to judge.",
    "note.release_too_few": "{conversations} conversations are too few to tell growth from a bound; it takes {fewest}, "
    "better 6.",
    "note.release_one_conversation": "one conversation cannot tell growth from a bound; it takes {fewest}, better 6.",
    "note.release_noise": "over {conversations} conversations memory moved, and not steadily in one direction. Measure "
    "more of them (--requests {more}).",
    "note.release_no_baseline": "memory was not read before the model was loaded, so that what came back at the "
    "release cannot be known.",
    "note.release_left_after_exit": "{left_bytes:mib} were still held when the engine's process had ended.",
    "note.release_not_read": "memory stood still over {conversations} conversations, and was not read after a release: "
    "the engine runs on with its model.",
    "note.not_on_a_line": "These times are not seen to lie on a line, so there is no one price of a token.",
    "note.two_levels": "Two levels only, so a bend cannot be seen.",
    "note.too_few_points": "Only {count} points, so no interval can be given.",
    "also.other_engine_build": "Could also be: an engine build with other rules than the prediction knows.",
    "also.other_settings": "Could also be: a setting that the engine changed by itself.",
    "also.other_buffers_follow_context": "Could also be: another buffer that grows with the context.",
    "also.swapped_out": "Could also be: part of it was swapped out.",
    "also.engine_fills_lazily": "Could also be: an engine build that does not write its cache at load.",
    "also.large_malloc_blocks": "Likely: single blocks of the engine's allocator that are too large for its heap, "
    "such as vocabulary tables; they get mappings of their own.",
    "also.counters_read_apart": "Likely: the totals and the list of mappings are read a moment apart.",
    "also.server_cut_prompt": "Could also be: the server cut or changed the prompt.",
    "also.busy_machine": "Could also be: other programs on this machine; see the checks.",
    "also.allocator_keeps": "Could also be: an allocator that keeps freed memory for reuse.",
    "check_by.compare_log": "To check: compare with the engine's own lines of one trial at the end of this page.",
    "check_by.more_context_levels": "To check: kvscope measure context_limit with more --levels.",
    "check_by.look_at_smaps": "To check: the mappings are in the record, table maps.",
    "check_by.vary_context_not_input": "To check: hold the input and vary the context limit (kvscope measure "
    "context_limit).",
    "check_by.more_repeats": "To check: the same design with more --repeats.",
    "check_by.more_conversations": "To check: kvscope measure release --requests 12.",
    "finding.step_agrees": "From {from_tokens:count} to {to_tokens:count} tokens of context, one more token costs "
    "{predicted_bytes:count} bytes by prediction and {measured_bytes:count} by measurement ({share:percent2} apart).",
    "finding.step_differs": "From {from_tokens:count} to {to_tokens:count} tokens of context, one more token should "
    "cost {predicted_bytes:count} bytes and costs {measured_bytes:count}: {share:percent2} apart, and the interval "
    "excludes the prediction.",
    "finding.step_measured": "From {from_tokens:count} to {to_tokens:count} tokens of context, one more token costs "
    "{measured_bytes:count} bytes by measurement; nothing was predicted.",
    "finding.slope_unclear": "One token of context should cost {predicted_bytes:count} bytes and costs "
    "{measured_bytes:count} ({share:percent2} apart); these repeats cannot tell the difference from noise.",
    "finding.step_unclear": "From {from_tokens:count} to {to_tokens:count} tokens of context, one more token should "
    "cost {predicted_bytes:count} bytes and costs {measured_bytes:count} ({share:percent2} apart); these repeats "
    "cannot tell the difference from noise.",
    "also.reused_heap": "Could also be: a small buffer placed in memory that the engine had used and freed before, "
    "so that it added nothing.",
    "finding.tpot_flat": "Every later token takes {from_s:s}, whether after {from_tokens:count} prompt tokens or "
    "after {to_tokens:count}: it does not change over this range.",
}

_TEXT: dict[str, str] = {
    "text.no_doubts": "= All checks passed.",
    "text.failed": "× {failed} of {total} trials failed ({causes}); kept in the record, left out of the averages.",
    "text.first_microbatch": "Longer prompts then added no KV cache: of {added_bytes:mib} at {tokens:count} tokens, "
    "up to {working_bytes:mib} is the compute buffer, touched for the first time",
    "text.first_microbatch_once": "A prompt then added no KV cache: of {added_bytes:mib} at {tokens:count} tokens, "
    "up to {working_bytes:mib} is the compute buffer, touched for the first time",
    "loading.context": "Loading ({context_tokens:count} tokens of context) added",
    "loading.model": "Loading the model added",
    "loading.whole": "Loaded, the process holds",
    "loading.after_request": "Row {row:count} grew until after its requests by",
    "loading.peak": "Row {row:count} grew to its peak by",
    "of_what.grew": "that grew",
    "of_what.whole": "that the process holds",
    "of_what.after_request": "by which row {row:count} grew until after its requests",
    "of_what.peak": "by which row {row:count} grew to its peak",
    "at_context": ", at a context limit of {context_tokens:count} tokens",
    "text.unexplained_no_rules": "{loading} {growth_bytes:mib}: "
    "{named}; without a name {unexplained_anon_bytes:signed_mib} of its own and {unexplained_file_bytes:signed_mib} "
    "file-backed ({share:percent}): no rules of this engine are known",
    "text.checkpoints": "Context checkpoints, copies of what the windows held: {checkpoint_bytes:mib} at "
    "{tokens:count} tokens",
    "text.unexplained_small": "{loading} {growth_bytes:mib}: "
    "{named}; unexplained {unexplained_anon_bytes:signed_mib} of its own and "
    "{unexplained_file_bytes:signed_mib} file-backed ({share:percent})",
    "text.unexplained_large": "{loading} {growth_bytes:mib}: "
    "{named}; unexplained {unexplained_anon_bytes:signed_mib} of its own and "
    "{unexplained_file_bytes:signed_mib} file-backed ({share:percent}, too much)",
    "text.release_retained_bounded": "Memory after the answers, {factor} = {level}: "
    "retained and bounded. {grown_bytes:signed_mib} over "
    "{conversations} conversations; of {added_bytes:mib} added, {kept_bytes:mib} stay after the engine's release: "
    "{kept_by}",
    "text.doubts": "! Doubts: {names}. Reasons are on the page.",
    "text.more": "… more on the page.",
    "text.slope_agrees": "Bytes per token of context: {predicted_bytes:count} predicted, {measured_bytes:count} "
    "measured",
    "text.slope_differs": "Bytes per token of context: {predicted_bytes:count} predicted, {measured_bytes:count} "
    "measured",
    "text.slope_measured": "Bytes per token of context: {measured_bytes:count} measured, none predicted",
    "text.reported_agrees": "The engine's log: {agreeing} of {total} buffers equal the prediction to the last digit",
    "text.ttft_grows": "First token: {from_s:s} after {from_tokens:count} prompt tokens, {to_s:s} after "
    "{to_tokens:count}; 1,000 more cost {first_step_s:s} at first and {last_step_s:s} at the end",
    "text.ttft_grows_once": "First token: {from_s:s} after {from_tokens:count} prompt tokens, {to_s:s} after "
    "{to_tokens:count}; {first_step_s:s} for each 1,000 between",
    "text.ttft_flat": "First token: {from_s:s}, the same after {from_tokens:count} prompt tokens and after "
    "{to_tokens:count}",
    "text.ttft_falls": "First token: {from_s:s} after {from_tokens:count} prompt tokens, only {to_s:s} after "
    "{to_tokens:count}",
    "text.tpot_falls": "Each later token: {from_s:s} after {from_tokens:count} prompt tokens, only {to_s:s} after "
    "{to_tokens:count}",
    "text.output_time_unclear": "Whole answer: {from_s:s} for {from_tokens:count} output tokens, {to_s:s} for "
    "{to_tokens:count}; may be noise",
    "text.ttft_unclear": "First token: {from_s:s} after {from_tokens:count} prompt tokens, {to_s:s} after "
    "{to_tokens:count}; may be noise",
    "text.tpot_grows": "Each later token: {from_s:s} after {from_tokens:count} prompt tokens, {to_s:s} after "
    "{to_tokens:count}",
    "text.tpot_unclear": "Each later token: {from_s:s} after {from_tokens:count} prompt tokens, {to_s:s} after "
    "{to_tokens:count}; may be noise",
    "text.output_time": "Whole answer: {from_s:s} for {from_tokens:count} output tokens, {to_s:s} for "
    "{to_tokens:count}",
    "text.release_host_cache": "Memory after the answers, {factor} = {level}: "
    "retained and bounded. Each conversation leaves {step_bytes:mib}: "
    "the host prompt cache's copies, {held_bytes:mib} of at most {limit_bytes:bytes}",
    "text.release_released": "Memory after the answers, {factor} = {level}: "
    "released. Of {added_bytes:mib} added, {kept_bytes:mib} stay after "
    "the engine's release",
    "text.release_growing": "Memory after the answers, {factor} = {level}: "
    "growing. {grown_bytes:mib} more over {conversations} "
    "conversations, and no limit explains it",
    "text.release_released_at_exit": "Memory after the answers, {factor} = {level}: "
    "released at exit. Of {added_bytes:mib} added, "
    "{exited_bytes:mib} were left when the process had ended",
    "text.release_cannot_tell": "Memory after the answers, {factor} = {level}: cannot tell: {reason}",
    "text.step_agrees": "Bytes per token of context, {from_tokens:count} to {to_tokens:count}: "
    "{predicted_bytes:count} predicted, {measured_bytes:count} measured",
    "text.step_differs": "Bytes per token of context, {from_tokens:count} to {to_tokens:count}: "
    "{predicted_bytes:count} predicted, {measured_bytes:count} measured",
    "text.interval_bytes": " (95 %: {low:count} to {high:count})",
    "text.slope_unclear": "Bytes per token of context: {predicted_bytes:count} predicted, {measured_bytes:count} "
    "measured, may be noise",
    "text.step_unclear": "Bytes per token of context, {from_tokens:count} to {to_tokens:count}: "
    "{predicted_bytes:count} predicted, {measured_bytes:count} measured, may be noise",
    "text.step_measured": "Bytes per token of context, {from_tokens:count} to {to_tokens:count}: "
    "{measured_bytes:count} measured, none predicted",
    "text.tpot_flat": "Each later token: {from_s:s}, the same after {from_tokens:count} prompt tokens and after "
    "{to_tokens:count}",
}

FINDINGS: Mapping[str, str] = {**_FINDINGS, **_TEXT, **DESIGN_FINDINGS, **FINDING_REMARKS}
