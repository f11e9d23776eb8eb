"""What a dry run says, and what is said while trials run and when they are over, in English."""

PLAN: dict[str, str] = {
    "plan.held": "Held fixed: {held}.",
    "plan.languages": "Questions by language: {languages}.",
    "plan.longest": "Longest prompt, in tokens: {longest}.",
    "plan.remark": "{slug}: {text}",
    "plan.hours": "{hours} h {minutes} min",
    "plan.minutes": "{minutes} min {seconds} s",
    "plan.seconds": "{seconds} s",
    "plan.col_level": "level",
    "plan.col_memory": "memory predicted",
    "plan.col_fits": "fits",
    "plan.col_takes": "one trial takes",
    "plan.of_level": "{levels}: {text}",
    "plan.on_devices": "{size:bytes} ({elsewhere:bytes} on devices)",
    "plan.fits_yes": "yes",
    "plan.fits_no_run": "no, run anyway",
    "plan.fits_no": "no, not run",
    "plan.takes": "{seconds:s} (mean of {count} in the record)",
    "plan.not_predicted": "nothing is predicted, as {reason}.",
    "plan.room": "{size:bytes} of this machine's memory can be had now.",
    "plan.room_unknown": "How much memory can be had here is not stated.",
    "plan.all_recorded": "All {total} trials are in the record already; nothing is to run.",
    "plan.trials_one": "1 trial",
    "plan.trials": "{total} trials",
    "plan.trials_of": "{left} of {total} trials",
    "plan.refused": "{trials} ({refused} of them only recorded as refused)",
    "plan.run_in": "To run: {trials}, in about {time}, by the trials in the record.",
    "plan.run_in_at_most": "To run: at most {trials}, in about {time}, by the trials in the record.",
    "plan.run_unknown": "To run: {trials}. How long they take is not known: not every level was measured before, by "
    "this design on this machine with this build, in this record.",
    "plan.run_unknown_at_most": "To run: at most {trials}. How long they take is not known: not every level was "
    "measured before, by this design on this machine with this build, in this record.",
    "plan.no_device": "No device is needed.",
    "plan.devices": "Each trial has for itself: {devices}. It waits for another kvscope that measures there.",
    "plan.one_task": "the task {task}",
    "plan.its_task": "its task",
    "plan.tokens": "{tokens:count}",
    "plan.tokens_span": "{least:count} to {most:count}",
    "plan.answers": "Answers: each measured trial then asks about {documents:count} documents of {task} and as many "
    "twins without the facts, of {tokens} tokens. That takes about as long as the first tokens of {prompts:count} more "
    "prompts of that length, and a short answer to each question. Fewer: --quality-documents, --repeats.",
    "plan.answers_all": "Answers: each measured trial then asks about {documents:count} documents of {task} and as "
    "many twins without the facts, of {tokens} tokens. That takes about as long as the first tokens of {prompts:count} "
    "more prompts of that length, and a short answer to each question: {all_prompts:count} prompts in all "
    "{trials:count} trials. Fewer: --quality-documents, --repeats.",
    "plan.answers_repeated": "Answers: each measured trial then asks about {documents:count} documents of {task} and "
    "as many twins without the facts, of {tokens} tokens. That takes about as long as the first tokens of "
    "{prompts:count} more prompts of that length, and a short answer to each question: {all_prompts:count} prompts in "
    "all {trials:count} trials, as each repeat asks the same again. Fewer: --quality-documents, --repeats.",
    "plan.scores": "Scores: {trials:count} of the measured trials (each level's first, and the baseline's second) then "
    "score what the model gives to known texts of {task}, behind {documents:count} documents of {tokens} tokens; "
    "nothing is asked. Such a trial takes longer by about the first tokens of {prompts:count} more prompts of that "
    "length (the baseline's first, of twice as many prompts: it measures the engine's own noise too) and about a "
    "hundred output tokens for each. Fewer: --quality-documents, --input-tokens.",
    "plan.scores_twins": "Scores: {trials:count} of the measured trials (each level's first, and the baseline's "
    "second) then score what the model gives to known texts of {task}, behind {documents:count} documents and "
    "{twins:count} twins without the facts of {tokens} tokens; nothing is asked. Such a trial takes longer by about "
    "the first tokens of {prompts:count} more prompts of that length and about a hundred output tokens for each. "
    "Fewer: --quality-documents, --input-tokens.",
    "plan.larger_context": "The questions make n_ctx {context:count}, where {without:count} would do without them, and "
    "all memory is measured with that. To compare it with trials that ask nothing, give both the same: --set "
    "n_ctx={context}.",
    "plan.trial": "{position}  {role}  {levels}  repeat {repeat}",
    "plan.trial_recorded": "{position}  {role}  {levels}  repeat {repeat}  (recorded)",
    "plan.trial_not_run": "{position}  {role}  {levels}  repeat {repeat}  (not run)",
    "plan.trial_recorded_not_run": "{position}  {role}  {levels}  repeat {repeat}  (recorded, not run)",
    "plan.role.measured": "measured",
    "plan.role.warmup": "warmup",
    "plan.role.baseline": "baseline",
}

