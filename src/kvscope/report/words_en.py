"""The report's sentences in English, grouped by where they are used; findings are in ``findings_en``,
titles and names in ``names_en``.
``report.words`` fills the placeholders."""

from collections.abc import Mapping

from kvscope.report.advice_en import ADVICE
from kvscope.report.answers_en import ANSWERED
from kvscope.report.charts_en import CHARTS
from kvscope.report.check_steps_en import CHECK_STEPS
from kvscope.report.definitions_en import DEFINED
from kvscope.report.effects_en import EFFECTS
from kvscope.report.findings_en import FINDINGS
from kvscope.report.identity_en import IDENTITY
from kvscope.report.layer_kinds_en import LAYER_KINDS
from kvscope.report.names_en import NAMES
from kvscope.report.page_en import PAGE
from kvscope.report.quality_findings_en import QUALITY_WORDS
from kvscope.report.record_words_en import RECORD
from kvscope.report.retrieval_findings_en import RETRIEVAL_PAGE
from kvscope.report.terminal_en import TERMINAL

_GENERAL: dict[str, str] = {
    "unknown": "unknown",
    "none": "–",
    "value.True": "on",
    "value.False": "off",
    "value.None": "not set",
    "clipped": "{text} … [{left:count} more characters in the record]",
    "estimate.interval": "{value}\n({low} to {high})",
    "estimate.maybe_zero": "{text}\nmay be noise",
    "evidence.more": "The first {shown} of {total} rows are named.",
    "page.title": "kvscope: {model} on {engine}",
    "page.title_empty": "kvscope: an empty record",
    "page.empty": "This record holds no trials yet. To measure: kvscope lab, or kvscope measure DESIGN.",
    "page.several": "This record holds {count} studies that cannot be compared: {what:list} differs. Each is shown "
    "alone.",
    "page.evidence": "Rows:",
    "page.contradiction": "Prediction and measurement disagree",
    "page.next": "Next:",
    "page.made": "Made by kvscope {version} from the record alone. This page needs no network and no scripts.",
    "differs.machine": "machine",
    "differs.model": "model",
    "differs.engine": "engine or its build",
}

