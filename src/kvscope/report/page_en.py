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
    "badge.warnings": "warnings: {count} ({names:list})",
    "badge.no_warnings": "all {total} checks passed",
    "badge.predicted": "predictions only: nothing was measured",
    "row.total": "total",
    "row.measured": "measured",
    "caption.answer_predicted": "Predicted for a context limit of {context_tokens:count} tokens, in MiB; nothing was "
    "reported or measured",
    "trust.predicted": "Nothing was measured, so nothing could be checked: each prediction is as good as the rule it "
    "follows.",
    "interval.failed": "No trial left a measurement. All sizes below are predicted.",
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
    "predicted parts, the dashed line their sum; the distance to the dots is the engine's run time, which no model "
    "file tells, and what is unexplained.",
    "chart.answer.failed": "A × is a context limit at which trials failed; its height means nothing.",
    "chart.answer.caption": "Memory after the load, in MiB",
    "series.predicted": "predicted sum",
    "series.measured_mean": "measured, 95 % interval",
}
