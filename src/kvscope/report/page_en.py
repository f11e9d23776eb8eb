"""Words of the page itself: its frame, its first screen, its lists of rows and sources, in English."""

from collections.abc import Mapping

PAGE: Mapping[str, str] = {
    "title.answer": "The answer",
    "nav.advice": "what to change first",
    "title.skip": "Skip to the answer",
    "page.sort": "Sort by this column",
    "page.rows_behind": "Rows:",
    "page.top_advice": "What to change first:",
    "page.why_failed": "× marks failed trials: why they failed",
    "page.more_measured": "Sections 4 to 8 and 10 appear once something has been measured: kvscope lab, or kvscope "
    "measure DESIGN.",
    "page.interval": "In brackets: 95 % confidence interval.",
    "badge.explained_rows": "at least {share:percent} of what grew has a name, in each of {rows:count} rows",
    "badge.warnings": "doubts: {count} ({names:list})",
    "badge.no_warnings": "all {total} checks passed",
    "badge.predicted": "predictions only: nothing was measured",
    "row.total": "total",
    "row.measured": "measured",
    "caption.answer_predicted": "Predicted for a context limit of {context_tokens:count} tokens, in MiB; nothing was "
    "reported or measured",
    "trust.predicted": "Nothing was measured, so nothing could be checked: each prediction is as good as the rule it "
    "follows.",
    "interval.failed": "No trial left a measurement. All sizes below are predicted.",
    "interval.failed_late": "No request was measured, so no interval can be given.",
    "remark.failure_alone": "{cause}: {message}",
    "remark.failure": "{cause}: {message} What to do: {hint}",
    "word.peak": "peak",
    "cell.at_least": "≥ {size}",
    "col.measured": "measured",
    "col.in_en": "English",
    "col.in_ko": "Korean",
    "col.how_sure": "how sure",
    "col.by_rule": "by which formula or rule",
    "col.read_from": "read from",
    "sure.exact": "exact",
    "sure.estimated": "estimated",
    "sure.partial": "partial",
    "sure.unknown": "unknown",
    "term.more_rules": "… and {count} more, by layer",
    "caption.terms": "Every term of the prediction, in MiB, by the rules for {engine} {version}, at a context limit of "
    "{context_tokens:count} tokens",
    "caption.model_facts": "Facts about {model}, each with the key of its file, the class default or the rule that it "
    "was read from",
    "caption.definitions": "Words of this page, in both languages",
    "rows.summarised": "This page shows {shown:count} of {total:count} attempts: those that failed and those that the "
    "findings rest on. Of all of them the table below says what they come to. Every row is in the record, {record}: "
    "kvscope export --records {file}",
    "caption.rows_summary": "What the attempts come to, for each condition",
    "summary.rows": "The {count:count} rows",
    "chart.answer.title": "Memory after the load: measured beside predicted",
    "chart.answer.description": "Dots are the mean of what was measured, bars their 95 % interval. Areas are the "
    "predicted parts, the dashed line their sum. The dots lie above it by the engine's run time, which no model file "
    "tells, and by what is unexplained, and lower by what is reserved and not touched yet: with larger buffers dots "
    "and line come closer.",
    "chart.answer.failed": "A × is a context limit at which trials failed; its height means nothing.",
    "chart.answer.caption": "Memory after the load, in MiB",
    "series.predicted": "predicted sum",
    "series.measured_mean": "measured, 95 % interval",
    "rows.lead": "{total:count} trials, numbered in the order of the record and of kvscope export, failures too. "
    "Memory is the process's own, in MiB; times are in seconds.",
    "rows.unfinished": "not ended",
    "rows.warmup": "{outcome}, warm-up",
    "rows.download": "Save these {count} rows as JSON Lines",
    "caption.rows": "Every trial",
    "caption.facts": "What was measured",
    "caption.designs": "The designs, as they can be repeated",
    "summary.designs": "Designs, levels and seeds",
    "caption.machine": "The machine",
    "summary.machine": "Machine",
    "summary.commands": "The commands that made this record",
    "summary.engine_lines": "The engine's own lines",
    "fact.model": "model",
    "fact.model_source": "file",
    "fact.fingerprint": "fingerprint of its header",
    "fact.architecture": "architecture",
    "fact.parameters": "parameters",
    "fact.trained_context": "trained for (tokens)",
    "fact.engine": "engine",
    "fact.engine_version": "engine version",
    "fact.engine_build": "engine build",
    "fact.rules": "rules of the prediction",
    "fact.kvscope_version": "kvscope",
    "fact.machine_id": "machine id",
    "fact.started": "begun (UTC)",
}