_ANSWER: dict[str, str] = {
    "strip.machine": "{cpus} CPUs, {cpu}",
    "strip.memory": "{size:bytes} memory",
    "strip.date": "measured {date}",
    "headline.both": "Each 1,000 tokens of context adds {size_bytes:mib}, and each 1,000 tokens of prompt delays the "
    "first token by {time_s:s}.",
    "headline.memory": "Each 1,000 tokens of context adds {size_bytes:mib}.",
    "headline.time": "Each 1,000 tokens of prompt delays the first token by {time_s:s}.",
    "headline.predicted_time": "Each 1,000 tokens of context should add {price} (predicted), and each 1,000 "
    "tokens of prompt delays the first token by {time_s:s} (measured).",
    "headline.ends": "The first token came after {first_s:s} with a prompt of {first:count} tokens, and after "
    "{last_s:s} with {last:count}.",
    "headline.predicted_context": "Each 1,000 tokens of context should add {price} (predicted).",
    "headline.predicted": "Each 1,000 tokens of context should add {price}. Predicted: nothing has been measured yet.",
    "headline.measured_other": "Each 1,000 tokens of context should add {price}. Predicted: the trials of this record "
    "do not tell.",
    "price.one": "{size_bytes:mib}",
    "price.beyond": "{size_bytes:mib}, and {beyond_bytes:mib} beyond the first {tokens:count}",
    "cell.at_most": "≤ {size}",
    "headline.failed": "Nothing could be measured: {failed} of {total} trials failed ({cause}).",
    "headline.failed_late": "No trial came to its end: {failed} of {total} failed ({cause}). What was read of the "
    "engine until then is shown.",
    "headline.measured_time": "The first token came after {time_s:s}, with a prompt of {tokens:count} tokens. Nothing "
    "was predicted, and the trials of this record do not tell what a token of context costs.",
    "headline.measured_alone": "{count:count} trials were measured. Nothing was predicted, and they do not tell what a "
    "token of context costs.",
    "headline.nothing": "Nothing has been predicted or measured yet.",
    "interval.line": "95 % confidence: {parts}",
    "interval.memory": "{low} to {high} MiB",
    "interval.time": "{low_s:s} to {high_s:s}",
    "interval.end": "at {tokens:count} tokens {low_s:s} to {high_s:s}",
    "interval.ends_alone": "one trial at each end, so no interval of these times",
    "interval.end_alone": "at {tokens:count} tokens one trial, so no interval",
    "interval.no_line": "not seen to lie on a line, so no price of a token",
    "interval.repeats": "{fewest} or more repeats",
    "interval.contexts": "{count} context limits",
    "interval.inputs": "{count} input lengths",
    "interval.none": "No interval can be given: it takes several levels and repeats.",
    "interval.predicted": "Predictions only: nothing has been measured yet.",
    "badge.explained": "{share:percent} of what grew has a name",
    "badge.failed": "{failed} of {total} trials failed: why",
    "badge.no_failures": "none of {total} trials failed",
    "caption.answer": "After loading, context limit {context_tokens:count} tokens, in MiB. Predicted and stated is "
    "what is reserved, measured what is in memory: a buffer counts there once it is touched. No prediction has the "
    "libraries, the stacks and what the allocator keeps (≥), and the engine states none of its run time.",
    "remark.at_load": "{engine} takes that memory when it loads the model, for the whole context limit, used or not. "
    "Longer prompts then add no KV cache.",
    "remark.limit_trained": "Fits here: {tokens:count} tokens for one conversation. What binds is the length the "
    "model was trained for; memory would hold more. Predicted, not run.",
    "remark.limit_trained_only": "The model was trained for {tokens:count} tokens. Whether memory holds one "
    "conversation of them is not known here.",
    "remark.limit_memory": "Fits here: about {tokens:count} tokens for one conversation. What binds is memory "
    "({available_bytes:mib} were free): the KV cache for those tokens, and everything else as large as it was here. "
    "Predicted, not run.",
    "remark.quality": "That it fits does not mean that it answers well: quality was not measured.",
    "headline.both_beyond": "Beyond {tokens:count} tokens each further 1,000 tokens of context adds "
    "{size_bytes:mib}, and each 1,000 tokens of prompt delays the first token by {time_s:s}.",
    "headline.turns": "Turn {turn} of a conversation waited {time_s:s} for its first token: {computed:count} of its "
    "{tokens:count} prompt tokens were computed. Turn 1 waited {first_s:s}.",
    "turns.title": "Turn by turn",
    "turns.with_reuse": "earlier turns reused",
    "turns.without_reuse": "without reuse",
    "turns.medians": "medians of the conversations in which it was answered",
    "turns.failed": "failed",
    "turns.turn": "turn",
    "turns.prompt": "prompt tokens",
    "turns.reused": "reused",
    "turns.computed": "computed",
    "turns.ttft": "first token, s",
    "turns.conversations": "conversations",
    "headline.memory_beyond": "Beyond {tokens:count} tokens each further 1,000 tokens of context adds "
    "{size_bytes:mib}.",
}

