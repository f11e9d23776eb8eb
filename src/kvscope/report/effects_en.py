"""What is said of effects, in English: the tables of differences, the charts, what repeating ended with."""

from collections.abc import Mapping

_TTFT = "the baseline's time to the first token"
_HELD = "what the engine holds after the baseline's requests"
_TREND = "{trend_share:signed_percent} (95 % interval {low_share:signed_percent} to {high_share:signed_percent})"
_PAIRED = "Differences are paired by block, so most of that is not in them."

EFFECTS: Mapping[str, str] = {
    "effects.lead": "Each row is a difference from the baseline with its 95 % interval. {method} A difference is "
    "called one (seen) only where it holds for all {levels} changed levels together.",
    "effects.lead_one": "Each row is a difference from the baseline with its 95 % interval. {method} A difference is "
    "called one (seen) where a slightly wider interval leaves out zero.",
    "method.paired_t": "Paired by block, Student's t.",
    "method.welch_t": "Not paired (no blocks in common), Welch's t.",
    "method.none": "Too few repeats for an interval.",
    "effects.caption": "What changed, and by how much ({name}). {lead}",
    "effects.summary": "Each difference with its interval, its share of the baseline (difference ÷ baseline), and "
    "the number of pairs",
    "effects.against": "{factor}: {level} against {base}",
    "effects.counts": "{measured} measured, {pairs} pairs with the baseline",
    "effects.counts_failed": "{measured} measured, {failed} failed (in no difference), {pairs} pairs with the baseline",
    "effects.nothing": "nothing measured, {failed} failed",
    "effects.none_besides": "No level was measured besides the baseline: there is nothing to compare.",
    "effects.none_baseline": "The baseline was not measured: there is nothing to compare the others with.",
    "effects.none_at_all": "Nothing was measured.",
    "effects.none_paired": "No block holds both the baseline and another level: there is nothing to pair.",
    "effects.ruled_out": "no; more than {size} would be",
    "effects.more": "yes, more",
    "effects.less": "yes, less",
    "effects.unknown": "unknown: one pair",
    "effects.no_interval": "no interval",
    "effects.share": "{value} %",
    "effects.width": "{low} to {high}",
    "effects.seen": "seen?",
    "effects.yes": "yes",
    "effects.no": "no",
    "effects.one_pair": "n = 1",
    "effects.limited": "* {count} of the {total} trials behind it are client_limited: times may be too long.",
    "effects.limited_all": "* {count} of the {total} trials of this design are client_limited: times marked so may be "
    "too long.",
    "doubts.lead": "Doubts about these trials (the first of each kind; kvscope report has all):",
    "doubts.one": "{slug}, {count} of {total}: {message} {hint}",
    "effects.more_levels": "({count} more levels: see the report.)",
    "col.level_changed": "changed to",
    "col.what": "what",
    "col.at_baseline": "baseline",
    "col.difference": "difference",
    "col.interval": "95 % interval",
    "col.share": "share",
    "col.pairs": "pairs",
    "col.seen_difference": "difference seen?",
    "effect_unit.s": "{name} (ms)",
    "effect_unit.whole_s": "{name} (s)",
    "effect_unit.gib": "{name} (GiB)",
    "effect_unit.bytes": "{name} (MiB)",
    "effect_unit.per_s": "{name} (tokens/s)",
    "effect_unit.other": "{name}",
    "effect_name.ttft_s": "first token",
    "effect_name.tpot_s": "each later token",
    "effect_name.completion_s": "whole answer",
    "effect_name.ttft_max_s": "longest first token",
    "effect_name.queue_wait_s": "wait for its turn",
    "effect_name.load_wall_s": "all requests",
    "effect_name.output_tokens_per_s_all": "output of all",
    "effect_name.memory_loaded_bytes": "memory, loaded",
    "effect_name.memory_peak_bytes": "memory, peak",
    "effect_name.memory_after_bytes": "memory, after",
    "effect_name.memory_loaded_bytes_device": "device, loaded",
    "effect_name.memory_peak_bytes_device": "device, peak",
    "effects.chart_description": "A row for each changed level and quantity. A mark is the change as a share of the "
    "baseline, the line through it is the 95 % interval, and the upright dashed line is no change. A dot is a "
    "difference that is called one; a square may be noise.",
    "effects.axis_share": "change against the baseline (%)",
    "series.seen": "difference seen",
    "series.not_seen": "may be noise",
    "until.reached": "Narrow enough after {blocks} of at most {most} repeats: the widest interval of {metric} reaches "
    "{share:percent} of the baseline to either side ({asked_share:percent} was asked).",
    "until.not_reached": "Not narrow enough after {blocks} of at most {most} repeats: the widest interval of {metric} "
    "reaches {share:percent} of the baseline to either side ({asked_share:percent} was asked). At this noise about "
    "{needed} repeats would do.",
    "until.not_sure": "Narrow, but not often enough in a row: after {blocks} of at most {most} repeats the widest "
    "interval of {metric} reaches {share:percent} of the baseline to either side ({asked_share:percent} was asked). It "
    "has to be that narrow at {looks} looks, {between} repeats apart, as at one look the noise may just happen to be "
    "small. Allow more repeats (--most-repeats).",
    "until.unknown": "After {blocks} of at most {most} repeats no interval of {metric} can be given yet "
    "({asked_share:percent} was asked).",
    "drift.doubt": f"The machine changed under way: along the line through its {{count}} times {_TTFT} changed by "
    f"{_TREND}. {_PAIRED}",
    "drift.unclear": f"From first to last {_TTFT} changed by {{share:signed_percent}}. Whether the machine changed "
    f"under way or this is noise, its {{count}} times cannot tell: along the line through them {_TREND}. {_PAIRED}",
    "drift.unclear_few": f"From first to last {_TTFT} changed by {{share:signed_percent}}. Whether the machine changed "
    f"under way or this is noise, {{count}} times cannot tell. {_PAIRED}",
    "memory_drift.doubt": f"Memory changed under way: along the line through {{count}} trials {_HELD} changed by "
    f"{_TREND}. {_PAIRED}",
    "memory_drift.unclear": f"From first to last {_HELD} changed by {{share:signed_percent}}. Whether that goes on or "
    f"is noise, {{count}} trials cannot tell: along the line through them {_TREND}. {_PAIRED}",
    "memory_drift.unclear_few": f"From first to last {_HELD} changed by {{share:signed_percent}}. Whether that goes on "
    f"or is noise, {{count}} trials cannot tell. {_PAIRED}",
    "check_name.precision": "Precision that was asked for",
    "check_short.precision": "wide intervals",
    "check.precision": "The widest interval in {design} reaches {share:percent} of the baseline to either side, after "
    "{blocks} of at most {most} repeats ({asked_share:percent} was asked, at three looks in a row). At this noise "
    "about {needed} repeats would do.",
    "check_name.drift_unclear": "Change of the machine under way",
    "check_short.drift_unclear": "drift or noise",
    "check_name.memory_drift": "Change of memory under way",
    "check_short.memory_drift": "memory drift",
    "check_name.memory_drift_unclear": "Change of memory under way",
    "check_short.memory_drift_unclear": "memory drift or noise",
    "check.drift": f"The line through {{count}} trials, each against its level: the time to the first token changes by "
    f"{_TREND} (a doubt where noise makes that in one study of a thousand, and beyond {{trend_limit_share:percent}}). "
    f"From the first baseline to the last it changed by {{share:signed_percent}}. {_PAIRED}",
    "check.drift_unclear": "From the first baseline to the last the time to the first token changed by "
    "{share:signed_percent}, more than {limit_share:percent}. Whether the machine changed or this is noise, {count} "
    f"trials cannot tell: along the line through them {_TREND}. {_PAIRED}",
    "check.memory_drift": f"The line through {{count}} trials, each against its level: memory after the requests "
    f"changes by {_TREND} (a doubt where noise makes that in one study of a thousand, and beyond "
    f"{{trend_limit_share:percent}}). From the first baseline to the last it changed by {{share:signed_percent}}. "
    f"{_PAIRED}",
    "check.memory_drift_unclear": "From the first baseline to the last memory after the requests changed by "
    "{share:signed_percent}, more than {limit_share:percent}. Whether that goes on or is noise, {count} trials "
    f"cannot tell: along the line through them {_TREND}. {_PAIRED}",
}