PROGRESS: dict[str, str] = {
    "progress.waiting": "Waiting: {what}.",
    "progress.calibrating": "Measuring the engine's own memory on tiny models, once for this build and model.",
    "progress.opening": "{design}: {total} trials to run.",
    "progress.opening_kept": "{design}: {total} trials to run, {kept} already in the record.",
    "progress.running": "[{done}/{total}] {levels}: running",
    "progress.warmup": "warm-up",
    "progress.repeat": "repeat {number}",
    "progress.line": "[{done}/{total}] {levels}, {role}: {result}",
    "progress.line_left": "[{done}/{total}] {levels}, {role}: {result} · about {left} left",
    "progress.line_left_at_most": "[{done}/{total}] {levels}, {role}: {result} · at most {left} left",
    "progress.failed": "{outcome}: {message}",
    "progress.first_token": "first token after {ttft_s:s}",
    "progress.first_token_later": "first token after {ttft_s:s}, of later questions {later_s:s}",
    "progress.per_token": "then {tpot_s:s} a token",
    "progress.memory": "memory {num_bytes:signed_mib}",
    "progress.ended_early": "the answer ended early",
    "progress.no_figures": "no figures",
    "progress.limited": "client_limited: its times may be too long",
    "progress.cut": "{text} ({count} of its prompts cut)",
    "progress.scored": "{task} scored: other levels are held against it",
    "progress.score_unknown": "{task} not known",
    "progress.score_nats": "{task} {score} nats",
    "progress.score_facts": "{task}: log-probability of its facts {score} nats",
    "progress.score_share": "{task} {share} of {items}",
}

MEASURED: dict[str, str] = {
    "measured.measured": "{count} measured",
    "measured.failed": "{count} failed",
    "measured.refused": "{count} refused",
    "measured.warmups_one": "1 warm-up",
    "measured.warmups": "{count} warm-ups",
    "measured.kept": "{count} kept from before",
    "measured.told": "{name}: {counts:list}. Recorded in {records}.",
    "measured.told_left": "{name}: {counts:list}, {count} not run ({why}; run the same command to go on). Recorded in "
    "{records}.",
    "measured.retry": "{count} of those kept had failed; to try them again add --retry-failed.",
    "measured.see": "See it: {command}",
    "measured.interrupted": "What was measured is kept in {records}. To go on: {command}",
    "measured.written_study": "Written: {file}",
    "measured.run_it": "Run it: {command}",
    "measured.long_texts": "Documents of {count:count} characters are counted and searched first; that may take "
    "minutes.",
    "measured.written_documents": "Written: {documents} and {questions}",
    "measured.ask_them": "Ask them: {command}",
}

LAB: dict[str, str] = {
    "lab.report": "The report: {file}",
    "lab.record": "The record: {file}",
    "lab.left": "{count} trials were left when the time was up. Run the same command to go on.",
    "lab.nothing_run": "Every trial was in the record already, so nothing was run. To measure anew: --out "
    "ANOTHER-FOLDER (or remove {folder}).",
}