_MEMORY: dict[str, str] = {
    "memory.total": "With a context limit of {context_tokens:count} tokens, loading the model added "
    "{growth_bytes:mib}: {anon_bytes:mib} of the process's own memory and {file_bytes:mib} backed by files.",
    "memory.total_whole": "With a context limit of {context_tokens:count} tokens, the engine held {growth_bytes:mib} "
    "after loading: {anon_bytes:mib} of its own and {file_bytes:mib} backed by files. Its memory before the load "
    "could not be read.",
    "memory.parts": "Of it: {named}; {unexplained_bytes:signed_mib} stay unexplained.",
    "memory.parts_not_read": "Of what it is made could not be seen: the system's list of memory mappings was not "
    "read. By what is known without it: {named}; {unexplained_bytes:signed_mib} have no name.",
    "memory.not_read": "The engine's memory after loading was not read.",
    "memory.not_measured": "Nothing was measured. What follows is predicted from the model's own file.",
    "memory.until_failure": "This is what was read of the engine until the trial failed ({cause}).",
    "memory.no_prediction": "Nothing was predicted either.",
    "memory.no_occupants": "Other programs' memory was not recorded.",
    "caption.components": "The same component four ways, in MiB, at a context limit of {context_tokens:count} "
    "tokens. Needed and allocated are predicted; the engine's log says what it reserved; resident is what the system "
    "saw.",
    "caption.predicted": "Predicted for a context limit of {context_tokens:count} tokens",
    "caption.occupants": "The largest other programs before the engine was started and after the last request. None "
    "of this is in the engine's figures.",
    "memory.of_the_machine": "this machine",
    "summary.occupants": "What else used memory on this machine",
    "row.unexplained": "unexplained",
    "row.grown": "grew since start",
    "row.predicted_total": "predicted, without the run time",
    "row.runtime": "run time, libraries",
    "agrees.True": "yes, to the last digit",
    "agrees.False": "NO",
    "agrees.None": "–",
    "resident.together": "together {size}",
    "resident.rule": "{size} (rule)",
    "resident.at_most": "≤ {size}",
    "resident.at_most_together": "together ≤ {size}",
    "remark.component": "{component}: {text}",
    "remark.runtime": "Heap, arenas, stacks and libraries are read from the process and predicted by no file: they "
    "hold the vocabulary, the tokenizer, the graph's book-keeping and the HTTP server.",
    "remark.leftovers": "Unexplained, and where to look: new anonymous mappings that hold no known buffer, of "
    "{sizes:list} MiB.",
    "remark.no_start": "The engine could not be read before it loaded the model, so everything it holds counts as "
    "growth here.",
    "note.maps_not_read": "The system's list of memory mappings was not read, so only totals are known.",
    "note.by_rule_not_seen": "not found as a mapping of its own. The engine writes all of it when it loads, so by "
    "that rule all of it is resident.",
    "note.no_own_mapping": "too small for a mapping of its own ({size_bytes:bytes}); what is resident of it is among "
    "the small mappings.",
    "note.seen_together": "shares one mapping with {others:list}; {size_bytes:mib2} of them together are resident, "
    "the part that has been touched.",
    "note.at_most": "shares a mapping that is larger than the buffers known to be in it; at most {size_bytes:mib2} of "
    "it are resident. Part of that may be other memory beside it.",
    "note.at_most_together": "shares with {others:list} a mapping that is larger than the buffers known to be in it; "
    "at most {size_bytes:mib2} of them together are resident. Part of that may be other memory beside them.",
    "note.touched_part": "resident is the part that has been touched; the rest is only reserved.",
    "note.weights_file_only": "{size_bytes:mib2} of the mapped file are resident; the copied part was not found.",
    "note.each_not_told": "these repeats do not tell which way is quicker a question.",
    "note.not_looked_for": "not looked for at this moment.",
    "note.partly_found": "{size_bytes:mib2} more of it were not found as mappings of their own; small blocks lie in "
    "the heap.",
    "note.by_rule_in_heap": "{size_bytes:mib2} of it were not found as a mapping of its own. The engine writes all "
    "of it when it loads, so it is resident; a block of that size may lie in the heap or an arena, and is then "
    "counted there.",
}

_GROWTH: dict[str, str] = {
    "growth.why": "All of that growth is the KV cache: {formula}. The weights do not change.",
    "growth.why_predicted": "Predicted: with the context the KV cache grows, by {formula}. The weights do not change.",
    "growth.why_other": "Predicted: the cache grows by {bytes_per_token:count} bytes for each token. The weights do "
    "not change.",
    "growth.formula": "{layers} {kind} layers × ({heads_k} × {dim_k} keys + {heads_v} × {dim_v} values)",
    "growth.no_prediction": "No prediction was recorded, so the growth has no formula.",
    "growth.no_context_design": "The price of context was not measured. To do so: kvscope measure context_limit.",
    "growth.knee": "From {tokens:count} tokens on, some layers need no more: {why}.",
    "growth.unknown": "Not known: {what} – {why}.",
    "caption.layers": "Layers by kind at a context limit of {context_tokens:count} tokens",
    "summary.sources": "Where each of {count} facts about the model was read",
    "growth.product": "{formula} in {dtype} = {bytes_per_token:count} bytes for each token",
    "growth.product_knee": "{product} up to {tokens:count} tokens; beyond, where the windows are full, "
    "{beyond_bytes:count} bytes",
}

_TIME: dict[str, str] = {
    "time.lead": "Two waits, never added up: the first token waits for the whole prompt to be read; every later "
    "token is one step that looks back at all tokens before it.",
    "time.elsewhere": "No design here varies the length of the prompt or of the answer, or the turns. What the changes "
    "that were measured did to the times stands in the next section.",
    "time.not_measured": "Times were not measured.",
    "caption.limits": "The limit set and the tokens produced",
    "summary.limits": "Limit against what was produced",
    "changes.lead": "A baseline, then one changed condition at a time, repeated. Differences are paired by block, "
    "with their 95 % interval.",
    "changes.summarised": "{total} designs are too many to show whole. Each has its table of levels; {shown} of them, "
    "the newest and the last of each name, have every difference and finding too. Of the others what contradicts an "
    "expectation stands here; all findings: kvscope report --records {file} --json.",
    "changes.grid": "Two things vary at once here ({factor}), as was asked for: a difference cannot be laid to either.",
    "changes.baseline": "{level} (baseline)",
    "changes.held": "Kept equal: {held}.",
    "changes.one_repeat": "One repeat only: no interval can be given.",
    "changes.holds": "Held by the design: {text}",
    "changes.confounder": "Could mislead: {text}",
    "changes.changed": "{value}\n{difference}",
    "caption.design": "{question} ({name})",
}

_RELEASE: dict[str, str] = {
    "release.lead": "Memory after each conversation, after each step of the engine's own release, and after its "
    "process had gone.",
    "release.not_measured": "Not measured. To check: kvscope measure release.",
    "release.host_cache": "The growth between conversations is llama.cpp's host prompt cache: it keeps a copy of "
    "each old prompt's KV cache in ordinary memory, up to cache_ram_mib (8,192 MiB unless set). People report it as "
    "a leak. With cache_ram_mib = 0 it keeps none.",
    "release.how": "Released: at most 5 % of what had been added stays (never more than 64 MiB), after the engine's "
    "own release or, where it has none, when its process has ended. Retained and bounded: more stays, and the last "
    "conversations did not add to it, or a known limit ends the growth. Growing: memory rises to the end, and nothing "
    "says where that ends. Memory that is swapped out counts as held. The warm-up and the first conversation do not "
    "count: they touch buffers for the first time.",
    "release.detectable": "Over so few conversations, growth of less than {step_bytes:mib} for each would pass "
    "unseen: a process's heap moves by as much.",
    "release.period": "A rise and fall whose period is longer than the conversations looks like growth, and noise of "
    "some MiB does so once in 20 to 50 checks of four to six conversations. To be sure: --requests 12.",
    "release.ours_only": "kvscope only ever ends processes that it started itself.",
    "verdict.released": "released",
    "verdict.retained_bounded": "retained and bounded",
    "verdict.growing": "growing",
    "verdict.cannot_tell": "cannot tell",
    "release.at_exit": "{verdict} at exit",
    "bound.host_cache": "copies of prompts {held_bytes:mib} of at most {limit_bytes:bytes}",
    "bound.prompt_copies": "copies of prompts {held_bytes:mib} of at most {limit_bytes:bytes}",
    "bound.checkpoints": "context checkpoints {held_bytes:mib} of at most {limit_bytes:bytes}",
    "bound.allocator": "the allocator keeps {held_bytes:mib} for reuse",
    "bound.framework_floor": "libraries keep {held_bytes:mib} of their own",
    "bound.unexplained": "{held_bytes:mib} have no name",
    "bound.keep_alive": "the model {held_bytes:mib}, until keep_alive is over",
    "bound.plateau": "what keeps {held_bytes:mib} of it is not known",
    "bound.nobody": "by whom is not known",
    "place.device": "device memory",
    "caption.verdicts": "Verdicts, in MiB of the process's own memory",
    "caption.steps": "What each step of the release gave back, and what is held by name, in MiB: start and names add "
    "up to what is held. Heaps are a place here, at every step: what is in them is told apart after the load and after "
    "requests alone, where the memory of each trial is named. x of y: the engine states y, and x was found in memory "
    "of its own; the rest lies in the heaps or without a name",
    "cell.of_stated": "{found} of {stated}",
    "moment.conversation": "conversation {number}",
    "moment.again": "same text again {number}",
    "release.slope": "From one conversation to the next {value}; with the same text again {again}",
    "release.per_token": "For each of its {tokens:count} tokens: {growth_bytes:count} bytes (95 %: {low_bytes:count} "
    "to {high_bytes:count}); the cache takes {predicted_bytes:count} by prediction.",
    "release.per_token_alone": "For each of its {tokens:count} tokens: {growth_bytes:count} bytes; the cache takes "
    "{predicted_bytes:count} by prediction.",
    "release.per_token_more": "The other {more_bytes:count} bytes of each token have no name here.",
    "release.copies_carry": "{text} The copies carry context checkpoints too, beside the cache.",
    "release.slope_alone": "{value} MiB",
    "release.slope_interval": "{value} MiB (95 %: {low} to {high})",
    "release.not_asked": "not measured",
}

_TRUST: dict[str, str] = {
    "quality.not_measured": "Quality was not measured in this record. Capacity and quality are separate questions: a "
    "prompt that fits can still be answered wrongly.",
    "failures.none": "Nothing failed: {total} trials ran and each left a measurement, warm-ups included.",
    "failures.lead": "{failed} of {total} trials failed. They are kept here and in every row, and left out of the "
    "averages.",
    "failures.repeated": "Attempts that were cut short or failed and were then repeated: {count}. They are kept in "
    "every row.",
    "caption.failures": "Failures by cause",
    "summary.log": "{cause}: the end of the engine's log",
    "summary.traceback": "{cause}: {error} (all of the traceback)",
    "advice.internal": "This is a fault of kvscope. Please report it with the traceback below.",
    "advice.interrupted": "Run the same command again: finished trials are kept and not repeated.",
    "trust.lead": "{doubts} of {total} checks raise a doubt.",
    "trust.clean": "All {total} checks passed.",
    "trust.not_measured": "What this record cannot tell:",
    "not_measured.quality": "Whether the answers are right.",
    "not_measured.device": "Memory of a GPU or other device: none was read here.",
    "not_measured.concurrency": "Several requests at once: every trial here sent one at a time.",
    "not_measured.others": "Other machines, models and engine builds: nothing here carries over to them by itself.",
    "caption.checks": "Checks, with what they saw and the limit they used",
    "check.passed": "= passed",
    "check.doubt": "! doubt",
    "check.not_looked": "? not checked",
    "check.nothing": "There was nothing to look at.",
    "check_name.failures": "Failed trials",
    "check_name.repeats": "Number of repeats",
    "check_name.unexplained": "Memory without a name",
    "check_name.token_counts": "Length of prompts",
    "check_name.own_counts": "Our count of prompts beside the server's",
    "check_name.cut_prompts": "Prompts cut in silence",
    "check_name.stuck_count": "Prompts cut in silence",
    "check_name.cached_tokens": "Reuse of earlier prompts",
    "check_name.spread": "Spread of the repeats",
    "check_name.drift": "Change of the machine under way",
    "check_name.late_samples": "Late readings of memory",
    "check_name.coalesced": "Tokens that came together",
    "check_name.swap": "Memory swapped out",
    "check_name.others": "Other programs",
    "check_name.unfinished": "Trials that did not end",
    "check_name.grids": "Things varied at once",
    "check_name.warning": "Recorded while measuring",
    "check.failures": "{failed} of {total} trials failed.",
    "check.repeats": "Measured repeats of the least repeated level: {fewest}. Fewer than {limit} make wide "
    "intervals. More: --repeats N.",
    "check.unexplained": "At most {share:percent} of what grew since the start has no name: in row {row}, {moment} "
    "({count} trials, limit {limit_share:percent}).",
    "check.unexplained_by_place": "At most {share:percent} of what grew since the start has no name: in row {row}, "
    "{moment} ({count} trials; limit {limit_share:percent}, as the row is not calibrated).",
    "check_name.unexplained_between": "Memory without a name, between rows",
    "check.unexplained_between": "Between rows {first_row} and {second_row}, what has no name differs at the peak by "
    "{unexplained_bytes:signed_mib2}, {share:percent2} of the smaller growth (limit {limit_share:percent}).",
    "moment.loaded": "after its load",
    "moment.after_request": "after its requests",
    "moment.peak": "at its peak",
    "check.token_counts": "{wrong} of {total} requests were counted differently by the server; {unknown} were not "
    "counted by it.",
    "check.own_counts": "{wrong} of {total} requests, warm-ups included, were counted otherwise by the server than by "
    "us. Server less ours: {fewest} to {most} tokens; {unknown} it did not count. Ours: {by_files} by the model's own "
    "files, the others by asking the engine before sending.",
    "check.cut_prompts": "{cut} of {total} prompts were cut by the server without an error. The least that it read of "
    "one was {server} of {ours} tokens.",
    "check.stuck_count": "{cut} of {total} prompts were cut by the server without an error, each to {server} tokens "
    "however much was sent; the longest had {ours}.",
    "check.cached_tokens": "{reused} of {total} requests reused tokens that were to be computed anew.",
    "check.spread": "The time to the first token varies by {share:percent} (standard deviation) among repeats at "
    "worst, at {factor} = {level} (limit {limit_share:percent}).",
    "check.late_samples": "{late:count} of {total:count} readings that were due came more than {late_s:s} late or, "
    "{missed:count} of them, not at all ({share:percent}); in the trial with the most {worst_share:percent} (limit for "
    "each trial and for all {limit_share:percent}); in {stopped:count} trials reading stopped with an error. Short "
    "peaks may be missed.",
    "check.coalesced": "At most {share:percent} of the tokens of a trial arrived together with the one before (limit "
    "{limit_share:percent}). Beyond it, percentiles of the gaps mean little; averages hold.",
    "check.swap": "At most {most_bytes:mib} of the engine were swapped out.",
    "check.others": "The machine's free memory moved by {moved_bytes:mib} between the starts of trials (limit "
    "{limit_bytes:mib}). The engine's own memory is read apart, but times may suffer.",
    "check.unfinished": "{count} trials have started and not ended: still running, or killed. Run the same command "
    "again to go on.",
    "check.grids": "Two things vary at once in: {factors:list}.",
    "check.warning": "{warning}, {count} trials. {message}",
    "check_name.not_run": "Planned and not run",
    "check.not_run": "{trials} planned trials were not begun, and none at all of {count} levels: the time was up, or "
    "the run was stopped.",
}

WORDS: Mapping[str, str] = {
    **NAMES,
    **LAYER_KINDS,
    **FINDINGS,
    **CHARTS,
    **EFFECTS,
    **CHECK_STEPS,
    **RECORD,
    **RETRIEVAL_PAGE,
    **IDENTITY,
    **QUALITY_WORDS,
    **ANSWERED,
    **ADVICE,
    **TERMINAL,
    **DEFINED,
    **PAGE,
    **_GENERAL,
    **_ANSWER,
    **_MEMORY,
    **_GROWTH,
    **_TIME,
    **_RELEASE,
    **_TRUST,
}
